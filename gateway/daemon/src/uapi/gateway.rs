//! The configuration socket of a gateway, which is configured by a file or by objects of an API server.
//!
//! Reading is allowed. A set is refused with `EPERM`: the next change of the file or of an object would revert it,
//! and until then the configuration would be in two places.

use std::collections::HashMap;
use std::sync::Arc;

use strait_io::Monitor;
use strait_wg::uapi::{Errno, Operation, Refusal, Report};
use tracing::info;

use super::{Serving, bind, serve, status};
use crate::admin::StatusBoard;
use crate::cluster::Observed;
use crate::config::{Config, Peer};

/// Serves the gateway with the device `interface`; `authority` is the source of its configuration. The socket is
/// optional: without it the gateway works too. `cluster` is the state of the cluster source, if there is one.
pub fn serve_gateway(
    interface: &str,
    authority: &'static str,
    monitor: Monitor,
    board: StatusBoard,
    cluster: Option<Observed>,
) -> Option<Serving> {
    let served = bind(interface).map_err(anyhow::Error::from).and_then(|listener| {
        let answer =
            move |operation| answer(operation, authority, &monitor, &board, cluster.as_ref());
        serve(listener, Arc::new(answer)).map_err(Into::into)
    });

    match served {
        Ok(serving) => Some(serving),
        Err(error) => {
            info!("{error:#}; `wg show` and `strait show` do not see this gateway");
            None
        }
    }
}

fn answer(
    operation: Operation,
    authority: &str,
    monitor: &Monitor,
    board: &StatusBoard,
    cluster: Option<&Observed>,
) -> Result<Option<Report>, Refusal> {
    match operation {
        Operation::Get => Ok(Some(of_gateway(monitor, board, cluster))),
        Operation::Set(_) => Err(Refusal::new(
            Errno::NOT_PERMITTED,
            format!("a set, but this gateway is configured by {authority}: change that"),
        )),
    }
}

fn of_gateway(monitor: &Monitor, board: &StatusBoard, cluster: Option<&Observed>) -> Report {
    let found = monitor.status();
    let in_force = board.applied();
    let config = in_force.as_ref().map(|in_force| &*in_force.config);
    let peers: HashMap<_, _> = config
        .iter()
        .flat_map(|config| &config.peers)
        .map(|peer: &Peer| (peer.keys.public_key, peer))
        .collect();

    let mut report = Report { device: status::of_device(&found), peers: Vec::new() };
    report.device.private_key = config.map(|config: &Config| config.private_key.clone());
    report.device.engine = config.map(|config| config.engine.to_string());
    report.peers = found
        .peers
        .iter()
        .map(|found| {
            let mut report = status::of_peer(found);
            report.name = Some(found.name.clone());
            if let Some(check) = cluster.and_then(|cluster| cluster.report(&found.name)) {
                status::add_check(&mut report, &check);
            }
            if let Some(peer) = peers.get(&found.public_key) {
                report.preshared_key.clone_from(&peer.keys.preshared_key);
                report.persistent_keepalive = peer.persistent_keepalive;
                report.allowed_ips = peer.allowed_ips.iter().copied().map(Into::into).collect();
            }
            report
        })
        .collect();

    report
}
