//! Derives the MTU of the device if the configuration sets none.

use std::fmt;

use strait_host::netlink::{MTU_MIN_IPV6, Underlay};

use super::config::{Config, MTU_MIN};

/// Maximum overhead of the tunnel: outer IPv6 header 40, UDP header 8, header of a transport data message 16,
/// authentication tag 16 bytes.
pub(crate) const OVERHEAD_BYTES: u16 = 80;

/// The same with an outer IPv4 header, of 20 bytes.
pub(crate) const OVERHEAD_BYTES_IPV4: u16 = 60;

/// Overhead of an overlay: outer IPv4 header 20, UDP header 8, header of the overlay 8, Ethernet header 14 bytes.
const OVERLAY_OVERHEAD_BYTES: u16 = 50;

/// The same with an outer IPv6 header, of 40 bytes.
const OVERLAY_OVERHEAD_BYTES_V6: u16 = 70;

/// The assumed MTU of an unknown underlay: Ethernet.
const ASSUMED_UNDERLAY_MTU: u16 = 1500;

/// The MTU of the device in bytes, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMtu {
    /// The MTU in bytes.
    pub bytes: u16,
    /// The reason, for the log.
    pub reason: Reason,
}

/// The reason of an MTU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Set in the configuration.
    Configured,
    /// The MTU of the underlay less `OVERHEAD_BYTES`.
    Underlay(Underlay),
    /// The underlay leaves less than IPv6 needs; large packets are fragmented on the path.
    RaisedForIpv6(Underlay),
    /// The underlay is unknown, because there is no route.
    Assumed,
    /// The MTU of the network to the nodes less the overhead of the overlay, which is below what the tunnel carries.
    Nodes(Underlay),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configured => f.write_str("configured"),
            Self::Underlay(Underlay { interface, mtu_bytes }) => {
                write!(f, "MTU {mtu_bytes} of {interface} less {OVERHEAD_BYTES}")
            }
            Self::RaisedForIpv6(Underlay { interface, mtu_bytes }) => write!(
                f,
                "the least that IPv6 needs; MTU {mtu_bytes} of {interface} is too small for it"
            ),
            Self::Assumed => write!(
                f,
                "no route to a peer; assumed {ASSUMED_UNDERLAY_MTU} less {OVERHEAD_BYTES}"
            ),
            Self::Nodes(Underlay { interface, mtu_bytes }) => write!(
                f,
                "MTU {mtu_bytes} of {interface}, which leads to the nodes, less the overhead of the overlay"
            ),
        }
    }
}

/// The MTU of a device for `config` over `underlay`.
pub fn of_device(config: &Config, underlay: Option<Underlay>) -> DeviceMtu {
    if let Some(bytes) = config.mtu_bytes {
        return DeviceMtu { bytes, reason: Reason::Configured };
    }
    let Some(underlay) = underlay else {
        let bytes = ASSUMED_UNDERLAY_MTU - OVERHEAD_BYTES;
        return DeviceMtu { bytes, reason: Reason::Assumed };
    };

    let fits = u16::try_from(underlay.mtu_bytes.saturating_sub(u32::from(OVERHEAD_BYTES)))
        .unwrap_or(u16::MAX - OVERHEAD_BYTES)
        .max(MTU_MIN);
    if fits < MTU_MIN_IPV6 && config.first_ipv6().is_some() {
        return DeviceMtu { bytes: MTU_MIN_IPV6, reason: Reason::RaisedForIpv6(underlay) };
    }

    DeviceMtu { bytes: fits, reason: Reason::Underlay(underlay) }
}

/// The MTU of the cluster side for `config` over `underlay`: of a device, or of an overlay over the network
/// `towards_nodes`.
pub fn of_edge(
    config: &Config,
    underlay: Option<Underlay>,
    towards_nodes: Option<Underlay>,
) -> DeviceMtu {
    let mtu = of_device(config, underlay);
    let nodes = config.first_node().zip(towards_nodes);
    let Some((node, underlay)) = nodes.filter(|_| mtu.reason != Reason::Configured) else {
        return mtu;
    };
    let outer = if node.is_ipv6() { OVERLAY_OVERHEAD_BYTES_V6 } else { OVERLAY_OVERHEAD_BYTES };
    let fits = underlay.mtu_bytes.saturating_sub(u32::from(outer));
    let bytes = u16::try_from(fits).unwrap_or(u16::MAX).max(MTU_MIN);
    if bytes >= mtu.bytes {
        return mtu;
    }

    DeviceMtu { bytes, reason: Reason::Nodes(underlay) }
}

#[cfg(test)]
mod tests {
    use super::super::config::example;
    use super::*;

    #[test]
    fn a_small_network_to_nodes_limits_the_overlay() {
        let device = without_mtu();
        let overlay = Config { overlay: Some(example::overlay()), ..without_mtu() };
        let of = |config: &_, mtu| of_edge(config, Some(underlay(1500)), Some(underlay(mtu)));

        let limited = of(&overlay, 1400);

        assert_eq!((limited.bytes, limited.reason), (1350, Reason::Nodes(underlay(1400))));
        assert_eq!([of(&overlay, 1500).bytes, of(&device, 1400).bytes], [1420; 2]);
    }

    #[test]
    fn a_configured_mtu_is_taken_as_it_is() {
        let config = Config { mtu_bytes: Some(1340), ..example::config() };

        assert_eq!(of_device(&config, Some(underlay(9000))).bytes, 1340);
    }

    #[test]
    fn the_overhead_is_taken_off_the_underlay() {
        for (mtu, expected) in [(1500, 1420), (9000, 8920), (65_536, 65_456), (600, 576)] {
            let device = of_device(&without_mtu(), Some(underlay(mtu)));

            assert_eq!(device.bytes, expected);
            assert_eq!(device.reason, Reason::Underlay(underlay(mtu)));
        }
    }

    #[test]
    fn an_absurdly_large_underlay_is_capped() {
        assert_eq!(of_device(&without_mtu(), Some(underlay(u32::MAX))).bytes, 65_455);
    }

    #[test]
    fn without_a_route_ethernet_is_assumed() {
        assert_eq!(of_device(&without_mtu(), None).bytes, 1420);
    }

    #[test]
    fn ipv6_gets_at_least_what_it_needs() {
        let config = Config { addresses: vec!["fd00::1/64".parse().unwrap()], ..without_mtu() };

        let device = of_device(&config, Some(underlay(1300)));

        assert_eq!(device.bytes, 1280);
        assert!(matches!(device.reason, Reason::RaisedForIpv6(_)));
    }

    fn without_mtu() -> Config {
        Config { mtu_bytes: None, ..example::config() }
    }

    fn underlay(mtu_bytes: u32) -> Underlay {
        Underlay { interface: "eth0".to_owned(), mtu_bytes }
    }
}
