//! The checksums of a packet, computed in full.

use super::{Layout, put, word};

/// Where the checksums of `packet` are: for the error that it may be and for what it quotes, the one
/// of an IPv4 header and the one of the transport.
#[must_use]
pub fn checksums(packet: &[u8]) -> Vec<Covered> {
    let Some(layout) = Layout::of(packet) else {
        return Vec::new();
    };
    let quoted = layout.quoted(packet);
    // Inside first: the outer checksum covers the inner ones.
    let mut all: Vec<Covered> =
        quoted.map(|(at, layout)| Covered::all(at, &layout)).unwrap_or_default();
    all.extend(Covered::all(0, &layout));

    all
}

/// A checksum and what it covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Covered {
    /// Where the packet begins whose checksum this is.
    pub packet_at: usize,
    /// Where the checksum is.
    pub at: usize,
    /// Of the IPv4 header if `None`.
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

    /// Whether zero has a meaning of its own in this field.
    #[must_use]
    pub fn reserves_zero(&self) -> bool {
        self.transport.as_ref().is_some_and(Layout::reserves_zero)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_absent(&self, bytes: &[u8]) -> bool {
        self.reserves_zero() && word(bytes, self.at) == Some(0)
    }

    /// The sum of everything covered, with the two zeros of one's complement as one.
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
    pub fn make_right(&self, bytes: &mut [u8]) {
        if self.is_absent(bytes) {
            return;
        }
        put(bytes, self.at, 0);
        let checksum = match !self.residue(bytes) {
            // What was the sum 0xffff, and zero where that would say "none".
            0xffff if !self.reserves_zero() => 0,
            checksum => checksum,
        };
        put(bytes, self.at, checksum);
    }
}

/// Computes all checksums in full.
pub fn make_right(packet: &mut [u8]) {
    for checksum in checksums(packet) {
        checksum.make_right(packet);
    }
}

/// The packet with one of the two zeros of one's complement for both, in every checksum for which
/// they mean the same.
#[must_use]
pub fn with_one_zero(packet: &[u8]) -> Vec<u8> {
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
