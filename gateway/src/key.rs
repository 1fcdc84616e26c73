//! `strait key`: makes private keys and derives public ones.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use strait_daemon::config::keyfile;
use strait_host::exit_status::{ExitStatus, RUNTIME, USAGE};
use strait_host::stdout;
use strait_wg::{KeyError, PrivateKey};
use zeroize::Zeroizing;

use super::args::KeyCommand;

/// Why `strait key` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyCommandError {
    /// The file to write exists.
    #[error("{} exists and is never overwritten: choose another --output, or remove it", path.display())]
    Exists {
        /// As typed.
        path: PathBuf,
    },
    /// The file cannot be created or written.
    #[error("cannot write {}", path.display())]
    Write {
        /// As typed.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Standard input cannot be read.
    #[error("cannot read the private key from standard input")]
    Read {
        /// What the system said.
        source: io::Error,
    },
    /// Standard input is not a key.
    #[error(
        "standard input holds {cause}: pipe a private key in, as `strait key generate` prints it"
    )]
    Content {
        /// What it contains instead.
        cause: KeyError,
    },
}

impl ExitStatus for KeyCommandError {
    fn exit_status(&self) -> u8 {
        match self {
            Self::Exists { .. } | Self::Content { .. } => USAGE,
            Self::Write { .. } | Self::Read { .. } => RUNTIME,
        }
    }
}

/// Runs `strait key`.
///
/// # Errors
///
/// [`KeyCommandError`], or [`strait_daemon::config::KeyFileError`] for the file given to `public`.
pub(crate) fn run(command: KeyCommand) -> anyhow::Result<ExitCode> {
    match command {
        KeyCommand::Generate { output: None } => {
            let key = PrivateKey::generate();
            stdout::print(&Zeroizing::new(format!("{}\n", *key.to_base64())))?;
        }
        KeyCommand::Generate { output: Some(path) } => {
            let key = PrivateKey::generate();
            create(&path, &key)?;
            stdout::print(&format!("{}\n", key.public_key()))?;
        }
        KeyCommand::Public { file } => {
            let key = match file {
                Some(path) => keyfile::private_key(&path)?,
                None => from_stdin()?,
            };
            stdout::print(&format!("{}\n", key.public_key()))?;
        }
    }

    Ok(ExitCode::SUCCESS)
}

/// Writes `key` to a new file, or leaves no file behind.
fn create(path: &Path, key: &PrivateKey) -> Result<(), KeyCommandError> {
    let refuse = |source: io::Error| {
        let path = path.to_owned();
        if source.kind() == io::ErrorKind::AlreadyExists {
            KeyCommandError::Exists { path }
        } else {
            KeyCommandError::Write { path, source }
        }
    };
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(refuse)?;

    let written = file
        .write_all(key.to_base64().as_bytes())
        .and_then(|()| file.write_all(b"\n"))
        .and_then(|()| file.sync_all());
    if let Err(source) = written {
        // Best effort: half a key is worse than none, and the error below is reported.
        let _ = fs::remove_file(path);
        return Err(KeyCommandError::Write { path: path.to_owned(), source });
    }

    Ok(())
}

fn from_stdin() -> Result<PrivateKey, KeyCommandError> {
    let mut content = Zeroizing::new(Vec::with_capacity(keyfile::SIZE_LIMIT));
    io::stdin()
        .lock()
        .take(keyfile::read_limit())
        .read_to_end(&mut content)
        .map_err(|source| KeyCommandError::Read { source })?;

    PrivateKey::from_file_content(&content).map_err(|cause| KeyCommandError::Content { cause })
}
