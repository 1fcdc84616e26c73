//! Key files: permissions and content.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use strait_host::exit_status::{ExitStatus, USAGE};
use strait_wg::{KeyError, PresharedKey, PrivateKey};
use zeroize::Zeroizing;

/// Largest key file in bytes: more than any form of a key with white space. The limit also makes it harmless to name
/// a device or a log by mistake.
pub const SIZE_LIMIT: usize = 1024;

/// [`SIZE_LIMIT`] as the limit of a reader.
pub fn read_limit() -> u64 {
    u64::try_from(SIZE_LIMIT).unwrap_or(u64::MAX)
}

/// Permission bits of the group and of others.
const OTHERS: u32 = 0o077;

/// Why a key file is rejected. The message never contains the content of the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name every field")]
pub enum KeyFileError {
    /// The file cannot be opened or read.
    #[error(
        "cannot read key file {}: {cause}; make one with `strait key generate --output FILE`",
        path.display()
    )]
    Unreadable { path: PathBuf, cause: io::Error },
    /// Users besides the owner may read, write or execute it.
    #[error(
        "key file {} has mode {mode:04o}, others than its owner may use it: chmod 600 {}",
        path.display(), path.display()
    )]
    Exposed { path: PathBuf, mode: u32 },
    /// The file is empty.
    #[error(
        "key file {} is empty: make another with `strait key generate --output FILE`",
        path.display()
    )]
    Empty { path: PathBuf },
    /// The content is not a key.
    #[error(
        "key file {} holds {cause}: make another with `strait key generate --output FILE`",
        path.display()
    )]
    Content { path: PathBuf, cause: KeyError },
    /// The value is a key instead of a file name. It is not repeated here.
    #[error(
        "the value is a key, not the name of a file: replace the key, for it may have been seen; \
         write the new one to a file with mode 0600 and name that file"
    )]
    KeyInsteadOfPath,
}

impl ExitStatus for KeyFileError {
    fn exit_status(&self) -> u8 {
        USAGE
    }
}

/// Reads our private key.
///
/// # Errors
///
/// [`KeyFileError`], which names the file and the remedy.
pub fn private_key(path: &Path) -> Result<PrivateKey, KeyFileError> {
    let content = read(path)?;

    PrivateKey::from_file_content(&content)
        .map_err(|cause| KeyFileError::Content { path: path.to_owned(), cause })
}

/// Reads our private key from a mounted Secret, whose mode does not matter: every process in the container may read
/// it.
///
/// # Errors
///
/// [`KeyFileError`], which names the file and the remedy.
pub(crate) fn mounted_private_key(path: &Path) -> Result<PrivateKey, KeyFileError> {
    let content = open(path).and_then(|file| content(path, file))?;

    PrivateKey::from_file_content(&content)
        .map_err(|cause| KeyFileError::Content { path: path.to_owned(), cause })
}

/// Reads a preshared key.
///
/// # Errors
///
/// [`KeyFileError`], which names the file and the remedy.
pub(crate) fn preshared_key(path: &Path) -> Result<PresharedKey, KeyFileError> {
    let content = read(path)?;

    PresharedKey::from_file_content(&content)
        .map_err(|cause| KeyFileError::Content { path: path.to_owned(), cause })
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, KeyFileError> {
    if is_key(path) {
        return Err(KeyFileError::KeyInsteadOfPath);
    }
    let file = open(path)?;
    // Checked on the open file, which cannot be exchanged meanwhile.
    let metadata = file.metadata().map_err(|cause| unreadable(path, cause))?;
    let mode = metadata.mode() & 0o7777;
    if mode & OTHERS != 0 {
        return Err(KeyFileError::Exposed { path: path.to_owned(), mode });
    }

    content(path, file)
}

fn open(path: &Path) -> Result<File, KeyFileError> {
    File::open(path).map_err(|cause| unreadable(path, cause))
}

fn unreadable(path: &Path, cause: io::Error) -> KeyFileError {
    KeyFileError::Unreadable { path: path.to_owned(), cause }
}

fn content(path: &Path, file: File) -> Result<Zeroizing<Vec<u8>>, KeyFileError> {
    // Full capacity from the start: a vector that grows leaves copies behind.
    let mut content = Zeroizing::new(Vec::with_capacity(SIZE_LIMIT + 1));
    let read = file.take(read_limit()).read_to_end(&mut content);
    read.map_err(|cause| unreadable(path, cause))?;
    if content.trim_ascii().is_empty() {
        return Err(KeyFileError::Empty { path: path.to_owned() });
    }

    Ok(content)
}

/// Whether `path` ends in base64 text of 32 bytes: 43 characters and the padding.
fn is_key(path: &Path) -> bool {
    let text = path.as_os_str().as_encoded_bytes();

    text.last_chunk::<44>().is_some_and(|end| PrivateKey::from_file_content(end).is_ok())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn raw_bytes_and_base64_text_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let key = PrivateKey::generate();
        let text = write(&dir, "text", format!(" {}\n", *key.to_base64()).as_bytes(), 0o600);
        let raw = write(&dir, "raw", &[7; 32], 0o400);

        let from_text = private_key(&text).unwrap();
        let from_raw = private_key(&raw).unwrap();

        assert_eq!(from_text.public_key(), key.public_key());
        let expected = PrivateKey::from_file_content(&[7; 32]).unwrap();
        assert_eq!(from_raw.public_key(), expected.public_key());
    }

    #[test]
    fn an_exposed_key_file_is_refused_with_remedy() {
        let dir = tempfile::tempdir().unwrap();
        for mode in [0o640, 0o604, 0o620, 0o644, 0o777] {
            let path = write(&dir, &format!("{mode:o}"), &[7; 32], mode);

            let text = private_key(&path).unwrap_err().to_string();

            assert!(text.contains(&format!("mode {mode:04o}")), "{text}");
            assert!(text.contains(&format!("chmod 600 {}", path.display())), "{text}");
        }
    }

    #[test]
    fn invalid_keys_are_refused_and_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        for (name, content, reason) in [
            ("empty", b"".as_slice(), "is empty"),
            ("blank", b" \n", "is empty"),
            ("short", b"c2VjcmV0", "6 bytes, expected 32"),
            ("text", b"hunter2 hunter2", "neither 32 raw bytes nor base64"),
            ("zero", &[0; 32], "all 32 bytes are zero"),
            ("long", &[7; 4000], "neither 32 raw bytes nor base64"),
        ] {
            let path = write(&dir, name, content, 0o600);

            let text = preshared_key(&path).unwrap_err().to_string();

            assert!(text.contains(&*path.to_string_lossy()), "{text}");
            assert!(text.contains(reason), "{text}");
            assert!(text.contains("strait key generate --output FILE"), "{text}");
            assert!(!text.contains("hunter2") && !text.contains("c2VjcmV0"), "{text}");
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let text = private_key(Path::new("/nonexistent/key")).unwrap_err().to_string();

        assert!(text.contains("/nonexistent/key: No such file"), "{text}");
    }

    #[test]
    fn a_key_as_path_is_not_repeated() {
        let key = PrivateKey::generate().to_base64();

        for path in [key.to_string(), format!("/etc/strait/{}", *key)] {
            let text = private_key(Path::new(&path)).unwrap_err().to_string();

            assert!(!text.contains(&**key), "{text}");
        }
    }

    fn write(dir: &tempfile::TempDir, name: &str, content: &[u8], mode: u32) -> PathBuf {
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();

        path
    }
}
