//! The overlay edge for a successor of this process: its sockets, and what it has learned about nodes.
//!
//! The segment sizes of receivers are learned again.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU16;

use arc_swap::ArcSwap;
use socket2::Socket;

use super::host::Host;
use super::nodes::Nodes;
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
    /// The stations of nodes that were heard.
    stations: Vec<Option<Mac>>,
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
            let heard = known.of_source(node.address).and_then(|node| node.heard_mac());
            out.optional(heard, |out, Mac(mac)| out.put(&mac));
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
        let HandedOver { sockets, is_dual_stack, mac, nodes, stations } = handed_over;
        let Settings { encapsulation, port, host, .. } = *settings;
        let host = host.map(Host::new).transpose();
        let segments = offload.udp_gso && sockets.first().is_some_and(has_gso);
        let known = Nodes::new(&nodes, port, is_dual_stack, None);
        for (node, station) in nodes.iter().zip(stations) {
            if let (Some(known), Some(station)) = (known.of_source(node.address), station) {
                known.learn_mac(station);
            }
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
        let nodes = from.list(|from| Ok((read_node(from)?, read_mac(from)?)))?;
        let (nodes, stations) = nodes.into_iter().unzip();
        let sockets: Vec<_> = descriptors.take(SOCKETS).map(Socket::from).collect();
        if sockets.len() != SOCKETS {
            return Err(HandoverError::Invalid("number of sockets"));
        }

        Ok(Self { sockets, is_dual_stack, mac, nodes, stations })
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
