//! The system calls that need `unsafe`, and nothing else.
//!
//! Each function wraps one call and turns its result into typed values. Policy (when to call, how to react to an error)
//! is in the modules above.
#![expect(unsafe_code, reason = "DESIGN.md decision 11: this module is the one exception")]
#![expect(clippy::as_conversions, reason = "lengths and constants of the C interface")]

mod control_messages;

use std::io::{self, IoSlice};
use std::mem::{self, MaybeUninit};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use socket2::SockAddr;

use control_messages::{EMPTY_CONTROL, decode_control, encode_control};
use strait_packet::path::Local;

/// Checksums may be partial.
pub(super) const TUN_F_CSUM: u32 = 0x01;
/// TCP over IPv4 may arrive unsegmented.
pub(super) const TUN_F_TSO4: u32 = 0x02;
/// TCP over IPv6 may arrive unsegmented.
pub(super) const TUN_F_TSO6: u32 = 0x04;
/// UDP over IPv4 may arrive unsegmented (Linux 6.2).
pub(super) const TUN_F_USO4: u32 = 0x20;
/// UDP over IPv6 may arrive unsegmented (Linux 6.2).
pub(super) const TUN_F_USO6: u32 = 0x40;
/// Packets inside UDP datagrams may arrive unsegmented (Linux 6.17).
pub(super) const TUN_F_UDP_TUNNEL_GSO: u32 = 0x80;
/// The same for UDP datagrams with a checksum (Linux 6.17).
pub(super) const TUN_F_UDP_TUNNEL_GSO_CSUM: u32 = 0x100;

const TUNSETOFFLOAD: libc::Ioctl = 0x4004_54d0;
const TUNSETVNETHDRSZ: libc::Ioctl = 0x4004_54d8;

/// Sets the length of the header in front of each frame of a TUN device, in bytes: at least 10. The kernel fills what it
/// does not know with zeros.
///
/// # Errors
///
/// `EINVAL` if `len` is too small.
pub(super) fn set_tun_header_len(device: BorrowedFd<'_>, len: usize) -> io::Result<()> {
    let len = libc::c_int::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY:
    // - `device` is an open descriptor for the duration of the call.
    // - TUNSETVNETHDRSZ reads one `int`, which outlives the call.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), TUNSETVNETHDRSZ, &raw const len) };

    check(result).map(drop)
}

/// Sets the offload frames that a TUN device may return.
///
/// # Errors
///
/// `EINVAL` if the kernel does not know one of `flags`.
pub(super) fn set_tun_offload(device: BorrowedFd<'_>, flags: u32) -> io::Result<()> {
    // SAFETY:
    // - `device` is an open descriptor for the duration of the call.
    // - TUNSETOFFLOAD takes its argument by value; no memory is touched.
    let result =
        unsafe { libc::ioctl(device.as_raw_fd(), TUNSETOFFLOAD, libc::c_ulong::from(flags)) };

    check(result).map(drop)
}

/// Sets an integer socket option.
///
/// # Errors
///
/// That of `setsockopt`.
pub(super) fn set_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY:
    // - `socket` is an open descriptor for the duration of the call.
    // - The pointer and the length describe `value`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };

    check(result).map(drop)
}

/// Attaches a BPF program that selects the socket of a datagram among those of a port: it returns the index of one.
///
/// # Errors
///
/// That of `setsockopt`; `ENOPROTOOPT` if the kernel does not support such programs.
pub(super) fn steer(socket: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // SAFETY:
    // - `socket` is an open descriptor for the duration of the call.
    // - The pointer and the length describe a `sock_fprog`, and that one describes the program; both
    //   outlive the call, which reads and copies them.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    };

    check(result).map(drop)
}

/// Number of datagrams that the kernel dropped because the receive buffer of `socket` was full or a checksum was wrong.
/// Wraps at [`u32::MAX`].
///
/// # Errors
///
/// That of `getsockopt`; the option exists since Linux 4.12.
pub(super) fn dropped(socket: BorrowedFd<'_>) -> io::Result<u32> {
    const FIELDS: usize = 9;
    let mut report = [0_u32; FIELDS];
    let mut len = size_of_val(&report) as libc::socklen_t;
    // SAFETY:
    // - `socket` is an open descriptor for the duration of the call.
    // - The pointer and the length describe `report`, which outlives the call; any bytes are values of it.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            (&raw mut report).cast(),
            &raw mut len,
        )
    };
    check(result)?;
    let [.., drops] = report;

    // A kernel with fewer fields leaves the last one at zero.
    Ok(drops)
}

/// Takes the descriptor whose number is the value of the environment variable `name`, which a former program of this
/// process has left open. `None` if there is none. From then on it is closed by execve(2).
pub(super) fn take_inherited(name: &str) -> Option<OwnedFd> {
    let number: RawFd = std::env::var(name).ok()?.parse().ok()?;
    // Not one of the standard descriptors, and open: a variable that another program has set names nothing.
    if number <= libc::STDERR_FILENO || IS_INHERITED_TAKEN.swap(true, Ordering::Relaxed) {
        return None;
    }
    // SAFETY: no memory is touched; with a number that is no open descriptor, the call fails.
    let result = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    check(result).ok()?;

    // SAFETY:
    // - The descriptor is open: the call above has succeeded.
    // - Nothing else owns it: it was open before this program began, which knows it by this variable only, and it is
    //   taken once.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Whether [`take_inherited`] was called.
static IS_INHERITED_TAKEN: AtomicBool = AtomicBool::new(false);

/// How signals were handled before [`ignore_hangup_and_usr2`].
pub(super) struct FormerSignals([(libc::c_int, libc::sigaction); 2]);

/// Ignores SIGHUP and SIGUSR2, which would otherwise end the next program of this process until it handles them: an
/// ignored signal stays ignored in execve(2), a handled one does not.
pub(super) fn ignore_hangup_and_usr2() -> FormerSignals {
    FormerSignals([libc::SIGHUP, libc::SIGUSR2].map(|signal| {
        // SAFETY: `sigaction` is plain data for which all zeroes is a valid value.
        let mut ignore: libc::sigaction = unsafe { mem::zeroed() };
        ignore.sa_sigaction = libc::SIG_IGN;
        let mut former = ignore;
        // SAFETY:
        // - Both pointers refer to values that outlive the call.
        // - Ignoring a signal runs no code.
        unsafe { libc::sigaction(signal, &raw const ignore, &raw mut former) };

        (signal, former)
    }))
}

/// Handles signals as before.
pub(super) fn restore_signals(FormerSignals(former): FormerSignals) {
    for (signal, former) in former {
        // SAFETY:
        // - The pointer refers to a value that outlives the call; no former value is asked for.
        // - The handler is the one that was installed before, for this signal.
        unsafe { libc::sigaction(signal, &raw const former, ptr::null_mut()) };
    }
}

/// One send of one or more datagrams.
#[derive(Clone, Copy, Debug)]
pub(super) struct Send<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) destination: &'a SockAddr,
    /// Source address; `None` leaves it to the route.
    pub(super) source: Option<Local>,
    /// Length of each datagram but the last; `None` if `bytes` is one datagram.
    pub(super) segment_bytes: Option<u16>,
    /// Type of service (IPv4) or traffic class (IPv6) of the outer header; 0 leaves it to the host.
    pub(super) traffic_class: u8,
    /// Time to live (IPv4) or hop limit (IPv6) of the outer header; `None` leaves it to the host.
    pub(super) hop_limit: Option<u8>,
    /// Whether the outer header is IPv6 (an IPv4-mapped destination is not).
    pub(super) is_ipv6: bool,
}

/// Sends on a blocking socket.
///
/// # Errors
///
/// That of `sendmsg`. `EIO` and `EINVAL` may mean that the kernel cannot segment; `EINVAL` and `ENETUNREACH`, among
/// others, that it cannot send from that source.
pub(super) fn send(socket: BorrowedFd<'_>, send: Send<'_>) -> io::Result<()> {
    send_parts(socket, &[IoSlice::new(send.bytes)], send)
}

/// Sends `parts`, one after the other, in place of the bytes of `send`, on a blocking socket.
///
/// # Errors
///
/// Those of [`send`](self::send()).
pub(super) fn send_parts(
    socket: BorrowedFd<'_>,
    parts: &[IoSlice<'_>],
    send: Send<'_>,
) -> io::Result<()> {
    let mut control = EMPTY_CONTROL;
    // SAFETY: `msghdr` is plain data for which all zeroes is a valid value.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_name = send.destination.as_ptr().cast_mut().cast();
    message.msg_namelen = send.destination.len();
    // An `IoSlice` has the layout of an `iovec`.
    message.msg_iov = parts.as_ptr().cast_mut().cast();
    message.msg_iovlen = parts.len() as _;
    message.msg_controllen = encode_control(&mut control, send) as _;
    // After the last use of `control` itself: a use would invalidate a pointer made before.
    message.msg_control = (&raw mut control).cast();

    // SAFETY:
    // - `socket` is an open descriptor for the duration of the call.
    // - Every pointer in `message` refers to a value that outlives the call, with its true length;
    //   the kernel only reads through them.
    let result = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, 0) };

    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// One message of [`receive`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    /// Bytes received.
    pub(super) len: usize,
    /// Length of each datagram but the last.
    pub(super) stride: usize,
    /// Outer source address.
    pub(super) source: Option<SocketAddr>,
    /// Outer destination address, if the socket reports it.
    pub(super) local: Option<Local>,
    /// Type of service or traffic class of the outer header.
    pub(super) traffic_class: u8,
    /// The message was longer than its buffer.
    pub(super) is_truncated: bool,
    /// When the kernel received it, if the socket reports it.
    pub(super) arrival: Option<SystemTime>,
}

impl Message {
    const EMPTY: Self = Self {
        len: 0,
        stride: 0,
        source: None,
        local: None,
        traffic_class: 0,
        is_truncated: false,
        arrival: None,
    };
}

/// Receives up to `N` messages without waiting, each into a buffer of its own. Returns their number.
///
/// # Errors
///
/// That of `recvmmsg`; `WouldBlock` if there is no message.
pub(super) fn receive<B: AsMut<[u8]>, const N: usize>(
    socket: BorrowedFd<'_>,
    buffers: &mut [B; N],
    messages: &mut [Message; N],
) -> io::Result<usize> {
    let mut slices = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; N];
    let mut names = [const { MaybeUninit::<libc::sockaddr_storage>::uninit() }; N];
    let mut controls = [EMPTY_CONTROL; N];
    // SAFETY: `mmsghdr` is plain data for which all zeroes is a valid value.
    let mut headers: [libc::mmsghdr; N] = unsafe { mem::zeroed() };

    let mut count = 0;
    let buffers = buffers.iter_mut().zip(&mut slices).zip(&mut names);
    for (((buffer, slice), name), (control, header)) in
        buffers.zip(controls.iter_mut().zip(&mut headers))
    {
        let buffer = buffer.as_mut();
        *slice = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        header.msg_hdr.msg_name = name.as_mut_ptr().cast();
        header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        header.msg_hdr.msg_iov = slice;
        header.msg_hdr.msg_iovlen = 1;
        header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
        header.msg_hdr.msg_controllen = control.0.len() as _;
        count += 1;
    }

    // SAFETY:
    // - `socket` is an open descriptor for the duration of the call.
    // - The first `count` headers point to buffers, names and control space that outlive the call and
    //   are not accessed otherwise meanwhile, with their true lengths.
    let received = unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            count,
            // Its type depends on the C library.
            libc::MSG_DONTWAIT as _,
            ptr::null_mut(),
        )
    };
    let received = check(received)?;

    for (((message, header), name), control) in
        messages.iter_mut().zip(&headers).zip(&names).zip(&controls).take(received)
    {
        let len = header.msg_len as usize;
        *message = Message {
            len,
            stride: len,
            source: socket_address(name, header.msg_hdr.msg_namelen),
            is_truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            ..Message::EMPTY
        };
        let control_len: usize = header.msg_hdr.msg_controllen as _;
        let control_len = control_len.min(control.0.len());
        decode_control(control.0.get(..control_len).unwrap_or_default(), message);
    }

    Ok(received)
}

/// Empty messages to receive into.
pub(super) const fn empty_messages<const N: usize>() -> [Message; N] {
    [Message::EMPTY; N]
}

fn socket_address(
    name: &MaybeUninit<libc::sockaddr_storage>,
    len: libc::socklen_t,
) -> Option<SocketAddr> {
    let mut storage = socket2::SockAddrStorage::zeroed();
    let copied = (len as usize).min(size_of::<libc::sockaddr_storage>());
    // SAFETY:
    // - The kernel wrote `len` bytes to `name`, and at most its size are copied.
    // - `storage` is a `sockaddr_storage` of its own, so the two cannot overlap.
    unsafe {
        ptr::copy_nonoverlapping(
            name.as_ptr().cast::<u8>(),
            (&raw mut storage).cast::<u8>(),
            copied,
        );
    }
    // SAFETY: `storage` holds an address of `copied` bytes as the kernel wrote it, zeroes behind it.
    let address = unsafe { SockAddr::new(storage, copied as libc::socklen_t) };

    address.as_socket()
}

/// Makes the C library map each allocation of at least `bytes` bytes on its own, and unmap it when it is freed. Returns
/// whether it does.
pub(super) fn set_mmap_threshold(bytes: libc::c_int) -> bool {
    // SAFETY:
    // - The arguments are numbers; existing allocations stay as they are.
    // - glibc takes the lock of its heap.
    #[cfg(target_env = "gnu")]
    let result = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, bytes) };
    // musl does so by itself, from 128 KiB.
    #[cfg(not(target_env = "gnu"))]
    let result = libc::c_int::from(bytes >= 128 << 10);

    result == 1
}

/// Makes the C library return free memory to the kernel, also between allocations in use.
pub(super) fn trim_heap() {
    // SAFETY: the argument is a number, and only memory that is free is given back. glibc takes the locks of its heaps.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

fn check(result: libc::c_int) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
