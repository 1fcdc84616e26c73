//! Real kube-apiservers for tests: each with its own etcd, on loopback, stopped when the test ends.
//!
//! [`ApiServer`] is a cluster without nodes. [`kubelet`] and [`peering::StandIn`] stand in for the programs of a cluster;
//! [`roles`] are the rights of ours there.
//!
//! # Not here
//!
//! The expected results: they are in the tests of each crate.

#![forbid(unsafe_code)]
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "a test may panic"
)]

pub mod kubelet;
pub mod peering;
pub mod roles;
pub mod tenant;

use std::fmt::Debug;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding, RoleRef, Subject};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use kube::runtime::conditions::is_crd_established;
use kube::runtime::wait::await_condition;
use kube::{Client, Resource, ResourceExt as _};
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use strait_api::crd;
use tempfile::TempDir;

/// The time that a slow machine needs to start both.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The token of the administrator of every server, which serves this test only.
const TOKEN: &str = "strait-test-administrator";

/// In the folder of a server with an audit log: which calls are logged, and where.
const AUDIT_POLICY_FILE: &str = "audit-policy.yaml";
const AUDIT_LOG: &str = "audit.log";

/// The calls that [`ApiServer::start_audited`] logs: those of service accounts.
const AUDIT_POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  userGroups: [\"system:serviceaccounts\"]
- level: None
";

/// The part before the point in a `SubjectPublicKeyInfo` of the curve P-256 (RFC 5480 section 2).
const P256_PUBLIC_KEY: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// A cluster without nodes.
pub struct ApiServer {
    folder: TempDir,
    assets: PathBuf,
    etcd_port: u16,
    port: u16,
    etcd: Child,
    server: Child,
}

impl ApiServer {
    /// Starts one; `None`, with a message, if this machine cannot.
    ///
    /// # Panics
    ///
    /// If it does not start, and with `CI=true` also if this machine cannot.
    pub async fn start() -> Option<Self> {
        Self::start_in(tempfile::tempdir().expect("a folder")).await
    }

    /// [`Self::start`]; calls of service accounts are logged, for [`Self::audit`].
    ///
    /// # Panics
    ///
    /// As [`Self::start`].
    pub async fn start_audited() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join(AUDIT_POLICY_FILE), AUDIT_POLICY).expect("a policy");

        Self::start_in(folder).await
    }

    async fn start_in(folder: TempDir) -> Option<Self> {
        let assets = match assets() {
            Ok(assets) => assets.clone(),
            Err(reason) => {
                assert!(!is_ci(), "no API server: {reason}");
                say(&format!("SKIPPED: no API server: {reason}"));
                return None;
            }
        };
        let [etcd_port, peer_port, port] = free_ports();
        write_credentials(folder.path());
        let etcd = start_etcd(&assets, folder.path(), etcd_port, peer_port);
        let server = start_server(&assets, folder.path(), etcd_port, port);
        let mut server = Self { folder, assets, etcd_port, port, etcd, server };
        server.wait_until_ready().await;

        Some(server)
    }

    /// The calls of service accounts since [`Self::start_audited`]: an event of `audit.k8s.io/v1` a line.
    pub fn audit(&self) -> String {
        fs::read_to_string(self.folder.path().join(AUDIT_LOG)).expect("an audited server")
    }

    /// A client that may do everything.
    pub async fn client(&self) -> Client {
        client_of(self.kubeconfig_of_admin()).await
    }

    /// A client with the rights of `role` and no others.
    pub async fn client_with(&self, namespace: &str, role: &ClusterRole) -> Client {
        client_of(self.kubeconfig_with(namespace, role).await).await
    }

    /// [`Self::client`], for when there is a runtime.
    pub fn client_later(&self) -> impl Future<Output = Client> + Send + use<> {
        client_of(self.kubeconfig_of_admin())
    }

    /// For a service account with the rights of `role` and no others, as in a pod.
    pub async fn kubeconfig_with(&self, namespace: &str, role: &ClusterRole) -> Kubeconfig {
        self.kubeconfig(&token(&self.bind(namespace, role).await))
    }

    /// For the administrator.
    pub fn kubeconfig_of_admin(&self) -> Kubeconfig {
        self.kubeconfig(&token(TOKEN))
    }

    /// Its port, on loopback.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The folder with `kubectl`.
    pub fn assets(&self) -> &Path {
        &self.assets
    }

    /// For the user with the token in `file`.
    pub fn kubeconfig_of(&self, file: &Path) -> Kubeconfig {
        self.kubeconfig(&format!("tokenFile: {}", file.display()))
    }

    /// Creates a service account with the rights of `role` and no others, and a token for it.
    pub async fn bind(&self, namespace: &str, role: &ClusterRole) -> String {
        let client = self.client().await;
        let name = role.metadata.name.clone().expect("a name");
        let binding = ClusterRoleBinding {
            metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
            role_ref: RoleRef {
                api_group: Some("rbac.authorization.k8s.io".to_owned()),
                kind: "ClusterRole".to_owned(),
                name: name.clone(),
            },
            subjects: Some(vec![Subject {
                kind: "ServiceAccount".to_owned(),
                name: name.clone(),
                namespace: Some(namespace.to_owned()),
                ..Subject::default()
            }]),
        };
        create(Api::all(client.clone()), role).await;
        create(Api::all(client), &binding).await;

        self.account(namespace, &name).await
    }

    /// A kubeconfig for the account of the operator, which has its rights and no others.
    pub async fn kubeconfig_of_operator(&self) -> Kubeconfig {
        let role = roles::operator_role();
        let namespace = role.metadata.namespace.clone().expect("a namespace");
        let name = role.metadata.name.clone().expect("a name");
        let binding = RoleBinding {
            metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
            role_ref: RoleRef {
                api_group: Some("rbac.authorization.k8s.io".to_owned()),
                kind: "Role".to_owned(),
                name: name.clone(),
            },
            subjects: Some(vec![Subject {
                kind: "ServiceAccount".to_owned(),
                name,
                namespace: Some(namespace.clone()),
                ..Subject::default()
            }]),
        };
        let client = self.client().await;
        create(Api::namespaced(client.clone(), &namespace), &role).await;
        create(Api::namespaced(client, &namespace), &binding).await;

        self.kubeconfig_with(&namespace, &roles::operator_cluster_role()).await
    }

    /// A client of [`Self::kubeconfig_of_operator`].
    pub async fn operator(&self) -> Client {
        client_of(self.kubeconfig_of_operator().await).await
    }

    /// Creates a service account, which has the rights of the role of that name, and a token for it.
    pub async fn account(&self, namespace: &str, name: &str) -> String {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await, namespace);
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        create(accounts.clone(), &ServiceAccount { metadata, ..ServiceAccount::default() }).await;
        let request = TokenRequest::default();
        let answer = accounts.create_token_request(name, &PostParams::default(), &request).await;

        answer.expect("a token").status.and_then(|status| status.token).expect("a token")
    }

    fn kubeconfig(&self, user: &str) -> Kubeconfig {
        let authority = fs::read(self.folder.path().join("certificates/apiserver.crt"));
        let authority = STANDARD.encode(authority.unwrap_or_default());
        let text = format!(
            "apiVersion: v1\nkind: Config\n\
             clusters: [{{name: test, cluster: {{server: 'https://127.0.0.1:{}', certificate-authority-data: {authority}}}}}]\n\
             users: [{{name: test, user: {{{user}}}}}]\n\
             contexts: [{{name: test, context: {{cluster: test, user: test}}}}]\n\
             current-context: test\n",
            self.port
        );

        Kubeconfig::from_yaml(&text).expect("a kubeconfig")
    }

    /// Ends the server without warning; its data stays in etcd.
    pub fn kill(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }

    /// Stops it at any point: it accepts calls and does not answer.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Resumes it.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let process = self.server.id().to_string();
        let status = Command::new("kill").args([signal, &process]).status();
        assert!(status.is_ok_and(|status| status.success()), "kill {signal} {process}");
    }

    /// Starts it again with the same folder and port.
    pub async fn restart(&mut self) {
        self.kill();
        self.server = start_server(&self.assets, self.folder.path(), self.etcd_port, self.port);
        self.wait_until_ready().await;
    }

    /// Compacts the history, so that every watch must start again.
    pub fn compact(&self) {
        let answer = self.etcd("/v3/kv/range", r#"{"key":"AA==","count_only":true}"#);
        let revision = answer
            .split_once(r#""revision":""#)
            .and_then(|(_, rest)| rest.split_once('"'))
            .map(|(revision, _)| revision)
            .expect("a revision");

        self.etcd("/v3/kv/compaction", &format!(r#"{{"revision":"{revision}","physical":true}}"#));
    }

    /// One call of etcd's gateway for JSON.
    fn etcd(&self, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.etcd_port)).expect("etcd");
        let request = format!(
            "POST {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.contains(" 200 "), "{answer}");

        answer
    }

    async fn wait_until_ready(&mut self) {
        let start = Instant::now();
        let runs = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        while start.elapsed() < START_TIMEOUT && runs(&mut self.etcd) && runs(&mut self.server) {
            if self.folder.path().join("certificates/apiserver.crt").is_file() {
                let request = http::Request::get("/readyz").body(Vec::new()).expect("a request");
                if self.client().await.request_text(request).await.is_ok() {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }

        let log = fs::read_to_string(self.folder.path().join("kube-apiserver.log"));
        panic!("kube-apiserver is not ready:\n{}", log.unwrap_or_default());
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        for child in [&mut self.server, &mut self.etcd] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

async fn client_of(kubeconfig: Kubeconfig) -> Client {
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;

    Client::try_from(config.expect("a configuration")).expect("a client")
}

/// Applies the definitions of the API and waits until they are served.
pub async fn install_api(client: &Client) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let crds = crd::all();
    for crd in &crds {
        let name = crd.metadata.name.as_deref().expect("a name");
        let parameters = PatchParams::apply("strait").force();
        api.patch(name, &parameters, &Patch::Apply(crd))
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    for crd in &crds {
        let name = crd.metadata.name.as_deref().expect("a name");
        let established = await_condition(api.clone(), name, is_crd_established());
        tokio::time::timeout(Duration::from_secs(10), established).await.expect(name).expect(name);
    }
}

/// The user of a kubeconfig.
fn token(token: &str) -> String {
    format!("token: {token}")
}

/// Creates an object that does not exist yet.
pub async fn create<K>(api: Api<K>, object: &K) -> K
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
{
    api.create(&PostParams::default(), object)
        .await
        .unwrap_or_else(|error| panic!("{} {}: {error}", K::kind(&()), object.name_any()))
}

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

/// A user who may do everything, and the key that signs the tokens of service accounts.
fn write_credentials(folder: &Path) {
    let random = ring::rand::SystemRandom::new();
    let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
    let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("a key");
    let key = EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).expect("that key");
    let public = [&P256_PUBLIC_KEY[..], key.public_key().as_ref()].concat();

    for (name, label, bytes) in [
        ("service-account.key", "PRIVATE KEY", document.as_ref()),
        ("service-account.pub", "PUBLIC KEY", &public),
    ] {
        let text = STANDARD.encode(bytes);
        let pem = format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n");
        fs::write(folder.join(name), pem).expect("a key file");
    }
    fs::write(folder.join("users.csv"), format!("{TOKEN},admin,admin,system:masters\n"))
        .expect("a token file");
}

fn start_etcd(assets: &Path, folder: &Path, port: u16, peer_port: u16) -> Child {
    let (client, peer) =
        (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer_port}"));

    start(
        &assets.join("etcd"),
        folder,
        &[
            format!("--data-dir={}", folder.join("etcd").display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            "--log-level=error".to_owned(),
            // The data need not survive a power failure.
            "--unsafe-no-fsync".to_owned(),
        ],
    )
}

fn start_server(assets: &Path, folder: &Path, etcd_port: u16, port: u16) -> Child {
    let file = |name: &str| folder.join(name).display().to_string();
    let mut arguments = vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd_port}"),
        "--bind-address=127.0.0.1".to_owned(),
        "--advertise-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        format!("--cert-dir={}", file("certificates")),
        "--service-cluster-ip-range=10.0.0.0/20".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={}", file("service-account.pub")),
        format!("--service-account-signing-key-file={}", file("service-account.key")),
        format!("--token-auth-file={}", file("users.csv")),
        "--authorization-mode=RBAC".to_owned(),
        // The containers of Liqo's gateways are privileged.
        "--allow-privileged=true".to_owned(),
        // There is no controller that creates the account of a namespace.
        "--disable-admission-plugins=ServiceAccount".to_owned(),
        "--endpoint-reconciler-type=none".to_owned(),
    ];
    if folder.join(AUDIT_POLICY_FILE).is_file() {
        arguments.push(format!("--audit-policy-file={}", file(AUDIT_POLICY_FILE)));
        arguments.push(format!("--audit-log-path={}", file(AUDIT_LOG)));
    }

    start(&assets.join("kube-apiserver"), folder, &arguments)
}

fn start(program: &Path, folder: &Path, arguments: &[String]) -> Child {
    let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let log = fs::File::create(folder.join(format!("{name}.log"))).expect("a log");

    Command::new(program)
        .args(arguments)
        // Collecting garbage is a third of what a server of a short test costs.
        .envs([("GOGC", "off"), ("GOMEMLIMIT", "512MiB")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()))
}

/// Free ports. They differ, as all are held until the last is chosen.
fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));

    listeners.map(|listener| listener.local_addr().expect("an address").port())
}

/// Writes to the terminal, past the test harness, which would capture it.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}
