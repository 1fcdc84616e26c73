//! Socket files: creation, ownership and removal.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};

/// Length of the backlog, as in the standard library.
const BACKLOG: i32 = 128;

/// A bound socket that is not served yet.
#[derive(Debug)]
pub struct Listener {
    pub(super) listener: UnixListener,
    pub(super) file: SocketFile,
}

/// Why a path cannot be bound.
#[derive(Debug)]
pub(crate) enum BindError {
    /// Another process listens there.
    InUse,
    /// A file of another kind exists.
    NotASocket,
    /// The kernel's error.
    Failed(io::Error),
}

impl From<BindError> for io::Error {
    fn from(error: BindError) -> Self {
        match error {
            BindError::InUse => io::ErrorKind::AddrInUse.into(),
            BindError::NotASocket => io::ErrorKind::AlreadyExists.into(),
            BindError::Failed(error) => error,
        }
    }
}

/// A socket file. Dropping it removes the file, unless another one has replaced it.
#[derive(Debug)]
pub(super) struct SocketFile {
    pub(super) path: PathBuf,
    device: u64,
    inode: u64,
}

impl Listener {
    /// Binds `path`, accessible only to its owner, in a directory that is created with `directory_mode` if missing. A
    /// socket without a listener is replaced.
    ///
    /// # Errors
    ///
    /// [`BindError`]: the remedy depends on the use of the socket.
    pub(crate) fn bind(path: &Path, directory_mode: u32) -> Result<Self, BindError> {
        let failed = BindError::Failed;
        check_free(path)?;
        if let Some(dir) = path.parent() {
            DirBuilder::new().recursive(true).mode(directory_mode).create(dir).map_err(failed)?;
        }

        // Under a temporary name until it is complete.
        let mut unfinished = path.to_owned().into_os_string();
        unfinished.push(format!(".{}", std::process::id() % 10_000));
        let unfinished = PathBuf::from(unfinished);
        let _ = fs::remove_file(&unfinished);
        let made = reserve(&unfinished).and_then(|socket| finish(&unfinished, path, socket));
        if made.is_err() {
            let _ = fs::remove_file(&unfinished);
        }

        made.map_err(failed)
    }
}

impl SocketFile {
    /// Whether the file exists and was not replaced. If that cannot be determined, it counts as present.
    pub(super) fn exists(&self) -> bool {
        match fs::symlink_metadata(&self.path) {
            Ok(found) => (found.dev(), found.ino()) == (self.device, self.inode),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Moves it to another path.
    pub(super) fn move_to(&mut self, path: PathBuf) -> io::Result<()> {
        if path == self.path {
            return Ok(());
        }
        check_free(&path)?;
        if self.exists() {
            fs::rename(&self.path, &path)?;
        }
        self.path = path;

        Ok(())
    }

    /// Removes the file, unless it was replaced. Repeated calls are harmless.
    pub(super) fn remove(&self) {
        if self.exists() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A socket at `path` with its mode. It does not listen yet, so that clients are refused before the mode is set.
pub(super) fn reserve(path: &Path) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;

    Ok(socket)
}

/// Listens, and renames the file to its final name.
fn finish(unfinished: &Path, path: &Path, socket: Socket) -> io::Result<Listener> {
    socket.set_nonblocking(true)?;
    socket.listen(BACKLOG)?;
    let made = fs::symlink_metadata(unfinished)?;
    fs::rename(unfinished, path)?;
    let file = SocketFile { path: path.to_owned(), device: made.dev(), inode: made.ino() };

    Ok(Listener { listener: OwnedFd::from(socket).into(), file })
}

pub(super) fn check_free(path: &Path) -> Result<(), BindError> {
    let Ok(found) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !found.file_type().is_socket() {
        return Err(BindError::NotASocket);
    }

    let connected = Socket::new(Domain::UNIX, Type::STREAM, None).and_then(|socket| {
        // A busy gateway with a full backlog is a listener too.
        socket.set_nonblocking(true)?;
        socket.connect(&SockAddr::unix(path)?)
    });
    match connected {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(()) | Err(_) => Err(BindError::InUse),
    }
}
