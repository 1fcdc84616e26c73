//! Traffic that the receiver can check: ping, TCP and UDP.
//!
//! Every byte is a function of its position in the stream, so a receiver can tell corruption, loss, duplication and
//! reordering apart without knowing what was sent.

mod pattern;
mod ping;
mod tcp;
mod udp;

use std::io;
use std::net::IpAddr;

use socket2::{Domain, SockAddr};

pub use ping::{IcmpError, Ping, PingReport};
pub use tcp::{Amount, TcpReport, tcp, tcp_with};
pub use udp::{Datagrams, UdpReport, udp};

fn domain(address: IpAddr) -> Domain {
    if address.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 }
}

/// The wildcard address in the family of `like`, and a port that the kernel chooses.
fn any(like: IpAddr) -> SockAddr {
    let wildcard = match like {
        IpAddr::V4(_) => IpAddr::from([0; 4]),
        IpAddr::V6(_) => IpAddr::from([0; 16]),
    };

    std::net::SocketAddr::new(wildcard, 0).into()
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::super::Namespace;
    use super::super::netlink::connect;
    use super::super::privilege;
    use super::*;

    const ONE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const OTHER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

    #[test]
    fn a_link_loses_nothing() {
        let Some((one, other)) = link() else {
            return;
        };
        let datagrams = Datagrams { count: 500, payload_bytes: 1200, per_second: 10_000 };

        let ping = Ping::new(OTHER.into(), 3).run(&one).unwrap();
        let tcp = tcp(&one, &other, OTHER.into(), Amount::Bytes(10_000_000)).unwrap();
        let udp = udp(&other, &one, ONE.into(), datagrams).unwrap();

        assert!(ping.is_perfect(), "{ping:?}");
        assert!(tcp.is_intact && tcp.received_bytes == 10_000_000, "{tcp:?}");
        assert_eq!(tcp.client_seen_as.ip(), ONE);
        assert!(udp.is_perfect() && udp.received == 500, "{udp:?}");
    }

    #[test]
    fn loss_is_reported() {
        let Some((one, other)) = link() else {
            return;
        };
        other.set(&[("ipv4/icmp_echo_ignore_all", "1")]).unwrap();
        let ping = Ping { timeout: Duration::from_millis(50), ..Ping::new(OTHER.into(), 2) };

        let report = ping.run(&one).unwrap();

        assert_eq!((report.sent, report.lost()), (2, 2));
    }

    #[test]
    fn a_missing_congestion_control_is_named() {
        let Some((one, other)) = link() else {
            return;
        };
        let amount = Amount::Bytes(1);

        let with = |name| tcp_with(&one, &other, OTHER.into(), amount, Some(name));

        assert!(with("reno").is_ok(), "every kernel has it");
        let error = format!("{:?}", with("nonesuch").unwrap_err());
        assert!(error.contains("nonesuch"), "{error}");
    }

    fn link() -> Option<(Namespace, Namespace)> {
        let (one, other) = (privilege::namespace("one")?, privilege::namespace("other")?);
        connect((&one, "link"), (&other, "link"), 1500).unwrap();
        one.add_address("link", ipnet::IpNet::new_assert(ONE.into(), 24)).unwrap();
        other.add_address("link", ipnet::IpNet::new_assert(OTHER.into(), 24)).unwrap();

        Some((one, other))
    }
}
