//! One address of a prefix.

use std::collections::BTreeSet;
use std::net::IpAddr;

use remap::Prefix;

/// The address of `network` that is next after the `last` one that was given, the first without one;
/// over and over from the beginning, without those in `used`. `None` if there is none.
///
/// The lowest and the highest address are as good as any: nothing listens to them.
#[must_use]
pub fn next_address(
    network: Prefix,
    last: Option<IpAddr>,
    used: &BTreeSet<IpAddr>,
) -> Option<IpAddr> {
    let base = bits(network.network());
    let width: u8 = if network.is_ipv4() { 32 } else { 128 };
    let host_bits = u32::from(width.checked_sub(network.len_bits())?);
    let mask = 1_u128.checked_shl(host_bits).map_or(u128::MAX, |size| size - 1);
    let last = last.filter(|last| network.contains(*last));
    let first = last.map_or(0, |last| (bits(last) - base).wrapping_add(1));

    let is_used = |address: &IpAddr| used.contains(address);
    let within = used.iter().filter(|used| network.contains(**used)).count();
    // One more than there are used ones, and no place twice.
    let tries = u128::try_from(within).ok()?.min(mask);
    (0..=tries)
        .map(|step| base | (first.wrapping_add(step) & mask))
        .filter_map(|bits| address(bits, network.is_ipv4()))
        .find(|address| !is_used(address))
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
