//! `strait show`: the devices of this host, as in `wg show`, with more details of ours.
//!
//! Uses the sockets of `wg`, so it sees every userspace WireGuard. Answers contain secrets; they are wiped and never
//! shown.

mod json;
mod text;

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};
use strait_host::exit_status::{ExitStatus, UNAVAILABLE};
use strait_host::interface::interface_flag;
use strait_wg::uapi::{ReadError, Report};
use zeroize::Zeroizing;

use super::uapi;

/// Timeout of one request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest answer in bytes: enough for more than 100,000 peers.
const ANSWER_LIMIT_BYTES: usize = 128 << 20;

/// Initial size of the buffer, in bytes.
const FIRST_BYTES: usize = 64 << 10;

/// `strait show`
#[derive(Clone, Debug, clap::Args)]
pub struct ShowArgs {
    /// Name of one device [default: all]
    #[arg(env = "STRAIT_SHOW_INTERFACE", value_name = "NAME", value_parser = interface_flag)]
    pub(crate) interface: Option<String>,
    /// Print JSON
    #[arg(long, env = "STRAIT_JSON")]
    pub(crate) json: bool,
}

/// Why a device cannot be shown.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each variant is")]
pub enum ShowError {
    #[error("no device answers on {}: check the name and run as root; `strait show` lists all devices", path.display())]
    Unreachable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the device on {} is busy and does not answer: try again", path.display())]
    Busy { path: PathBuf },
    #[error("the answer on {} is invalid", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        source: ReadError,
    },
    #[error("the answer on {} is not text", path.display())]
    NoText { path: PathBuf },
    #[error("cannot list {}: run as root", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl ExitStatus for ShowError {
    fn exit_status(&self) -> u8 {
        UNAVAILABLE
    }
}

/// One device.
#[derive(Debug)]
struct ShownDevice {
    interface: String,
    report: Report,
}

/// The output of `strait show`, and the errors of devices that are not in it.
///
/// # Errors
///
/// [`ShowError`] if the device in `args` does not answer correctly, or if devices cannot be listed.
pub fn read(args: &ShowArgs) -> anyhow::Result<(String, Vec<ShowError>)> {
    let directory = Path::new(uapi::DIRECTORY);
    let (devices, errors) = match &args.interface {
        Some(interface) => (vec![ask(directory, interface, ANSWER_TIMEOUT)?], Vec::new()),
        None => all(directory)?,
    };
    let text = if args.json {
        json::of_devices(&devices)?
    } else {
        text::of_devices(&devices, jiff::Timestamp::now())
    };

    Ok((text, errors))
}

/// All devices that answer, ordered by name, and the errors of the others.
fn all(directory: &Path) -> Result<(Vec<ShownDevice>, Vec<ShowError>), ShowError> {
    let failed = |source| ShowError::Directory { path: directory.to_owned(), source };
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Default::default()),
        Err(error) => return Err(failed(error)),
    };
    let mut interfaces = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        if path.extension() == Some(OsStr::new("sock"))
            && let Some(interface) = path.file_stem().and_then(OsStr::to_str)
        {
            interfaces.push(interface.to_owned());
        }
    }
    interfaces.sort_unstable();

    let (mut devices, mut errors) = (Vec::new(), Vec::new());
    for interface in &interfaces {
        match ask(directory, interface, ANSWER_TIMEOUT) {
            Ok(device) => devices.push(device),
            Err(error) if error.is_stale() || has_gone(directory, interface) => {}
            Err(error) => errors.push(error),
        }
    }

    Ok((devices, errors))
}

impl ShowError {
    /// Whether the socket was left by a dead device, or was removed a moment ago.
    fn is_stale(&self) -> bool {
        let Self::Unreachable { source, .. } = self else {
            return false;
        };

        matches!(source.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
    }
}

/// Whether the device has ended since its socket was found. Then an incomplete answer is not its fault.
fn has_gone(directory: &Path, interface: &str) -> bool {
    let found = fs::symlink_metadata(directory.join(uapi::file_name(interface)));

    found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn ask(directory: &Path, interface: &str, limit: Duration) -> Result<ShownDevice, ShowError> {
    let path = directory.join(uapi::file_name(interface));
    let bytes = exchange(&path, limit).map_err(|source| {
        let path = path.clone();
        // All connections of the device, and perhaps its backlog, are in use.
        if matches!(source.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
            ShowError::Busy { path }
        } else {
            ShowError::Unreachable { path, source }
        }
    })?;
    // Not lossily, which would leave a copy of the secrets.
    let Ok(text) = str::from_utf8(&bytes) else {
        return Err(ShowError::NoText { path });
    };
    let report = Report::parse(text).map_err(|source| ShowError::Unreadable { path, source })?;

    Ok(ShownDevice { interface: interface.to_owned(), report })
}

fn exchange(path: &Path, limit: Duration) -> io::Result<Zeroizing<Vec<u8>>> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_read_timeout(Some(limit))?;
    // Also limits the connect.
    socket.set_write_timeout(Some(limit))?;
    socket.connect(&SockAddr::unix(path)?)?;
    let mut stream = UnixStream::from(OwnedFd::from(socket));
    stream.write_all(b"get=1\n\n")?;
    // The device closes after its answer when no more requests can follow.
    stream.shutdown(Shutdown::Write)?;

    read_to_end(&mut stream)
}

/// Like `Read::read_to_end`, but wipes every buffer that held the answer.
fn read_to_end(stream: &mut impl Read) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(vec![0; FIRST_BYTES]);
    let mut len = 0;
    loop {
        if len == bytes.len() {
            if len >= ANSWER_LIMIT_BYTES {
                return Err(io::Error::other("the answer is too long"));
            }
            let mut larger = Zeroizing::new(vec![0; len * 2]);
            larger.get_mut(..len).unwrap_or_default().copy_from_slice(&bytes);
            bytes = larger;
        }
        match stream.read(bytes.get_mut(len..).unwrap_or_default()) {
            Ok(0) => {
                bytes.truncate(len);
                return Ok(bytes);
            }
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    #[test]
    fn an_answer_of_any_length_is_read_whole() {
        for len in [0, 1, FIRST_BYTES - 1, FIRST_BYTES, FIRST_BYTES + 1, 5 * FIRST_BYTES] {
            let bytes: Vec<u8> = (0..=250).cycle().take(len).collect();

            let read = read_to_end(&mut &bytes[..]).unwrap();

            assert_eq!(*read, bytes, "{len}");
        }
    }

    #[test]
    fn a_broken_device_hides_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(uapi::file_name(name));
        drop(UnixListener::bind(path("dead0")).unwrap());
        let devices = [
            ("deaf0", &b""[..]),
            ("good0", b"listen_port=7\nerrno=0\n\n"),
            ("good1", b"errno=0\n\n"),
            ("odd0", b"listen_port=many\n\n"),
            ("odd1", b"\xff\n\n"),
        ];
        let answering = devices.map(|(name, answer)| {
            let listener = UnixListener::bind(path(name)).unwrap();
            thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                io::copy(&mut &stream, &mut io::sink()).unwrap();
                stream.write_all(answer).unwrap();
            })
        });

        let (devices, errors) = all(directory.path()).unwrap();

        for thread in answering {
            thread.join().unwrap();
        }
        let names: Vec<_> = devices.iter().map(|device| &*device.interface).collect();
        assert_eq!(names, ["good0", "good1"]);
        let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(errors.len(), 3, "{errors:?}");
        for (error, name) in errors.iter().zip(["deaf0.sock", "odd0.sock", "odd1.sock"]) {
            assert!(error.contains(name), "{error}");
        }
    }

    /// With and without the beginning of an answer.
    #[test]
    fn a_device_that_ends_is_not_listed() {
        for answer in [&b""[..], b"listen_port=7\n"] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join(uapi::file_name("ends0"));
            let listener = UnixListener::bind(&path).unwrap();
            let ending = thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(answer).unwrap();
                fs::remove_file(path).unwrap();
            });

            let (devices, errors) = all(directory.path()).unwrap();

            ending.join().unwrap();
            assert!(devices.is_empty() && errors.is_empty(), "{devices:?}, {errors:?}");
        }
    }

    /// The accepted clients are not finished, and one or more others wait.
    #[test]
    fn a_full_device_is_busy() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(uapi::file_name("busy0"));
        let listener = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        listener.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        listener.listen(1).unwrap();

        let mut waiting = Vec::new();
        for _ in 0..3 {
            let error = ask(directory.path(), "busy0", Duration::from_millis(50)).unwrap_err();

            assert!(matches!(error, ShowError::Busy { .. }), "{error}: {error:?}");
            assert!(!error.is_stale());
            let more = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
            more.set_nonblocking(true).unwrap();
            let _ = more.connect(&SockAddr::unix(&path).unwrap());
            waiting.push(more);
        }
    }

    #[test]
    fn a_missing_device_error_names_the_socket() {
        let error =
            ask(Path::new(uapi::DIRECTORY), "none0", ANSWER_TIMEOUT).unwrap_err().to_string();

        assert!(error.contains("/var/run/wireguard/none0.sock"), "{error}");
    }
}
