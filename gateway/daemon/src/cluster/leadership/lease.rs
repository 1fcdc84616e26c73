//! Takes part in the leader election, and labels the active pod.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use jiff::Timestamp;
use strait_kube::active::ActivePod;
use strait_kube::election::{Elector, PeerRecord, ProbedPathMtu, Role};
use strait_kube::repeated_failure::RepeatedFailure;
use tokio::select;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep, timeout};

use super::LeaderTerm;
use crate::config::address_of_one_host;

/// How long a new leader looks for its session often: kube-proxy leads the peer of a server to its pod within a second.
const AWAITED: Duration = Duration::from_secs(5);

/// What is known about the peer, from the control loop.
pub(super) struct PeerHeard {
    /// Where the peer was heard last, if the next leader needs to know.
    pub(super) heard: watch::Receiver<Option<SocketAddr>>,
    /// What probes found of the path to it.
    pub(super) path_mtu: watch::Receiver<Option<ProbedPathMtu>>,
    /// Whether the peer is expected at any moment.
    pub(super) awaits: watch::Sender<bool>,
    /// The pod that has its session: the former leader, until this one has one.
    pub(super) predecessor: watch::Sender<Option<IpAddr>>,
}

/// Takes part in the election until `end`, which says whether to wait for a successor then. Returns whether there is one.
/// The Lease records what is known about the peer.
///
/// If the replica `has_led` before its container restarted, it leads until the API server says who holds the Lease.
pub(super) async fn run_election(
    mut elector: Elector,
    pod: ActivePod,
    has_led: bool,
    term: watch::Sender<Option<LeaderTerm>>,
    mut peer: PeerHeard,
    mut end: oneshot::Receiver<bool>,
) -> bool {
    let times = elector.times();
    let mut labels = RepeatedFailure::about("label the active pod");
    // A successor of the leader's process goes on.
    let mut was = if term.borrow().is_some() { Role::Leader } else { Role::Standby };
    let (mut has_session, mut began) = (false, Instant::now());

    let needs_successor = loop {
        elector.set_record(peer.record());
        let elected = elector.round().await;
        let is = if has_led && !elector.was_answered() { Role::Leader } else { elected };
        if is != was {
            // Any writer of Leases may have set this value.
            let PeerRecord { endpoint, path_mtu } = elector.record_of_leader();
            let peer_endpoint = endpoint.and_then(|left| address_of_one_host(left).ok());
            // A former process of this pod had the same clock.
            let today = || Duration::try_from(Timestamp::now().as_duration()).ok();
            let continue_after = elector.continue_after().or_else(|| today().filter(|_| has_led));
            peer.heard.mark_unchanged();
            (has_session, began) = (false, Instant::now());
            peer.awaits.send_replace(is == Role::Leader);
            term.send_replace((is == Role::Leader).then_some(LeaderTerm {
                peer_endpoint,
                path_mtu,
                continue_after,
            }));
        }
        if has_session || began.elapsed() >= AWAITED {
            peer.awaits.send_replace(false);
        }
        let call = times.call();
        match (was, is) {
            (_, Role::Leader) if elector.holds() => {
                let claimed = flat(timeout(call, pod.claim(has_session)).await);
                labels.log(&claimed);
                if let Ok(predecessor) = claimed {
                    peer.set_predecessor(predecessor);
                }
            }
            // Another replica may have the label by now.
            (_, Role::Leader) => {}
            (Role::Leader, Role::Standby) => {
                labels.log(&flat(timeout(call, pod.remove_label()).await));
            }
            (Role::Standby, Role::Standby) => labels.log(&anyhow::Ok(())),
        }
        was = is;

        select! {
            () = sleep(times.retry_period) => {}
            Ok(()) = peer.heard.changed(), if is == Role::Leader && !has_session => {
                has_session = true;
            }
            needs_successor = &mut end => break needs_successor.unwrap_or_default(),
        }
    };

    elector.set_record(peer.record());
    if needs_successor {
        elector.hand_over().await
    } else {
        elector.end().await;
        false
    }
}

impl PeerHeard {
    /// What the next leader has to know.
    fn record(&self) -> PeerRecord {
        PeerRecord { endpoint: *self.heard.borrow(), path_mtu: *self.path_mtu.borrow() }
    }

    fn set_predecessor(&self, predecessor: Option<IpAddr>) {
        self.predecessor.send_if_modified(|known| {
            let is_news = *known != predecessor;
            *known = predecessor;
            is_news
        });
    }
}

/// A timeout is a failed call.
fn flat<T>(called: Result<kube::Result<T>, tokio::time::error::Elapsed>) -> anyhow::Result<T> {
    Ok(called??)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use http::{Method, Request, Response, StatusCode};
    use http_body_util::BodyExt as _;
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;
    use strait_api::identity::{Identity, Mode};
    use strait_api::labels::{ACTIVE, HAS_SESSION};
    use strait_kube::election::{Election, Settings, Times};
    use tokio::spawn;
    use tokio::task::JoinHandle;
    use tower::service_fn;

    use super::*;

    const TIMES: Times =
        Times { renew_deadline: Duration::from_secs(9), retry_period: Duration::from_millis(1) };

    /// Numbers of requests.
    #[derive(Default)]
    struct RequestCounts {
        renewals: usize,
        labels: usize,
        /// Patches of the annotation of a pod with a session.
        sessions: usize,
        refused: usize,
    }

    /// An API server that keeps one Lease, and lists the pod gw-1 of this machine and lets none be changed. Counts requests
    /// in `counts`.
    fn server(counts: watch::Sender<RequestCounts>) -> Client {
        server_that_may_refuse(counts, watch::channel(false).1)
    }

    /// The same, but it rejects writes of the Lease while `refuses`.
    fn server_that_may_refuse(
        counts: watch::Sender<RequestCounts>,
        refuses: watch::Receiver<bool>,
    ) -> Client {
        let lease = Arc::new(Mutex::new(None));
        let answer = move |request: Request<Body>| {
            let (lease, counts, refuses) = (Arc::clone(&lease), counts.clone(), *refuses.borrow());
            async move {
                let (head, body) = request.into_parts();
                let (status, body) = match (head.method, head.uri.path().contains("/leases")) {
                    (Method::GET, true) => match lease.lock().unwrap().clone() {
                        Some(found) => (StatusCode::OK, found),
                        None => (StatusCode::NOT_FOUND, refusal(404, "NotFound")),
                    },
                    (_, true) if refuses => {
                        counts.send_modify(|counts| counts.refused += 1);
                        (StatusCode::CONFLICT, refusal(409, "Conflict"))
                    }
                    (_, true) => {
                        let written = body.collect().await.unwrap().to_bytes().to_vec();
                        counts.send_modify(|counts| counts.renewals += 1);
                        *lease.lock().unwrap() = Some(written.clone());
                        (StatusCode::OK, written)
                    }
                    (Method::GET, false) => (StatusCode::OK, pods()),
                    (_, false) => {
                        let patch = body.collect().await.unwrap().to_bytes();
                        let patch = String::from_utf8(patch.to_vec()).unwrap();
                        counts.send_modify(|counts| {
                            counts.labels += usize::from(patch.contains(ACTIVE));
                            counts.sessions += usize::from(patch.contains(HAS_SESSION));
                        });
                        (StatusCode::FORBIDDEN, refusal(403, "Forbidden"))
                    }
                };
                Ok::<_, Infallible>(
                    Response::builder().status(status).body(Body::from(body)).unwrap(),
                )
            }
        };

        Client::new(service_fn(answer), "tenant")
    }

    fn refusal(code: u16, reason: &str) -> Vec<u8> {
        let status = json!({
            "apiVersion": "v1", "kind": "Status", "status": "Failure",
            "code": code, "reason": reason, "message": reason,
        });

        status.to_string().into_bytes()
    }

    fn pods() -> Vec<u8> {
        let pod = json!({"metadata": {"name": "gw-1"}});
        let list = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [pod]});

        list.to_string().into_bytes()
    }

    fn identity() -> Identity {
        Identity {
            name: "milan".to_owned(),
            namespace: "tenant".to_owned(),
            remote_cluster_id: "milan".to_owned(),
            uid: "5b8e".to_owned(),
            mode: Mode::Server,
        }
    }

    /// A replica called `name`, and the sender that ends it.
    fn replica(
        client: &Client,
        name: &str,
        term: watch::Sender<Option<LeaderTerm>>,
        heard: watch::Receiver<Option<SocketAddr>>,
    ) -> (JoinHandle<bool>, oneshot::Sender<bool>) {
        replica_that(false, client, name, term, heard)
    }

    /// The same, if it `has_led` before it restarted.
    fn replica_that(
        has_led: bool,
        client: &Client,
        name: &str,
        term: watch::Sender<Option<LeaderTerm>>,
        heard: watch::Receiver<Option<SocketAddr>>,
    ) -> (JoinHandle<bool>, oneshot::Sender<bool>) {
        let settings = Settings {
            holder: format!("{name}_1"),
            place: None,
            lease_duration: Duration::from_secs(15),
        };
        let elector = Elector::new(Election::new(client.clone(), &identity(), settings), TIMES);
        let pod = ActivePod::new(client.clone(), &identity(), name.to_owned());
        let path_mtu = watch::channel(probed(name)).1;
        let peer_heard = PeerHeard {
            heard,
            path_mtu,
            awaits: watch::Sender::default(),
            predecessor: watch::Sender::default(),
        };
        let (end, ended) = oneshot::channel();

        (spawn(run_election(elector, pod, has_led, term, peer_heard, ended)), end)
    }

    /// What the replica called `name` knows of the path.
    fn probed(name: &str) -> Option<ProbedPathMtu> {
        match name {
            "gw-2" => Some(ProbedPathMtu::Bytes(1420)),
            "gw-4" => Some(ProbedPathMtu::Unknown),
            _ => None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_label_keeps_the_lease() {
        let (counts, mut asks) = watch::channel(RequestCounts::default());
        let client = server(counts);
        let (term, reported_term) = watch::channel(None);
        let (_heard, heard) = watch::channel(None);

        let (role, end) = replica(&client, "gw-1", term, heard);
        asks.wait_for(|counts| counts.renewals >= 10 && counts.labels >= 10).await.unwrap();
        assert_eq!(*reported_term.borrow(), Some(LeaderTerm::default()));
        assert!(!role.is_finished());
        end.send(true).unwrap();
        assert!(!role.await.unwrap(), "no successor waits");
    }

    /// It may have a successor, and must not take the label from it.
    #[tokio::test(start_paused = true)]
    async fn without_renewal_the_leader_claims_no_label() {
        let (counts, mut asks) = watch::channel(RequestCounts::default());
        let (refuses, is_refusing) = watch::channel(false);
        let client = server_that_may_refuse(counts, is_refusing);
        let (term, reported_term) = watch::channel(None);
        let (_heard, heard) = watch::channel(None);
        let (role, end) = replica(&client, "gw-1", term, heard);
        asks.wait_for(|counts| counts.labels >= 1).await.unwrap();

        refuses.send_replace(true);
        asks.wait_for(|counts| counts.refused >= 1).await.unwrap();
        let before = asks.borrow().labels;
        asks.wait_for(|counts| counts.refused >= 10).await.unwrap();
        assert_eq!(asks.borrow().labels, before);
        assert_eq!(
            *reported_term.borrow(),
            Some(LeaderTerm::default()),
            "it goes on as the leader"
        );

        refuses.send_replace(false);
        asks.wait_for(|counts| counts.labels > before).await.unwrap();
        end.send(true).unwrap();
        role.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_waits_for_a_needed_successor() {
        for (is_needed, wait) in [(true, 8), (false, 0)] {
            let client = server(watch::Sender::default());
            let (term, mut reported_term) = watch::channel(None);
            let (_hears, heard) = watch::channel(None);
            let (role, end) = replica(&client, "gw-1", term, heard);
            reported_term.wait_for(Option::is_some).await.unwrap();

            let asked = Instant::now();
            end.send(is_needed).unwrap();
            assert!(!role.await.unwrap(), "no successor waits");
            assert_eq!(asked.elapsed().as_secs(), wait);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_lease_hands_on_what_is_known() {
        let client = server(watch::Sender::default());
        let endpoint: SocketAddr = "192.0.2.7:51840".parse().unwrap();
        let nowhere = "0.0.0.0:51840".parse().ok();

        let path_mtu = Some(ProbedPathMtu::Bytes(1420));

        for (name, heard, left, left_path_mtu) in [
            ("gw-1", Some(endpoint), None, None),
            ("gw-2", None, Some(endpoint), None),
            ("gw-3", nowhere, Some(endpoint), path_mtu),
            ("gw-4", None, None, path_mtu),
            ("gw-5", None, None, None),
        ] {
            let (term, mut reported_term) = watch::channel(None);
            let (hears, heard) = watch::channel(heard);
            let (role, end) = replica(&client, name, term, heard);
            let term = reported_term.wait_for(Option::is_some).await.unwrap().unwrap();
            assert_eq!((term.peer_endpoint, term.path_mtu), (left, left_path_mtu), "{name}");
            // Only the first has no predecessor.
            assert_eq!(term.continue_after.is_some(), name != "gw-1");
            drop(hears);
            end.send(true).unwrap();
            assert!(!role.await.unwrap(), "no successor waits");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_pod_with_a_session_is_annotated() {
        let (counts, mut asks) = watch::channel(RequestCounts::default());
        let client = server(counts);
        let (term, _reported_term) = watch::channel(None);
        let (hears, heard) = watch::channel(None);
        let (role, end) = replica(&client, "gw-1", term, heard);
        asks.wait_for(|counts| counts.labels >= 10).await.unwrap();
        assert_eq!(asks.borrow().sessions, 0);

        hears.send_replace(None);
        asks.wait_for(|counts| counts.sessions >= 10).await.unwrap();
        end.send(true).unwrap();
        role.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_restarted_leader_needs_no_api_server() {
        for has_led in [true, false] {
            let (reached, mut requests) = watch::channel(0);
            let refuse = move |_: Request<Body>| {
                reached.send_modify(|count| *count += 1);
                async { Err::<Response<Body>, _>(std::io::Error::other("no route to host")) }
            };
            let client = Client::new(service_fn(refuse), "tenant");
            let (term, reported_term) = watch::channel(None);
            let (_hears, heard) = watch::channel(None);
            let (role, end) = replica_that(has_led, &client, "gw-1", term, heard);
            requests.wait_for(|count| *count >= 10).await.unwrap();
            let term = *reported_term.borrow();
            assert_eq!(term.is_some(), has_led);
            assert_eq!(term.is_some_and(|term| term.continue_after.is_some()), has_led);
            end.send(true).unwrap();
            assert!(!role.await.unwrap());
        }
    }
}
