//! Parses `[cluster]`.

use std::net::IpAddr;

use ipnet::IpNet;
use remap::{Cluster, HostMap, Prefix};
use toml::Spanned;

use super::Parser;
use crate::config::Problem;
use crate::config::file::{ClusterSection, HostMapSection};

/// Maximum number of addresses in one entry of `masquerade`.
const POOL_MAX: usize = 256;

impl Parser<'_> {
    pub(super) fn cluster(&mut self, section: &ClusterSection) -> Cluster {
        let ClusterSection { pod_cidrs, external_cidrs, masquerade, host_map, .. } = section;
        let pods: Vec<Prefix> =
            pod_cidrs.iter().filter_map(|text| self.prefix("pod_cidrs", text)).collect();
        let externals: Vec<Prefix> =
            external_cidrs.iter().filter_map(|text| self.prefix("external_cidrs", text)).collect();
        if let Some(first) = masquerade.first()
            && pod_cidrs.is_empty()
        {
            self.push(first, Problem::MasqueradeWithoutPods);
        }

        let pool: Vec<IpAddr> = masquerade.iter().flat_map(|text| self.pool(text, &pods)).collect();
        let host_maps =
            host_map.iter().filter_map(|map| self.host_map(map.get_ref(), &pods)).collect();

        Cluster {
            prefixes: pods.into_iter().chain(externals).collect(),
            host_maps,
            masquerade: pool,
            sharing: Vec::new(),
        }
    }

    /// The addresses of one entry: an address, or all of a small prefix.
    fn pool(&mut self, text: &Spanned<String>, pods: &[Prefix]) -> Vec<IpAddr> {
        let Some(prefix) = self.prefix("masquerade", text) else {
            return Vec::new();
        };
        let hosts: Vec<IpAddr> = match prefix.to_net() {
            IpNet::V4(net) => addresses(u128::from(net.network().to_bits()), 32, prefix)
                .filter_map(|bits| Some(IpAddr::V4(u32::try_from(bits).ok()?.into())))
                .collect(),
            IpNet::V6(net) => addresses(net.network().to_bits(), 128, prefix)
                .map(|bits| IpAddr::V6(bits.into()))
                .collect(),
        };
        if hosts.len() > POOL_MAX {
            self.push(text, Problem::PoolTooLarge { prefix, max: POOL_MAX });
            return Vec::new();
        }
        self.check_outside(text, prefix, pods);

        hosts
    }

    fn host_map(&mut self, section: &HostMapSection, pods: &[Prefix]) -> Option<HostMap> {
        let internal = self.address("internal", &section.internal);
        let external = self.address("external", &section.external);
        let (internal, external) = (internal?, external?);
        self.check_outside(&section.external, Prefix::of_host(external), pods);

        match HostMap::new(internal, external) {
            Ok(map) => Some(map),
            Err(cause) => self.reject(&section.internal, Problem::HostMap { cause }),
        }
    }

    /// An external address represents another one, so no pod may have it.
    fn check_outside(&mut self, place: &Spanned<String>, external: Prefix, pods: &[Prefix]) {
        if let Some(pods) = pods.iter().find(|pods| pods.overlaps(external)) {
            self.push(place, Problem::ExternalIsPod { external, pods: *pods });
        }
    }

    fn address(&mut self, key: &'static str, text: &Spanned<String>) -> Option<IpAddr> {
        let Ok(address) = text.get_ref().parse::<IpAddr>() else {
            let value = text.get_ref().clone();
            return self.reject(text, Problem::HostAddress { key, value });
        };

        self.routable(key, text, address.into()).map(|_| address)
    }
}

/// The addresses of a prefix, cut off one above the maximum.
fn addresses(first: u128, width: u8, prefix: Prefix) -> impl Iterator<Item = u128> {
    let bits = u32::from(width.saturating_sub(prefix.len_bits()));
    let count = 1u128.checked_shl(bits).unwrap_or(u128::MAX);

    (first..first.saturating_add(count)).take(POOL_MAX + 1)
}
