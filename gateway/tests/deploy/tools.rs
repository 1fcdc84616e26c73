//! `helm` and `kubectl` as a user has them, and the objects that they render.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use strait_lab::process::find;
use tempfile::TempDir;

use crate::root;
use strait_control_lab::ApiServer;

/// Kind, namespace and name.
pub(crate) type Id = [String; 3];

pub(crate) type Objects = BTreeMap<Id, Value>;

/// Both tools, with a home of their own.
pub(crate) struct Tools {
    kubectl: PathBuf,
    helm: PathBuf,
    home: TempDir,
}

impl Tools {
    /// `None` if this machine cannot have them, which has been said by then.
    ///
    /// # Panics
    ///
    /// With `CI=true`, if this machine cannot.
    pub(crate) fn find() -> Option<Self> {
        let found = strait_control_lab::assets().and_then(|assets| Ok((assets, helm()?)));
        let (assets, helm) = match found {
            Ok(found) => found,
            Err(reason) => {
                assert!(std::env::var("CI").as_deref() != Ok("true"), "{reason}");
                let _ = writeln!(io::stderr(), "SKIPPED: no helm or no kubectl: {reason}");
                return None;
            }
        };

        Some(Self {
            kubectl: assets.join("kubectl"),
            helm: helm.clone(),
            home: tempfile::tempdir().unwrap(),
        })
    }

    /// From now on both speak to `server`, as administrator.
    pub(crate) fn speak_to(&self, server: &ApiServer) {
        let kubeconfig = serde_json::to_vec(&server.kubeconfig_of_admin()).unwrap();
        fs::write(self.kubeconfig(), kubeconfig).unwrap();
    }

    /// Where both look for the API server.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.home.path().join("kubeconfig")
    }

    pub(crate) fn helm(&self, words: &[&str]) -> Output {
        self.run(&self.helm, words, "")
    }

    /// What it says on stdout, which must be well.
    pub(crate) fn helm_says(&self, words: &[&str]) -> String {
        said("helm", words, &self.helm(words))
    }

    pub(crate) fn kubectl(&self, words: &[&str], input: &str) -> Output {
        self.run(&self.kubectl, words, input)
    }

    /// What it says on stdout, which must be well.
    pub(crate) fn kubectl_says(&self, words: &[&str], input: &str) -> String {
        said("kubectl", words, &self.kubectl(words, input))
    }

    /// The objects of the chart with these flags, without definitions.
    pub(crate) fn chart(&self, namespace: &str, flags: &[&str]) -> Objects {
        let chart = chart().display().to_string();
        let words = [&["template", "strait", &chart, "--namespace", namespace], flags].concat();

        objects(&self.helm_says(&words))
    }

    /// The objects of a folder of `deploy`.
    pub(crate) fn kustomize(&self, folder: &str) -> Objects {
        let folder = root().join("deploy").join(folder).display().to_string();

        objects(&self.kubectl_says(&["kustomize", &folder], ""))
    }

    fn run(&self, program: &Path, words: &[&str], input: &str) -> Output {
        let home = self.home.path();
        let mut child = Command::new(program)
            .args(words)
            .env("HOME", home)
            .env("KUBECONFIG", self.kubeconfig())
            .envs(["CACHE", "CONFIG", "DATA"].map(|kind| (format!("HELM_{kind}_HOME"), home)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Who does not read it has ended already.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());

        child.wait_with_output().unwrap()
    }
}

/// The folder of the chart.
pub(crate) fn chart() -> PathBuf {
    root().join("deploy/helm/strait")
}

/// Reads documents of YAML.
pub(crate) fn objects(text: &str) -> Objects {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    let mut objects = Objects::new();
    for object in documents.into_iter().filter(|document| !document.is_null()) {
        let id = ["/kind", "/metadata/namespace", "/metadata/name"].map(|pointer| {
            object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
        });
        let twice = objects.insert(id.clone(), object);
        assert!(twice.is_none(), "{id:?} is there twice");
    }

    objects
}

/// Reads a file with one document of YAML.
pub(crate) fn yaml(path: &Path) -> Value {
    serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

pub(crate) fn id(kind: &str, namespace: &str, name: &str) -> Id {
    [kind, namespace, name].map(str::to_owned)
}

fn said(tool: &str, words: &[&str], output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool} {words:?}: {error}");

    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Beside `kubectl`, in the search path, or built here.
fn helm() -> Result<&'static PathBuf, &'static String> {
    static HELM: OnceLock<Result<PathBuf, String>> = OnceLock::new();

    HELM.get_or_init(|| {
        let assets = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
        let beside = assets.map(|folder| folder.join("helm")).filter(|helm| helm.is_file());

        beside.or_else(|| find("helm")).map_or_else(build, Ok)
    })
    .as_ref()
}

fn build() -> Result<PathBuf, String> {
    let helm = Path::new(env!("CARGO_TARGET_TMPDIR")).join("apiserver/helm");
    let _ = writeln!(io::stderr(), "building helm; without a cache that takes minutes");
    let status = Command::new("go")
        .args(["build", "-mod=readonly", "-ldflags=-s -w", "-o"])
        .arg(&helm)
        .arg("helm.sh/helm/v3/cmd/helm")
        .current_dir(root().join("control/lab/apiserver"))
        .status()
        .map_err(|error| format!("go cannot be run ({error}), and there is no helm"))?;

    if status.success() { Ok(helm) } else { Err(format!("go build ended with {status}")) }
}
