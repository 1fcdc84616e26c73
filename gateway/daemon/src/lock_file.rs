//! The lock file: of several processes with the same one, one runs.
//!
//! The others wait, and one of them goes on when that one has ended. So a second container of a pod is on standby for the
//! first one: it has the network and the files of the pod, and is there before the kubelet has looked. The kernel releases
//! the lock when a process ends, however it ends (flock(2)); the file stays.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use tracing::info;

/// A locked file. The lock lasts until this and all its duplicates are dropped.
#[derive(Debug)]
pub struct LockFile {
    file: File,
    has_waited: bool,
}

impl LockFile {
    /// Creates the file if needed, and waits until no other process has locked it.
    ///
    /// # Errors
    ///
    /// If it cannot be opened, or its file system has no locks.
    pub fn lock(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        match file.try_lock() {
            Ok(()) => return Ok(Self { file, has_waited: false }),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }

        info!(file = %path.display(), "on standby until the process that has locked the file ends");
        while let Err(error) = file.lock() {
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        info!("the other process has ended");

        Ok(Self { file, has_waited: true })
    }

    /// Goes on with the lock of the predecessor of this process, if it is among `inherited`, and leaves the others there.
    /// Otherwise locks the file, but does not wait.
    ///
    /// # Errors
    ///
    /// As for [`Self::lock`], or if another process has locked the file.
    pub fn inherit(path: &Path, inherited: &mut Vec<OwnedFd>) -> io::Result<Self> {
        let file = open(path)?;
        let wanted = file.metadata()?;
        let is_same = |descriptor: &OwnedFd| {
            let found = descriptor.try_clone().and_then(|copy| File::from(copy).metadata());
            found.is_ok_and(|found| (found.dev(), found.ino()) == (wanted.dev(), wanted.ino()))
        };
        let file = match inherited.iter().position(is_same) {
            Some(place) => File::from(inherited.swap_remove(place)),
            None => {
                file.try_lock()?;
                file
            }
        };

        Ok(Self { file, has_waited: false })
    }

    /// Whether another process had the lock, and has just ended: its sockets and its device may last a moment longer.
    #[must_use]
    pub const fn has_waited(&self) -> bool {
        self.has_waited
    }

    /// A duplicate for a successor of this process.
    ///
    /// # Errors
    ///
    /// That of the system call.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.file.try_clone().map(OwnedFd::from)
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Longer than a busy machine delays a thread.
    const WAIT_MAX: Duration = Duration::from_secs(30);

    #[test]
    fn a_second_process_waits_for_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let first = LockFile::lock(&path).unwrap();
        assert!(!first.has_waited());
        let (sender, turn) = channel();
        thread::spawn(move || sender.send(LockFile::lock(&path)));

        turn.recv_timeout(Duration::from_millis(100)).expect_err("the first has the lock");
        // What a successor of the first has goes on to lock.
        let duplicate = first.duplicate().unwrap();
        drop(first);
        turn.recv_timeout(Duration::from_millis(100)).expect_err("its successor has the lock");
        drop(duplicate);

        assert!(turn.recv_timeout(WAIT_MAX).unwrap().unwrap().has_waited());
    }

    #[test]
    fn a_successor_finds_the_lock_it_inherited() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let lock = LockFile::lock(&path).unwrap();
        let other: OwnedFd = File::open("/dev/null").unwrap().into();
        let mut inherited = vec![other, lock.duplicate().unwrap()];

        let held = LockFile::inherit(&path, &mut inherited).unwrap();
        assert_eq!(inherited.len(), 1);
        drop(lock);
        // It is locked, and is not among these.
        let refused = LockFile::inherit(&path, &mut inherited).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        drop(held);
        LockFile::inherit(&path, &mut inherited).unwrap();
    }

    #[test]
    fn a_lock_needs_its_folder() {
        let missing = Path::new("/no/such/folder/lock");

        assert_eq!(LockFile::lock(missing).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
