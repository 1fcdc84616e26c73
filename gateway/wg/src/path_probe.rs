//! Probes of the path MTU in a session: transport data whose content is neither a packet nor empty.
//!
//! A probe has the length of the packet for which it stands. Its answer is short, and repeats the length. Other
//! implementations drop both, as content without an IP version (whitepaper, section 3), so only gateways of ours
//! answer.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |       0       |      'P'      |      'M'      |      'T'      |
//! +---------------+---------------+-------------------------------+
//! |     kind      |       0       |  length of the probe (bytes)  |
//! +---------------+---------------+-------------------------------+
//! |  zeros, in a probe up to its length                           |
//! ```

/// The first bytes of the content. The IP version in the first one is 0.
const MAGIC: [u8; 4] = *b"\0PMT";

const PROBE: u8 = 1;
const ANSWER: u8 = 2;

/// Bytes before the zeros.
const HEADER_LEN: usize = 8;

/// A probe of the path MTU, or the answer to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathProbe {
    /// Stands for a packet of this many bytes.
    Probe(u16),
    /// A probe of this many bytes has arrived.
    Answer(u16),
}

impl PathProbe {
    /// The content of its transport data message.
    #[must_use]
    pub fn content(self) -> Vec<u8> {
        let (kind, bytes, len) = match self {
            Self::Probe(bytes) => (PROBE, bytes, usize::from(bytes)),
            Self::Answer(bytes) => (ANSWER, bytes, HEADER_LEN),
        };
        let [high, low] = bytes.to_be_bytes();
        let mut content = [&MAGIC[..], &[kind, 0, high, low]].concat();
        content.resize(len.max(HEADER_LEN), 0);

        content
    }

    /// Reads the content of a transport data message, with its padding. `None` if it is neither, or shorter than it says.
    #[must_use]
    pub fn read(content: &[u8]) -> Option<Self> {
        let (header, _) = content.split_first_chunk::<HEADER_LEN>()?;
        let [_, _, _, _, kind, _, high, low] = *header;
        let bytes = u16::from_be_bytes([high, low]);
        if !header.starts_with(&MAGIC) {
            return None;
        }

        match kind {
            PROBE if usize::from(bytes) <= content.len() => Some(Self::Probe(bytes)),
            ANSWER => Some(Self::Answer(bytes)),
            _ => None,
        }
    }
}

/// The probes and answers in a run of datagrams: of each the longest, as one run holds one length and a shorter last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenedProbes {
    /// The length of a probe in bytes.
    pub probe: Option<u16>,
    /// The length in an answer in bytes.
    pub answer: Option<u16>,
}

impl OpenedProbes {
    /// Adds one.
    pub(super) fn add(&mut self, probe: PathProbe) {
        match probe {
            PathProbe::Probe(bytes) => self.probe = self.probe.max(Some(bytes)),
            PathProbe::Answer(bytes) => self.answer = self.answer.max(Some(bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn probes_and_answers_are_read_back(bytes in 8..=u16::MAX, padding in 0..16_usize) {
            for probe in [PathProbe::Probe(bytes), PathProbe::Answer(bytes)] {
                let mut content = probe.content();
                content.resize(content.len() + padding, 0);

                prop_assert_eq!(PathProbe::read(&content), Some(probe));
            }
            prop_assert_eq!(PathProbe::Probe(bytes).content().len(), usize::from(bytes));
        }

        #[test]
        fn no_ip_packet_is_a_probe(first in 0x10..=u8::MAX, rest in prop::collection::vec(any::<u8>(), 0..40)) {
            prop_assert_eq!(PathProbe::read(&[&[first], &rest[..]].concat()), None);
        }

        #[test]
        fn a_truncated_probe_is_refused(bytes in 9..1_500_u16, missing in 1..1_500_usize) {
            let mut content = PathProbe::Probe(bytes).content();
            content.truncate(content.len().saturating_sub(missing));

            prop_assert_eq!(PathProbe::read(&content), None);
        }
    }
}
