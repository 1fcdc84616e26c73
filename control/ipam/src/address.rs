//! Allocates one address of a prefix.

use std::collections::BTreeSet;
use std::net::IpAddr;

use remap::Prefix;

/// The first free address of `network` after `last`, the one allocated before, wrapping around at its end; without
/// those in `used` and without the first `reserved` ones. `None` if there is none.
///
/// The lowest and the highest address count too: the prefix is on no link, so they are no network or broadcast address.
#[must_use]
pub(crate) fn next_address(
    network: Prefix,
    reserved: u32,
    last: Option<IpAddr>,
    used: &BTreeSet<IpAddr>,
) -> Option<IpAddr> {
    let base = bits(network.network());
    let width: u8 = if network.is_ipv4() { 32 } else { 128 };
    let host_bits = u32::from(width.checked_sub(network.len_bits())?);
    let highest = 1_u128.checked_shl(host_bits).map_or(u128::MAX, |size| size - 1);
    let lowest = u128::from(reserved);
    let last = last.filter(|last| network.contains(*last)).map(|last| bits(last) - base);
    let first = last.map_or(lowest, |last| last.saturating_add(1)).max(lowest);

    // Each address at most once, up to the first that is free.
    (first..=highest)
        .chain(lowest..first.min(highest.saturating_add(1)))
        .filter_map(|place| address(base | place, network.is_ipv4()))
        .find(|address| !used.contains(address))
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn address(bits: u128, is_ipv4: bool) -> Option<IpAddr> {
    if is_ipv4 {
        let bits = u32::try_from(bits).ok()?;
        Some(IpAddr::from(bits.to_be_bytes()))
    } else {
        Some(IpAddr::from(bits.to_be_bytes()))
    }
}
