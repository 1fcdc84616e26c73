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

mod processes;
mod programs;
mod snapshot;

use std::fmt::Debug;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding, RoleRef, Subject};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use kube::runtime::conditions::is_crd_established;
use kube::runtime::wait::await_condition;
use kube::{Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use strait_api::crd;
use tempfile::TempDir;

use processes::{
    AUDIT_LOG, AUDIT_POLICY_FILE, TOKEN, free_ports, start_etcd, start_server, write_credentials,
};

pub use programs::{assets, go_build};

/// The time that a slow machine needs to start both.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The calls that [`ApiServer::start_audited`] logs: those of service accounts.
const AUDIT_POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  userGroups: [\"system:serviceaccounts\"]
- level: None
";

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

    /// [`Self::start`], with the definitions of the API, as [`install_api`] applies them.
    ///
    /// # Panics
    ///
    /// As [`Self::start`].
    pub async fn start_with_api() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let is_restored = snapshot::restore(folder.path()).await;
        let server = Self::start_in(folder).await?;
        if !is_restored {
            install_api(&server.client().await).await;
        }

        Some(server)
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

    /// Deletes a key of etcd, which the server must not notice.
    fn delete(&self, key: &str) {
        let body = format!(r#"{{"key":"{}"}}"#, STANDARD.encode(key));
        let answer = self.etcd("/v3/kv/deleterange", &body);
        assert!(answer.contains(r#""deleted":"1""#), "{answer}");
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
                // The file may not be complete when it is read.
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

/// The revision of the store, which each write of any object raises: a stand-in has nothing to do while it stays.
///
/// # Errors
///
/// If the server does not answer.
pub async fn revision(client: &Client) -> kube::Result<String> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let list = namespaces.list_metadata(&ListParams::default().limit(1)).await?;

    Ok(list.metadata.resource_version.unwrap_or_default())
}

/// Writes to the terminal, past the test harness, which would capture it.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}
