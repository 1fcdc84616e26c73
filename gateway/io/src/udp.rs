//! The UDP sockets: each send and each receive transfers up to 64 datagrams.
//!
//! One dual-stack socket serves IPv4 and IPv6, so that one thread can wait for both; on a host without IPv6 it is an
//! IPv4 socket. Sending blocks while the send buffer is full. Receiving never blocks (see `Wait` in the worker).
//!
//! A spare socket, on a port that the kernel chooses, is for peers that do not answer the first port.
//!
//! Further sockets on the first port receive handshake messages, if the kernel can steer them (see [`steering`]).
//! Nothing is sent from those.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::gso_fallback::{GsoRefusals, SendMode};
use super::steering::{self, Steered};
use super::{Offload, StartError, clock, sys};
use strait_engine::Accounts;
use strait_engine::inbound::{MAX_MESSAGE_BYTES, MAX_MESSAGES, Received};
use strait_packet::buffer::{Transmit, TransmitBatch};
use strait_packet::counters::as_u64;
use strait_packet::ecn::Ecn;
use strait_packet::path::{Local, LocalPort, Path, canonical};

/// Receive buffer. The kernel doubles it, and counts the memory of datagrams in it: 4 MB of merged datagrams (10 ms at
/// 3 Gb/s), or half as much of unmerged ones.
///
/// If this host is the bottleneck, the buffer is as full as the senders' windows allow, 4 MB by Linux's default, and
/// pings wait behind that. Measured on two cores of an EPYC relative to 12 MB, without link-time optimisation (pairs of
/// the comparison, `--pairs 8 --pings --seconds 4`, 95 % confidence): 99th percentile of pings beside TCP 0.83 (0.75 to
/// 1.18, `native`) and 0.81 (0.70 to 0.88, `boringtun`), TCP 1.05 and 1.07; datagrams of 64 and 1,300 bytes at a loss
/// of 1 %: 0.97 and 0.98, medians of six rounds. Three quarters of this size: p99 0.74 in those rounds, but datagrams
/// 0.9. Half of it: p99 0.49 in eight pairs. Not measured: network cards that do not merge, with room for about 1,800
/// datagrams.
const RECEIVE_BUFFER_BYTES: i32 = 2 << 20;

/// Receive buffer of each handshake socket: six thousand messages, as the kernel counts their memory. A flood of 100,000
/// messages a second fills it in 60 ms; the scheduler may delay a thread for that long.
const HANDSHAKE_BUFFER_BYTES: i32 = 4 << 20;

/// Send buffer: a few dozen full sends.
const SEND_BUFFER_BYTES: i32 = 4 << 20;

/// The sockets, shared by all threads.
#[derive(Debug)]
pub(super) struct Udp {
    socket: Socket,
    /// On another port; `None` if it could not be created.
    spare: Option<Socket>,
    /// Whether the spare socket was used for sending, so that answers may arrive on it.
    uses_spare: AtomicBool,
    /// Receive handshake messages; without them the first socket receives everything.
    handshakes: Option<[Socket; Steered::COUNT]>,
    is_dual_stack: bool,
    port: u16,
    segments: bool,
    refusals: GsoRefusals,
    coalesces: bool,
}

impl Udp {
    /// Binds to `port` on every address; 0 lets the kernel choose.
    pub(super) fn bind(port: u16, offload: Offload) -> Result<Arc<Self>, StartError> {
        let (socket, is_dual_stack) =
            bind(port).map_err(|source| StartError::Port { port, source })?;

        Self::new(socket, is_dual_stack, port, offload)
    }

    fn new(
        socket: Socket,
        is_dual_stack: bool,
        port: u16,
        offload: Offload,
    ) -> Result<Arc<Self>, StartError> {
        let system = |operation| move |source| StartError::System { operation, source };
        let port = socket
            .local_addr()
            .map_err(system("read the port of the UDP socket"))?
            .as_socket()
            .map_or(port, |address| address.port());

        tune(&socket, is_dual_stack).map_err(system("set options of the UDP socket"))?;
        let coalesces = offload.udp_gro && set_gro(&socket);
        let spare = bind_spare(is_dual_stack, coalesces).inspect_err(
            |error| tracing::info!(%error, "no spare UDP port: handshakes are retried from one port only"),
        );
        let segments = offload.udp_gso && has_gso(&socket);
        let handshakes = offload
            .udp_steering
            .then(|| join(&socket, is_dual_stack, coalesces))
            .transpose()
            .unwrap_or_else(|error| {
                tracing::info!(%error, "the kernel does not steer handshakes: all datagrams arrive on one socket");
                None
            });

        Ok(Arc::new(Self {
            socket,
            spare: spare.ok(),
            uses_spare: AtomicBool::new(false),
            handshakes,
            is_dual_stack,
            port,
            segments,
            refusals: GsoRefusals::default(),
            coalesces,
        }))
    }

    /// Sets the mark of sent datagrams, for rules of the host; 0 is no mark. Needs CAP_NET_ADMIN.
    pub(super) fn set_mark(&self, mark: u32) -> io::Result<()> {
        self.spare.iter().try_for_each(|socket| socket.set_mark(mark))?;

        self.socket.set_mark(mark)
    }

    /// The port in use.
    pub(super) const fn port(&self) -> u16 {
        self.port
    }

    /// The port for peers that do not answer the first one; 0 if there is none.
    pub(super) fn spare_port(&self) -> u16 {
        let address = self.spare.as_ref().and_then(|socket| socket.local_addr().ok()?.as_socket());

        address.map_or(0, |address| address.port())
    }

    /// The sockets that [`Self::receive`] reads.
    pub(super) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [Some(&self.socket), self.spare.as_ref()].into_iter().flatten().map(AsFd::as_fd)
    }

    /// Whether the kernel segments sent datagrams, for all destinations in use.
    pub(super) fn segments(&self) -> bool {
        self.segments && !self.refusals.is_any(clock::now())
    }

    /// Whether the kernel merges received datagrams.
    pub(super) const fn coalesces(&self) -> bool {
        self.coalesces
    }

    /// Whether handshake messages arrive on sockets of their own.
    pub(super) const fn steers(&self) -> bool {
        self.handshakes.is_some()
    }

    /// The sockets for handshake messages; none if those arrive on the first socket.
    pub(super) fn handshakes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.handshakes.iter().flatten().map(AsFd::as_fd)
    }

    /// Sends the first `count` transmits of the batch, counts them and removes them. Calls `refused` with each path whose
    /// source address the kernel rejects: its datagrams are sent from another local address.
    pub(super) fn send_first(
        &self,
        count: usize,
        batch: &mut TransmitBatch,
        accounts: &Accounts,
        mut refused: impl FnMut(Path),
    ) {
        for transmit in batch.transmits().iter().take(count) {
            let bytes = batch.bytes(transmit);
            let rejected = match self.send(transmit, bytes, transmit.outer.path.local) {
                Ok(rejected) => Some(rejected),
                Err(error) if transmit.outer.path.local.is_some() && is_source_error(&error) => {
                    let rejected = self.send(transmit, bytes, None).ok();
                    if rejected.is_some() {
                        refused(transmit.outer.path);
                    }
                    rejected
                }
                Err(_) => None,
            };
            match rejected {
                Some(rejected) if rejected == Rejected::default() => {
                    accounts.handle_transmit(transmit, true);
                }
                Some(rejected) => {
                    let (sent, rejected) = transmit.divide(rejected.datagrams, rejected.bytes);
                    accounts.handle_transmit(&sent, true);
                    accounts.handle_transmit(&rejected, false);
                }
                None => accounts.handle_transmit(transmit, false),
            }
        }
        batch.forget(count);
    }

    /// Receives without waiting. Returns the number of messages.
    ///
    /// Reads the spare socket, if it is in use, when the first socket is empty, and after each call that filled `buffer`
    /// from the first socket: that one may never be empty.
    pub(super) fn receive(&self, buffer: &mut ReceiveBuffer) -> io::Result<usize> {
        let uses_spare = self.uses_spare.load(Ordering::Relaxed);
        let Some(spare) = self.spare.as_ref().filter(|_| uses_spare) else {
            return buffer.fill(LocalPort::Listen, self.socket.as_fd());
        };
        let mut sockets = [(LocalPort::Listen, &self.socket), (LocalPort::Spare, spare)];
        if buffer.is_full && buffer.port == LocalPort::Listen {
            sockets.reverse();
        }
        let [(port, first), (other, second)] = sockets;

        match buffer.fill(port, first.as_fd()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                buffer.fill(other, second.as_fd())
            }
            received => received,
        }
    }

    /// Receives handshake messages of one kind without waiting, if they have a socket of their own. Returns their number.
    pub(super) fn receive_handshakes(
        &self,
        steered: Steered,
        buffer: &mut HandshakeBuffer,
    ) -> io::Result<usize> {
        match self.handshakes().nth(steered.index()) {
            Some(socket) => buffer.fill(LocalPort::Listen, socket),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Number of handshake messages that the kernel dropped because a receive buffer was full. Wraps. 0 if the kernel does
    /// not report it.
    pub(super) fn dropped_handshakes(&self) -> u32 {
        self.handshakes().map(|socket| sys::dropped(socket).unwrap_or(0)).fold(0, u32::wrapping_add)
    }

    /// Returns what the kernel rejected; an error if it accepted nothing.
    fn send(
        &self,
        transmit: &Transmit,
        bytes: &[u8],
        source: Option<Local>,
    ) -> io::Result<Rejected> {
        let Path { remote, port, .. } = transmit.outer.path;
        let destination = self.destination(remote);
        let socket = match (port, &self.spare) {
            (LocalPort::Spare, Some(spare)) => {
                if !self.uses_spare.load(Ordering::Relaxed) {
                    self.uses_spare.store(true, Ordering::Relaxed);
                }
                spare
            }
            _ => &self.socket,
        };
        let send = sys::Send {
            bytes,
            destination: &destination,
            source,
            segment_bytes: None,
            traffic_class: transmit.outer.traffic_class(),
            hop_limit: transmit.outer.hop_limit,
            is_ipv6: remote.is_ipv6(),
        };

        if transmit.datagrams() == 1 {
            return sys::send(socket.as_fd(), send).map(|()| Rejected::default());
        }
        let mode = if self.segments { self.refusals.mode(remote) } else { SendMode::OneByOne };
        if mode != SendMode::OneByOne {
            let segment_bytes = u16::try_from(transmit.segment_bytes).ok();
            let sent = sys::send(socket.as_fd(), sys::Send { segment_bytes, ..send });
            match sent {
                Err(error) if self.is_refusal(&error, remote, mode) => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    if mode == SendMode::Trial {
                        self.refusals.handle_accepted(remote);
                        tracing::info!(%remote, "the kernel segments UDP again");
                    }
                    return Ok(Rejected::default());
                }
            }
        }

        send_each(bytes.chunks(transmit.segment_bytes.max(1)), |bytes| {
            sys::send(socket.as_fd(), sys::Send { bytes, ..send })
        })
    }

    /// Whether the kernel refused to segment, so that the datagrams must be sent one by one.
    ///
    /// `EIO`: the route does not support it, see [`gso_fallback`](super::gso_fallback).
    /// `EINVAL` and `EMSGSIZE`: a datagram exceeds the path MTU and must be fragmented.
    fn is_refusal(&self, error: &io::Error, remote: SocketAddr, mode: SendMode) -> bool {
        match error.raw_os_error() {
            Some(libc::EIO) => {
                self.refusals.handle_refused(remote);
                if mode == SendMode::Offload {
                    tracing::warn!(
                        %remote,
                        "the kernel refuses to segment UDP: sending one by one, which is slower; \
                         look for checksum offload of the device and for IPsec policies"
                    );
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

/// Datagrams of one transmit that the kernel rejected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rejected {
    datagrams: u64,
    bytes: u64,
}

/// Sends the datagrams one by one, and goes on after a failure: a rule of the host may reject some of them. If the first
/// fails because of its source address, all of them would, and none is sent.
fn send_each<'a>(
    datagrams: impl Iterator<Item = &'a [u8]>,
    mut send: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<Rejected> {
    let mut rejected = Rejected::default();
    let mut is_any_sent = false;
    let mut last_error = None;

    for datagram in datagrams {
        match send(datagram) {
            Ok(()) => is_any_sent = true,
            Err(error) if !is_any_sent && is_source_error(&error) => return Err(error),
            Err(error) => {
                rejected.datagrams += 1;
                rejected.bytes += as_u64(datagram.len());
                last_error = Some(error);
            }
        }
    }

    match last_error {
        Some(error) if !is_any_sent => Err(error),
        _ => Ok(rejected),
    }
}

/// Buffers for one receive call: `N` messages of up to `BYTES` bytes each.
#[derive(Debug)]
pub(super) struct Buffer<const N: usize, const BYTES: usize> {
    parts: [Box<[u8]>; N],
    messages: [sys::Message; N],
    /// The port on which they arrived.
    port: LocalPort,
    /// Whether the last call filled all of them.
    is_full: bool,
}

/// For transport data: many datagrams in one message.
pub(super) type ReceiveBuffer = Buffer<MAX_MESSAGES, MAX_MESSAGE_BYTES>;

/// For handshake messages, which the kernel does not merge. A longer message is no handshake message.
pub(super) type HandshakeBuffer = Buffer<32, 256>;

impl<const N: usize, const BYTES: usize> Buffer<N, BYTES> {
    pub(super) fn new() -> Self {
        Self {
            parts: std::array::from_fn(|_| vec![0; BYTES].into_boxed_slice()),
            messages: sys::empty_messages(),
            port: LocalPort::Listen,
            is_full: false,
        }
    }

    /// The first `count` messages, without those that were truncated or have no source: they cannot be authentic.
    pub(super) fn received(&self, count: usize) -> impl Iterator<Item = Received<'_>> {
        (0..count).filter_map(|number| self.message(number))
    }

    /// Message `number`; `None` if it was truncated or has no source.
    pub(super) fn message(&self, number: usize) -> Option<Received<'_>> {
        let message = self.messages.get(number).filter(|message| !message.is_truncated)?;

        Some(Received {
            bytes: self.parts.get(number)?.get(..message.len)?,
            stride: message.stride,
            path: Path {
                remote: canonical(message.source?),
                local: message.local,
                port: self.port,
            },
            ecn: Ecn::from_traffic_class(message.traffic_class),
        })
    }

    /// The buffer of message `number`. The caller may exchange it for one of the same length.
    pub(super) fn part_mut(&mut self, number: usize) -> Option<&mut Box<[u8]>> {
        self.parts.get_mut(number)
    }

    fn fill(&mut self, port: LocalPort, socket: BorrowedFd<'_>) -> io::Result<usize> {
        self.port = port;
        self.is_full = false;
        let count = sys::receive(socket, &mut self.parts, &mut self.messages)?;
        self.is_full = count == N;

        Ok(count)
    }
}

fn bind(port: u16) -> io::Result<(Socket, bool)> {
    match bind_dual_stack(port) {
        Ok(socket) => Ok((socket, true)),
        Err(error) if lacks_ipv6(&error) => Ok((bind_ipv4(port)?, false)),
        Err(error) => Err(error),
    }
}

fn bind_ipv4(port: u16) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.bind(&SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port).into())?;

    Ok(socket)
}

fn bind_dual_stack(port: u16) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_only_v6(false)?;
    socket.bind(&SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port).into())?;

    Ok(socket)
}

/// A socket like the first, on a port that the kernel chooses.
fn bind_spare(is_dual_stack: bool, coalesces: bool) -> io::Result<Socket> {
    let socket = if is_dual_stack { bind_dual_stack(0)? } else { bind_ipv4(0)? };
    tune(&socket, is_dual_stack)?;
    if coalesces {
        set_gro(&socket);
    }

    Ok(socket)
}

fn lacks_ipv6(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL))
}

/// Binds sockets beside `first` that receive handshake messages.
fn join(
    first: &Socket,
    is_dual_stack: bool,
    coalesces: bool,
) -> io::Result<[Socket; Steered::COUNT]> {
    let sockets = steering::join(first, &first.local_addr()?)?;
    for socket in &sockets {
        set_receive_buffer(socket, HANDSHAKE_BUFFER_BYTES)?;
        report_destination(socket, is_dual_stack)?;
        if coalesces {
            // The kernel decides by one of these sockets, chosen by the flow, whether to merge, before it looks at the
            // datagrams: for most peers that is not the first socket.
            set_gro(socket);
        }
    }

    Ok(sockets)
}

fn tune(socket: &Socket, is_dual_stack: bool) -> io::Result<()> {
    let fd = socket.as_fd();
    set_receive_buffer(socket, RECEIVE_BUFFER_BYTES)?;
    if sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER_BYTES).is_err() {
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER_BYTES)?;
    }

    // Outer packets may be fragmented on the path, as with the kernel's WireGuard.
    sys::set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT)?;
    sys::set_option(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
    report_destination(socket, is_dual_stack)?;
    if is_dual_stack {
        sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DONT)?;
        sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
    }

    Ok(())
}

/// Exceeds the limit of the system only with CAP_NET_ADMIN; without it the limit applies.
fn set_receive_buffer(socket: &Socket, bytes: i32) -> io::Result<()> {
    let fd = socket.as_fd();
    if sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes).is_err() {
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)?;
    }

    Ok(())
}

/// Enables reports of the destination address. With the IPv6 option a dual-stack socket reports IPv4 destinations too.
/// The kernel never merges datagrams to different addresses.
fn report_destination(socket: &Socket, is_dual_stack: bool) -> io::Result<()> {
    if is_dual_stack {
        sys::set_option(socket.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)
    } else {
        sys::set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_PKTINFO, 1)
    }
}

/// Whether the kernel may have rejected a send because of its source address.
///
/// Observed on Linux 6.18 for a removed address: `ENETUNREACH` for IPv4, `EINVAL` for IPv6. `ENODEV` if the interface of
/// a link-local address is gone, `EACCES` and `EHOSTUNREACH` if a policy rule forbids the source. Older kernels return
/// `EINVAL` for a removed address of both IP versions.
fn is_source_error(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::EINVAL
                | libc::ENETUNREACH
                | libc::EHOSTUNREACH
                | libc::EADDRNOTAVAIL
                | libc::ENODEV
                | libc::EACCES
        )
    )
}

fn set_gro(socket: &Socket) -> bool {
    sys::set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1).is_ok()
}

/// Whether the kernel knows the option. The value 0 changes nothing.
fn has_gso(socket: &Socket) -> bool {
    sys::set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use super::*;
    use strait_packet::DropReason;
    use strait_packet::buffer::Outer;

    #[test]
    fn answers_come_from_the_called_address() {
        for (udp, is_dual_stack) in sockets() {
            let called =
                ["127.0.0.1", "127.0.0.7", "::1"].into_iter().take(2 + usize::from(is_dual_stack));
            for called in called.map(|address| address.parse::<IpAddr>().unwrap()) {
                let (client, path) = call(&udp, called);
                assert_eq!(path.remote, client.local_addr().unwrap());
                assert_eq!(path.local, Local::new(called, 0));

                send(&udp, path, |refused| panic!("{refused:?}"));

                assert_eq!(sources(&client), [SocketAddr::new(called, udp.port()); DATAGRAMS]);
            }
        }
    }

    #[test]
    fn a_missing_source_address_is_replaced() {
        for (udp, is_dual_stack) in sockets() {
            let cases = [("127.0.0.1", "192.0.2.77"), ("::1", "2001:db8::77")];
            for (called, gone) in cases.into_iter().take(1 + usize::from(is_dual_stack)) {
                let (client, path) = call(&udp, called.parse().unwrap());
                let path = Path { local: Local::new(gone.parse().unwrap(), 0), ..path };
                let mut refused = Vec::new();

                let accounts = send(&udp, path, |path| refused.push(path));

                assert_eq!(refused, [path]);
                assert_eq!(sources(&client).len(), DATAGRAMS);
                assert_eq!(accounts.outbound.snapshot().drops(DropReason::WriteFailed), 0);
            }
        }
    }

    #[test]
    fn spare_port_answers_have_their_path() {
        for (udp, _) in sockets() {
            let client = client([127, 0, 0, 1].into());
            let remote = client.local_addr().unwrap();
            let path = Path { port: LocalPort::Spare, ..remote.into() };

            send(&udp, path, |_| ());

            let asked_from = sources(&client);
            assert!(
                asked_from.iter().all(|from| from.port() == udp.spare_port()),
                "{asked_from:?}"
            );
            assert!(![0, udp.port()].contains(&udp.spare_port()));
            client.send_to(b"answer", asked_from[0]).unwrap();
            let mut buffer = ReceiveBuffer::new();
            let count = polled(|| udp.receive(&mut buffer));
            let path = buffer.received(count).next().unwrap().path;
            assert_eq!((path.remote, path.port), (remote, LocalPort::Spare));

            client.send_to(b"call", ("127.0.0.1", udp.port())).unwrap();
            let count = polled(|| udp.receive(&mut buffer));
            assert_eq!(buffer.received(count).next().unwrap().path.port, LocalPort::Listen);
        }
    }

    #[test]
    fn a_busy_port_does_not_starve_the_spare() {
        let udp = Udp::bind(0, Offload { udp_gro: false, ..Offload::default() }).unwrap();
        let client = client([127, 0, 0, 1].into());
        let path = Path { port: LocalPort::Spare, ..client.local_addr().unwrap().into() };
        send(&udp, path, |_| ());
        sources(&client);
        for _ in 0..3 * MAX_MESSAGES {
            client.send_to(b"call", ("127.0.0.1", udp.port())).unwrap();
        }
        client.send_to(b"answer", ("127.0.0.1", udp.spare_port())).unwrap();

        let mut buffer = ReceiveBuffer::new();
        let received = [(); 4].map(|()| (polled(|| udp.receive(&mut buffer)), buffer.port));

        let [full, answer] = [(MAX_MESSAGES, LocalPort::Listen), (1, LocalPort::Spare)];
        assert_eq!(received, [full, answer, full, full]);
    }

    #[test]
    fn one_rejected_datagram_stops_no_other() {
        let datagrams = || [10, 20, 30, 40, 5].map(|len| vec![0; len]);
        let send = |refused: &[usize], errno| {
            let mut sent = Vec::new();
            let each = datagrams();
            let result = send_each(each.iter().map(Vec::as_slice), |datagram| {
                if refused.contains(&datagram.len()) {
                    return Err(io::Error::from_raw_os_error(errno));
                }
                sent.push(datagram.len());
                Ok(())
            });

            (result.ok(), sent)
        };

        let rejected = |datagrams, bytes| Some(Rejected { datagrams, bytes });
        assert_eq!(send(&[20, 5], libc::EPERM), (rejected(2, 25), vec![10, 30, 40]));
        assert_eq!(send(&[10], libc::EPERM), (rejected(1, 10), vec![20, 30, 40, 5]));
        assert_eq!(send(&[20], libc::ENETUNREACH), (rejected(1, 20), vec![10, 30, 40, 5]));
        assert_eq!(
            send(&[10], libc::ENETUNREACH),
            (None, vec![]),
            "the caller sends all of them again"
        );
        assert_eq!(send(&[10, 20, 30, 40, 5], libc::EPERM), (None, vec![]));
    }

    /// The destination is at fault.
    #[test]
    fn a_failed_send_keeps_a_valid_source() {
        for (udp, _) in sockets() {
            let nowhere = SocketAddr::from(([255, 255, 255, 255], 9));
            let path = Path { local: Local::new([127, 0, 0, 1].into(), 0), ..nowhere.into() };

            send(&udp, path, |refused| panic!("{refused:?}"));
        }
    }

    #[test]
    fn handshakes_arrive_on_their_own_sockets() {
        for (udp, is_dual_stack) in sockets() {
            let called = ["127.0.0.7", "::1"].into_iter().take(1 + usize::from(is_dual_stack));
            for called in called.map(|address| address.parse::<IpAddr>().unwrap()) {
                let client = client(called);
                let (initiation, data) = (message(1, 148), message(4, 148));
                for sent in [&initiation, &data] {
                    client.send_to(sent, (called, udp.port())).unwrap();
                }

                let mut buffer = HandshakeBuffer::new();
                let count = polled(|| udp.receive_handshakes(Steered::WithoutCookie, &mut buffer));
                let received: Vec<_> = buffer.received(count).collect();
                assert_eq!(received.len(), 1);
                assert_eq!(received[0].bytes, initiation);
                let path =
                    Path { local: Local::new(called, 0), ..client.local_addr().unwrap().into() };
                assert_eq!(received[0].path, path);
                let mut buffer = ReceiveBuffer::new();
                let count = polled(|| udp.receive(&mut buffer));
                let received: Vec<_> = buffer.received(count).map(|one| one.bytes).collect();
                assert_eq!(received, [data]);
            }
        }
    }

    /// As on a kernel that cannot steer.
    #[test]
    fn without_steering_handshakes_arrive_on_one_socket() {
        let udp = Udp::bind(0, Offload { udp_steering: false, ..Offload::default() }).unwrap();
        let initiation = message(1, 148);
        let client = client([127, 0, 0, 1].into());
        client.send_to(&initiation, ("127.0.0.1", udp.port())).unwrap();

        assert!(!udp.steers() && udp.handshakes().next().is_none());
        let error = udp
            .receive_handshakes(Steered::WithoutCookie, &mut HandshakeBuffer::new())
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let mut buffer = ReceiveBuffer::new();
        assert_eq!(polled(|| udp.receive(&mut buffer)), 1);
        assert_eq!(buffer.received(1).next().unwrap().bytes, initiation);
    }

    #[test]
    fn only_one_gateway_gets_a_port() {
        let with = Offload::default();
        let without = Offload { udp_steering: false, ..with };
        for (one, other) in [(with, with), (with, without), (without, with)] {
            let udp = Udp::bind(0, one).unwrap();
            let port = udp.port();

            let refused = Udp::bind(port, other).unwrap_err();
            assert!(matches!(refused, StartError::Port { port: taken, .. } if taken == port));
            drop(udp);
            Udp::bind(port, other).unwrap();
        }
    }

    /// Each message is either received or counted as dropped.
    #[test]
    fn dropped_handshakes_are_counted() {
        let (udp, _) = &sockets()[0];
        let client = client([127, 0, 0, 1].into());
        let before = udp.dropped_handshakes();
        for _ in 0..SENT {
            client.send_to(&message(1, 148), ("127.0.0.1", udp.port())).unwrap();
        }
        let mut buffer = HandshakeBuffer::new();
        let mut received = 0;
        while let Ok(count) = udp.receive_handshakes(Steered::WithoutCookie, &mut buffer) {
            received += buffer.received(count).count();
        }

        let dropped = usize::try_from(udp.dropped_handshakes() - before).unwrap();
        assert!(received > 0 && dropped > 0, "{received} of {SENT}");
        assert_eq!(received + dropped, SENT);
    }

    /// The flow decides which socket's option the kernel uses. This test sends what no peer sends: 148 bytes in two
    /// datagrams that begin as an initiation.
    #[test]
    fn all_sockets_merge_or_none() {
        for coalesces in [true, false] {
            let offload = Offload { udp_gro: coalesces, ..Offload::default() };
            let udp = Udp::bind(0, offload).unwrap();
            assert_eq!(udp.coalesces(), coalesces);
            let client = client([127, 0, 0, 1].into());
            sys::set_option(client.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 100).unwrap();
            for kind in [1, 4] {
                client.send_to(&message(kind, 148), ("127.0.0.1", udp.port())).unwrap();
            }

            let mut handshakes = HandshakeBuffer::new();
            let count = polled(|| udp.receive_handshakes(Steered::WithoutCookie, &mut handshakes));
            let handshakes = handshakes.received(count);
            let mut rest = ReceiveBuffer::new();
            let count = polled(|| udp.receive(&mut rest));
            let expected = if coalesces { vec![(148, 100)] } else { vec![(100, 100), (48, 48)] };
            let parts = |received: Received<'_>| (received.bytes.len(), received.stride);
            assert_eq!(handshakes.map(parts).collect::<Vec<_>>(), expected);
            assert_eq!(rest.received(count).map(parts).collect::<Vec<_>>(), expected);
        }
    }

    /// More than the receive buffer holds.
    const SENT: usize = 20_000;

    const DATAGRAMS: usize = 3;

    /// A socket as on a host with IPv6 and one as on a host without, and whether each is dual-stack.
    fn sockets() -> Vec<(Arc<Udp>, bool)> {
        let any = Udp::bind(0, Offload::default()).unwrap();
        let ipv4 = Udp::new(bind_ipv4(0).unwrap(), false, 0, Offload::default()).unwrap();
        let is_dual_stack = any.is_dual_stack && UdpSocket::bind("[::1]:0").is_ok();

        vec![(any, is_dual_stack), (ipv4, false)]
    }

    /// A client that sent a datagram to `called`, and the path of that datagram.
    fn call(udp: &Udp, called: IpAddr) -> (UdpSocket, Path) {
        let client = client(called);
        client.send_to(b"hello", (called, udp.port())).unwrap();
        let mut buffer = ReceiveBuffer::new();
        let count = polled(|| udp.receive(&mut buffer));
        let received = buffer.received(count).next().unwrap();
        assert_eq!(received.bytes, b"hello");

        (client, received.path)
    }

    /// Receives within a second: the kernel may deliver after the send has returned.
    fn polled(mut receive: impl FnMut() -> io::Result<usize>) -> usize {
        for _ in 0..1_000 {
            match receive() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                received => return received.unwrap(),
            }
        }

        panic!("nothing arrived within a second")
    }

    fn client(called: IpAddr) -> UdpSocket {
        let own = if called.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" };
        let client = UdpSocket::bind(own).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(3))).unwrap();

        client
    }

    fn message(kind: u8, len: usize) -> Vec<u8> {
        let mut message = vec![0; len];
        message[0] = kind;

        message
    }

    fn send(udp: &Udp, path: Path, refused: impl FnMut(Path)) -> Accounts {
        let accounts = Accounts::default();
        let mut batch = TransmitBatch::default();
        for _ in 0..DATAGRAMS {
            batch.push_message(&[7; 100], Outer::message(path));
        }
        assert_eq!(batch.transmits().len(), 1);
        udp.send_first(1, &mut batch, &accounts, refused);

        accounts
    }

    fn sources(client: &UdpSocket) -> Vec<SocketAddr> {
        (0..DATAGRAMS).map(|_| client.recv_from(&mut [0; 200]).unwrap().1).collect()
    }
}
