//! Two clusters with two running gateways, and what every test checks of them at its end.

use std::io::{self, Read as _, Write};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use strait_lab::Cluster;
use strait_lab::LabError;
use strait_lab::Layout;
use strait_lab::TwoClusters;
use strait_lab::topology::POD_LINK;
use strait_lab::traffic::{Amount, Datagrams, Ping, tcp, udp};

use super::STRAIT;

/// Hundreds of super-frames, of which a gateway without optimisation carries some each second.
const BULK_BYTES: u64 = 5_000_000;

/// Marks of congestion in a traffic class (RFC 3168 section 5): the path may mark, and it did.
pub(crate) const ECT_0: u8 = 2;
pub(crate) const CE: u8 = 3;

pub(crate) struct World {
    pub(crate) clusters: TwoClusters,
}

impl World {
    /// Both gateways run and have a session.
    pub(crate) fn start(layout: &Layout) -> Self {
        Self::start_with(layout, |_| ())
    }

    /// The same, with configurations that were changed before the start.
    pub(crate) fn start_with(layout: &Layout, change: impl FnOnce(&mut TwoClusters)) -> Self {
        let mut world = Self::prepare(layout);
        change(&mut world.clusters);

        world.clusters.start(Path::new(STRAIT)).unwrap();

        world
    }

    /// Both clusters without running gateways.
    pub(crate) fn prepare(layout: &Layout) -> Self {
        Self { clusters: TwoClusters::new(layout).unwrap() }
    }

    pub(crate) const fn milan(&self) -> &Cluster {
        &self.clusters.milan
    }

    pub(crate) const fn rome(&self) -> &Cluster {
        &self.clusters.rome
    }

    /// Both ways, every family: ping, TCP and UDP arrive whole, from the right address.
    pub(crate) fn assert_traffic(&self) {
        for (from, to) in [(self.rome(), self.milan()), (self.milan(), self.rome())] {
            for (target, seen_as) in from.side.sees(&to.side).zip(to.side.sees(&from.side)) {
                assert_traffic(from, to, target, seen_as);
            }
        }
    }

    /// The packet-for-packet account holds, and both gateways exit with status 0.
    pub(crate) fn finish(mut self) {
        for cluster in [self.milan(), self.rome()] {
            cluster.metrics_at_rest().unwrap();
        }

        self.clusters.stop().unwrap();
    }
}

/// `seen_as` is the address that `to` must know the sender under.
pub(crate) fn assert_traffic(from: &Cluster, to: &Cluster, target: IpAddr, seen_as: IpAddr) {
    let datagrams = Datagrams { count: 500, payload_bytes: 1200, per_second: 5000 };

    let ping = Ping::new(target, 5).run(&from.pod).unwrap();
    let bulk = tcp(&from.pod, &to.pod, target, Amount::Bytes(BULK_BYTES)).unwrap();
    let train = udp(&from.pod, &to.pod, target, datagrams).unwrap();

    let way = format!("{} to {target}", from.name);
    assert!(ping.is_perfect() && ping.errors.is_empty(), "{way}: {ping:?}");
    assert!(bulk.is_intact && bulk.received_bytes == BULK_BYTES, "{way}: {bulk:?}");
    assert_eq!(bulk.client_seen_as.ip(), seen_as, "{way}");
    assert!(train.is_perfect(), "{way}: {train:?}");
    assert_eq!(train.client_seen_as.map(|client| client.ip()), Some(seen_as), "{way}");
}

/// Both ways, every family: datagrams that pods send in fragments arrive whole.
pub(crate) fn assert_fragments(rome: &Cluster, milan: &Cluster) {
    let datagrams = Datagrams { count: 200, payload_bytes: 4000, per_second: 1000 };

    for cluster in [rome, milan] {
        // So that each pod's fragments fit into the tunnel without learning it first.
        cluster.pod.set_mtu(POD_LINK, 1400).unwrap();
    }
    for (from, to) in [(rome, milan), (milan, rome)] {
        for target in from.side.sees(&to.side) {
            let report = udp(&from.pod, &to.pod, target, datagrams).unwrap();

            assert!(report.is_perfect(), "{} to {target}: {report:?}", from.name);
        }
    }
}

/// The traffic class with which an echo request arrives that was sent with `traffic_class`.
pub(crate) fn traffic_class_on_arrival(from: &Cluster, to: &Cluster, traffic_class: u8) -> u8 {
    let target = from.side.sees(&to.side).next().unwrap();
    let listener = to
        .pod
        .run(|| {
            let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4));
            let socket = socket.map_err(LabError::io("open a raw socket"))?;
            socket.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
            Ok(socket)
        })
        .unwrap();

    let report = Ping { traffic_class, ..Ping::new(target, 1) }.run(&from.pod).unwrap();
    let mut packet = [0; 128];
    let len = (&listener).read(&mut packet).unwrap();

    assert!(report.is_perfect(), "{report:?}");
    assert!(len > 20 && packet[9] == 1, "an ICMP message");
    packet[1]
}

impl Drop for World {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for cluster in [&self.clusters.milan, &self.clusters.rome] {
            let Ok(gateway) = cluster.process() else { continue };
            let log = gateway.process().log();
            let _ = writeln!(io::stderr(), "log of gateway {}:\n{log}", cluster.name);
        }
    }
}
