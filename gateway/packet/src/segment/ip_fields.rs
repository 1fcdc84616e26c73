//! The fields of an IP header that differ between segments.

use remap::checksum::{add, complete, sum};

use crate::{Header, field};

/// The initial values of the fields, and the sum of the others.
#[derive(Debug)]
pub(super) enum IpFields {
    V4 { header_sum: u16, identification: u16 },
    V6,
}

impl IpFields {
    /// Takes the fields out of `ip`, which `header` describes, and zeroes them.
    pub(super) fn take(ip: &mut [u8], header: &Header) -> Self {
        if header.is_ipv6() {
            field::put_word(ip, 4, 0);
            return Self::V6;
        }

        let identification = field::word(ip, 4).unwrap_or_default();
        for at in [2, 4, 10] {
            field::put_word(ip, at, 0);
        }
        let header_len = header.transport_offset();

        Self::V4 { header_sum: sum(ip.get(..header_len).unwrap_or_default()), identification }
    }

    /// Writes the fields for segment `index`, a packet of `packet_len` bytes.
    #[inline]
    pub(super) fn write(&self, ip: &mut [u8], packet_len: usize, index: usize) {
        match *self {
            Self::V4 { header_sum, identification } => {
                let Some(ip) = ip.first_chunk_mut::<20>() else {
                    return;
                };
                let len = field::length(packet_len);
                let step = u16::try_from(index).unwrap_or_default();
                let identification = identification.wrapping_add(step);

                [ip[2], ip[3]] = len.to_be_bytes();
                [ip[4], ip[5]] = identification.to_be_bytes();
                let sum = add(header_sum, add(len, identification));
                [ip[10], ip[11]] = complete(sum).to_be_bytes();
            }
            Self::V6 => field::put_word(ip, 4, field::length(packet_len - 40)),
        }
    }
}
