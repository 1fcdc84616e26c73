//! Classes of ports: the external ports that may stand for an internal one.

use super::entry::low_u32;
use super::flow::Protocol;

/// Ports of one parity on one side of 1024, or all echo identifiers.
///
/// RFC 4787 section 4.2.1 (REQ-3a) keeps a port below 1024 below and the others above, section 4.2.2
/// (REQ-4) keeps it even or odd. An identifier has neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    LowEven,
    LowOdd,
    HighEven,
    HighOdd,
    Identifier,
}

impl Class {
    pub(super) const fn of(protocol: Protocol, port: u16) -> Self {
        match (protocol, port < 1024, port.is_multiple_of(2)) {
            (Protocol::Echo, _, _) => Self::Identifier,
            (_, true, true) => Self::LowEven,
            (_, true, false) => Self::LowOdd,
            (_, false, true) => Self::HighEven,
            (_, false, false) => Self::HighOdd,
        }
    }

    /// The ports of the other parity on the same side of 1024.
    pub(super) const fn other_parity(self) -> Option<Self> {
        match self {
            Self::LowEven => Some(Self::LowOdd),
            Self::LowOdd => Some(Self::LowEven),
            Self::HighEven => Some(Self::HighOdd),
            Self::HighOdd => Some(Self::HighEven),
            Self::Identifier => None,
        }
    }

    /// The number of ports. Port 0 is excluded: it cannot receive replies.
    pub(super) const fn size(self) -> u32 {
        match self {
            Self::LowEven => 511,
            Self::LowOdd => 512,
            Self::HighEven | Self::HighOdd => 32_256,
            Self::Identifier => 65_536,
        }
    }

    /// Port number `n` of the class; `n` wraps after the last.
    pub(super) fn port(self, n: u32) -> u16 {
        let n = n % self.size();
        let port = match self {
            Self::LowEven => 2 + 2 * n,
            Self::LowOdd => 1 + 2 * n,
            Self::HighEven => 1024 + 2 * n,
            Self::HighOdd => 1025 + 2 * n,
            Self::Identifier => n,
        };

        u16::try_from(port).unwrap_or(u16::MAX)
    }

    /// Whether `port` belongs to the class and a mapping of `protocol` may use it.
    pub(super) fn contains(self, protocol: Protocol, port: u16) -> bool {
        Self::of(protocol, port) == self && (self == Self::Identifier || port != 0)
    }

    /// The number of taken ports of this class, from the words of a port pool's record.
    pub(super) fn count(self, words: [u64; 2]) -> u32 {
        let [low, high] = words;
        match self {
            Self::LowEven | Self::Identifier => low_u32(low >> 32),
            Self::LowOdd => low_u32(low),
            Self::HighEven => low_u32(high >> 32),
            Self::HighOdd => low_u32(high),
        }
    }

    /// The words with a changed count of this class.
    pub(super) fn changed(self, words: [u64; 2], change: impl FnOnce(u32) -> u32) -> [u64; 2] {
        let count = u64::from(change(self.count(words)));
        let [low, high] = words;
        let upper = |word| (count << 32) | u64::from(low_u32(word));
        let lower = |word| (word & !0xffff_ffff) | count;
        match self {
            Self::LowEven | Self::Identifier => [upper(low), high],
            Self::LowOdd => [lower(low), high],
            Self::HighEven => [low, upper(high)],
            Self::HighOdd => [low, lower(high)],
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const ALL: [Class; 5] =
        [Class::LowEven, Class::LowOdd, Class::HighEven, Class::HighOdd, Class::Identifier];

    #[test]
    fn port_enumerates_exactly_the_class() {
        for class in ALL {
            let protocol = if class == Class::Identifier { Protocol::Echo } else { Protocol::Udp };

            let ports: BTreeSet<_> = (0..class.size()).map(|n| class.port(n)).collect();

            let expected: BTreeSet<_> =
                (0..=u16::MAX).filter(|port| class.contains(protocol, *port)).collect();
            assert_eq!(ports, expected, "{class:?}");
        }
    }

    #[test]
    fn counts_are_independent() {
        let mut words = [0; 2];

        for (class, count) in ALL.into_iter().take(4).zip(1..) {
            words = class.changed(words, |before| before + count);
        }

        for (class, count) in ALL.into_iter().take(4).zip(1..) {
            assert_eq!(class.count(words), count, "{class:?}");
        }
    }
}
