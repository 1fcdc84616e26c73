//! An overlay between the pods, inside the tunnel.

use std::net::IpAddr;
use std::process::Command;

use anyhow::Context as _;

use super::node::OVERHEAD_BYTES;
use super::{Contestant, run, tool};

/// The addresses of the client and of the server in the overlay.
const ADDRESSES: [[u8; 4]; 2] = [[172, 30, 0, 1], [172, 30, 0, 2]];

impl Contestant {
    /// Joins the pods by VXLAN with the defaults of `ip link`. Returns the address of the server in it.
    pub(crate) fn add_vxlan(&self, tunnel_mtu: u16) -> anyhow::Result<IpAddr> {
        let (rome, milan) = (&self.clusters.rome, &self.clusters.milan);
        let ends = [(rome, milan), (milan, rome)];

        for ((own, other), address) in ends.into_iter().zip(ADDRESSES) {
            let local = own.side.pod_addresses().next().context("the pod has no address")?;
            let remote = own.side.sees(&other.side).next().context("the pod has no address")?;
            let mtu = tunnel_mtu - OVERHEAD_BYTES;
            let link = format!("type vxlan id 7 dstport 4789 local {local} remote {remote}");
            for arguments in [
                format!("link add vxlan {link}"),
                format!("address add {}/24 dev vxlan", IpAddr::from(address)),
                format!("link set vxlan mtu {mtu} up"),
            ] {
                let mut ip = Command::new(tool("ip")?);
                ip.args(arguments.split(' '));
                run(&own.pod, ip)?;
            }
        }
        let [_, server] = ADDRESSES;

        Ok(server.into())
    }
}
