//! The socket: one send is up to 64 datagrams, one receive likewise.
//!
//! A single dual-stack socket serves IPv4 and IPv6, so that one thread can wait for both; where the
//! host has no IPv6 it is an IPv4 socket. Sending blocks while the send buffer is full, receiving
//! never waits (see `poll` in the worker).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::{Offload, StartError, sys};
use crate::buffer::{Transmit, TransmitBatch};
use crate::engine::Accounts;
use crate::engine::inbound::{MAX_MESSAGE_BYTES, MAX_MESSAGES, Received};
use crate::packet::ecn::Ecn;

/// Receive buffer: 10 ms at 10 Gb/s.
const RECEIVE_BUFFER_BYTES: i32 = 12 << 20;

/// Send buffer: a few dozen full sends.
const SEND_BUFFER_BYTES: i32 = 4 << 20;

/// The socket, shared by all threads that send and the one that receives.
#[derive(Debug)]
pub(super) struct Udp {
    socket: Socket,
    is_dual_stack: bool,
    port: u16,
    segments: AtomicBool,
    coalesces: bool,
}

impl Udp {
    /// Binds to `port` on every address; 0 lets the kernel choose.
    pub(super) fn bind(port: u16, offload: Offload) -> Result<Arc<Self>, StartError> {
        let (socket, is_dual_stack) =
            bind(port).map_err(|source| StartError::Port { port, source })?;
        let system = |operation| move |source| StartError::System { operation, source };
        let port = socket
            .local_addr()
            .map_err(system("read the port of the UDP socket"))?
            .as_socket()
            .map_or(port, |address| address.port());

        tune(&socket, is_dual_stack).map_err(system("set options of the UDP socket"))?;
        let coalesces = offload.udp_gro && set_gro(&socket);
        let segments = AtomicBool::new(offload.udp_gso && has_gso(&socket));

        Ok(Arc::new(Self { socket, is_dual_stack, port, segments, coalesces }))
    }

    /// Marks what is sent, for rules of the host; 0 is no mark. Needs CAP_NET_ADMIN.
    pub(super) fn set_mark(&self, mark: u32) -> io::Result<()> {
        self.socket.set_mark(mark)
    }

    /// The port in use.
    pub(super) const fn port(&self) -> u16 {
        self.port
    }

    /// Whether the kernel segments what we send.
    pub(super) fn segments(&self) -> bool {
        self.segments.load(Ordering::Relaxed)
    }

    /// Whether the kernel merges what we receive.
    pub(super) const fn coalesces(&self) -> bool {
        self.coalesces
    }

    /// Sends the batch, accounts for it and empties it.
    pub(super) fn send_all(&self, batch: &mut TransmitBatch, accounts: &Accounts) {
        for transmit in batch.transmits() {
            let is_sent = self.send(transmit, batch.bytes(transmit)).is_ok();
            accounts.handle_transmit(transmit, is_sent);
        }
        batch.clear();
    }

    /// Receives without waiting. Returns how many of `messages` are filled.
    pub(super) fn receive(&self, buffer: &mut ReceiveBuffer) -> io::Result<usize> {
        let ReceiveBuffer { bytes, messages, .. } = buffer;

        sys::receive(self.socket.as_fd(), bytes, MAX_MESSAGE_BYTES, messages)
    }

    fn send(&self, transmit: &Transmit, bytes: &[u8]) -> io::Result<()> {
        let destination = self.destination(transmit.outer.destination);
        let send = sys::Send {
            bytes,
            destination: &destination,
            segment_bytes: None,
            traffic_class: transmit.outer.traffic_class(),
            is_ipv6: transmit.outer.destination.is_ipv6(),
        };

        if transmit.datagrams() == 1 {
            return sys::send(self.socket.as_fd(), send);
        }
        if self.segments() {
            let segment_bytes = u16::try_from(transmit.segment_bytes).ok();
            match sys::send(self.socket.as_fd(), sys::Send { segment_bytes, ..send }) {
                Err(error) if self.is_refusal(&error) => {}
                result => return result,
            }
        }

        bytes
            .chunks(transmit.segment_bytes.max(1))
            .try_for_each(|bytes| sys::send(self.socket.as_fd(), sys::Send { bytes, ..send }))
    }

    /// Whether the kernel refused to segment, so that datagrams must go one by one.
    ///
    /// `EIO`: the route's device cannot checksum; that does not change, so segmentation stays off.
    /// `EINVAL` and `EMSGSIZE`: a datagram does not fit this path, which only fragments can cross.
    fn is_refusal(&self, error: &io::Error) -> bool {
        match error.raw_os_error() {
            Some(libc::EIO) => {
                if self.segments.swap(false, Ordering::Relaxed) {
                    tracing::warn!("the kernel refuses to segment UDP: sending one by one");
                }
                true
            }
            Some(libc::EINVAL | libc::EMSGSIZE) => true,
            _ => false,
        }
    }

    fn destination(&self, address: SocketAddr) -> SockAddr {
        match address {
            SocketAddr::V4(v4) if self.is_dual_stack => {
                SockAddr::from(SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0))
            }
            SocketAddr::V4(_) | SocketAddr::V6(_) => SockAddr::from(address),
        }
    }
}

impl AsFd for Udp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Memory for what one system call receives.
#[derive(Debug)]
pub(super) struct ReceiveBuffer {
    bytes: Box<[u8]>,
    messages: [sys::Message; MAX_MESSAGES],
}

impl ReceiveBuffer {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; MAX_MESSAGES * MAX_MESSAGE_BYTES].into_boxed_slice(),
            messages: sys::no_messages(),
        }
    }

    /// The first `count` messages. One that was cut short or has no source is left out: it cannot be
    /// authentic.
    pub(super) fn received(&self, count: usize) -> impl Iterator<Item = Received<'_>> {
        let parts = self.bytes.chunks_exact(MAX_MESSAGE_BYTES);

        self.messages.iter().zip(parts).take(count).filter_map(|(message, part)| {
            let source = message.source?;
            let bytes = part.get(..message.len).filter(|_| !message.is_truncated)?;

            Some(Received {
                bytes,
                stride: message.stride,
                source: SocketAddr::new(source.ip().to_canonical(), source.port()),
                ecn: Ecn::from_traffic_class(message.traffic_class),
            })
        })
    }
}

fn bind(port: u16) -> io::Result<(Socket, bool)> {
    match bind_dual_stack(port) {
        Ok(socket) => Ok((socket, true)),
        Err(error) if lacks_ipv6(&error) => {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
            socket.bind(&SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port).into())?;

            Ok((socket, false))
        }
        Err(error) => Err(error),
    }
}

fn bind_dual_stack(port: u16) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_only_v6(false)?;
    socket.bind(&SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port).into())?;

    Ok(socket)
}

fn lacks_ipv6(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL))
}

fn tune(socket: &Socket, is_dual_stack: bool) -> io::Result<()> {
    let fd = socket.as_fd();
    // Beyond the limit of the system only with CAP_NET_ADMIN; without it, as much as is allowed.
    if sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES).is_err() {
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, RECEIVE_BUFFER_BYTES)?;
    }
    if sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER_BYTES).is_err() {
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER_BYTES)?;
    }

    // Outer packets may be fragmented where the path needs it, as the kernel's WireGuard allows.
    sys::set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT)?;
    sys::set_option(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
    if is_dual_stack {
        sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DONT)?;
        sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
    }

    Ok(())
}

fn set_gro(socket: &Socket) -> bool {
    sys::set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1).is_ok()
}

/// Whether the kernel knows the option at all; 0 changes nothing.
fn has_gso(socket: &Socket) -> bool {
    sys::set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
}
