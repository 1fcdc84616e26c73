//! The programs `etcd`, `kube-apiserver` and `kubectl`: from the environment, or built from their Go modules.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use ring::digest::{Context, SHA256};

use super::say;

/// The sources of all programs. `make e2e` uses the same folder (deploy/e2e/lab/programs.py).
const SOURCES: [&str; 4] = ["go.mod", "go.sum", "main.go", "node/main.go"];

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
    let mut digest = Context::new(&SHA256);
    for file in SOURCES.map(|name| source.join(name)) {
        digest.update(&fs::read(&file).map_err(|error| with_path(&file, error))?);
    }
    let digest: String =
        digest.finish().as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let folder = cache().ok_or("neither XDG_CACHE_HOME nor HOME is set")?;
    let folder = folder.join(format!("strait/apiserver-{digest}"));
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
    let version = version(&source).map_err(|error| with_path(&source, error))?;
    // As deploy/e2e/lab/programs.py builds them.
    let status = Command::new("go")
        .args(["build", "-mod=readonly"])
        .arg(format!("-ldflags=-s -w -X k8s.io/component-base/version.gitVersion={version}"))
        .arg("-o")
        .arg(&unfinished)
        .arg(package)
        .envs([("CGO_ENABLED", "0"), ("GOFLAGS", "-buildvcs=false")])
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

/// The version of Kubernetes that the module requires, which its programs report.
fn version(source: &Path) -> io::Result<String> {
    let module = fs::read_to_string(source.join("go.mod"))?;
    let version = module.lines().find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes "));

    Ok(version.unwrap_or_default().to_owned())
}

/// Where programs of this user keep what can be built again.
pub(super) fn cache() -> Option<PathBuf> {
    let of_home = || std::env::home_dir().map(|home| home.join(".cache"));

    std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(of_home)
}
