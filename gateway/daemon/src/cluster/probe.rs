//! Runs the connection check on one UDP socket, which sends and answers probes.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

use jiff::Timestamp;
use strait_plan::conncheck::{ConnCheck, Ignored, Reaction, Report, Settings, Traffic};
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until};
use tracing::{debug, info, warn};

use super::check_socket::CheckSocket;
use crate::election::random;
use crate::service::now;

/// Reads what the tunnel has carried.
pub(crate) type TrafficSource = Arc<dyn Fn() -> Traffic + Send + Sync>;

/// Runs the check and publishes its `reports`. With an overlay, `host_socket` is for the packets to the address beside it.
/// The MTU of the device, in bytes, may change. Once the gateway is draining, it tells the other end. Does
/// not return.
pub(super) async fn run(
    settings: Settings,
    host_socket: Option<(UnixDatagram, Ipv4Addr)>,
    traffic: TrafficSource,
    reports: watch::Sender<Report>,
    mut device_mtu: watch::Receiver<u16>,
    mut is_draining: watch::Receiver<bool>,
) {
    let peer = SocketAddr::new(settings.peer, settings.port);
    let mut socket = open(&settings, host_socket).await;
    let mut check = ConnCheck::new(settings, now());
    device_mtu.mark_changed();
    is_draining.mark_changed();
    let mut buffer = vec![0; usize::from(u16::MAX)];

    loop {
        tokio::select! {
            () = sleep_until(check.next_timeout().into()) => {
                check.handle_traffic(traffic(), now());
                let ping = check.handle_timeout(now(), Timestamp::now(), random());
                let quick_ping = check.quick_ping(now(), Timestamp::now(), random);
                let draining_ping = check.draining_ping(now(), Timestamp::now(), random);
                for ping in ping.into_iter().chain(quick_ping).chain(draining_ping) {
                    send(&socket, &ping, peer).await;
                }
                for ping in check.sized_pings(now(), Timestamp::now(), random) {
                    send(&socket, &ping, peer).await;
                }
            }
            Ok(()) = is_draining.changed() => {
                if *is_draining.borrow_and_update() {
                    check.drain(now());
                }
            }
            Ok(()) = device_mtu.changed() => check.set_mtu(*device_mtu.borrow_and_update(), now()),
            received = socket.receive(&mut buffer) => match received {
                Ok((length, source)) => {
                    let datagram = buffer.get(..length).unwrap_or_default();
                    match check.handle_datagram(source.ip(), datagram, now()) {
                        Reaction::Answer(pong) => send(&socket, &pong, source).await,
                        Reaction::Heard => {}
                        Reaction::Ignored(why) => note(source, why),
                    }
                }
                // An ICMP error about a PING, which also counts as missed.
                Err(error) => debug!(%error, "cannot receive a probe"),
            },
        }

        let report = check.report();
        reports.send_if_modified(|last| {
            if last.path_mtu != report.path_mtu
                && let Some(path_mtu) = report.path_mtu
            {
                debug!(path_mtu, "packets up to this length reach the other gateway");
            }
            if last.silences < report.silences {
                info!(limit = ?report.silence_limit, "the other gateway is silent");
            }
            if last.is_draining != report.is_draining {
                info!(is_draining = report.is_draining, "the other gateway says whether it ends");
            }
            if last.state != report.state {
                info!(from = ?last.state, to = ?report.state, "connection to the other gateway");
            }
            let is_new = *last != report;
            *last = report;
            is_new
        });
    }
}

/// Opens the socket, and retries while a predecessor in the same pod still has its port.
async fn open(settings: &Settings, host_socket: Option<(UnixDatagram, Ipv4Addr)>) -> CheckSocket {
    let mut is_first = true;
    loop {
        let socket = match &host_socket {
            Some((packets, own)) => CheckSocket::in_overlay(packets, *own, settings.port),
            None => CheckSocket::bind(settings.port).await,
        };
        match socket {
            Ok(socket) => return socket,
            Err(error) if is_first => {
                let port = settings.port;
                warn!(%error, port, "cannot bind the port of the connection check; trying again");
                is_first = false;
            }
            Err(_) => {}
        }
        sleep(settings.interval).await;
    }
}

/// A failed send counts as a missed probe.
async fn send(socket: &CheckSocket, datagram: &[u8], to: SocketAddr) {
    if let Err(error) = socket.send(datagram, to).await {
        debug!(%error, %to, "cannot send a probe");
    }
}

fn note(source: SocketAddr, why: Ignored) {
    debug!(%source, ?why, "probe ignored");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use strait_plan::conncheck::State;

    use super::*;

    #[tokio::test]
    async fn the_check_uses_the_configured_port() {
        let free = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        // On loopback the check is its own remote end.
        let settings = Settings {
            cluster_id: "milan".to_owned(),
            peer: Ipv4Addr::LOCALHOST.into(),
            port,
            interval: Duration::from_millis(20),
            loss_threshold: 500,
            mtu: 1340,
        };
        let (sender, mut reports) = watch::channel(Report::default());

        tokio::select! {
            () = run(
                settings,
                None,
                Arc::new(Traffic::default),
                sender,
                watch::channel(1340).1,
                watch::channel(false).1,
            ) => {}
            report = reports.wait_for(|report| report.state != State::Connecting) => {
                assert_eq!(report.unwrap().state, State::Connected);
            }
        }
    }
}
