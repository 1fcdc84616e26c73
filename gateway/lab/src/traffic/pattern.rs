//! Bytes that are a function of their position in a stream.

use strait_packet::counters::as_u64;

/// Length of the pattern: a prime above 2^16. It is no multiple of a power of two or of a usual segment length, so that
/// misplaced data never matches.
const LEN: usize = 65_537;

/// An infinite stream of bytes. Any part of it can be written or checked.
#[derive(Clone, Debug)]
pub(super) struct Pattern(Vec<u8>);

impl Pattern {
    pub(super) fn new() -> Self {
        // Xorshift (Marsaglia 2003): no structure that could hide a corruption from a checksum, or a shift.
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_be_bytes()[0]
        };

        Self(std::iter::repeat_with(next).take(LEN).collect())
    }

    /// A piece of the stream from byte `offset` on, as long as it is contiguous in memory. Never empty.
    pub(super) fn piece(&self, offset: u64) -> &[u8] {
        let len = as_u64(self.0.len());
        let start = usize::try_from(offset % len).unwrap_or(0);

        self.0.get(start..).unwrap_or_default()
    }

    /// Fills `bytes` with the stream from byte `offset` on.
    pub(super) fn fill(&self, mut bytes: &mut [u8], mut offset: u64) {
        while !bytes.is_empty() {
            let piece = self.piece(offset);
            let len = piece.len().min(bytes.len());
            let (now, later) = bytes.split_at_mut(len);
            now.iter_mut().zip(piece).for_each(|(byte, value)| *byte = *value);
            offset = offset.wrapping_add(as_u64(len));
            bytes = later;
        }
    }

    /// Whether `bytes` are the stream from byte `offset` on.
    pub(super) fn matches(&self, mut bytes: &[u8], mut offset: u64) -> bool {
        while !bytes.is_empty() {
            let piece = self.piece(offset);
            let len = piece.len().min(bytes.len());
            let (now, later) = bytes.split_at(len);
            if piece.get(..len) != Some(now) {
                return false;
            }
            offset = offset.wrapping_add(as_u64(len));
            bytes = later;
        }

        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_matches_only_at_its_offset() {
        let pattern = Pattern::new();
        let mut bytes = vec![0; 100_000];

        pattern.fill(&mut bytes, 1 << 40);

        assert!(pattern.matches(&bytes, 1 << 40));
        assert!(pattern.matches(&bytes[7..], (1 << 40) + 7));
        for shift in [1, 2, 8, 1340, 1448, 65_536] {
            assert!(!pattern.matches(&bytes, (1 << 40) + shift));
        }
    }

    #[test]
    fn one_wrong_bit_does_not_match() {
        let pattern = Pattern::new();
        let mut bytes = vec![0; 70_000];
        pattern.fill(&mut bytes, 3);

        bytes[69_999] ^= 1;

        assert!(!pattern.matches(&bytes, 3));
    }
}
