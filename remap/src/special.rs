//! Special-purpose address blocks that no packet through a tunnel can have.
//!
//! Source: RFC 6890 section 2.2 (before it RFC 5735) and RFC 4291: blocks that are not valid as source or
//! destination between hosts, or that no router forwards. The kernel drops such packets.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Never valid on a link: this network, this host, broadcast.
const NEVER: [IpNet; 5] = [
    v4([0, 0, 0, 0], 8),
    v4([127, 0, 0, 0], 8),
    v4([255, 255, 255, 255], 32),
    v6(0, 128),
    v6(1, 128),
];

/// Not forwarded to one host: multicast and link-local. Allowed IPs may contain them nevertheless,
/// for routing protocols.
const NOT_FORWARDED: [IpNet; 3] =
    [v4([224, 0, 0, 0], 4), v6(0xff00 << 112, 8), v6(0xfe80 << 112, 10)];

/// The special-purpose block that contains `net`. Blocks that are not forwarded count only if `is_forwarded`.
#[must_use]
pub fn block(net: IpNet, is_forwarded: bool) -> Option<IpNet> {
    let not_forwarded = if is_forwarded { NOT_FORWARDED.as_slice() } else { &[] };

    NEVER.iter().chain(not_forwarded).find(|block| block.contains(&net)).copied()
}

const fn v4([a, b, c, d]: [u8; 4], len: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), len))
}

const fn v6(bits: u128, len: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::from_bits(bits), len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_prefixes_inside_a_block_match() {
        let block = |net: &str, is_forwarded| {
            block(net.parse().unwrap(), is_forwarded).map(|block| block.to_string())
        };

        for (net, expected) in [
            ("127.8.0.0/16", "127.0.0.0/8"),
            ("0.0.0.1/32", "0.0.0.0/8"),
            ("255.255.255.255/32", "255.255.255.255/32"),
            ("::1/128", "::1/128"),
        ] {
            assert_eq!(block(net, false).as_deref(), Some(expected));
            assert_eq!(block(net, true).as_deref(), Some(expected));
        }
        for (net, expected) in [
            ("224.0.0.5/32", "224.0.0.0/4"),
            ("ff02::5/128", "ff00::/8"),
            ("fe80::/64", "fe80::/10"),
        ] {
            assert_eq!(block(net, false), None, "{net}");
            assert_eq!(block(net, true).as_deref(), Some(expected));
        }
        for net in ["0.0.0.0/0", "::/0", "10.0.0.0/8", "169.254.0.0/16", "240.0.0.0/4", "fd00::/8"]
        {
            assert_eq!(block(net, true), None, "{net}");
        }
    }
}
