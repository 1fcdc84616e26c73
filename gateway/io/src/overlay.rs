//! The overlay edge: nodes send the packets of their pods inside VXLAN or Geneve to UDP sockets of this process.
//!
//! ```text
//!   pod ─▶ node ── VXLAN or Geneve over UDP ──▶ sockets ─▶ Reader ─▶ outbound thread
//!   pod ◀─ node ◀── one send per node, in segments ── Overlay ◀─ all packet threads
//! ```
//!
//! It needs no device, no route, no forwarding by the kernel, and no capability.
//!
//! The sender of a datagram must be a known node, and its identifier the one of that node. Overlays have no
//! authentication, so that is a check against mistakes and against senders who cannot forge a source address.
//!
//! Packets to one node leave as segments of one send (`UDP_SEGMENT`), each with its own headers, and with outer checksums:
//! the node's kernel can merge them again. Packets are never merged into frames here: that would verify their checksums
//! only to cut them again.
//!
//! # Deviation
//!
//! A packet keeps its hop limit, as on a wire: RFC 1812 section 5.3.1 has a router decrement it. The node does.

mod handover;
mod host;
mod nodes;
mod reader;
mod segment_sizes;
mod writer;

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use arc_swap::ArcSwap;
use remap::Prefix;
use socket2::Socket;

use super::edge::Edge;
use super::gso_fallback::GsoRefusals;
use super::udp::socket::{bind, has_gso, set_gro, tune};
use super::{Offload, StartError, steering};
use host::Host;
use nodes::{KnownNode, Nodes, derived_mac};
use segment_sizes::SegmentSizes;
use strait_engine::Accounts;
use strait_packet::DropReason;
use strait_packet::coalesce::{Frame, Merge};
use strait_packet::counters::as_u64;
use strait_packet::overlay::ethernet::Mac;
use strait_packet::overlay::neighbor::{Binding, MAX_FRAME_LEN, ask};
use strait_packet::overlay::{Encapsulation, SharedSource, Vni};
use strait_packet::virtio::{Gso, VirtioHeader};
use writer::{Run, Writer, for_each_run};

pub(super) use handover::HandedOver;
pub use host::HostSockets;
pub(super) use reader::Reader;

/// Sockets on the port. The kernel spreads flows over them, so that the packets of a flow do not wait behind those of all
/// others, and each has a receive buffer: without CAP_NET_ADMIN those are small.
const SOCKETS: usize = 4;

/// Settings of an overlay edge that do not change while it runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The protocol between nodes and gateway.
    pub encapsulation: Encapsulation,
    /// UDP port of the gateway and of all nodes.
    pub port: u16,
    /// The station of the gateway; `None` derives it from the gateway's address as seen by the first node.
    pub mac: Option<Mac>,
    /// The nodes at the start.
    pub nodes: Vec<Node>,
    /// The address of the gateway in the tunnel, for whose packets there is a socket
    /// ([`Gateway::host_sockets`](super::Gateway::host_sockets)). Without it the gateway is no host for nodes either.
    pub host: Option<IpAddr>,
}

/// A node that sends packets of its pods, and gets packets to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Outer address.
    pub address: IpAddr,
    /// Identifier of the virtual network with this node.
    pub vni: Vni,
    /// The station of the node; `None` asks the node for it and learns it from its frames, and until then derives it from
    /// the address as `strait node` does (IPv4).
    pub mac: Option<Mac>,
    /// The addresses that it leads to, besides its own.
    pub pods: Vec<Prefix>,
    /// Further outer addresses, from which it may send.
    pub sources: Vec<IpAddr>,
    /// Its address inside the overlay, by which it is asked for its station; `None`: the outer one.
    pub inner: Option<IpAddr>,
    /// The address of the gateway inside the overlay, for whose packets from this node there is a socket.
    pub gateway: Option<IpAddr>,
    /// The source that it has in common with other nodes, and its own in place of that.
    pub shared_source: Option<SharedSource>,
}

impl Node {
    /// A node with this outer address and identifier that leads to no pods; nothing else about it is known.
    #[must_use]
    pub const fn new(address: IpAddr, vni: Vni) -> Self {
        Self {
            address,
            vni,
            mac: None,
            pods: Vec::new(),
            sources: Vec::new(),
            inner: None,
            gateway: None,
            shared_source: None,
        }
    }
}

/// The IP packets between a node and the gateway, without the headers of the overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeTraffic {
    /// Outer address of the node.
    pub address: IpAddr,
    /// Bytes from the node: of all packets that could be parsed.
    pub received_bytes: u64,
    /// Bytes to the node: of all packets that the kernel took.
    pub sent_bytes: u64,
}

/// The sockets and the nodes, shared by all threads.
#[derive(Debug)]
pub(super) struct Overlay {
    sockets: Vec<Socket>,
    host: Option<Host>,
    is_dual_stack: bool,
    encapsulation: Encapsulation,
    port: u16,
    mac: Mac,
    nodes: ArcSwap<Nodes>,
    mtu_bytes: AtomicU16,
    segments: bool,
    refusals: GsoRefusals,
    segment_sizes: SegmentSizes,
}

impl Overlay {
    /// Binds the sockets.
    ///
    /// # Errors
    ///
    /// [`StartError::OverlayPort`] if the port is taken, [`StartError::System`] if an option cannot be set.
    pub(super) fn bind(
        settings: &Settings,
        mtu_bytes: u16,
        offload: Offload,
    ) -> Result<Arc<Self>, StartError> {
        let Settings { encapsulation, port, mac, host, ref nodes } = *settings;
        let (first, is_dual_stack) =
            bind(port).map_err(|source| StartError::OverlayPort { port, source })?;
        let sockets = sockets(first, is_dual_stack, offload).map_err(|source| {
            StartError::System { operation: "set options of the overlay's UDP sockets", source }
        })?;
        let host = host.map(Host::new).transpose().map_err(|source| StartError::System {
            operation: "create a pair of sockets",
            source,
        })?;
        let segments = offload.udp_gso && sockets.first().is_some_and(has_gso);

        Ok(Arc::new(Self {
            sockets,
            host,
            is_dual_stack,
            encapsulation,
            port,
            mac: mac.unwrap_or_else(|| own_mac(nodes, port)),
            nodes: ArcSwap::from_pointee(Nodes::new(nodes, port, is_dual_stack, None)),
            mtu_bytes: AtomicU16::new(mtu_bytes),
            segments,
            refusals: GsoRefusals::default(),
            segment_sizes: SegmentSizes::new(),
        }))
    }

    /// Puts `nodes` in force, from the next batch on. What was observed of a node that remains is kept.
    pub(super) fn set_nodes(&self, nodes: &[Node]) {
        let former = self.nodes.load();

        self.nodes.store(Arc::new(Nodes::new(nodes, self.port, self.is_dual_stack, Some(&former))));
    }

    /// What each node has sent and got.
    pub(super) fn traffic(&self) -> Vec<NodeTraffic> {
        self.nodes.load().traffic().collect()
    }

    /// The sockets for the packets of the gateway's own addresses; `None` without an address in the tunnel.
    pub(super) fn host_sockets(&self) -> io::Result<Option<HostSockets>> {
        self.host.as_ref().map(Host::sockets).transpose()
    }

    /// The gateway's own address, if `packet` is for it.
    fn host_of(&self, packet: &[u8]) -> Option<&Host> {
        self.host.as_ref().filter(|host| host.is_destination_of(packet))
    }

    /// Sets the length in bytes of the longest packet that fits the tunnel.
    pub(super) fn set_mtu(&self, mtu_bytes: u16) {
        self.mtu_bytes.store(mtu_bytes, Ordering::Relaxed);
    }

    /// Asks nodes for their stations: those that were not heard yet, or with `asks_again` all without a configured one.
    ///
    /// The question is an ARP probe (RFC 5227 section 2.1.1), which a host answers without a route to the gateway: for the
    /// node's address in the overlay, or for its outer one, which it has on every interface. For a node with an IPv6 address there is no such question.
    pub(super) fn ask_nodes(&self, asks_again: bool) {
        let own = Binding { address: Ipv4Addr::UNSPECIFIED.into(), mac: self.mac };
        let mut buffer = [0; MAX_FRAME_LEN];
        for node in self.nodes.load().without_station(asks_again) {
            if let Some(question) = ask(own, node.inner(), &mut buffer)
                && let Err(error) = self.send_frame(node, question)
            {
                tracing::debug!(%error, node = %node.remote(), "cannot ask a node for its station");
            }
        }
    }

    fn writer(&self) -> Option<Writer<'_>> {
        Some(Writer {
            socket: self.sockets.first()?.as_fd(),
            encapsulation: self.encapsulation,
            mac: self.mac,
            segments: self.segments.then_some(&self.refusals),
        })
    }

    /// Sends `frame`, an Ethernet frame, to `node`.
    fn send_frame(&self, node: &KnownNode, frame: &[u8]) -> io::Result<()> {
        let writer = self.writer().ok_or(io::ErrorKind::NotConnected)?;
        let header = self.encapsulation.header(node.vni());

        writer.send(node, &[IoSlice::new(&header), IoSlice::new(frame)], None, 0)
    }
}

impl Edge for Overlay {
    fn inputs(&self) -> Vec<BorrowedFd<'_>> {
        let sockets = self.sockets.iter().map(AsFd::as_fd);

        sockets.chain(self.host.iter().flat_map(Host::inputs)).collect()
    }

    fn mtu(&self) -> Option<u16> {
        Some(self.mtu_bytes.load(Ordering::Relaxed))
    }

    /// None: see the module.
    fn merge(&self) -> Merge {
        Merge { tcp: false, udp: false }
    }

    fn has_overlay_offload(&self) -> bool {
        false
    }

    /// Takes only complete packets: no field of an overlay says what is left to be done.
    fn write(&self, virtio: &VirtioHeader, packet: &[u8]) -> Result<(), DropReason> {
        if virtio.gso != Gso::None || virtio.needs_checksum {
            return Err(DropReason::WriteFailed);
        }
        if let Some(host) = self.host_of(packet) {
            return host.deliver(packet);
        }
        self.segment_sizes.learn(packet);
        let nodes = self.nodes.load();
        let mut run = Run::new();
        let node = nodes.of_packet(packet).ok_or(DropReason::NoNode)?;
        let writer = self.writer().ok_or(DropReason::WriteFailed)?;
        if let Some(sent) = writer.send_restored(node, packet) {
            return if sent.is_complete() { Ok(()) } else { Err(DropReason::WriteFailed) };
        }
        run.push(node, packet);

        if writer.send_run(&run).is_complete() { Ok(()) } else { Err(DropReason::WriteFailed) }
    }

    fn write_frames<'a>(
        &self,
        frames: impl Iterator<Item = Frame<'a>>,
        bytes: &[u8],
        accounts: &Accounts,
    ) {
        let Some(writer) = self.writer() else { return };
        let nodes = self.nodes.load();
        let packets = frames.flat_map(|frame| frame.members()).map(|range| bytes.get(range));
        let with_node = packets.flatten().filter_map(|packet| {
            if let Some(host) = self.host_of(packet) {
                accounts.handle_frame(1, as_u64(packet.len()), host.deliver(packet).is_ok());
                return None;
            }
            self.segment_sizes.learn(packet);
            let node = nodes.of_packet(packet);
            if node.is_none() {
                accounts.inbound.count_drops(DropReason::NoNode, 1);
            }
            let node = node?;
            if let Some(sent) = writer.send_restored(node, packet) {
                sent.count(accounts);
                return None;
            }
            Some((node, packet))
        });

        for_each_run(with_node, |run| writer.send_run(run).count(accounts));
    }
}

/// The first socket, and more on its port.
fn sockets(first: Socket, is_dual_stack: bool, offload: Offload) -> io::Result<Vec<Socket>> {
    let address = first.local_addr()?;
    let mut sockets = vec![first];
    if let Some(first) = sockets.first() {
        first.set_reuse_port(true)?;
    }
    for _ in 1..SOCKETS {
        sockets.push(steering::bind_beside(&address)?);
    }
    for socket in &sockets {
        tune(socket, is_dual_stack)?;
        if offload.udp_gro {
            set_gro(socket);
        }
    }

    Ok(sockets)
}

/// The station of the gateway: derived from the address by which it reaches the first node, if that is one of IPv4.
fn own_mac(nodes: &[Node], port: u16) -> Mac {
    let address = nodes.first().and_then(|node| own_address(SocketAddr::new(node.address, port)));

    let derived = address.map(derived_mac).filter(|mac| mac.is_station());
    derived.unwrap_or(Mac([0x0e, 0x53, 0, 0, 0, 1]))
}

/// The address that the kernel chooses towards `remote`. Nothing is sent.
fn own_address(remote: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = match remote {
        SocketAddr::V4(_) => ([0; 4], 0).into(),
        SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(remote).ok()?;

    Some(socket.local_addr().ok()?.ip())
}
