//! Two joined clusters.

use std::net::IpAddr;

use strait_lab::Cluster;
use strait_lab::Layout;
use strait_lab::TwoClusters;
use strait_lab::traffic::Ping;
use strait_lab::wait_until;

use crate::fed::{Fed, Mode, PATIENCE, whole};
use crate::world::assert_traffic;
use strait_control_lab::roles::shipped_role;

/// Two clusters and what feeds them.
pub(crate) struct Peering {
    pub(crate) in_rome: Fed,
    pub(crate) in_milan: Fed,
    /// Last, as it has the folder with the logs.
    pub(crate) clusters: TwoClusters,
}

impl Peering {
    /// `rome` is the mode of Rome's gateway.
    pub(crate) fn start(layout: &Layout, rome: Mode) -> Option<Self> {
        let clusters = TwoClusters::new(&layout.clone().without_ipv6()).unwrap();
        let mut in_rome = Fed::new(&clusters.rome, &clusters.milan, shipped_role(), &clusters)?;
        let mut in_milan = Fed::new(&clusters.milan, &clusters.rome, shipped_role(), &clusters)?;
        let milan = match rome {
            Mode::Client => Mode::Server,
            Mode::Server => Mode::Client,
        };
        in_rome.start("gateway", &alone(&clusters.milan, rome));
        in_milan.start("gateway", &alone(&clusters.rome, milan));

        in_rome.wait_for("Connected");
        in_milan.wait_for("Connected");

        Some(Self { clusters, in_rome, in_milan })
    }

    pub(crate) fn rome(&self) -> &Cluster {
        &self.clusters.rome
    }

    pub(crate) fn milan(&self) -> &Cluster {
        &self.clusters.milan
    }

    /// Milan's pod, as Rome calls it.
    pub(crate) fn target(&self) -> IpAddr {
        self.rome().side.sees(&self.milan().side).next().unwrap()
    }

    pub(crate) fn assert_traffic(&self) {
        let (rome, milan) = (self.rome(), self.milan());
        for (from, to) in [(rome, milan), (milan, rome)] {
            for (target, seen_as) in from.side.sees(&to.side).zip(to.side.sees(&from.side)) {
                assert_traffic(from, to, target, seen_as);
            }
        }
    }

    pub(crate) fn assert_silent(&self) {
        let ping = Ping { count: 1, ..Ping::new(self.target(), 1) };
        wait_until("nothing passes", PATIENCE, || Ok(ping.run(&self.rome().pod)?.received == 0))
            .unwrap();
    }

    pub(crate) fn finish(self) {
        self.in_rome.finish();
        self.in_milan.finish();
    }
}

/// The flags of the only gateway in its namespace.
pub(crate) fn alone(other: &Cluster, mode: Mode) -> Vec<String> {
    let mut arguments = whole(other, mode);
    arguments.push("--health-probe-bind-address=:8085".to_owned());

    arguments
}
