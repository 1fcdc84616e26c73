//! The socket in the file system: whose it is, and when it goes.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};

/// Callers that may wait for their turn, as in the standard library.
const BACKLOG: i32 = 128;

/// A socket that does not answer yet.
#[derive(Debug)]
pub struct Listener {
    pub(super) listener: UnixListener,
    pub(super) file: SocketFile,
}

/// Why a path cannot be a socket of ours.
#[derive(Debug)]
pub(crate) enum BindError {
    /// Somebody answers there.
    InUse,
    /// Something else is there.
    NotASocket,
    /// The kernel refuses.
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

/// The socket in the file system. Dropping it removes it, unless another one is there by then.
#[derive(Debug)]
pub(super) struct SocketFile {
    pub(super) path: PathBuf,
    device: u64,
    inode: u64,
}

impl Listener {
    /// Binds `path`, for its owner alone, in a directory that is made with `directory_mode` if there is
    /// none. A socket that nobody listens on is replaced.
    ///
    /// # Errors
    ///
    /// [`BindError`]: what to do about it depends on what the socket is for.
    pub(crate) fn bind(path: &Path, directory_mode: u32) -> Result<Self, BindError> {
        let failed = BindError::Failed;
        check_free(path)?;
        if let Some(dir) = path.parent() {
            DirBuilder::new().recursive(true).mode(directory_mode).create(dir).map_err(failed)?;
        }

        // Under a name of its own, which nobody looks for, until it is finished.
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
    /// Whether it is there, and not another one in its place. Where nobody can tell, it is.
    pub(super) fn is_there(&self) -> bool {
        match fs::symlink_metadata(&self.path) {
            Ok(found) => (found.dev(), found.ino()) == (self.device, self.inode),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Gives it another path.
    pub(super) fn move_to(&mut self, path: PathBuf) -> io::Result<()> {
        if path == self.path {
            return Ok(());
        }
        check_free(&path)?;
        if self.is_there() {
            fs::rename(&self.path, &path)?;
        }
        self.path = path;

        Ok(())
    }

    /// Removes it, unless another one is there. Calling twice is harmless.
    pub(super) fn remove(&self) {
        if self.is_there() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A socket at `path` with its mode. It does not listen yet, so that whoever comes before the mode is
/// refused.
pub(super) fn reserve(path: &Path) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;

    Ok(socket)
}

/// Listens, and gives the socket its name.
fn finish(unfinished: &Path, path: &Path, socket: Socket) -> io::Result<Listener> {
    socket.set_nonblocking(true)?;
    socket.listen(BACKLOG)?;
    let made = fs::symlink_metadata(unfinished)?;
    fs::rename(unfinished, path)?;
    let file = SocketFile { path: path.to_owned(), device: made.dev(), inode: made.ino() };

    Ok(Listener { listener: OwnedFd::from(socket).into(), file })
}

fn check_free(path: &Path) -> Result<(), BindError> {
    let Ok(found) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !found.file_type().is_socket() {
        return Err(BindError::NotASocket);
    }

    let connected = Socket::new(Domain::UNIX, Type::STREAM, None).and_then(|socket| {
        // A gateway that is too busy to accept is a gateway.
        socket.set_nonblocking(true)?;
        socket.connect(&SockAddr::unix(path)?)
    });
    match connected {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(()) | Err(_) => Err(BindError::InUse),
    }
}
