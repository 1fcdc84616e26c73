//! The programs `etcd`, `kube-apiserver` and `kubectl`: from the environment, or built from their Go modules.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::say;

/// The folder with `etcd`, `kube-apiserver` and `kubectl`: from the environment, or built here.
///
/// # Errors
///
/// If they cannot be built; the text is the cause.
pub fn assets() -> Result<&'static PathBuf, &'static String> {
    static ASSETS: OnceLock<Result<PathBuf, String>> = OnceLock::new();

    ASSETS
        .get_or_init(|| match std::env::var_os("KUBEBUILDER_ASSETS") {
            Some(folder) => Ok(PathBuf::from(folder)),
            None => build(),
        })
        .as_ref()
}

fn build() -> Result<PathBuf, String> {
    let server = go_build("kube-apiserver", ".")?;
    let folder = server.parent().unwrap_or(&server).to_owned();
    // One program, which acts by its name.
    for other in ["etcd", "kubectl"].map(|name| folder.join(name)) {
        if fs::read_link(&other).is_err() {
            let _ = fs::remove_file(&other);
            symlink(&server, &other)
                .or_else(unless_exists)
                .map_err(|error| format!("{}: {error}", other.display()))?;
        }
    }

    Ok(folder)
}

/// A test in another process may have been faster.
fn unless_exists(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
}

/// Builds a package of the Go module `apiserver` into a cache of this user and returns the path of the program. What was
/// built from the same sources is not built again.
///
/// # Errors
///
/// If it cannot be built; the text is the cause.
pub fn go_build(program: &str, package: &str) -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("apiserver");
    let with_path = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    let mut hasher = DefaultHasher::new();
    for file in ["go.mod", "go.sum", "main.go"].map(|name| source.join(name)) {
        fs::read(&file).map_err(|error| with_path(&file, error))?.hash(&mut hasher);
    }
    let folder = cache().ok_or("neither XDG_CACHE_HOME nor HOME is set")?;
    let folder = folder.join(format!("strait/apiserver-{:016x}", hasher.finish()));
    fs::create_dir_all(&folder).map_err(|error| with_path(&folder, error))?;
    let path = folder.join(program);
    // Tests run in several processes. The lock ends with this function.
    let lock = fs::File::create(folder.join("lock")).and_then(|lock| lock.lock().map(|()| lock));
    let _lock = lock.map_err(|error| with_path(&folder, error))?;
    if path.is_file() {
        return Ok(path);
    }

    say(&format!("building {program}; without a cache that takes minutes"));
    // An interrupted build leaves no program.
    let unfinished = folder.join(format!("{program}.unfinished"));
    let status = Command::new("go")
        .args(["build", "-mod=readonly", "-ldflags=-s -w", "-o"])
        .arg(&unfinished)
        .arg(package)
        .current_dir(source)
        .status()
        .map_err(|error| {
            format!("go cannot be run ({error}), and KUBEBUILDER_ASSETS is not set")
        })?;
    if !status.success() {
        return Err(format!("go build ended with {status}"));
    }
    fs::rename(&unfinished, &path).map_err(|error| with_path(&path, error))?;

    Ok(path)
}

/// Where programs of this user keep what can be built again.
fn cache() -> Option<PathBuf> {
    let of_home = || std::env::home_dir().map(|home| home.join(".cache"));

    std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(of_home)
}
