//! The UDP sockets: each send and each receive transfers up to 64 datagrams.
//!
//! One dual-stack socket serves IPv4 and IPv6, so that one thread can wait for both; on a host without IPv6 it is an
//! IPv4 socket. Sending blocks while the send buffer is full. Receiving never blocks (see `Wait` in the worker).
//!
//! A spare socket, on a port that the kernel chooses, is for peers that do not answer the first port.
//!
//! Further sockets on the first port receive handshake messages, if the kernel can steer them (see
//! [`steering`](super::steering)). Nothing is sent from those.

mod buffer;
pub(super) mod socket;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use socket2::{SockAddr, Socket};

use super::gso_fallback::{GsoRefusals, SendMode};
use super::steering::Steered;
use super::{Offload, StartError, clock, sys};
use socket::{bind, bind_spare, has_gso, join, report_arrival, report_destination, set_gro, tune};
use strait_engine::Accounts;
use strait_packet::buffer::{Transmit, TransmitBatch};
use strait_packet::counters::as_u64;
use strait_packet::path::{Local, LocalPort, Path};
use strait_wg::handover::{HandoverError, Reader, Writer};

pub(super) use buffer::{HandshakeBuffer, ReceiveBuffer};

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
    has_gso: bool,
    /// Whether the kernel may segment.
    allows_gso: AtomicBool,
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

        tune(&socket, is_dual_stack)
            .and_then(|()| report_destination(&socket, is_dual_stack))
            .map_err(system("set options of the UDP socket"))?;
        report_arrival(&socket);
        let coalesces = offload.udp_gro && set_gro(&socket);
        let spare = bind_spare(is_dual_stack, coalesces).inspect_err(
            |error| tracing::info!(%error, "no spare UDP port: handshakes are retried from one port only"),
        );
        let has_gso = offload.udp_gso && has_gso(&socket);
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
            has_gso,
            allows_gso: AtomicBool::new(true),
            refusals: GsoRefusals::default(),
            coalesces,
        }))
    }

    /// Writes what a successor must know of the sockets. Returns the sockets, in the order in which it reads them.
    pub(super) fn export(&self, out: &mut Writer) -> Vec<BorrowedFd<'_>> {
        out.flag(self.is_dual_stack);
        out.flag(self.spare.is_some());
        out.flag(self.uses_spare.load(Ordering::Relaxed));
        out.flag(self.handshakes.is_some());
        let sockets = [Some(&self.socket), self.spare.as_ref()].into_iter().flatten();

        sockets.chain(self.handshakes.iter().flatten()).map(AsFd::as_fd).collect()
    }

    /// Goes on with the sockets of the predecessor of this process.
    ///
    /// # Errors
    ///
    /// [`HandoverError`] if they are not those of [`Self::export`].
    pub(super) fn import(
        from: &mut Reader<'_>,
        sockets: &mut impl Iterator<Item = OwnedFd>,
        offload: Offload,
    ) -> Result<Arc<Self>, HandoverError> {
        let (is_dual_stack, has_spare, uses_spare, is_steered) =
            (from.flag()?, from.flag()?, from.flag()?, from.flag()?);
        let mut next = || {
            let socket = sockets.next().map(Socket::from);
            socket.ok_or(HandoverError::Invalid("number of sockets"))
        };
        let socket = next()?;
        let spare = if has_spare { Some(next()?) } else { None };
        let handshakes = if is_steered { Some([next()?, next()?]) } else { None };
        let address = socket.local_addr().ok().and_then(|address| address.as_socket());
        let port = address.ok_or(HandoverError::Invalid("UDP socket"))?.port();
        let all = [Some(&socket), spare.as_ref()].into_iter().flatten();
        all.clone().for_each(report_arrival);
        let merges = all.chain(handshakes.iter().flatten()).map(|socket| {
            let is_on = offload.udp_gro.into();
            sys::set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, is_on).is_ok()
        });
        let coalesces = offload.udp_gro & merges.fold(true, |all, merges| all & merges);

        Ok(Arc::new(Self {
            has_gso: offload.udp_gso && has_gso(&socket),
            coalesces,
            socket,
            spare,
            uses_spare: AtomicBool::new(uses_spare),
            handshakes,
            is_dual_stack,
            port,
            allows_gso: AtomicBool::new(true),
            refusals: GsoRefusals::default(),
        }))
    }

    /// Gives the receive buffers `bytes`, as far as the host allows. What is in them stays.
    pub(super) fn set_receive_buffers(&self, bytes: i32) {
        for socket in [Some(&self.socket), self.spare.as_ref()].into_iter().flatten() {
            if let Err(error) = socket::set_receive_buffer(socket, bytes) {
                tracing::debug!(%error, "the receive buffer keeps its size");
            }
        }
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
        self.may_segment() && !self.refusals.is_any(clock::now())
    }

    /// Whether the kernel may segment, as [`Self::set_gso`] says.
    pub(super) fn allows_gso(&self) -> bool {
        self.allows_gso.load(Ordering::Relaxed)
    }

    /// Allows or forbids that the kernel segments.
    pub(super) fn set_gso(&self, is_allowed: bool) {
        self.allows_gso.store(is_allowed, Ordering::Relaxed);
    }

    fn may_segment(&self) -> bool {
        self.has_gso && self.allows_gso()
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
        let mode = if self.may_segment() { self.refusals.mode(remote) } else { SendMode::OneByOne };
        if mode != SendMode::OneByOne {
            let segment_bytes = u16::try_from(transmit.segment_bytes).ok();
            let sent = sys::send(socket.as_fd(), sys::Send { segment_bytes, ..send });
            match sent {
                Err(error) if self.refusals.handle_error(&error, remote, mode) => {}
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
