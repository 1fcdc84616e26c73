//! Watches the mounted private key.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

use strait_wg::PrivateKey;
use tokio::time::Instant;
use tracing::{info, warn};

use super::background_reader::READ_MAX;
use super::config::KeyFileError;
use super::config::keyfile;

/// The key file, which is read periodically. The kubelet replaces it atomically.
#[derive(Debug)]
pub(crate) struct OwnKey {
    file: PathBuf,
    /// Results of the reading thread: the control loop does not wait for the file.
    keys: Receiver<Result<PrivateKey, KeyFileError>>,
    /// The time of the last result.
    read_at: Instant,
    /// Timeout of the next result.
    limit: Duration,
    /// The error that was logged last, if it persists.
    last_error: Option<String>,
}

impl OwnKey {
    /// Watches `file`, from which the key in force was read.
    pub(crate) fn new(file: PathBuf) -> Self {
        Self::within(file, READ_MAX)
    }

    fn within(file: PathBuf, limit: Duration) -> Self {
        // Each result is taken by one poll: the file is read no more often than it is polled.
        let (sender, keys) = sync_channel(0);
        let path = file.clone();
        let read = move || while sender.send(keyfile::mounted_private_key(&path)).is_ok() {};
        if let Err(error) = thread::Builder::new().name("own-key".to_owned()).spawn(read) {
            warn!(%error, file = %file.display(), "changes of the private key will not be noticed");
        }

        Self { file, keys, read_at: Instant::now(), limit, last_error: None }
    }

    /// Returns the key that was read since the last poll, if it differs from the key `in_force`. An error of the file
    /// is logged once, and changes nothing.
    pub(crate) fn poll(&mut self, in_force: &PrivateKey) -> Option<PrivateKey> {
        match self.keys.try_recv() {
            Ok(read) => {
                self.read_at = Instant::now();
                self.handle_read(read, in_force)
            }
            // The read blocks, as with a server that does not answer.
            Err(TryRecvError::Empty) if self.read_at.elapsed() > self.limit => {
                self.warn_once(format!(
                    "{} cannot be read within {:?}",
                    self.file.display(),
                    self.limit
                ));
                None
            }
            Err(_) => None,
        }
    }

    fn handle_read(
        &mut self,
        read: Result<PrivateKey, KeyFileError>,
        in_force: &PrivateKey,
    ) -> Option<PrivateKey> {
        match read {
            Ok(key) => {
                if self.last_error.take().is_some() {
                    info!(file = %self.file.display(), "the key file is valid again");
                }
                (key.public_key() != in_force.public_key()).then_some(key)
            }
            Err(error) => {
                self.warn_once(error.to_string());
                None
            }
        }
    }

    fn warn_once(&mut self, last_error: String) {
        if self.last_error.as_ref() != Some(&last_error) {
            warn!("{last_error}; the previous key stays in force");
        }
        self.last_error = Some(last_error);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    /// Replaces the file as the kubelet does: `privateKey` links through `..data`, which is swapped.
    fn mount(dir: &Path, version: &str, content: &[u8]) {
        fs::create_dir(dir.join(version)).unwrap();
        fs::write(dir.join(version).join("privateKey"), content).unwrap();
        symlink(version, dir.join("..data_tmp")).unwrap();
        fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
        let _ = symlink("..data/privateKey", dir.join("privateKey"));
    }

    /// Reads the file at once.
    fn read(own_key: &mut OwnKey, in_force: &PrivateKey) -> Option<PrivateKey> {
        own_key.handle_read(keyfile::mounted_private_key(&own_key.file), in_force)
    }

    fn key(byte: u8) -> PrivateKey {
        PrivateKey::from_file_content(&[byte; 32]).unwrap()
    }

    #[test]
    fn a_rotated_secret_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        mount(dir.path(), "..1", &[7; 32]);
        let mut own_key = OwnKey::new(dir.path().join("privateKey"));
        assert!(read(&mut own_key, &key(7)).is_none());

        mount(dir.path(), "..2", &[8; 32]);

        let found = read(&mut own_key, &key(7)).unwrap();
        assert_eq!(found.public_key(), key(8).public_key());
        assert!(read(&mut own_key, &found).is_none());
    }

    #[test]
    fn an_invalid_key_file_is_logged_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut own_key = OwnKey::new(dir.path().join("privateKey"));
        for (version, content) in [("..1", &b""[..]), ("..2", &[7; 31]), ("..3", &[0; 32])] {
            let before = own_key.last_error.clone();
            mount(dir.path(), version, content);

            assert!(read(&mut own_key, &key(7)).is_none());
            let said = own_key.last_error.clone();
            assert!(said.is_some() && said != before, "{said:?}");
            assert!(read(&mut own_key, &key(7)).is_none());
            assert_eq!(own_key.last_error, said);
        }

        mount(dir.path(), "..4", &[8; 32]);
        assert!(read(&mut own_key, &key(7)).is_some());
        assert_eq!(own_key.last_error, None);
    }

    #[test]
    fn a_changed_key_file_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        mount(dir.path(), "..1", &[7; 32]);
        let mut own_key = OwnKey::new(dir.path().join("privateKey"));
        mount(dir.path(), "..2", &[8; 32]);

        let found = (0..500).find_map(|_| {
            thread::sleep(Duration::from_millis(10));
            own_key.poll(&key(7))
        });

        assert_eq!(found.unwrap().public_key(), key(8).public_key());
    }

    #[test]
    fn a_blocking_key_file_delays_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("privateKey");
        mkfifo(&fifo, Mode::S_IRUSR).unwrap();

        let mut own_key = OwnKey::new(fifo);

        assert!((0..100).all(|_| own_key.poll(&key(7)).is_none()));
        assert_eq!(own_key.last_error, None);
    }

    #[test]
    fn a_key_file_that_blocks_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("privateKey");
        mkfifo(&fifo, Mode::S_IRUSR).unwrap();
        let mut own_key = OwnKey::within(fifo, Duration::ZERO);

        thread::sleep(Duration::from_millis(1));
        own_key.poll(&key(7));

        assert!(own_key.last_error.unwrap().ends_with("privateKey cannot be read within 0ns"));
    }
}
