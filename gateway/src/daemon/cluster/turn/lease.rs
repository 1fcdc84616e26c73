//! Stands for election, and marks the pod that has won.

use control::active::ActivePod;
use control::complaint::Complaint;
use control::election::{Campaign, Election, Standing, Times};
use tokio::select;
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};

/// Stands for election until `end` is over, then gives up what it has and waits for whoever takes it. Says
/// whether somebody has.
pub(super) async fn stand(
    election: Election,
    pod: ActivePod,
    times: Times,
    is_active: watch::Sender<bool>,
    mut end: oneshot::Receiver<()>,
) -> bool {
    let mut campaign = Campaign::new(election, times);
    let mut labels = Complaint::about("label the active pod");
    let mut was = Standing::Standby;

    loop {
        let is = campaign.round().await;
        if is != was {
            is_active.send_replace(is == Standing::Leader);
        }
        let call = times.call();
        labels.say(&match (was, is) {
            (_, Standing::Leader) => flat(timeout(call, pod.claim()).await),
            (Standing::Leader, Standing::Standby) => {
                flat(timeout(call, pod.yield_to_others()).await)
            }
            (Standing::Standby, Standing::Standby) => Ok(()),
        });
        was = is;

        select! {
            () = sleep(times.retry_period) => {}
            _ = &mut end => break,
        }
    }

    campaign.hand_over().await
}

/// A call that is not answered in time has failed as any other.
fn flat(called: Result<kube::Result<()>, tokio::time::error::Elapsed>) -> anyhow::Result<()> {
    Ok(called??)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::io;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use control::election::Settings;
    use control::identity::{Identity, Mode};
    use http::{Method, Request, Response, StatusCode};
    use http_body_util::BodyExt as _;
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;
    use tokio::spawn;
    use tower::service_fn;
    use tracing::subscriber::set_default;

    use super::*;

    const TIMES: Times =
        Times { renew_deadline: Duration::from_secs(9), retry_period: Duration::from_millis(1) };

    /// An API server that keeps one Lease, and lets nobody see a pod. Says how often the Lease was
    /// renewed.
    fn server(renewals: watch::Sender<usize>) -> Client {
        let lease = Arc::new(Mutex::new(None));
        let answer = move |request: Request<Body>| {
            let (lease, renewals) = (Arc::clone(&lease), renewals.clone());
            async move {
                let (head, body) = request.into_parts();
                let (status, body) = match (head.method, head.uri.path().contains("/leases")) {
                    (Method::GET, true) => match lease.lock().unwrap().clone() {
                        Some(found) => (StatusCode::OK, found),
                        None => (StatusCode::NOT_FOUND, refusal(404, "NotFound")),
                    },
                    (_, true) => {
                        let written = body.collect().await.unwrap().to_bytes().to_vec();
                        renewals.send_modify(|renewals| *renewals += 1);
                        *lease.lock().unwrap() = Some(written.clone());
                        (StatusCode::OK, written)
                    }
                    (_, false) => (StatusCode::FORBIDDEN, refusal(403, "Forbidden")),
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

    /// Everything that is logged.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_label_that_may_not_be_given_is_told_once_and_costs_nobody_the_lease() {
        let lines = Lines::default();
        let writer = lines.clone();
        let _guard =
            set_default(tracing_subscriber::fmt().with_writer(move || writer.clone()).finish());
        let renewals = watch::Sender::new(0);
        let mut renewed = renewals.subscribe();
        let client = server(renewals);
        let identity = Identity {
            name: "milan".to_owned(),
            namespace: "tenant".to_owned(),
            remote_cluster_id: "milan".to_owned(),
            uid: "5b8e".to_owned(),
            mode: Mode::Server,
        };
        let settings =
            Settings { holder: "gw-1_1".to_owned(), lease_duration: Duration::from_secs(15) };
        let election = Election::new(client.clone(), &identity, settings);
        let pod = ActivePod::new(client, &identity, "gw-1".to_owned());
        let (is_active, told) = watch::channel(false);
        let (end, ended) = oneshot::channel();

        let standing = spawn(stand(election, pod, TIMES, is_active, ended));
        renewed.wait_for(|renewals| *renewals >= 10).await.unwrap();
        assert!(*told.borrow());
        end.send(()).unwrap();
        standing.await.unwrap();

        let log = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(log.matches("cannot label the active pod").count(), 1, "{log}");
        assert!(!log.contains("can label") && !log.contains("Lease"), "{log}");
    }
}
