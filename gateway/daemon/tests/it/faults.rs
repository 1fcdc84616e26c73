//! How a gateway handles an API server that refuses, forgets and disconnects.
//!
//! A real one, with injected faults between it and the gateway.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, BodyStream, Full, StreamBody};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::DeleteParams;
use kube::client::Body;
use kube::config::KubeConfigOptions;
use kube::{Api, Client, Config, ResourceExt};
use serde_json::{Value, json};
use strait_api::labels::REMOTE_CLUSTER_ID;
use strait_api::{Connection, PublicKey};
use strait_control_lab::roles::{no_rights, shipped_role, stock_role};
use strait_control_lab::tenant::{NAMESPACE, Tenant, identity};
use strait_control_lab::{ApiServer, create};
use strait_daemon::cluster::connection::Connections;
use strait_daemon::cluster::object_watch::{Update, Watch};
use strait_daemon::cluster::status_reporter::StatusReporter;
use strait_kube::client::{Part, client};
use strait_kube::election::{Election, Role, Settings};
use strait_plan::conncheck::{Report, State};
use strait_plan::objects::{Objects, Remapping, Scope};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tower::{BoxError, service_fn};

/// For a busy machine, twice the time after which a silent server counts as away or the file of a token is read again.
const PATIENCE: Duration = Duration::from_secs(150);

/// How long calls meet a fault.
const FAULT: Duration = Duration::from_millis(250);

/// Within this time a watch is attempted again after any number of failures: more than the longest pause, 4 s, and its
/// jitter, at most as much.
const ATTEMPT: Duration = Duration::from_secs(10);

/// The answer of the API server under a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It is overloaded.
    TooManyRequests,
    /// The token has expired.
    Unauthorized,
    /// The role was removed.
    Forbidden,
    /// The resource version has expired; lists are answered.
    Gone,
    /// The same, within a watch.
    GoneWithin,
    /// The same answer to everything.
    AllGone,
    /// It has lost its own store.
    InternalError,
    /// Another program listens at its address.
    NotFromThere,
    /// It accepts the call and does not answer.
    Silent,
}

impl Fault {
    const ALL: [Self; 9] = [
        Self::TooManyRequests,
        Self::Unauthorized,
        Self::Forbidden,
        Self::Gone,
        Self::GoneWithin,
        Self::AllGone,
        Self::InternalError,
        Self::NotFromThere,
        Self::Silent,
    ];

    /// Whether it applies to watches, or to other requests.
    fn concerns(self, is_watch: bool) -> bool {
        is_watch || !self.leaves_lists()
    }

    /// Whether lists are answered.
    const fn leaves_lists(self) -> bool {
        matches!(self, Self::Gone | Self::GoneWithin)
    }

    /// `None` if there is no answer.
    fn answer(self) -> Option<Response<UnsyncBoxBody<Bytes, BoxError>>> {
        let (status, body) = match self {
            Self::TooManyRequests => (429, status(429, "TooManyRequests").to_string()),
            Self::Unauthorized => (401, status(401, "Unauthorized").to_string()),
            Self::Forbidden => (403, status(403, "Forbidden").to_string()),
            Self::Gone | Self::AllGone => (410, status(410, "Expired").to_string()),
            Self::GoneWithin => {
                let event = json!({"type": "ERROR", "object": status(410, "Expired")});
                (200, format!("{event}\n"))
            }
            Self::InternalError => (500, status(500, "InternalError").to_string()),
            Self::NotFromThere => (502, "<html>Bad gateway</html>".to_owned()),
            Self::Silent => return None,
        };

        let answer = Response::builder().status(status).header("Retry-After", "1");
        let body = Full::from(body).map_err(|never| match never {}).boxed_unsync();

        Some(answer.body(body).expect("an answer"))
    }
}

fn status(code: u16, reason: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": "a fault of the test",
    })
}

/// A client with the present value of `fault` between it and the server. A fault that begins cuts all watches off.
fn through(fault: watch::Receiver<Option<Fault>>, server: Client) -> Client {
    let send = move |request: Request<Body>| {
        let (server, mut fault) = (server.clone(), fault.clone());
        async move {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let now = fault.borrow_and_update().filter(|fault| fault.concerns(is_watch));
            match now.map(Fault::answer) {
                Some(Some(answer)) => return Ok(answer),
                Some(None) => {
                    // For as long as the fault lasts, or the caller waits.
                    let _ = fault.wait_for(Option::is_none).await;
                    return Err("no answer".into());
                }
                None => {}
            }
            let answer = server.send(request).await?;
            let begins = async move {
                // Never cut off: other requests, and watches until the end of the test.
                if !is_watch || fault.wait_for(Option::is_some).await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            Ok::<_, BoxError>(answer.map(|body| {
                let body = BodyStream::new(body).take_until(begins.boxed());
                StreamBody::new(body.map_err(BoxError::from)).boxed_unsync()
            }))
        }
    };

    Client::new(service_fn(send), NAMESPACE)
}

fn public_key(cluster: &str, byte: u8) -> PublicKey {
    let mut object = PublicKey::new(cluster, Default::default());
    object.metadata.labels =
        Some(BTreeMap::from([(REMOTE_CLUSTER_ID.to_owned(), cluster.to_owned())]));
    object.spec.public_key = Some(ByteString(vec![byte; 32]));

    object
}

/// Names of all clusters that have a key.
fn clusters(objects: &Objects) -> Vec<String> {
    let mut names: Vec<_> = objects
        .public_keys
        .iter()
        .filter_map(|key| Some(key.0.as_ref().ok()?.name_any()))
        .collect();
    names.sort();

    names
}

#[tokio::test]
async fn no_fault_loses_an_object_or_a_watch() {
    let Some(Tenant { admin, gateway, server: _server }) = Tenant::start(&stock_role()).await
    else {
        return;
    };
    let (set_fault, fault) = watch::channel(None);
    let keys: Api<PublicKey> = Api::namespaced(admin, NAMESPACE);
    create(keys.clone(), &public_key("oslo", 1)).await;
    let mut watch = Watch::new(&through(fault, gateway), NAMESPACE, &scope());
    let mut known = "oslo".to_owned();
    until(&mut watch, [&known; 2]).await;

    for (number, fault) in Fault::ALL.into_iter().enumerate() {
        set_fault.send_replace(Some(fault));
        let next = format!("milan-{number}");
        create(keys.clone(), &public_key(&next, 2)).await;
        keys.delete(&known, &DeleteParams::default()).await.expect("gone");

        if !fault.leaves_lists() {
            let report = timeout(ATTEMPT, unreachable(&mut watch, &known)).await;
            assert_eq!(report.is_ok(), fault != Fault::Silent, "{fault:?}");
            set_fault.send_replace(None);
        }
        let is_reported = until(&mut watch, [&known, &next]).await;
        // Another list has all objects, so no error is reported.
        assert!(!(is_reported && fault.leaves_lists()), "{fault:?}");
        known = next;
    }

    // The end of an outage is reported, also if nothing has changed meanwhile.
    set_fault.send_replace(Some(Fault::InternalError));
    unreachable(&mut watch, &known).await;
    set_fault.send_replace(None);
    until(&mut watch, [&known; 2]).await;
}

#[tokio::test]
async fn missing_writes_are_made_after_the_fault() {
    let Some(Tenant { admin, gateway, server: _server }) = Tenant::start(&shipped_role()).await
    else {
        return;
    };
    let (set_fault, fault) = watch::channel(None);
    let gateway = through(fault, gateway);
    let connections: Api<Connection> = Api::namespaced(admin, NAMESPACE);
    let mut kept = Connections::new(gateway.clone(), identity());
    let mut election = Election::new(gateway.clone(), &identity(), settings());
    let mut reporter = StatusReporter::new(&gateway, identity(), Timestamp::now());
    kept.ensure().await.expect("it is made");
    try_acquire(&mut election).await.expect("there is no other candidate");
    assert_eq!(election.role(), Role::Leader);

    let faults = Fault::ALL.into_iter().filter(|fault| !fault.leaves_lists());
    let states = [(State::Connected, "Connected"), (State::Lost, "Error")];
    for ((state, word), fault) in states.into_iter().cycle().zip(faults) {
        let report = Report { state, ..Report::default() };
        set_fault.send_replace(Some(fault));
        let over = async {
            sleep(FAULT).await;
            set_fault.send_replace(None);
        };
        let refused = async {
            let reported = kept.report(&report, Timestamp::now(), Duration::ZERO).await;
            let acquired = try_acquire(&mut election).await;
            let round = reporter.round(&[], Some(state), Timestamp::now()).await;
            (reported.is_err(), acquired.is_err(), round)
        };
        let ((reported, acquired, round), ()) = tokio::join!(refused, over);
        // Silence ends with the first call; later ones are answered.
        assert!(reported && (acquired || fault == Fault::Silent), "{fault:?}");
        assert_eq!(election.role(), Role::Leader, "{fault:?}");
        if let (Ok(round), Fault::Forbidden) = (&round, fault) {
            assert_eq!(round.failures.len(), 1, "{round:?}");
        }

        kept.report(&report, Timestamp::now(), Duration::ZERO).await.expect("it is written");
        try_acquire(&mut election).await.expect("it is renewed");
        let status = connections.get("gw-milan").await.expect("it").status.expect("one");
        assert_eq!(status.value.as_deref(), Some(word), "{fault:?}");
    }
}

/// Like a server whose machine is gone, without a notice to its clients.
#[tokio::test]
async fn a_silent_api_server_counts_as_away() {
    let Some(Tenant { server, admin, .. }) = Tenant::start(&no_rights()).await else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (gateway, _) = gateway(&server, folder.path()).await;
    let keys: Api<PublicKey> = Api::namespaced(admin, NAMESPACE);
    create(keys, &public_key("oslo", 1)).await;
    // Leaves an open connection, which then gets no answer.
    let known = Api::<PublicKey>::namespaced(gateway.clone(), NAMESPACE);
    assert_eq!(known.list(&Default::default()).await.expect("a list").items.len(), 1);

    server.freeze();
    let mut watch = Watch::new(&gateway, NAMESPACE, &scope());
    timeout(PATIENCE, unreachable(&mut watch, "oslo")).await.expect("the client times out");
    server.thaw();
    until(&mut watch, ["oslo"; 2]).await;
}

/// A token of a service account, which expires. A new one appears in its file, as in a pod.
#[tokio::test]
async fn an_expired_token_changes_nothing_until_its_renewal() {
    let Some(Tenant { mut server, admin, .. }) = Tenant::start(&no_rights()).await else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (gateway, file) = gateway(&server, folder.path()).await;
    let keys: Api<PublicKey> = Api::namespaced(admin.clone(), NAMESPACE);
    create(keys.clone(), &public_key("oslo", 1)).await;
    let mut watch = Watch::new(&gateway, NAMESPACE, &scope());
    until(&mut watch, ["oslo"; 2]).await;
    let mut election = Election::new(gateway, &identity(), settings());
    try_acquire(&mut election).await.expect("there is no other candidate");

    let accounts: Api<ServiceAccount> = Api::namespaced(admin, NAMESPACE);
    accounts.delete("strait-gateway", &DeleteParams::default()).await.expect("gone");
    // Authorization is cached for a while, and an open watch goes on.
    server.kill();
    server.restart().await;
    create(keys.clone(), &public_key("milan", 2)).await;
    keys.delete("oslo", &DeleteParams::default()).await.expect("gone");
    timeout(PATIENCE, unreachable(&mut watch, "oslo"))
        .await
        .expect("the expiry of the token is reported");
    let error = try_acquire(&mut election).await.expect_err("the token has expired");
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 401), "{error}");
    assert_eq!(election.role(), Role::Leader);

    fs::write(&file, server.account(NAMESPACE, "strait-gateway").await).expect("a token");
    until(&mut watch, ["oslo", "milan"]).await;
    try_acquire(&mut election).await.expect("it is renewed");
}

/// The client of a pod, and the file with its token.
async fn gateway(server: &ApiServer, folder: &Path) -> (Client, PathBuf) {
    let file = folder.join("token");
    fs::write(&file, server.bind(NAMESPACE, &shipped_role()).await).expect("a token");
    let kubeconfig = server.kubeconfig_of(&file);
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;

    (client(config.expect("a configuration"), Part::Gateway).expect("a client"), file)
}

/// All keys, and no prefixes.
fn scope() -> Scope {
    Scope { remapping: Remapping::External, ..Scope::default() }
}

fn settings() -> Settings {
    Settings { holder: "gw-1_1".to_owned(), place: None, lease_duration: Duration::from_secs(15) }
}

async fn try_acquire(election: &mut Election) -> kube::Result<bool> {
    let acquired = election.try_acquire(std::time::Instant::now(), Timestamp::now()).await;
    if acquired.is_err() {
        election.failed();
    }

    acquired
}

/// Waits until the watch reports the key of `to` and no other. Until then there is that of `from`, or both. Returns
/// whether it reported an unreachable server in between.
async fn until(watch: &mut Watch, [from, to]: [&str; 2]) -> bool {
    let reached = async {
        let mut is_reported = false;
        loop {
            match watch.next().await {
                Update::Unreachable(_) => is_reported = true,
                Update::Objects(objects) => {
                    let known = clusters(&objects);
                    if known == [to] {
                        return is_reported;
                    }
                    assert!(known.iter().any(|name| name == from), "{known:?}");
                }
            }
        }
    };

    timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("{to} is never reported"))
}

/// Waits until the watch reports an unreachable server. Every other report has the `known` key.
async fn unreachable(watch: &mut Watch, known: &str) {
    loop {
        match watch.next().await {
            Update::Unreachable(_) => return,
            Update::Objects(objects) => assert_eq!(clusters(&objects), [known]),
        }
    }
}
