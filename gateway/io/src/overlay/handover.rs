//! The overlay edge for a successor of this process: its sockets, and what it has observed of nodes.
//!
//! The segment sizes of receivers are learned again.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU16;

use arc_swap::ArcSwap;
use socket2::Socket;

use super::host::Host;
use super::nodes::{KnownNode, Nodes};
use super::segment_sizes::SegmentSizes;
use super::{Node, Overlay, SOCKETS, Settings};
use crate::Offload;
use crate::gso_fallback::GsoRefusals;
use crate::udp::socket::{has_gso, set_receive_buffer};
use strait_packet::overlay::ethernet::Mac;
use strait_packet::overlay::{SharedSource, Vni};
use strait_wg::handover::{HandoverError, Reader, Writer};

/// What was handed over of an overlay.
pub(in super::super) struct HandedOver {
    sockets: Vec<Socket>,
    is_dual_stack: bool,
    mac: Mac,
    /// The nodes in force.
    pub(in super::super) nodes: Vec<Node>,
    /// What was observed of each.
    observations: Vec<Observation>,
}

/// What was observed of a node.
struct Observation {
    /// Its station, if it was heard.
    station: Option<Mac>,
    received_bytes: u64,
    sent_bytes: u64,
}

impl Overlay {
    /// Writes the overlay with `nodes`, which are in force. Returns its sockets, in the order in which a successor reads
    /// them.
    pub(in super::super) fn export(&self, nodes: &[Node], out: &mut Writer) -> Vec<BorrowedFd<'_>> {
        out.flag(self.is_dual_stack);
        out.put(&self.mac.0);
        let known = self.nodes.load();
        out.list(nodes.iter(), |out, node| {
            write_node(node, out);
            let known = known.of_source(node.address);
            out.optional(known.and_then(KnownNode::heard_mac), |out, Mac(mac)| out.put(&mac));
            let traffic = known.map(KnownNode::traffic);
            out.u64(traffic.map_or(0, |traffic| traffic.received_bytes));
            out.u64(traffic.map_or(0, |traffic| traffic.sent_bytes));
        });

        self.sockets.iter().map(|socket| socket.as_fd()).collect()
    }

    /// The overlay of the predecessor of this process.
    ///
    /// # Errors
    ///
    /// [`HandoverError::Invalid`] if no socket for its own address can be created.
    pub(in super::super) fn import(
        handed_over: HandedOver,
        settings: &Settings,
        mtu_bytes: u16,
        offload: Offload,
    ) -> Result<Arc<Self>, HandoverError> {
        let HandedOver { sockets, is_dual_stack, mac, nodes, observations } = handed_over;
        let Settings { encapsulation, port, host, .. } = *settings;
        let host = host.map(Host::new).transpose();
        let segments = offload.udp_gso && sockets.first().is_some_and(has_gso);
        let known = Nodes::new(&nodes, port, is_dual_stack, None);
        for (node, observation) in nodes.iter().zip(observations) {
            let Some(known) = known.of_source(node.address) else { continue };
            if let Some(station) = observation.station {
                known.learn_mac(station);
            }
            known.count_received(observation.received_bytes);
            known.count_sent(observation.sent_bytes);
        }

        Ok(Arc::new(Self {
            sockets,
            host: host.map_err(|_| HandoverError::Invalid("socket of the overlay"))?,
            is_dual_stack,
            encapsulation,
            port,
            mac: settings.mac.unwrap_or(mac),
            nodes: ArcSwap::from_pointee(known),
            mtu_bytes: AtomicU16::new(mtu_bytes),
            segments,
            refusals: GsoRefusals::default(),
            segment_sizes: SegmentSizes::new(),
        }))
    }
}

impl Overlay {
    /// Gives the receive buffers `bytes`, as far as the host allows. What is in them stays.
    pub(in super::super) fn set_receive_buffers(&self, bytes: i32) {
        for socket in &self.sockets {
            if let Err(error) = set_receive_buffer(socket, bytes) {
                tracing::debug!(%error, "the receive buffer of the overlay keeps its size");
            }
        }
    }
}

impl HandedOver {
    /// Reads what [`Overlay::export`] wrote.
    ///
    /// # Errors
    ///
    /// [`HandoverError`] if it is not that.
    pub(in super::super) fn read(
        from: &mut Reader<'_>,
        descriptors: &mut impl Iterator<Item = OwnedFd>,
    ) -> Result<Self, HandoverError> {
        let (is_dual_stack, mac) = (from.flag()?, Mac(*from.array()?));
        let nodes = from.list(|from| Ok((read_node(from)?, read_observation(from)?)))?;
        let (nodes, observations) = nodes.into_iter().unzip();
        let sockets: Vec<_> = descriptors.take(SOCKETS).map(Socket::from).collect();
        if sockets.len() != SOCKETS {
            return Err(HandoverError::Invalid("number of sockets"));
        }

        Ok(Self { sockets, is_dual_stack, mac, nodes, observations })
    }

    /// Whether its sockets are for `port`.
    pub(in super::super) fn is_on(&self, port: u16) -> bool {
        let address = self.sockets.first().and_then(|socket| socket.local_addr().ok()?.as_socket());

        address.is_some_and(|address| address.port() == port)
    }
}

fn read_mac(from: &mut Reader<'_>) -> Result<Option<Mac>, HandoverError> {
    from.optional(|from| from.array().map(|mac| Mac(*mac)))
}

fn read_observation(from: &mut Reader<'_>) -> Result<Observation, HandoverError> {
    Ok(Observation {
        station: read_mac(from)?,
        received_bytes: from.u64()?,
        sent_bytes: from.u64()?,
    })
}

fn write_node(node: &Node, out: &mut Writer) {
    let Node { address, vni, mac, pods, sources, inner, gateway, shared_source } = node;
    out.address(*address);
    out.u32(vni.to_number());
    out.optional(*mac, |out, Mac(mac)| out.put(&mac));
    out.list(pods.iter(), |out, prefix| out.bytes(prefix.to_string().as_bytes()));
    out.list(sources.iter(), |out, source| out.address(*source));
    out.optional(*inner, Writer::address);
    out.optional(*gateway, Writer::address);
    out.optional(*shared_source, |out, SharedSource { shared, own }| {
        out.address(shared);
        out.address(own);
    });
}

fn read_node(from: &mut Reader<'_>) -> Result<Node, HandoverError> {
    let invalid = || HandoverError::Invalid("node");
    let (address, vni) = (from.address()?, from.u32()?);

    Ok(Node {
        address,
        vni: Vni::new(vni).ok_or_else(invalid)?,
        mac: read_mac(from)?,
        pods: from.list(|from| {
            let text = str::from_utf8(from.bytes()?).map_err(|_| invalid())?;
            text.parse().map_err(|_| invalid())
        })?,
        sources: from.list(Reader::address)?,
        inner: from.optional(Reader::address)?,
        gateway: from.optional(Reader::address)?,
        shared_source: from
            .optional(|from| Ok(SharedSource { shared: from.address()?, own: from.address()? }))?,
    })
}

#[cfg(test)]
mod tests {
    use strait_packet::overlay::Encapsulation;

    use super::super::NodeTraffic;
    use super::*;
    use crate::clock;

    #[test]
    fn a_successor_continues_the_observations() {
        let nodes = [1, 2].map(|last| Node::new([127, 0, 0, last].into(), Vni::new(7).unwrap()));
        let settings = Settings {
            encapsulation: Encapsulation::Geneve,
            port: 0,
            mac: None,
            nodes: nodes.to_vec(),
            host: None,
        };
        let heard = Mac([2, 0, 0, 0, 0, 9]);
        let overlay = Overlay::bind(&settings, 1_420, Offload::ON).unwrap();
        let known = overlay.nodes.load();
        let first = known.of_source(nodes[0].address).unwrap();
        first.learn_mac(heard);
        first.count_received(300);
        first.count_sent(30);

        let now = clock::now();
        let mut out = Writer::new(now);
        let sockets = overlay.export(&nodes, &mut out);
        let sockets: Vec<_> =
            sockets.iter().map(|socket| socket.try_clone_to_owned().unwrap()).collect();
        let state = out.finish();
        let mut from = Reader::new(&state, now);
        let handed_over = HandedOver::read(&mut from, &mut sockets.into_iter()).unwrap();
        let successor = Overlay::import(handed_over, &settings, 1_420, Offload::ON).unwrap();

        let traffic = |node: &Node, received_bytes, sent_bytes| NodeTraffic {
            address: node.address,
            received_bytes,
            sent_bytes,
        };
        assert_eq!(successor.traffic(), [traffic(&nodes[0], 300, 30), traffic(&nodes[1], 0, 0)]);
        let known = successor.nodes.load();
        let heard_by = nodes.map(|node| known.of_source(node.address).unwrap().heard_mac());
        assert_eq!(heard_by, [Some(heard), None]);
    }
}
