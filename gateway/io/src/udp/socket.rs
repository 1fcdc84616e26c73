//! Binds the sockets and sets their options.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use socket2::{Domain, Protocol, Socket, Type};

use crate::steering::{self, Steered};
use crate::sys;

/// Receive buffer. The kernel doubles it, and counts the memory of datagrams in it: 4 MB of merged datagrams (10 ms at
/// 3 Gb/s), or half as much of unmerged ones.
///
/// If this host is the bottleneck, the buffer would be as full as the senders' windows allow, 4 MB by Linux's default, and
/// pings would wait behind that; [marks of congestion](strait_engine::codel) shorten the queue. Measured without those, on
/// two cores of an EPYC, relative to 12 MB, without link-time optimisation (pairs of the comparison, `--pairs 8 --pings
/// --seconds 4`, 95 % confidence): 99th percentile of pings beside TCP 0.83 (0.75 to 1.18, `native`) and 0.81 (0.70 to
/// 0.88, `boringtun`), TCP 1.05 and 1.07; datagrams of 64 and 1,300 bytes at a loss of 1 %: 0.97 and 0.98, medians of six
/// rounds. Three quarters of this size: p99 0.74 in those rounds, but datagrams 0.9. Half of it: p99 0.49 in eight pairs.
/// Not measured: network cards that do not merge, with room for about 1,800 datagrams.
pub(crate) const RECEIVE_BUFFER_BYTES: i32 = 2 << 20;

/// Receive buffer of each handshake socket: six thousand messages, as the kernel counts their memory. A flood of 100,000
/// messages a second fills it in 60 ms; the scheduler may delay a thread for that long.
const HANDSHAKE_BUFFER_BYTES: i32 = 4 << 20;

/// Send buffer: a few dozen full sends.
const SEND_BUFFER_BYTES: i32 = 4 << 20;

pub(crate) fn bind(port: u16) -> io::Result<(Socket, bool)> {
    match bind_dual_stack(port) {
        Ok(socket) => Ok((socket, true)),
        Err(error) if lacks_ipv6(&error) => Ok((bind_ipv4(port)?, false)),
        Err(error) => Err(error),
    }
}

pub(super) fn bind_ipv4(port: u16) -> io::Result<Socket> {
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
pub(super) fn bind_spare(is_dual_stack: bool, coalesces: bool) -> io::Result<Socket> {
    let socket = if is_dual_stack { bind_dual_stack(0)? } else { bind_ipv4(0)? };
    tune(&socket, is_dual_stack)?;
    report_destination(&socket, is_dual_stack)?;
    report_arrival(&socket);
    if coalesces {
        set_gro(&socket);
    }

    Ok(socket)
}

fn lacks_ipv6(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL))
}

/// Binds sockets beside `first` that receive handshake messages.
pub(super) fn join(
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

pub(crate) fn tune(socket: &Socket, is_dual_stack: bool) -> io::Result<()> {
    let fd = socket.as_fd();
    set_receive_buffer(socket, RECEIVE_BUFFER_BYTES)?;
    if sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER_BYTES).is_err() {
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER_BYTES)?;
    }

    // Outer packets may be fragmented on the path, as with the kernel's WireGuard.
    sys::set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT)?;
    sys::set_option(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
    if is_dual_stack {
        sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DONT)?;
        sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
    }

    Ok(())
}

/// Exceeds the limit of the system only with CAP_NET_ADMIN; without it the limit applies.
pub(crate) fn set_receive_buffer(socket: &Socket, bytes: i32) -> io::Result<()> {
    let fd = socket.as_fd();
    if sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes).is_err() {
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)?;
    }

    Ok(())
}

/// Enables reports of the destination address. With the IPv6 option a dual-stack socket reports IPv4 destinations too.
/// The kernel never merges datagrams to different addresses.
pub(super) fn report_destination(socket: &Socket, is_dual_stack: bool) -> io::Result<()> {
    if is_dual_stack {
        sys::set_option(socket.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)
    } else {
        sys::set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_PKTINFO, 1)
    }
}

/// The kernel then says of each message when it arrived. Without that no packet is marked as congested.
pub(super) fn report_arrival(socket: &Socket) {
    if let Err(error) = sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1) {
        tracing::debug!(%error, "the kernel does not report when datagrams arrive");
    }
}

pub(crate) fn set_gro(socket: &Socket) -> bool {
    sys::set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1).is_ok()
}

/// Whether the kernel knows the option. The value 0 changes nothing.
pub(crate) fn has_gso(socket: &Socket) -> bool {
    sys::set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
}
