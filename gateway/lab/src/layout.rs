//! Addresses of the two clusters, and the prefixes under which they reach each other. Pure.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// One address family of one cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Realm {
    /// The cluster's own pod CIDR.
    pub pods: IpNet,
    /// The prefix under which this cluster reaches the pods of the other cluster. Equal to the other's pod CIDR if it is
    /// not remapped.
    pub remapped: IpNet,
}

/// The addresses of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// At most one realm per address family.
    pub realms: Vec<Realm>,
    /// The host part of the pod's address in each pod CIDR.
    pub pod: u32,
}

/// The network between the gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Underlay {
    /// IPv6 instead of IPv4.
    pub is_ipv6: bool,
    /// Through a router instead of a direct link.
    pub is_routed: bool,
    /// In bytes.
    pub mtu_bytes: u32,
}

/// Both clusters and the underlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The provider, whose gateway is the server.
    pub milan: Side,
    /// The consumer, whose gateway is the client.
    pub rome: Side,
    /// Between the gateways.
    pub underlay: Underlay,
    /// MTU between pod and gateway, in bytes.
    pub cluster_mtu_bytes: u32,
}

impl Layout {
    /// Both clusters have the same pod CIDRs, and each reaches the other under the same remapped prefixes, as two Liqo
    /// clusters with default values do.
    #[must_use]
    pub fn equal() -> Self {
        let realms = vec![
            Realm { pods: v4([10, 244, 0, 0], 16), remapped: v4([10, 71, 0, 0], 16) },
            Realm { pods: v6([0xfd00, 0x10, 0x244], 56), remapped: v6([0xfd00, 0x10, 0x71], 56) },
        ];

        Self::new(realms.clone(), realms)
    }

    /// All four pod CIDRs and remapped prefixes differ.
    #[must_use]
    pub fn different() -> Self {
        let milan = vec![
            Realm { pods: v4([10, 10, 0, 0], 16), remapped: v4([172, 20, 0, 0], 18) },
            Realm { pods: v6([0xfd00, 0x10], 56), remapped: v6([0xfd00, 0x172], 60) },
        ];
        let rome = vec![
            Realm { pods: v4([10, 20, 64, 0], 18), remapped: v4([100, 64, 0, 0], 16) },
            Realm { pods: v6([0xfd00, 0x20], 60), remapped: v6([0xfd00, 0x100], 56) },
        ];

        Self::new(milan, rome)
    }

    /// Rome's pod CIDRs are parts of Milan's, and each cluster uses its own remapped prefixes.
    #[must_use]
    pub fn partly_overlapping() -> Self {
        let milan = vec![
            Realm { pods: v4([10, 244, 0, 0], 16), remapped: v4([10, 71, 128, 0], 17) },
            Realm { pods: v6([0xfd00, 0x244], 48), remapped: v6([0xfd00, 0x71], 56) },
        ];
        let rome = vec![
            Realm { pods: v4([10, 244, 0, 0], 17), remapped: v4([10, 82, 0, 0], 16) },
            Realm { pods: v6([0xfd00, 0x244], 56), remapped: v6([0xfd00, 0x82], 48) },
        ];

        Self::new(milan, rome)
    }

    /// The same layout without IPv6 inside the tunnel.
    #[must_use]
    pub fn without_ipv6(mut self) -> Self {
        for side in [&mut self.milan, &mut self.rome] {
            side.realms.retain(|realm| matches!(realm.pods, IpNet::V4(_)));
        }

        self
    }

    /// The same layout over another underlay.
    #[must_use]
    pub const fn with_underlay(mut self, underlay: Underlay) -> Self {
        self.underlay = underlay;

        self
    }

    /// The same layout with this MTU, in bytes, on the underlay and between pod and gateway.
    #[must_use]
    pub const fn with_mtu(mut self, mtu_bytes: u32) -> Self {
        self.underlay.mtu_bytes = mtu_bytes;
        self.cluster_mtu_bytes = mtu_bytes;

        self
    }

    /// Rome's pod is 1.5 and Milan's 2.7: different host parts reveal a mix-up.
    const fn new(milan: Vec<Realm>, rome: Vec<Realm>) -> Self {
        Self {
            milan: Side { realms: milan, pod: 0x0207 },
            rome: Side { realms: rome, pod: 0x0105 },
            underlay: Underlay { is_ipv6: false, is_routed: false, mtu_bytes: 1500 },
            cluster_mtu_bytes: 1500,
        }
    }
}

impl Side {
    /// The pod's own addresses.
    pub fn pod_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.realms.iter().map(|realm| host(realm.pods, self.pod))
    }

    /// The addresses under which this cluster reaches the pod of `other`, in the order of its realms.
    pub fn sees(&self, other: &Self) -> impl Iterator<Item = IpAddr> {
        self.realms.iter().map(|realm| host(realm.remapped, other.pod))
    }
}

/// The `number`th address of `prefix`.
#[must_use]
pub fn host(prefix: IpNet, number: u32) -> IpAddr {
    match prefix {
        IpNet::V4(prefix) => IpAddr::V4((u32::from(prefix.network()) | number).into()),
        IpNet::V6(prefix) => IpAddr::V6((u128::from(prefix.network()) | u128::from(number)).into()),
    }
}

/// Addresses of the gateways of Milan and Rome, from the ranges for documentation (RFC 5737, RFC 3849): on one network,
/// or on two if a router connects them.
pub(super) fn underlay_addresses(underlay: Underlay) -> (IpAddr, IpAddr) {
    let address = |network: u8, number: u8| match underlay.is_ipv6 {
        false if network == 0 => IpAddr::from([198, 51, 100, number]),
        false => IpAddr::from([203, 0, 113, number]),
        true => {
            let (network, number) = (network.into(), number.into());
            IpAddr::from([0x2001, 0xdb8, 0, network, 0, 0, 0, number])
        }
    };

    (address(u8::from(underlay.is_routed), 3), address(0, 2))
}

/// The prefix of an address on the underlay.
pub(super) fn network_of(address: IpAddr) -> IpNet {
    with_len(address, if address.is_ipv4() { 24 } else { 64 }).trunc()
}

/// The address of gateway `number` on its device, with the prefix that the two gateways share, in the family of `pods`.
pub(super) fn tunnel_net(pods: IpNet, number: u8) -> IpNet {
    match pods {
        IpNet::V4(_) => IpNet::V4(Ipv4Net::new_assert([169, 254, 18, number].into(), 30)),
        IpNet::V6(_) => {
            let groups = [0xfd00, 0x169, 0x254, 0x18, 0, 0, 0, number.into()];
            IpNet::V6(Ipv6Net::new_assert(groups.into(), 126))
        }
    }
}

/// The default route in the family of `like`.
pub(super) fn default_route(like: IpAddr) -> IpNet {
    match like {
        IpAddr::V4(_) => IpNet::V4(Ipv4Net::default()),
        IpAddr::V6(_) => IpNet::V6(Ipv6Net::default()),
    }
}

/// `address` with a prefix length of `len` bits.
pub(super) fn with_len(address: IpAddr, len: u8) -> IpNet {
    IpNet::new_assert(address, len)
}

const fn v4([a, b, c, d]: [u8; 4], len: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), len))
}

fn v6<const N: usize>(first: [u16; N], len: u8) -> IpNet {
    let mut groups = [0; 8];
    for (group, value) in groups.iter_mut().zip(first) {
        *group = value;
    }

    IpNet::V6(Ipv6Net::new_assert(groups.into(), len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_clusters_use_liqos_example_addresses() {
        let layout = Layout::equal();

        let seen = layout.rome.sees(&layout.milan).next();

        assert_eq!(seen, Some([10, 71, 2, 7].into()));
        assert_eq!(layout.milan.pod_addresses().next(), Some([10, 244, 2, 7].into()));
    }

    #[test]
    fn remapped_prefixes_keep_their_length() {
        for layout in [Layout::equal(), Layout::different(), Layout::partly_overlapping()] {
            let Layout { milan, rome, .. } = layout;
            for (one, other) in [(&milan, &rome), (&rome, &milan)] {
                for (realm, remote) in one.realms.iter().zip(&other.realms) {
                    assert_eq!(realm.remapped.prefix_len(), remote.pods.prefix_len());
                    assert_eq!(realm.remapped.trunc(), realm.remapped);
                    assert_eq!(realm.pods.trunc(), realm.pods);
                }
            }
        }
    }
}
