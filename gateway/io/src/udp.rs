//! The socket: one send is up to 64 datagrams, one receive likewise.
//!
//! A single dual-stack socket serves IPv4 and IPv6, so that one thread can wait for both; where the
//! host has no IPv6 it is an IPv4 socket. Sending blocks while the send buffer is full, receiving
//! never waits (see `poll` in the worker).
//!
//! A second one, on a port that the kernel chooses, is for peers that do not answer the first.
//!
//! Beside it are more on the same port, from which handshakes are received, if the kernel can tell
//! them apart (see [`steering`]). Nothing is sent from those.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::Offload;
use super::StartError;
use super::clock;
use super::singly::{Refusals, Way};
use super::steering::{self, Steered};
use super::sys;
use strait_engine::Accounts;
use strait_engine::inbound::{MAX_MESSAGE_BYTES, MAX_MESSAGES, Received};
use strait_packet::buffer::{Transmit, TransmitBatch};
use strait_packet::counters::as_u64;
use strait_packet::ecn::Ecn;
use strait_packet::path::{Local, LocalPort, Path, canonical};

/// Receive buffer. The kernel takes it for twice as much, in which it counts what datagrams take of memory: 4 MB
/// of those that were merged, 10 ms at 3 Gb/s, and the half of it of those that were not.
///
/// Where this end is the slowest, the buffer stands as full as the senders' windows allow, 4 MB by Linux's
/// default, and pings wait behind that. On two cores of an EPYC, beside 12 MB, built without link-time optimisation
/// (pairs of the comparison, `--pairs 8 --pings --seconds 4`, with 95 % confidence): 99th percentile of pings beside
/// TCP 0.83 (0.75 to 1.18, `native`) and 0.81 (0.70 to 0.88, `boringtun`), TCP 1.05 and 1.07; datagrams of 64 and
/// 1,300 bytes at a loss of 1 % 0.97 and 0.98, medians of six rounds. With three quarters of it 0.74 of p99 in
/// those rounds, but 0.9 of the datagrams; with half of it 0.49 of p99 in eight pairs. Not measured: network cards
/// that do not merge, of whose datagrams there is room for some 1,800.
const RECEIVE_BUFFER_BYTES: i32 = 2 << 20;

/// Receive buffer of each socket for handshakes: six thousand messages, as the kernel counts their memory. A flood of
/// 100,000 a second fills it in 60 ms, for which the scheduler may let a thread wait.
const HANDSHAKE_BUFFER_BYTES: i32 = 4 << 20;

/// Send buffer: a few dozen full sends.
const SEND_BUFFER_BYTES: i32 = 4 << 20;

/// The socket, shared by all threads that send and those that receive.
#[derive(Debug)]
pub(super) struct Udp {
    socket: Socket,
    /// On another port; none if there can be no other.
    spare: Option<Socket>,
    /// Something was sent from it, so that something may come.
    uses_spare: AtomicBool,
    /// Get what begins or answers a handshake; without them the other gets everything.
    handshakes: Option<[Socket; Steered::COUNT]>,
    is_dual_stack: bool,
    port: u16,
    segments: bool,
    refusals: Refusals,
    coalesces: bool,
}

impl Udp {
    /// Binds to `port` on every address; 0 lets the kernel choose.
    pub(super) fn bind(port: u16, offload: Offload) -> Result<Arc<Self>, StartError> {
        let (socket, is_dual_stack) =
            bind(port).map_err(|source| StartError::Port { port, source })?;

        Self::of((socket, is_dual_stack), port, offload)
    }

    fn of(
        (socket, is_dual_stack): (Socket, bool),
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
            |error| tracing::info!(%error, "peers that do not answer are asked from one port only"),
        );
        let segments = offload.udp_gso && has_gso(&socket);
        let handshakes = offload
            .udp_steering
            .then(|| join(&socket, is_dual_stack, coalesces))
            .transpose()
            .unwrap_or_else(|error| {
                tracing::info!(%error, "the kernel does not tell handshakes apart: all datagrams come to one socket");
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
            refusals: Refusals::default(),
            coalesces,
        }))
    }

    /// Marks what is sent, for rules of the host; 0 is no mark. Needs CAP_NET_ADMIN.
    pub(super) fn set_mark(&self, mark: u32) -> io::Result<()> {
        self.spare.iter().try_for_each(|socket| socket.set_mark(mark))?;

        self.socket.set_mark(mark)
    }

    /// The port in use.
    pub(super) const fn port(&self) -> u16 {
        self.port
    }

    /// The port from which peers are asked that do not answer the other; 0 if there is none.
    pub(super) fn spare_port(&self) -> u16 {
        let address = self.spare.as_ref().and_then(|socket| socket.local_addr().ok()?.as_socket());

        address.map_or(0, |address| address.port())
    }

    /// The sockets that [`Self::receive`] reads.
    pub(super) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [Some(&self.socket), self.spare.as_ref()].into_iter().flatten().map(AsFd::as_fd)
    }

    /// Whether the kernel segments what we send, to everybody to whom we do.
    pub(super) fn segments(&self) -> bool {
        self.segments && !self.refusals.is_any(clock::now())
    }

    /// Whether the kernel merges what we receive.
    pub(super) const fn coalesces(&self) -> bool {
        self.coalesces
    }

    /// Whether handshakes come to sockets of their own.
    pub(super) const fn steers(&self) -> bool {
        self.handshakes.is_some()
    }

    /// The sockets that handshakes come to; none if they come to the other.
    pub(super) fn handshakes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.handshakes.iter().flatten().map(AsFd::as_fd)
    }

    /// Sends the first `count` sends of the batch, accounts for them and takes them out. `refused` hears of
    /// paths that the kernel does not take any more: what was to go there went out from another address of ours.
    pub(super) fn send_first(
        &self,
        count: usize,
        batch: &mut TransmitBatch,
        accounts: &Accounts,
        mut refused: impl FnMut(Path),
    ) {
        for transmit in batch.transmits().iter().take(count) {
            let bytes = batch.bytes(transmit);
            let lost = match self.send(transmit, bytes, transmit.outer.path.local) {
                Ok(lost) => Some(lost),
                Err(error) if transmit.outer.path.local.is_some() && blames_source(&error) => {
                    let lost = self.send(transmit, bytes, None).ok();
                    if lost.is_some() {
                        refused(transmit.outer.path);
                    }
                    lost
                }
                Err(_) => None,
            };
            match lost {
                Some(lost) if lost == Lost::default() => accounts.handle_transmit(transmit, true),
                Some(lost) => {
                    let (sent, lost) = transmit.divide(lost.datagrams, lost.bytes);
                    accounts.handle_transmit(&sent, true);
                    accounts.handle_transmit(&lost, false);
                }
                None => accounts.handle_transmit(transmit, false),
            }
        }
        batch.forget(count);
    }

    /// Receives without waiting. Returns how many of `messages` are filled.
    ///
    /// From the spare port, if it is in use: when the other has nothing, and after each call that has filled
    /// `buffer` from the other, which may always have more.
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

    /// Receives handshakes of one kind without waiting, if they come to sockets of their own. Returns
    /// how many of `messages` are filled.
    pub(super) fn receive_handshakes(
        &self,
        steered: Steered,
        buffer: &mut HandshakeBuffer,
    ) -> io::Result<usize> {
        match self.handshakes().nth(steered.place()) {
            Some(socket) => buffer.fill(LocalPort::Listen, socket),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// How many handshakes the kernel had no room for, as it counts: the number begins again at 0. 0 if it
    /// does not say.
    pub(super) fn lost_handshakes(&self) -> u32 {
        self.handshakes().map(|socket| sys::dropped(socket).unwrap_or(0)).fold(0, u32::wrapping_add)
    }

    /// Says what of it the kernel did not take; an error if it took nothing.
    fn send(&self, transmit: &Transmit, bytes: &[u8], source: Option<Local>) -> io::Result<Lost> {
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
            return sys::send(socket.as_fd(), send).map(|()| Lost::default());
        }
        let way = if self.segments { self.refusals.way(remote) } else { Way::Singly };
        if way != Way::Singly {
            let segment_bytes = u16::try_from(transmit.segment_bytes).ok();
            let sent = sys::send(socket.as_fd(), sys::Send { segment_bytes, ..send });
            match sent {
                Err(error) if self.is_refusal(&error, remote, way) => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    if way == Way::Again {
                        self.refusals.handle_taken(remote);
                        tracing::info!(%remote, "the kernel segments UDP again");
                    }
                    return Ok(Lost::default());
                }
            }
        }

        send_each(bytes.chunks(transmit.segment_bytes.max(1)), |bytes| {
            sys::send(socket.as_fd(), sys::Send { bytes, ..send })
        })
    }

    /// Whether the kernel refused to segment, so that datagrams must go one by one.
    ///
    /// `EIO`: this route does not segment, see [`singly`](super::singly).
    /// `EINVAL` and `EMSGSIZE`: a datagram does not fit this path, which only fragments can cross.
    fn is_refusal(&self, error: &io::Error, remote: SocketAddr, way: Way) -> bool {
        match error.raw_os_error() {
            Some(libc::EIO) => {
                self.refusals.handle_refused(remote);
                if way == Way::Together {
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

/// What the kernel did not take of several datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lost {
    datagrams: u64,
    bytes: u64,
}

/// Sends one after the other, whatever becomes of those before: a rule of the host may take some of them out.
/// Where the first is not taken because of its source, none of them would be.
fn send_each<'a>(
    datagrams: impl Iterator<Item = &'a [u8]>,
    mut send: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<Lost> {
    let mut lost = Lost::default();
    let mut is_any_sent = false;
    let mut last_error = None;

    for datagram in datagrams {
        match send(datagram) {
            Ok(()) => is_any_sent = true,
            Err(error) if !is_any_sent && blames_source(&error) => return Err(error),
            Err(error) => {
                lost.datagrams += 1;
                lost.bytes += as_u64(datagram.len());
                last_error = Some(error);
            }
        }
    }

    match last_error {
        Some(error) if !is_any_sent => Err(error),
        _ => Ok(lost),
    }
}

/// Memory for what one system call receives: `N` messages, each of up to `BYTES` bytes.
#[derive(Debug)]
pub(super) struct Buffer<const N: usize, const BYTES: usize> {
    parts: [Box<[u8]>; N],
    messages: [sys::Message; N],
    /// By which they came.
    port: LocalPort,
    /// Whether the last call has filled all of them.
    is_full: bool,
}

/// For packets, many in one message.
pub(super) type ReceiveBuffer = Buffer<MAX_MESSAGES, MAX_MESSAGE_BYTES>;

/// For handshakes, which the kernel does not merge: longer messages are none.
pub(super) type HandshakeBuffer = Buffer<32, 256>;

impl<const N: usize, const BYTES: usize> Buffer<N, BYTES> {
    pub(super) fn new() -> Self {
        Self {
            parts: std::array::from_fn(|_| vec![0; BYTES].into_boxed_slice()),
            messages: sys::no_messages(),
            port: LocalPort::Listen,
            is_full: false,
        }
    }

    /// The first `count` messages. One that was cut short or has no source is left out: it cannot be
    /// authentic.
    pub(super) fn received(&self, count: usize) -> impl Iterator<Item = Received<'_>> {
        (0..count).filter_map(|number| self.message(number))
    }

    /// One of those; `None` if it is left out.
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

    /// The memory of a message, which others of the same length may take the place of.
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

/// Sockets beside `first` that get the handshakes.
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
            // The kernel asks one of all, by the flow, whether to merge, and that before it looks what is in the
            // datagrams: for most of the peers it is one of these that answers.
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

    // Outer packets may be fragmented where the path needs it, as the kernel's WireGuard allows.
    sys::set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT)?;
    sys::set_option(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
    report_destination(socket, is_dual_stack)?;
    if is_dual_stack {
        sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DONT)?;
        sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
    }

    Ok(())
}

/// Beyond the limit of the system only with CAP_NET_ADMIN; without it, as much as is allowed.
fn set_receive_buffer(socket: &Socket, bytes: i32) -> io::Result<()> {
    let fd = socket.as_fd();
    if sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes).is_err() {
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)?;
    }

    Ok(())
}

/// A dual-stack socket reports the destination of IPv4 as well under the option of IPv6. The kernel never
/// merges datagrams to different addresses.
fn report_destination(socket: &Socket, is_dual_stack: bool) -> io::Result<()> {
    if is_dual_stack {
        sys::set_option(socket.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)
    } else {
        sys::set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_PKTINFO, 1)
    }
}

/// Whether the kernel may have refused a send because of the address it was to come from.
///
/// Observed on Linux 6.18 for an address that was removed: `ENETUNREACH` for IPv4, `EINVAL` for IPv6.
/// `ENODEV` if the interface of a link-local address is gone, `EACCES` and `EHOSTUNREACH` if a policy
/// rule forbids the source. Older kernels say `EINVAL` for both.
fn blames_source(error: &io::Error) -> bool {
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

/// Whether the kernel knows the option at all; 0 changes nothing.
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
    fn an_answer_comes_from_the_address_that_was_called() {
        for (udp, is_dual_stack) in sockets() {
            let called =
                ["127.0.0.1", "127.0.0.7", "::1"].into_iter().take(2 + usize::from(is_dual_stack));
            for called in called.map(|address| address.parse::<IpAddr>().unwrap()) {
                let (client, path) = call(&udp, called);
                assert_eq!(path.remote, client.local_addr().unwrap());
                assert_eq!(path.local, Local::new(called, 0));

                send(&udp, path, |refused| panic!("{refused:?}"));

                assert_eq!(heard(&client), [SocketAddr::new(called, udp.port()); DATAGRAMS]);
            }
        }
    }

    #[test]
    fn what_cannot_come_from_an_address_comes_from_another() {
        for (udp, is_dual_stack) in sockets() {
            let cases = [("127.0.0.1", "192.0.2.77"), ("::1", "2001:db8::77")];
            for (called, gone) in cases.into_iter().take(1 + usize::from(is_dual_stack)) {
                let (client, path) = call(&udp, called.parse().unwrap());
                let path = Path { local: Local::new(gone.parse().unwrap(), 0), ..path };
                let mut refused = Vec::new();

                let accounts = send(&udp, path, |path| refused.push(path));

                assert_eq!(refused, [path]);
                assert_eq!(heard(&client).len(), DATAGRAMS);
                assert_eq!(accounts.outbound.snapshot().drops(DropReason::WriteFailed), 0);
            }
        }
    }

    #[test]
    fn an_answer_to_the_spare_port_comes_by_that_path() {
        for (udp, _) in sockets() {
            let client = client([127, 0, 0, 1].into());
            let remote = client.local_addr().unwrap();
            let path = Path { port: LocalPort::Spare, ..remote.into() };

            send(&udp, path, |_| ());

            let asked_from = heard(&client);
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
    fn a_busy_port_does_not_keep_the_spare_one_waiting() {
        let udp = Udp::bind(0, Offload { udp_gro: false, ..Offload::default() }).unwrap();
        let client = client([127, 0, 0, 1].into());
        let path = Path { port: LocalPort::Spare, ..client.local_addr().unwrap().into() };
        send(&udp, path, |_| ());
        heard(&client);
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
    fn a_datagram_that_is_not_taken_keeps_no_other_back() {
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

        let lost = |datagrams, bytes| Some(Lost { datagrams, bytes });
        assert_eq!(send(&[20, 5], libc::EPERM), (lost(2, 25), vec![10, 30, 40]));
        assert_eq!(send(&[10], libc::EPERM), (lost(1, 10), vec![20, 30, 40, 5]));
        assert_eq!(send(&[20], libc::ENETUNREACH), (lost(1, 20), vec![10, 30, 40, 5]));
        assert_eq!(send(&[10], libc::ENETUNREACH), (None, vec![]), "all are tried again");
        assert_eq!(send(&[10, 20, 30, 40, 5], libc::EPERM), (None, vec![]));
    }

    /// Nobody is to blame but the destination.
    #[test]
    fn an_address_of_ours_is_not_blamed_for_a_send_that_fails_without_it() {
        for (udp, _) in sockets() {
            let nowhere = SocketAddr::from(([255, 255, 255, 255], 9));
            let path = Path { local: Local::new([127, 0, 0, 1].into(), 0), ..nowhere.into() };

            send(&udp, path, |refused| panic!("{refused:?}"));
        }
    }

    #[test]
    fn handshakes_come_to_sockets_of_their_own_and_say_who_was_called() {
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

    /// As on a kernel that cannot tell them apart.
    #[test]
    fn without_sockets_of_their_own_handshakes_come_to_the_other() {
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
    fn a_port_is_given_to_one_gateway_only() {
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

    /// What fits is received, and what does not is known.
    #[test]
    fn handshakes_that_nobody_takes_are_counted() {
        let (udp, _) = &sockets()[0];
        let client = client([127, 0, 0, 1].into());
        let before = udp.lost_handshakes();
        for _ in 0..SENT {
            client.send_to(&message(1, 148), ("127.0.0.1", udp.port())).unwrap();
        }
        let mut buffer = HandshakeBuffer::new();
        let mut received = 0;
        while let Ok(count) = udp.receive_handshakes(Steered::WithoutCookie, &mut buffer) {
            received += buffer.received(count).count();
        }

        let lost = usize::try_from(udp.lost_handshakes() - before).unwrap();
        assert!(received > 0 && lost > 0, "{received} of {SENT}");
        assert_eq!(received + lost, SENT);
    }

    /// Which socket the kernel asks whether to merge depends on the flow. Here it is asked
    /// with something that no peer sends, 148 bytes in two datagrams that begin as an initiation.
    #[test]
    fn all_sockets_let_the_kernel_merge_or_none() {
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

    /// More than there is room for.
    const SENT: usize = 20_000;

    const DATAGRAMS: usize = 3;

    /// Those that a host may have, and whether they have both IP versions.
    fn sockets() -> Vec<(Arc<Udp>, bool)> {
        let any = Udp::bind(0, Offload::default()).unwrap();
        let ipv4 = Udp::of((bind_ipv4(0).unwrap(), false), 0, Offload::default()).unwrap();
        let is_dual_stack = any.is_dual_stack && UdpSocket::bind("[::1]:0").is_ok();

        vec![(any, is_dual_stack), (ipv4, false)]
    }

    /// Somebody calls, and the path by which that came.
    fn call(udp: &Udp, called: IpAddr) -> (UdpSocket, Path) {
        let client = client(called);
        client.send_to(b"hello", (called, udp.port())).unwrap();
        let mut buffer = ReceiveBuffer::new();
        let count = polled(|| udp.receive(&mut buffer));
        let received = buffer.received(count).next().unwrap();
        assert_eq!(received.bytes, b"hello");

        (client, received.path)
    }

    /// What comes within a second: the kernel may deliver later than the send returns.
    fn polled(mut receive: impl FnMut() -> io::Result<usize>) -> usize {
        for _ in 0..1_000 {
            match receive() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                received => return received.unwrap(),
            }
        }

        panic!("nothing came within a second")
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

    fn heard(client: &UdpSocket) -> Vec<SocketAddr> {
        (0..DATAGRAMS).map(|_| client.recv_from(&mut [0; 200]).unwrap().1).collect()
    }
}
