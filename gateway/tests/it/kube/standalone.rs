//! Clusters without Liqo: operators make the gateways, and the steps of its documentation join them.
//!
//! A stand-in for the kubelet starts the real gateway with what the operator has rendered, in the
//! namespace that is its pod. IPAM is the operator's.

mod connect;
mod declarative;
mod garbage;
mod hub;
mod member;
mod node;
pub(crate) mod pods;
mod predicted;
mod several;
mod site;

use std::io::{self, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::thread;

use strait_lab::Layout;
use strait_lab::Namespace;
use strait_lab::TwoClusters;

use crate::harness::STRAIT;
use crate::harness::relay::relay;
use crate::harness::world::assert_traffic;
use site::{Place, Site};

/// Both clusters, and a place from which commands reach both.
struct Two {
    rome: Site,
    milan: Site,
    clusters: TwoClusters,
}

impl Two {
    /// Both operators work. `None` if there can be no API server here.
    fn start(layout: &Layout) -> Option<Self> {
        let clusters = TwoClusters::new(&layout.clone().without_ipv6()).unwrap();
        let scratch = clusters.scratch.path();
        let rome = Site::start(&Place::from(&clusters.rome), scratch)?;
        let milan = Site::start(&Place::from(&clusters.milan), scratch)?;
        forward(&rome.namespace, &milan.namespace, milan.port());
        rome.wait_for_operator();
        milan.wait_for_operator();

        Some(Self { rome, milan, clusters })
    }

    fn network(&self, verb: &str, more: &[&str]) -> Output {
        self.strait(&["network", verb], more)
    }

    /// The same for any verb about both.
    fn strait(&self, verb: &[&str], more: &[&str]) -> Output {
        strait(&self.rome, &self.milan, verb, more)
    }

    /// What a pod of Rome calls a pod of Milan.
    fn target(&self) -> IpAddr {
        self.clusters.rome.side.sees(&self.clusters.milan.side).next().unwrap()
    }

    /// Both ways.
    fn assert_traffic(&self) {
        let (rome, milan) = (&self.clusters.rome, &self.clusters.milan);
        for (from, to) in [(rome, milan), (milan, rome)] {
            for (target, seen_as) in from.side.sees(&to.side).zip(to.side.sees(&from.side)) {
                assert_traffic(from, to, target, seen_as);
            }
        }
    }

    fn logs(&self) -> String {
        let logs = |site: &Site| {
            ["strait-operator", "gw-rome", "gw-milan"].map(|pod| site.log(pod)).concat()
        };
        [&self.rome, &self.milan].map(|site| format!("{}:\n{}", site.name, logs(site))).concat()
    }
}

/// `strait VERB` with both kubeconfigs, where both API servers are reached.
fn strait(local: &Site, remote: &Site, verb: &[&str], more: &[&str]) -> Output {
    let mut command = Command::new(STRAIT);
    command
        .args(verb)
        .args(["--kubeconfig", &local.kubeconfig()])
        .args(["--remote-kubeconfig", &remote.kubeconfig()])
        .args(["--cluster-id", local.name, "--remote-cluster-id", remote.name])
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = local.namespace.start(command).unwrap().wait_with_output().unwrap();
    let _ = writeln!(
        io::stderr(),
        "$ strait {}\n{}{}",
        verb.join(" "),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );

    output
}

/// Makes the API server of `to` reachable on the loopback of `from`, on the same `port`.
pub(crate) fn forward(from: &Arc<Namespace>, to: &Arc<Namespace>, port: u16) {
    let listener = from.run(move || Ok(TcpListener::bind(("127.0.0.1", port)).unwrap())).unwrap();
    let there = Arc::clone(to);
    // Ends with the test.
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = there.run(move || Ok(TcpStream::connect(("127.0.0.1", port)))) else {
                return;
            };
            // One that is away may come back.
            let Ok(far) = far else { continue };
            relay(&near, &far);
        }
    });
}
