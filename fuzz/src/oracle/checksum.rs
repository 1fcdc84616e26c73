//! The checksums of a packet, computed in full instead of by difference.

use super::{Layout, put, word};

/// The checksums of `packet` and, if it is an ICMP error, of the quoted packet: of the IPv4 header and
/// of the transport.
#[must_use]
pub fn checksums(packet: &[u8]) -> Vec<Covered> {
    let Some(layout) = Layout::of(packet) else {
        return Vec::new();
    };
    let quoted = layout.quoted(packet);
    // The inner ones first: the outer checksum covers them.
    let mut all: Vec<Covered> =
        quoted.map(|(at, layout)| Covered::all(at, &layout)).unwrap_or_default();
    all.extend(Covered::all(0, &layout));

    all
}

/// A checksum and its coverage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Covered {
    /// The offset of the packet to which this checksum belongs.
    pub packet_at: usize,
    /// The offset of the checksum.
    pub at: usize,
    /// `None` for the checksum of the IPv4 header.
    transport: Option<Layout>,
    header_len: usize,
}

impl Covered {
    fn all(packet_at: usize, layout: &Layout) -> Vec<Self> {
        let header_len = layout.transport_at;
        let ip = Self { packet_at, at: packet_at + 10, transport: None, header_len };
        let transport = layout.checksum_at.map(|at| Self {
            packet_at,
            at: packet_at + at,
            transport: Some(layout.clone()),
            header_len,
        });

        (!layout.is_ipv6()).then_some(ip).into_iter().chain(transport).collect()
    }

    /// Whether zero means "no checksum" in this field.
    #[must_use]
    pub fn reserves_zero(&self) -> bool {
        self.transport.as_ref().is_some_and(Layout::reserves_zero)
    }

    /// Whether there is no checksum.
    #[must_use]
    pub fn is_absent(&self, bytes: &[u8]) -> bool {
        self.reserves_zero() && word(bytes, self.at) == Some(0)
    }

    /// The sum of all covered bytes, with the two zeros of one's complement as the same value.
    #[must_use]
    pub fn residue(&self, bytes: &[u8]) -> u16 {
        let packet = bytes.get(self.packet_at..).unwrap_or_default();
        let sum = match &self.transport {
            None => sum(packet.get(..self.header_len.min(packet.len())).unwrap_or_default()),
            Some(layout) => layout.transport_sum(packet),
        };

        sum % 0xffff
    }

    /// Computes the checksum in full and writes it, unless there is none.
    pub fn recompute(&self, bytes: &mut [u8]) {
        if !self.is_absent(bytes) {
            self.fill(bytes);
        }
    }

    /// Computes the checksum in full and writes it, also if there was none.
    pub fn fill(&self, bytes: &mut [u8]) {
        put(bytes, self.at, 0);
        let checksum = match !self.residue(bytes) {
            // Zero in place of 0xffff, except where zero means "no checksum".
            0xffff if !self.reserves_zero() => 0,
            checksum => checksum,
        };
        put(bytes, self.at, checksum);
    }
}

/// Computes all checksums in full.
pub fn recompute(packet: &mut [u8]) {
    for checksum in checksums(packet) {
        checksum.recompute(packet);
    }
}

/// The packet with a single representation of zero in each checksum where both zeros of one's
/// complement are equivalent.
#[must_use]
pub fn with_canonical_zeros(packet: &[u8]) -> Vec<u8> {
    let mut bytes = packet.to_vec();
    for checksum in checksums(packet) {
        if !checksum.reserves_zero() && word(&bytes, checksum.at) == Some(0xffff) {
            put(&mut bytes, checksum.at, 0);
        }
    }

    bytes
}

/// The one's complement sum of 16-bit words (RFC 1071 section 1).
#[must_use]
pub fn sum(bytes: &[u8]) -> u16 {
    let mut total = 0_u64;
    for pair in bytes.chunks(2) {
        let high = pair.first().copied().unwrap_or(0);
        let low = pair.get(1).copied().unwrap_or(0);
        total += u64::from(u16::from_be_bytes([high, low]));
    }
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }

    u16::try_from(total).unwrap_or(0)
}
