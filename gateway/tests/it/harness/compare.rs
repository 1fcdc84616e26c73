//! What two ways of forwarding a packet may differ in, taken out before packets are compared.

const ICMP: u8 = 1;
const TCP: u8 = 6;
const FRAGMENT_HEADER: u8 = 44;
const ICMPV6: u8 = 58;
const DESTINATION_OPTIONS: u8 = 60;

/// Where the IPv4 header has its checksum.
const IP_CHECKSUM_AT: usize = 10;

/// The packet after one more router: a smaller hop limit.
pub(crate) fn one_hop_later(mut packet: Vec<u8>) -> Vec<u8> {
    if packet[0] >> 4 == 6 {
        packet[7] -= 1;
        return packet;
    }
    packet[8] -= 1;
    // The word got smaller by 0x0100, so its complement gets larger (RFC 1141 section 2).
    let old = u16::from_be_bytes([packet[IP_CHECKSUM_AT], packet[IP_CHECKSUM_AT + 1]]);
    let (new, carry) = old.overflowing_add(0x0100);
    packet[IP_CHECKSUM_AT..][..2].copy_from_slice(&(new + u16::from(carry)).to_be_bytes());

    packet
}

/// The packet with one of the two zeros of one's complement arithmetic for both, in every checksum
/// for which they mean the same: all but that of UDP.
pub(crate) fn with_one_zero(mut packet: Vec<u8>) -> Vec<u8> {
    let len = packet.len();
    use_one_zero(&mut packet[..len]);

    packet
}

fn use_one_zero(packet: &mut [u8]) {
    let is_ipv6 = packet[0] >> 4 == 6;
    let (protocol, transport, is_later) =
        if is_ipv6 { skip_extensions(packet) } else { skip_ipv4(packet) };
    if !is_ipv6 {
        replace_zero(packet, IP_CHECKSUM_AT);
    }
    if is_later {
        return;
    }
    match protocol {
        TCP => replace_zero(packet, transport + 16),
        ICMP | ICMPV6 => {
            replace_zero(packet, transport + 2);
            let kind = packet.get(transport).copied().unwrap_or(0);
            let is_error =
                if is_ipv6 { (1..=4).contains(&kind) } else { [3, 4, 5, 11, 12].contains(&kind) };
            if is_error
                && let Some(quoted) = packet.get_mut(transport + 8..)
                && quoted.len() >= 20
            {
                use_one_zero(quoted);
            }
        }
        _ => {}
    }
}

fn replace_zero(packet: &mut [u8], at: usize) {
    if let Some(field) = packet.get_mut(at..at + 2)
        && *field == [0xff, 0xff]
    {
        field.fill(0);
    }
}

fn skip_ipv4(packet: &[u8]) -> (u8, usize, bool) {
    let is_later = u16::from_be_bytes([packet[6], packet[7]]) & 0x1fff != 0;

    (packet[9], usize::from(packet[0] & 0x0f) * 4, is_later)
}

fn skip_extensions(packet: &[u8]) -> (u8, usize, bool) {
    let (mut protocol, mut at, mut is_later) = (packet[6], 40, false);
    while [DESTINATION_OPTIONS, FRAGMENT_HEADER].contains(&protocol) && packet.len() >= at + 8 {
        if protocol == FRAGMENT_HEADER {
            is_later = u16::from_be_bytes([packet[at + 2], packet[at + 3]]) >> 3 != 0;
        }
        protocol = packet[at];
        at += 8;
    }

    (protocol, at, is_later)
}
