//! Converts the zone of a link-local endpoint: `wg` writes the name of the interface.

use std::borrow::Cow;

use nix::net::if_::if_nametoindex;

/// Replaces the interface name in an endpoint line by its index; other lines are unchanged.
pub(super) fn with_index(line: &[u8]) -> Cow<'_, [u8]> {
    match with_index_of(line, |name| if_nametoindex(name).ok()) {
        Some(line) => Cow::Owned(line.into_bytes()),
        None => Cow::Borrowed(line),
    }
}

fn with_index_of(line: &[u8], index: impl Fn(&str) -> Option<u32>) -> Option<String> {
    let endpoint = str::from_utf8(line.strip_prefix(b"endpoint=")?).ok()?;
    let (address, rest) = endpoint.split_once('%')?;
    let (name, port) = rest.split_once(']')?;

    Some(format!("endpoint={address}%{}]{port}", index(name)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_name_becomes_its_index() {
        let line =
            |line: &str| with_index_of(line.as_bytes(), |name| (name == "eth0").then_some(7));

        let known = line("endpoint=[fe80::1%eth0]:51820");

        assert_eq!(known.as_deref(), Some("endpoint=[fe80::1%7]:51820"));
        for other in
            ["endpoint=[fe80::1%eth1]:1", "endpoint=[fe80::1]:1", "endpoint=%", "x=[a%eth0]:1"]
        {
            assert_eq!(line(other), None, "{other}");
        }
    }

    #[test]
    fn the_zone_index_comes_from_the_kernel() {
        assert_eq!(*with_index(b"endpoint=[fe80::1%lo]:1"), *b"endpoint=[fe80::1%1]:1");
    }
}
