//! A directory for keys, configuration files and logs that goes away with its owner.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::LabError;

/// More directories of one process than anybody needs.
const ATTEMPTS: u32 = 10_000;

/// A directory that only we may enter. Dropping it removes it with everything in it.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates the directory, below the system's directory for temporary files.
    ///
    /// # Errors
    ///
    /// [`LabError::Io`], which names the directory.
    pub fn new() -> Result<Self, LabError> {
        let parent = std::env::temp_dir();
        for attempt in 0..ATTEMPTS {
            let path = parent.join(format!("strait-lab-{}-{attempt}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(LabError::io(format!("create {}", path.display()))(error));
                }
            }
        }

        Err(LabError::TimedOut { condition: format!("{} had room", parent.display()) })
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file that only we may read, over an earlier one if need be.
    ///
    /// # Errors
    ///
    /// [`LabError::Io`], which names the file.
    pub fn write(&self, name: &str, content: &str) -> Result<PathBuf, LabError> {
        let path = self.path.join(name);
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(content.as_bytes()))
            .map_err(LabError::io(format!("write {}", path.display())))?;

        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Somebody else's cleaning may have been quicker.
        let _ = fs::remove_dir_all(&self.path);
    }
}
