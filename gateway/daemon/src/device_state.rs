//! Observed state of the device: link, addresses, routes, and what is missing.

use std::fmt::Write as _;
use std::net::IpAddr;

use ipnet::IpNet;
use strait_host::netlink::{AddressError, RouteError};
use strait_plan::Peer;

/// The observed state of the device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceState {
    pub(crate) name: String,
    pub(crate) is_up: bool,
    /// The number of desired routes.
    pub(crate) wanted_routes: usize,
    /// Missing addresses and routes. Empty while the device is down.
    pub(crate) missing: Vec<MissingPrefix>,
}

/// An address or a route that the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MissingPrefix {
    pub(crate) prefix: IpNet,
    pub(crate) is_route: bool,
    /// The cause, with the remedy.
    pub(crate) cause: String,
}

impl MissingPrefix {
    /// Whether this is a route to a prefix of `peer`.
    pub(crate) fn is_of<K>(&self, peer: &Peer<K>) -> bool {
        let mut locals = peer.remaps.iter().map(|rule| rule.local().to_net());
        let mut remotes = peer.allowed_ips.iter().map(|prefix| prefix.to_net());

        self.is_route
            && (locals.any(|prefix| prefix == self.prefix)
                || remotes.any(|prefix| prefix == self.prefix))
    }

    /// The missing route of `error`.
    ///
    /// # Errors
    ///
    /// The same error, if it names no missing route.
    pub(crate) fn of_route(error: RouteError) -> Result<Self, RouteError> {
        let Some(prefix) = error.missing() else { return Err(error) };
        let cause = format!("{:#}", anyhow::Error::from(error));

        Ok(Self { prefix, is_route: true, cause })
    }
}

impl From<AddressError> for MissingPrefix {
    fn from(error: AddressError) -> Self {
        Self { prefix: error.address, is_route: false, cause: error.to_string() }
    }
}

impl DeviceState {
    /// Whether all desired routes are missing.
    pub(crate) fn carries_nothing(&self) -> bool {
        let missing = self.missing.iter().filter(|missing_prefix| missing_prefix.is_route).count();

        self.wanted_routes > 0 && missing == self.wanted_routes
    }

    /// The causes of what is missing, one line each.
    pub(crate) fn missing_text(&self) -> String {
        let mut text = String::new();
        for missing_prefix in &self.missing {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}", missing_prefix.cause);
        }

        text
    }

    /// The remedy if the device is down.
    pub(crate) fn is_down(&self) -> Option<String> {
        let name = &self.name;

        (!self.is_up)
            .then(|| format!("{name} is down and carries no packets: ip link set {name} up"))
    }

    /// Why packets of this host to `destination` do not reach the device, as far as known.
    pub(crate) fn obstacle(&self, destination: IpAddr) -> Option<String> {
        let covers = |missing_prefix: &&MissingPrefix| {
            missing_prefix.is_route && missing_prefix.prefix.contains(&destination)
        };
        let narrowest = |missing_prefix: &&MissingPrefix| missing_prefix.prefix.prefix_len();
        let missing = || self.missing.iter().filter(covers).max_by_key(narrowest);

        self.is_down().or_else(|| missing().map(|missing_prefix| missing_prefix.cause.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::example;
    use super::*;

    #[test]
    fn a_device_without_routes_carries_nothing() {
        let mut device = device(&["10.71.0.0/16"], 2);
        assert!(!device.carries_nothing());

        device.wanted_routes = 1;
        assert!(device.carries_nothing());

        let idle = DeviceState { is_up: true, ..DeviceState::default() };
        assert!(!idle.carries_nothing());
    }

    #[test]
    fn only_destinations_of_missing_routes_have_an_obstacle() {
        let device = device(&["10.71.0.0/16"], 2);

        assert_eq!(device.obstacle("10.71.9.9".parse().unwrap()).unwrap(), "no 10.71.0.0/16");
        assert_eq!(device.obstacle("10.72.9.9".parse().unwrap()), None);
    }

    #[test]
    fn a_missing_route_is_matched_to_its_peer() {
        let config = example::config();
        let peer = &config.peers[0];
        let route = device(&["10.71.0.0/16", "10.72.0.0/16"], 2).missing;
        let address = MissingPrefix { is_route: false, ..route[0].clone() };

        assert!(route[0].is_of(peer), "its name here");
        assert!(!route[1].is_of(peer) && !address.is_of(peer));
    }

    #[test]
    fn a_down_device_blocks_every_destination() {
        let device = DeviceState { is_up: false, ..device(&[], 1) };

        assert!(device.obstacle("10.72.9.9".parse().unwrap()).unwrap().contains("strait0 is down"));
    }

    fn device(missing: &[&str], wanted_routes: usize) -> DeviceState {
        let missing = missing.iter().map(|prefix| MissingPrefix {
            prefix: prefix.parse().unwrap(),
            is_route: true,
            cause: format!("no {prefix}"),
        });

        DeviceState {
            name: "strait0".to_owned(),
            is_up: true,
            wanted_routes,
            missing: missing.collect(),
        }
    }
}
