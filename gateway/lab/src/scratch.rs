//! A temporary directory for keys, configuration files and logs.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::LabError;

/// Names that are tried: more directories than one process needs.
const ATTEMPTS: u32 = 10_000;

/// A directory that only its owner may access. Dropping it removes it with its contents.
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

        Err(LabError::TimedOut { condition: format!("{} had a free name", parent.display()) })
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file that only its owner may access. Replaces an existing file.
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
        // It may be gone already, see `CleanUp`.
        let _ = fs::remove_dir_all(&self.path);
    }
}
