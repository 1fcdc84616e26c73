//! The system calls that need `unsafe`, and nothing else.
//!
//! Each function wraps one call and turns its result into typed values. Policy (when to call, how to react to an error)
//! is in the modules above.
#![expect(unsafe_code, reason = "DESIGN.md decision 11: this module is the one exception")]
#![expect(clippy::as_conversions, reason = "lengths and constants of the C interface")]

mod messages;

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) use messages::{Message, Send, empty_messages, receive, send, send_parts};

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
