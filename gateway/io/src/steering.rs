//! Further sockets on the port, to which the kernel steers handshake messages.
//!
//! A system call mostly receives merged datagrams of up to 64 KiB. A handshake message takes the place of one: during a
//! flood of them the inbound thread receives only a few packets a call, which costs far more than the handshakes do. So
//! several sockets listen on the same address and port (`SO_REUSEPORT`), and a BPF program in the kernel selects the
//! socket of a datagram:
//!
//! ```text
//!              length 148 and begins as an initiation
//!                without a second MAC                  ──────▶ WithoutCookie ┐
//!   datagram ─   with one                              ┐                     ├─▶ handshake thread
//!              length  92 and begins as a response     ├─────▶ Other         ┘
//!              length  64 and begins as a cookie reply ┘
//!              anything else ────────────────────────────────▶ the first socket  ─▶ inbound thread
//! ```
//!
//! A flood of initiations without a cookie fills only its own receive buffer.
//!
//! The program sees datagrams that the kernel merged (`UDP_GRO`) as one long datagram. It steers that to the first
//! socket, independent of its first bytes: otherwise a sender that guesses a peer's port could divert the peer's data
//! behind a byte of its own. The inbound thread passes on the handshake messages in it, as it does with all of them
//! on a kernel without such programs.
//!
//! The first socket binds alone: a port in use is refused as usual. It shares the port only with sockets that the same
//! user binds later with the same option, and the program steers nothing to any foreign socket with the same address.
//!
//! Source: socket(7), `SO_REUSEPORT` and `SO_ATTACH_REUSEPORT_CBPF`; the latter since Linux 4.5. The instructions
//! are those of the kernel's documentation, networking/filter; integers are in network byte order.

use std::io;
use std::os::fd::AsFd;

use libc::sock_filter;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::sys;

/// A kind of handshake messages that has a socket of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Steered {
    /// Initiations whose second MAC is zero, as in most floods.
    WithoutCookie,
    /// All other handshake messages.
    Other,
}

impl Steered {
    /// All kinds, in the order in which their sockets are read.
    pub(super) const ALL: [Self; Self::COUNT] = [Self::Other, Self::WithoutCookie];

    pub(super) const COUNT: usize = 2;

    /// The index of its socket in the result of [`join`].
    pub(super) const fn index(self) -> usize {
        match self {
            Self::WithoutCookie => 0,
            Self::Other => 1,
        }
    }
}

/// Binds further sockets to `address`, the address of `first`, and steers handshake messages to them.
///
/// # Errors
///
/// Those of the system calls. Then `first` receives everything, as before.
pub(super) fn join(first: &Socket, address: &SockAddr) -> io::Result<[Socket; Steered::COUNT]> {
    first.set_reuse_port(true)?;

    others(first, address).inspect_err(|_| {
        let _ = first.set_reuse_port(false);
    })
}

fn others(first: &Socket, address: &SockAddr) -> io::Result<[Socket; Steered::COUNT]> {
    let others = [bind_beside(address)?, bind_beside(address)?];
    sys::steer(first.as_fd(), &PROGRAM)?;

    Ok(others)
}

/// Binds another socket to `address`, that of a socket which shares its port.
pub(super) fn bind_beside(address: &SockAddr) -> io::Result<Socket> {
    let domain = Domain::from(i32::from(address.family()));
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    if domain == Domain::IPV6 {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_port(true)?;
    socket.bind(address)?;

    Ok(socket)
}

/// Loads the length of the datagram.
const LOAD_LENGTH: u16 = 0x80;
/// Loads four bytes from an offset.
const LOAD_WORD: u16 = 0x20;
/// Compares the loaded value.
const IS_EQUAL: u16 = 0x15;
/// Returns the index of a socket, in the order of binding.
const RETURN: u16 = 0x06;

/// The program of the module documentation.
const PROGRAM: [sock_filter; 21] = [
    step(LOAD_LENGTH, 0),
    branch(IS_EQUAL, 148, 0, 10),
    step(LOAD_WORD, 0),
    branch(IS_EQUAL, 0x0100_0000, 0, 14),
    step(LOAD_WORD, 132),
    branch(IS_EQUAL, 0, 0, 14),
    step(LOAD_WORD, 136),
    branch(IS_EQUAL, 0, 0, 12),
    step(LOAD_WORD, 140),
    branch(IS_EQUAL, 0, 0, 10),
    step(LOAD_WORD, 144),
    branch(IS_EQUAL, 0, 7, 8),
    branch(IS_EQUAL, 92, 0, 2),
    step(LOAD_WORD, 0),
    branch(IS_EQUAL, 0x0200_0000, 5, 3),
    branch(IS_EQUAL, 64, 0, 2),
    step(LOAD_WORD, 0),
    branch(IS_EQUAL, 0x0300_0000, 2, 0),
    step(RETURN, 0),
    step(RETURN, 1),
    step(RETURN, 2),
];

const fn step(code: u16, operand: u32) -> sock_filter {
    branch(code, operand, 0, 0)
}

/// A conditional jump: skips `yes` instructions if the comparison holds, `no` if not.
const fn branch(code: u16, operand: u32, yes: u8, no: u8) -> sock_filter {
    sock_filter { code, jt: yes, jf: no, k: operand }
}

#[cfg(test)]
mod tests {
    use std::iter;
    use std::mem::MaybeUninit;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
    use std::thread;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use strait_wg::message::Message;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// The program classifies as `Message::classify` does.
        #[test]
        fn each_datagram_reaches_the_socket_of_its_kind(
            (kind, len) in prop_oneof![
                (0u32..6, prop::sample::select(vec![63usize, 64, 65, 91, 92, 93, 147, 148, 149])),
                (any::<u32>(), prop::sample::select(vec![64usize, 92, 148])),
                (0u32..6, 0usize..300),
            ],
            cookie in proptest::option::of((1usize..=16, 1u8..)),
        ) {
            thread_local!(static GROUPS: Vec<Group> = groups());
            let mut datagram = kind.to_le_bytes().to_vec();
            datagram.resize(len, 0);
            if let Some((from_end, value)) = cookie
                && let Some(byte) = len.checked_sub(from_end).filter(|at| *at >= 4)
            {
                datagram[byte] = value;
            }
            let expected = match Message::classify(&datagram) {
                None | Some(Message::Data { .. }) => None,
                Some(Message::Initiation) if datagram.ends_with(&[0; 16]) => {
                    Some(Steered::WithoutCookie)
                }
                Some(_) => Some(Steered::Other),
            };

            GROUPS.with(|groups| {
                for group in groups {
                    group.client.send_to(&datagram, group.address).unwrap();
                    assert_eq!(group.take(), [(expected, len)]);
                }
            });
        }
    }

    #[test]
    fn foreign_sockets_receive_nothing() {
        for group in groups() {
            let address = group.first.local_addr().unwrap();
            let other = Socket::new(address.domain(), Type::DGRAM, None).unwrap();
            let error = other.bind(&address).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);

            // A foreign socket that shares the port receives nothing.
            other.set_reuse_port(true).unwrap();
            other.bind(&address).unwrap();
            for kind in 1..=4 {
                let mut datagram = vec![0; 148];
                datagram[0] = kind;
                for _ in 0..20 {
                    let client = UdpSocket::bind((group.address.ip(), 0)).unwrap();
                    client.send_to(&datagram, group.address).unwrap();
                    assert_eq!(group.take().len(), 1, "{kind}");
                }
            }
        }
    }

    #[test]
    fn a_failed_join_restores_the_first_socket() {
        let first = bound(Domain::IPV4);
        let address = first.local_addr().unwrap();
        let foreign_address = SocketAddr::from(([192, 0, 2, 77], 9));

        join(&first, &foreign_address.into()).unwrap_err();

        let other = Socket::new(address.domain(), Type::DGRAM, None).unwrap();
        other.set_reuse_port(true).unwrap();
        assert_eq!(other.bind(&address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    /// The sockets of one port, and a client that sends to them.
    struct Group {
        first: Socket,
        others: [Socket; Steered::COUNT],
        client: UdpSocket,
        address: SocketAddr,
    }

    impl Group {
        /// The socket that received a datagram, `None` for the first one, and its length. Waits up to a second.
        fn take(&self) -> Vec<(Option<Steered>, usize)> {
            for _ in 0..1_000 {
                let taken = self.take_received();
                if !taken.is_empty() {
                    return taken;
                }
                thread::sleep(Duration::from_millis(1));
            }

            Vec::new()
        }

        fn take_received(&self) -> Vec<(Option<Steered>, usize)> {
            let others = Steered::ALL.map(|steered| (Some(steered), &self.others[steered.index()]));
            let received =
                iter::once((None, &self.first)).chain(others).map(|(steered, socket)| {
                    let mut buffer = [MaybeUninit::uninit(); 2048];
                    socket.recv(&mut buffer).ok().map(|len| (steered, len))
                });

            received.flatten().collect()
        }
    }

    /// A dual-stack socket reached over each IP version, and an IPv4 socket.
    fn groups() -> Vec<Group> {
        let (v4, v6) = (IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST));
        let has_ipv6 = UdpSocket::bind((v6, 0)).is_ok();
        let cases = [(Domain::IPV4, v4), (Domain::IPV6, v4), (Domain::IPV6, v6)];

        cases
            .into_iter()
            .filter(|(domain, _)| has_ipv6 || *domain == Domain::IPV4)
            .map(|(domain, ip)| {
                let first = bound(domain);
                let address = first.local_addr().unwrap();
                let others = join(&first, &address).unwrap();
                for socket in others.iter().chain([&first]) {
                    socket.set_nonblocking(true).unwrap();
                }
                let port = address.as_socket().unwrap().port();

                Group {
                    first,
                    others,
                    client: UdpSocket::bind((ip, 0)).unwrap(),
                    address: SocketAddr::new(ip, port),
                }
            })
            .collect()
    }

    fn bound(domain: Domain) -> Socket {
        let socket = Socket::new(domain, Type::DGRAM, None).unwrap();
        let any = if domain == Domain::IPV4 {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED)
        } else {
            socket.set_only_v6(false).unwrap();
            IpAddr::V6(Ipv6Addr::UNSPECIFIED)
        };
        socket.bind(&SocketAddr::new(any, 0).into()).unwrap();

        socket
    }
}
