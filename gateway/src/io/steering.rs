//! More sockets on the port, to which the kernel brings handshakes, so that they are in nobody's way.
//!
//! What a system call receives is mostly super-packets of 64 KiB. A datagram with a handshake takes the
//! place of one: a flood of them leaves the inbound thread a few packets a call, and costs far more than
//! the handshakes do. So several sockets listen on the same address and port (`SO_REUSEPORT`), and a program
//! of a few instructions in the kernel says which of them gets a datagram:
//!
//! ```text
//!              length 148 and begins as an initiation      ┐
//!   datagram ─ length  92 and begins as a response         ├─▶ one of the others ─▶ handshake thread
//!              length  64 and begins as a cookie reply     ┘
//!              anything else ────────────────────────────────▶ the first socket  ─▶ inbound thread
//! ```
//!
//! For handshakes there are [`PARTS`] sockets, each for a part of all sources, because a filter that drops what is not
//! worth to be received (see [`thinning`](super::thinning)) has room for some thousands of them only. Which part is
//! whose anybody can work out: who makes use of that has the room of one.
//!
//! The program sees what the kernel has merged (`UDP_GRO`) as one long datagram. That goes to the first
//! socket, whatever it begins with: else whoever guesses a peer's port could carry off the peer's data
//! behind a byte of his. The inbound thread hands on the handshakes in it, as it does with all of them
//! where the kernel has no such program.
//!
//! The first socket binds alone: a port that anybody has is refused as ever. It shares the port only with
//! what the same user binds after it under the same option, and the program gives nothing to any other
//! socket with the same address.
//!
//! Source: socket(7), `SO_REUSEPORT` and `SO_ATTACH_REUSEPORT_CBPF`; the latter since Linux 4.5.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;

use libc::sock_filter;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::bpf::{
    ADD, ANSWER, ANSWER_LOADED, IS_EQUAL, LOAD_LENGTH, LOAD_WORD, MULTIPLY, SHIFT_RIGHT, SourceKey,
    branch, step,
};
use super::sys;

/// So many sockets are there for handshakes. Together their filters hold as many sources as the native core
/// remembers.
pub(super) const PARTS: usize = 1 << PART_BITS;

const PART_BITS: u32 = 2;

/// The place of the first socket among those of its port, in the order in which they were bound, and of that
/// for the first part.
const FIRST: u32 = 0;
const FIRST_PART: u32 = 1;

/// Spreads neighbours over all parts. Source: D. Knuth, The Art of Computer Programming, volume 3, section 6.4: the
/// golden ratio, and a prime near it.
const SPREAD: u32 = 2_654_435_761;

/// Which sources are in which part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Division(SourceKey);

impl Division {
    pub(super) fn new(seed: u64) -> Self {
        Self(SourceKey::new(seed))
    }

    /// Whose handshakes come to the socket of this number: fewer than [`PARTS`].
    pub(super) fn part(self, source: IpAddr) -> usize {
        let part = self.0.of(source).wrapping_mul(SPREAD) >> (u32::BITS - PART_BITS);

        usize::try_from(part).unwrap_or_default()
    }

    /// See the head of this file. The first word of a message is its type, as the network orders bytes.
    fn program(self) -> Vec<sock_filter> {
        let mut steps = vec![
            step(LOAD_LENGTH, 0),
            branch(IS_EQUAL, 148, 0, 2),
            step(LOAD_WORD, 0),
            branch(IS_EQUAL, 0x0100_0000, 7, 6),
            branch(IS_EQUAL, 92, 0, 2),
            step(LOAD_WORD, 0),
            branch(IS_EQUAL, 0x0200_0000, 4, 3),
            branch(IS_EQUAL, 64, 0, 2),
            step(LOAD_WORD, 0),
            branch(IS_EQUAL, 0x0300_0000, 1, 0),
            step(ANSWER, FIRST),
        ];
        steps.extend(self.0.load());
        steps.extend([
            step(MULTIPLY, SPREAD),
            step(SHIFT_RIGHT, u32::BITS - PART_BITS),
            step(ADD, FIRST_PART),
            step(ANSWER_LOADED, 0),
        ]);

        steps
    }
}

/// Binds more sockets to the address of `first`, which is `address`, and leads handshakes to them.
///
/// # Errors
///
/// What the kernel says. Then `first` gets everything, as before.
pub(super) fn join(
    first: &Socket,
    address: &SockAddr,
    division: Division,
) -> io::Result<[Socket; PARTS]> {
    first.set_reuse_port(true)?;

    others(first, address, division).inspect_err(|_| {
        let _ = first.set_reuse_port(false);
    })
}

fn others(first: &Socket, address: &SockAddr, division: Division) -> io::Result<[Socket; PARTS]> {
    let domain = first.domain()?;
    let other = || {
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        if domain == Domain::IPV6 {
            socket.set_only_v6(false)?;
        }
        socket.set_reuse_port(true)?;
        socket.bind(address)?;

        io::Result::Ok(socket)
    };
    let others = [other()?, other()?, other()?, other()?];
    sys::steer(first.as_fd(), &division.program())?;

    Ok(others)
}

#[cfg(test)]
mod tests {
    use std::iter;
    use std::mem::MaybeUninit;
    use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

    use proptest::prelude::*;

    use super::*;
    use crate::io::bpf::caller;
    use crate::wg::message::Message;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// What the kernel tells apart is what we tell apart.
        #[test]
        fn handshakes_and_nothing_else_are_for_another_socket_than_the_first(
            (kind, len) in prop_oneof![
                (0u32..6, prop::sample::select(vec![63usize, 64, 65, 91, 92, 93, 147, 148, 149])),
                (any::<u32>(), prop::sample::select(vec![64usize, 92, 148])),
                (0u32..6, 0usize..300),
            ],
        ) {
            thread_local!(static GROUPS: Vec<Group> = groups());
            let mut datagram = kind.to_le_bytes().to_vec();
            datagram.resize(len, 0);
            let is_handshake =
                !matches!(Message::classify(&datagram), None | Some(Message::Data { .. }));

            GROUPS.with(|groups| {
                for group in groups {
                    group.caller.send_to(&datagram, group.address).unwrap();
                    let part = is_handshake.then(|| group.part(&group.caller));
                    assert_eq!(group.take(), [(part, len)]);
                }
            });
        }

        /// The kernel divides the sources as we do.
        #[test]
        fn each_source_has_its_part(host: [u8; 3], network: [u16; 2], kind in 1u8..=3) {
            thread_local!(static GROUPS: Vec<Group> = groups());
            let (len, [a, b, c], [d, e]) = ([148, 92, 64][usize::from(kind - 1)], host, network);
            let mut datagram = vec![kind, 0, 0, 0];
            datagram.resize(len, 0);

            GROUPS.with(|groups| {
                for group in groups {
                    let source = match group.address {
                        SocketAddr::V4(_) => IpAddr::from([127, a, b, c.clamp(1, 254)]),
                        SocketAddr::V6(_) => IpAddr::from([0x2001, d, e, 7, 0, 0, 0, 9]),
                    };
                    let caller = caller(source);
                    caller.send_to(&datagram, group.address).unwrap();
                    assert_eq!(group.take(), [(Some(group.part(&caller)), len)], "{source}");
                }
            });
        }
    }

    #[test]
    fn neighbours_are_spread_over_all_parts() {
        for start in [0x0ac8_0001, 0xc000_0200, 0] {
            let mut counts = [0; PARTS];
            for number in 0..10_000 {
                let source = IpAddr::V4(Ipv4Addr::from_bits(start + number));
                counts[Division::new(7).part(source)] += 1;
            }
            assert!(counts.iter().all(|count| (2_450..=2_550).contains(count)), "{counts:?}");
        }
    }

    #[test]
    fn nobody_else_gets_the_port() {
        for group in groups() {
            let address = group.first.local_addr().unwrap();
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
                    let caller = UdpSocket::bind((group.address.ip(), 0)).unwrap();
                    caller.send_to(&datagram, group.address).unwrap();
                    assert_eq!(group.take().len(), 1, "{kind}");
                }
            }
        }
    }

    #[test]
    fn a_socket_that_could_not_be_joined_is_as_it_was() {
        let first = bound(Domain::IPV4);
        let address = first.local_addr().unwrap();
        let elsewhere = SocketAddr::from(([192, 0, 2, 77], 9));

        join(&first, &elsewhere.into(), Division::new(7)).unwrap_err();

        let other = Socket::new(address.domain(), Type::DGRAM, None).unwrap();
        other.set_reuse_port(true).unwrap();
        assert_eq!(other.bind(&address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    /// Sockets of one port, and somebody who calls them.
    struct Group {
        first: Socket,
        parts: [Socket; PARTS],
        division: Division,
        caller: UdpSocket,
        address: SocketAddr,
    }

    impl Group {
        /// What part has got a datagram, `None` for the first socket, and how long that is.
        fn take(&self) -> Vec<(Option<usize>, usize)> {
            let parts = self.parts.iter().enumerate().map(|(part, socket)| (Some(part), socket));
            let received = iter::once((None, &self.first)).chain(parts).map(|(part, socket)| {
                let mut buffer = [MaybeUninit::uninit(); 2048];
                socket.recv(&mut buffer).ok().map(|len| (part, len))
            });

            received.flatten().collect()
        }

        fn part(&self, caller: &UdpSocket) -> usize {
            self.division.part(caller.local_addr().unwrap().ip())
        }
    }

    /// A dual-stack socket called over either IP version, and one of IPv4 alone.
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
                let division = Division::new(11);
                let parts = join(&first, &address, division).unwrap();
                for socket in parts.iter().chain([&first]) {
                    socket.set_nonblocking(true).unwrap();
                }
                let port = address.as_socket().unwrap().port();

                Group {
                    first,
                    parts,
                    division,
                    caller: caller(ip),
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
