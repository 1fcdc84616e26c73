//! VXLAN between nodes and gateways: the defaults, which are those of no other CNI, and the MAC addresses of the devices.

use std::net::{IpAddr, Ipv6Addr};

/// The UDP port.
pub const PORT: u16 = 8483;

/// The network identifier (VNI).
pub const VNI: u32 = 83;

/// The MAC address of the VXLAN device of the node, or of the gateway, with this address. All of them compute the same.
///
/// The first byte marks it as locally administered. All bytes of an IPv6 address count, so that any two addresses of one
/// network differ.
#[must_use]
pub fn station(address: IpAddr) -> [u8; 6] {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            [0x0e, 0x53, a, b, c, d]
        }
        IpAddr::V6(address) => {
            let [_, _, _, a, b, c, d, e] = hash(address).to_be_bytes();
            [0x06, a, b, c, d, e]
        }
    }
}

/// FNV-1a (the 64-bit parameters of draft-eastlake-fnv): not secure against chosen input, but who chooses the addresses
/// of nodes controls the cluster.
fn hash(address: Ipv6Addr) -> u64 {
    address.octets().iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
