//! The headers of overlays, and frames inside them.

use proptest::prelude::*;

use crate::Header;
use crate::fixtures::any_packet;

use super::*;

mod kernel;
mod neighbor;
mod offload;
mod oracle;

const BOTH: [Encapsulation; 2] = [Encapsulation::Vxlan, Encapsulation::Geneve];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn parsing_restores_the_written_prefix(
        vni in any_vni(),
        ethernet in any_ethernet(),
        payload in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        for encapsulation in BOTH {
            let datagram = [&encapsulation.prefix(vni, &ethernet)[..], &payload].concat();

            let (found, offset) = encapsulation.parse(&datagram).unwrap();

            prop_assert_eq!((found, offset), (vni, HEADER_LEN));
            prop_assert_eq!(Ethernet::parse(&datagram[offset..]), Ok(ethernet));
            prop_assert_eq!(&datagram[offset + ethernet::HEADER_LEN..], &payload);
        }
    }

    #[test]
    fn truncated_headers_are_refused(vni in any_vni(), len in 0..HEADER_LEN) {
        for encapsulation in BOTH {
            let datagram = encapsulation.header(vni);

            prop_assert_eq!(
                encapsulation.parse(&datagram[..len]),
                Err(DropReason::OverlayHeader)
            );
        }
    }

    /// RFC 7348 section 5.
    #[test]
    fn vxlan_needs_only_the_identifier_flag(header: [u8; HEADER_LEN]) {
        let number = u32::from_be_bytes([0, header[4], header[5], header[6]]);
        let expected = if header[0] & 0x08 == 0 {
            Err(DropReason::OverlayHeader)
        } else {
            Ok((Vni::new(number).unwrap(), HEADER_LEN))
        };

        prop_assert_eq!(Encapsulation::Vxlan.parse(&header), expected);
    }

    /// RFC 8926 section 3.4.
    #[test]
    fn geneve_skips_options_and_reserved_fields(
        vni in any_vni(),
        reserved: (u8, u8),
        options in any_options(252),
        payload in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let mut datagram = geneve(vni, &options, &payload);
        datagram[1] = reserved.0 & 0x3f;
        datagram[7] = reserved.1;

        prop_assert_eq!(
            Encapsulation::Geneve.parse(&datagram),
            Ok((vni, HEADER_LEN + options.len()))
        );
    }

    #[test]
    fn geneve_refuses_what_it_does_not_support(vni in any_vni(), options in any_options(252)) {
        let refused = |change: fn(&mut [u8])| {
            let mut datagram = geneve(vni, &options, &[0; 20]);
            change(&mut datagram);
            Encapsulation::Geneve.parse(&datagram) == Err(DropReason::OverlayHeader)
        };

        let unchanged = refused(|_| {});
        prop_assert!(!unchanged);
        let changes: [fn(&mut [u8]); 6] = [
            |datagram| datagram[0] |= 0x40,
            |datagram| datagram[0] |= 0x80,
            |datagram| datagram[1] |= 0x80,
            |datagram| datagram[1] |= 0x40,
            |datagram| datagram[2] = 0x08,
            |datagram| datagram[3] = 0x00,
        ];
        for change in changes {
            prop_assert!(refused(change));
        }
    }

    #[test]
    fn geneve_refuses_critical_options_without_flag(
        vni in any_vni(),
        before in any_options(120),
        after in any_options(120),
        kind in 0x80_u8..,
    ) {
        let options = [&before[..], &[1, 2, kind, 0], &after].concat();

        let parsed = Encapsulation::Geneve.parse(&geneve(vni, &options, &[0; 20]));

        prop_assert_eq!(parsed, Err(DropReason::OverlayHeader));
    }

    #[test]
    fn options_longer_than_the_header_are_refused(
        vni in any_vni(),
        before in any_options(248),
        units in 1_u8..32,
    ) {
        let options = [&before[..], &[1, 2, 3, units]].concat();

        let parsed = Encapsulation::Geneve.parse(&geneve(vni, &options, &[0; 200]));

        prop_assert_eq!(parsed, Err(DropReason::OverlayHeader));
    }

    #[test]
    fn arbitrary_datagrams_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for encapsulation in BOTH {
            if let Ok((_, offset)) = encapsulation.parse(&bytes) {
                prop_assert!(offset <= bytes.len());
            }
        }
        let _ = Ethernet::parse(&bytes);
    }

    #[test]
    fn only_known_untagged_content_is_accepted(header: [u8; 12], kind: u16) {
        for kind in [kind, 0x0800, 0x0806, 0x86dd, 0x8100, 0x88a8, 0x8847, 0x05dc] {
            let frame = [&header[..], &kind.to_be_bytes()].concat();
            let is_known = matches!(kind, 0x0800 | 0x0806 | 0x86dd) && header[6] & 1 == 0;

            match Ethernet::parse(&frame) {
                Ok(ethernet) => {
                    prop_assert!(is_known);
                    prop_assert_eq!(&ethernet.to_bytes()[..], &frame);
                }
                Err(reason) => {
                    prop_assert!(!is_known);
                    prop_assert_eq!(reason, DropReason::OverlayFrame);
                }
            }
            prop_assert!(Ethernet::parse(&frame[..13]).is_err());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// RFC 1812 section 5.3.4.
    #[test]
    fn packets_for_one_host_are_not_broadcast(
        packet in any_packet(),
        destination: [u8; 6],
        is_mislabelled: bool,
    ) {
        for destination in [Mac(destination), Mac::BROADCAST, Mac([2, 0, 0, 0, 0, 1])] {
            let is_ipv6 = packet.source.is_ipv6() != is_mislabelled;
            let content = if is_ipv6 { Content::Ipv6 } else { Content::Ipv4 };
            let ethernet = Ethernet { destination, source: Mac([2, 0, 0, 0, 0, 2]), content };
            let frame = [&ethernet.to_bytes()[..], &packet.build()].concat();
            let expected = if is_mislabelled {
                Err(DropReason::Malformed)
            } else if destination.cast() == Cast::Unicast || packet.destination.is_multicast() {
                Ok(Header::parse(&packet.build()).unwrap())
            } else {
                Err(DropReason::OverlayFrame)
            };

            prop_assert_eq!(ethernet.packet(&frame), expected);
        }
    }
}

#[test]
fn identifiers_have_24_bits() {
    assert_eq!(Vni::new(0x00ff_ffff).map(Vni::to_number), Some(0x00ff_ffff));
    assert_eq!(Vni::new(0x0100_0000), None);
}

#[test]
fn stations_differ_from_groups() {
    let mac = |text: &str| {
        let bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap());
        Mac(bytes.collect::<Vec<_>>().try_into().unwrap())
    };

    for (text, cast, is_station) in [
        ("02:00:00:00:00:01", Cast::Unicast, true),
        ("00:00:00:00:00:00", Cast::Unicast, false),
        ("33:33:00:00:00:01", Cast::Multicast, false),
        ("01:00:5e:00:00:fb", Cast::Multicast, false),
        ("ff:ff:ff:ff:ff:ff", Cast::Broadcast, false),
    ] {
        assert_eq!((mac(text).cast(), mac(text).is_station()), (cast, is_station), "{text}");
        assert_eq!(mac(text).to_string(), text);
    }
}

fn any_vni() -> impl Strategy<Value = Vni> {
    (0_u32..1 << 24).prop_map(|number| Vni::new(number).unwrap())
}

fn any_station() -> impl Strategy<Value = Mac> {
    any::<[u8; 6]>()
        .prop_map(|mut mac| {
            mac[0] &= 0xfe;
            Mac(mac)
        })
        .prop_filter("not zero", |mac| mac.is_station())
}

fn any_ethernet() -> impl Strategy<Value = Ethernet> {
    let content = prop::sample::select(vec![Content::Ipv4, Content::Ipv6, Content::Arp]);

    (any::<[u8; 6]>(), any_station(), content).prop_map(|(destination, source, content)| Ethernet {
        destination: Mac(destination),
        source,
        content,
    })
}

/// Options that are not critical, of at most `max` bytes. A header can state 252.
fn any_options(max: usize) -> impl Strategy<Value = Vec<u8>> {
    let option = (any::<[u8; 3]>(), prop::collection::vec(any::<[u8; 4]>(), 0..32)).prop_map(
        |([class_high, class_low, kind], words)| {
            let units = u8::try_from(words.len()).unwrap();
            let header = [class_high, class_low, kind & 0x7f, 0xe0 | units];
            [&header[..], &words.concat()].concat()
        },
    );

    prop::collection::vec(option, 0..6).prop_map(move |options| {
        let mut all = Vec::new();
        for option in options {
            if all.len() + option.len() <= max {
                all.extend(option);
            }
        }
        all
    })
}

fn geneve(vni: Vni, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut header = Encapsulation::Geneve.header(vni);
    header[0] = u8::try_from(options.len() / 4).unwrap();

    [&header, options, payload].concat()
}
