//! The programs `etcd`, `kube-apiserver` and `kubectl`: from the environment, or built from their Go modules.

use std::fs;
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

/// Builds a package of the Go module `apiserver` into the target directory and returns the path of the program.
/// What another test has built from the same sources is not built again.
///
/// # Errors
///
/// If it cannot be built; the text is the cause.
pub fn go_build(program: &str, package: &str) -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("apiserver");
    let folder = target().ok_or("the target directory is not known")?.join("tmp/apiserver");
    let with_path = |path: &Path| format!("{}: ", path.display());
    fs::create_dir_all(&folder).map_err(|error| with_path(&folder) + &error.to_string())?;
    let mut sources = Vec::new();
    for file in ["go.mod", "go.sum", "main.go"].map(|name| source.join(name)) {
        sources.extend(fs::read(&file).map_err(|error| with_path(&file) + &error.to_string())?);
    }
    let (path, stamp) = (folder.join(program), folder.join(format!("{program}.sources")));
    // Tests run in several processes. The lock ends with this function.
    let lock = fs::File::create(folder.join("lock")).and_then(|lock| lock.lock().map(|()| lock));
    let _lock = lock.map_err(|error| with_path(&folder) + &error.to_string())?;
    if path.is_file() && fs::read(&stamp).is_ok_and(|built| built == sources) {
        return Ok(path);
    }

    say(&format!("building {program}; without a cache that takes minutes"));
    let status = Command::new("go")
        .args(["build", "-mod=readonly", "-ldflags=-s -w", "-o"])
        .arg(&path)
        .arg(package)
        .current_dir(source)
        .status()
        .map_err(|error| {
            format!("go cannot be run ({error}), and KUBEBUILDER_ASSETS is not set")
        })?;
    if !status.success() {
        return Err(format!("go build ended with {status}"));
    }
    fs::write(&stamp, sources).map_err(|error| with_path(&stamp) + &error.to_string())?;

    Ok(path)
}

/// The target directory of cargo. Tests are in `deps` of a profile of it.
fn target() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;

    program.ancestors().nth(3).map(Path::to_owned)
}
