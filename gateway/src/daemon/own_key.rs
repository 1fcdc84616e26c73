//! Our own key where a Secret is mounted: whoever rotates the Secret tells nobody.

use std::path::PathBuf;

use strait_gateway::wg::PrivateKey;
use tracing::{info, warn};

use super::config::keyfile;

/// The file that is looked at again and again. The kubelet replaces it as a whole.
#[derive(Debug)]
pub(crate) struct OwnKey {
    file: PathBuf,
    /// What was wrong when it was looked at last.
    complaint: Option<String>,
}

impl OwnKey {
    /// A file that a key was read from before.
    pub(crate) const fn new(file: PathBuf) -> Self {
        Self { file, complaint: None }
    }

    /// The key in the file, if it is another one than that `in_force`. What is wrong with the file is
    /// said once, and changes nothing.
    pub(crate) fn look(&mut self, in_force: &PrivateKey) -> Option<PrivateKey> {
        match keyfile::mounted_private_key(&self.file) {
            Ok(key) => {
                if self.complaint.take().is_some() {
                    info!(file = %self.file.display(), "the key file is good again");
                }
                (key.public_key() != in_force.public_key()).then_some(key)
            }
            Err(error) => {
                let complaint = error.to_string();
                if self.complaint.as_ref() != Some(&complaint) {
                    warn!("{complaint}; the key before stays in force");
                }
                self.complaint = Some(complaint);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;

    /// Mounts as the kubelet does: `privateKey` leads through `..data`, which is swapped.
    fn mount(dir: &Path, version: &str, content: &[u8]) {
        fs::create_dir(dir.join(version)).unwrap();
        fs::write(dir.join(version).join("privateKey"), content).unwrap();
        symlink(version, dir.join("..data_tmp")).unwrap();
        fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
        let _ = symlink("..data/privateKey", dir.join("privateKey"));
    }

    fn key(byte: u8) -> PrivateKey {
        PrivateKey::from_file_content(&[byte; 32]).unwrap()
    }

    #[test]
    fn a_rotated_secret_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        mount(dir.path(), "..1", &[7; 32]);
        let mut own_key = OwnKey::new(dir.path().join("privateKey"));
        assert!(own_key.look(&key(7)).is_none());

        mount(dir.path(), "..2", &[8; 32]);

        let found = own_key.look(&key(7)).unwrap();
        assert_eq!(found.public_key(), key(8).public_key());
        assert!(own_key.look(&found).is_none());
    }

    #[test]
    fn what_is_no_key_changes_nothing_and_is_said_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut own_key = OwnKey::new(dir.path().join("privateKey"));
        for (version, content) in [("..1", &b""[..]), ("..2", &[7; 31]), ("..3", &[0; 32])] {
            let before = own_key.complaint.clone();
            mount(dir.path(), version, content);

            assert!(own_key.look(&key(7)).is_none());
            let said = own_key.complaint.clone();
            assert!(said.is_some() && said != before, "{said:?}");
            assert!(own_key.look(&key(7)).is_none());
            assert_eq!(own_key.complaint, said);
        }

        mount(dir.path(), "..4", &[8; 32]);
        assert!(own_key.look(&key(7)).is_some());
        assert_eq!(own_key.complaint, None);
    }
}
