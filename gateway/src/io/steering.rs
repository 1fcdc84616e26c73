//! A second socket on the port, to which the kernel brings handshakes, so that they are in nobody's way.
//!
//! What a system call receives is mostly super-packets of 64 KiB. A datagram with a handshake takes the
//! place of one: a flood of them leaves the inbound thread a few packets a call, and costs far more than
//! the handshakes do. So both sockets listen on the same address and port (`SO_REUSEPORT`), and a program
//! of a few instructions in the kernel says which of them gets a datagram:
//!
//! ```text
//!              length 148 and begins as an initiation      ┐
//!   datagram ─ length  92 and begins as a response         ├─▶ the second socket ─▶ handshake thread
//!              length  64 and begins as a cookie reply     ┘
//!              anything else ────────────────────────────────▶ the first socket  ─▶ inbound thread
//! ```
//!
//! The program sees what the kernel has merged (`UDP_GRO`) as one long datagram. That goes to the first
//! socket, whatever it begins with: else whoever guesses a peer's port could carry off the peer's data
//! behind a byte of his. The inbound thread hands on the handshakes in it, as it does with all of them
//! where the kernel has no such program.
//!
//! The first socket binds alone: a port that anybody has is refused as ever. It shares the port only with
//! what the same user binds after it under the same option, and the program gives nothing to a third
//! socket with the same address.
//!
//! Source: socket(7), `SO_REUSEPORT` and `SO_ATTACH_REUSEPORT_CBPF`; the latter since Linux 4.5.

use std::io;
use std::os::fd::AsFd;

use libc::sock_filter;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::sys;

/// The place of a socket among those of its port, in the order in which they were bound.
const FIRST: u32 = 0;
const SECOND: u32 = 1;

/// See the head of this file. The first word of a message is its type, as the network orders bytes.
const PROGRAM: [sock_filter; 12] = [
    instruction(LOAD_LENGTH, 0, 0, 0),
    instruction(SKIP_IF_EQUAL, 148, 0, 2),
    instruction(LOAD_WORD, 0, 0, 0),
    instruction(SKIP_IF_EQUAL, 0x0100_0000, 7, 6),
    instruction(SKIP_IF_EQUAL, 92, 0, 2),
    instruction(LOAD_WORD, 0, 0, 0),
    instruction(SKIP_IF_EQUAL, 0x0200_0000, 4, 3),
    instruction(SKIP_IF_EQUAL, 64, 0, 2),
    instruction(LOAD_WORD, 0, 0, 0),
    instruction(SKIP_IF_EQUAL, 0x0300_0000, 1, 0),
    instruction(ANSWER, FIRST, 0, 0),
    instruction(ANSWER, SECOND, 0, 0),
];

/// Loads how long the datagram is.
const LOAD_LENGTH: u16 = 0x80;
/// Loads four bytes from the place that follows.
const LOAD_WORD: u16 = 0x20;
/// Skips so many instructions if what was loaded is what follows, and so many if not.
const SKIP_IF_EQUAL: u16 = 0x15;
/// Ends with what follows.
const ANSWER: u16 = 0x06;

/// Binds another socket to the address of `first`, which is `address`, and leads handshakes to it.
///
/// # Errors
///
/// What the kernel says. Then `first` gets everything, as before.
pub(super) fn join(first: &Socket, address: &SockAddr) -> io::Result<Socket> {
    first.set_reuse_port(true)?;

    second(first, address).inspect_err(|_| {
        let _ = first.set_reuse_port(false);
    })
}

fn second(first: &Socket, address: &SockAddr) -> io::Result<Socket> {
    let domain = first.domain()?;
    let second = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    if domain == Domain::IPV6 {
        second.set_only_v6(false)?;
    }
    second.set_reuse_port(true)?;
    second.bind(address)?;
    sys::steer(second.as_fd(), &PROGRAM)?;

    Ok(second)
}

const fn instruction(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

    use proptest::prelude::*;

    use super::*;
    use crate::wg::message::Message;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// What the kernel tells apart is what we tell apart.
        #[test]
        fn handshakes_and_nothing_else_are_for_the_second_socket(
            (kind, len) in prop_oneof![
                (0u32..6, prop::sample::select(vec![63usize, 64, 65, 91, 92, 93, 147, 148, 149])),
                (any::<u32>(), prop::sample::select(vec![64usize, 92, 148])),
                (0u32..6, 0usize..300),
            ],
        ) {
            thread_local!(static PAIRS: Vec<Pair> = pairs());
            let mut datagram = kind.to_le_bytes().to_vec();
            datagram.resize(len, 0);
            let is_handshake =
                !matches!(Message::classify(&datagram), None | Some(Message::Data { .. }));

            PAIRS.with(|pairs| {
                for pair in pairs {
                    pair.caller.send_to(&datagram, pair.address).unwrap();
                    assert_eq!(pair.take(), [!is_handshake, is_handshake].map(|is| is.then_some(len)));
                }
            });
        }
    }

    #[test]
    fn nobody_else_gets_the_port() {
        for pair in pairs() {
            let address = pair.first.local_addr().unwrap();
            let other = Socket::new(address.domain(), Type::DGRAM, None).unwrap();
            let error = other.bind(&address).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);

            // Whoever asks to share it with us gets nothing.
            other.set_reuse_port(true).unwrap();
            other.bind(&address).unwrap();
            for kind in 1..=4 {
                let mut datagram = vec![0; 148];
                datagram[0] = kind;
                for _ in 0..20 {
                    let caller = UdpSocket::bind((pair.address.ip(), 0)).unwrap();
                    caller.send_to(&datagram, pair.address).unwrap();
                    assert!(pair.take().iter().any(Option::is_some), "{kind}");
                }
            }
        }
    }

    #[test]
    fn a_socket_that_could_not_be_joined_is_as_it_was() {
        let first = bound(Domain::IPV4);
        let address = first.local_addr().unwrap();
        let elsewhere = SocketAddr::from(([192, 0, 2, 77], 9));

        join(&first, &elsewhere.into()).unwrap_err();

        let other = Socket::new(address.domain(), Type::DGRAM, None).unwrap();
        other.set_reuse_port(true).unwrap();
        assert_eq!(other.bind(&address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    /// Two sockets, and somebody who calls them.
    struct Pair {
        first: Socket,
        second: Socket,
        caller: UdpSocket,
        address: SocketAddr,
    }

    impl Pair {
        /// How long the datagram is that each has got.
        fn take(&self) -> [Option<usize>; 2] {
            [&self.first, &self.second].map(|socket| {
                let mut buffer = [MaybeUninit::uninit(); 2048];
                socket.recv(&mut buffer).ok()
            })
        }
    }

    /// A dual-stack socket called over either IP version, and one of IPv4 alone.
    fn pairs() -> Vec<Pair> {
        let (v4, v6) = (IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST));
        let has_ipv6 = UdpSocket::bind((v6, 0)).is_ok();
        let cases = [(Domain::IPV4, v4), (Domain::IPV6, v4), (Domain::IPV6, v6)];

        cases
            .into_iter()
            .filter(|(domain, _)| has_ipv6 || *domain == Domain::IPV4)
            .map(|(domain, ip)| {
                let first = bound(domain);
                let address = first.local_addr().unwrap();
                let second = join(&first, &address).unwrap();
                for socket in [&first, &second] {
                    socket.set_nonblocking(true).unwrap();
                }
                let port = address.as_socket().unwrap().port();
                let caller = UdpSocket::bind((ip, 0)).unwrap();

                Pair { first, second, caller, address: SocketAddr::new(ip, port) }
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
