//! Messages of nf_tables (`linux/netfilter/nf_tables.h`): a transaction of a table, its chains and its rules.

use std::io;

use ipnet::IpNet;
use rtnetlink::packet_core::{NetlinkBuffer, NlaBuffer, NlasIterator};

/// `NFNL_SUBSYS_NFTABLES`, and messages of it and of nfnetlink.
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const GET_TABLE: u16 = SUBSYSTEM << 8 | 1;
const DELETE_TABLE: u16 = SUBSYSTEM << 8 | 2;
const NEW_CHAIN: u16 = SUBSYSTEM << 8 | 3;
const NEW_RULE: u16 = SUBSYSTEM << 8 | 6;
/// `NLMSG_ERROR`.
const ERROR: u16 = 2;

/// `NLM_F_REQUEST`, and `NLM_F_CREATE | NLM_F_APPEND`.
const REQUEST: u16 = 1;
const CREATE: u16 = 0xc00;

/// `NFPROTO_UNSPEC`, `NFPROTO_INET`, `NFPROTO_IPV4`, `NFPROTO_IPV6`.
const UNSPECIFIED: u8 = 0;
const INET: u8 = 1;
const IPV4: u8 = 2;
const IPV6: u8 = 10;

/// Bytes of a `struct nfgenmsg`.
const FAMILY_BYTES: usize = 4;

/// `NLA_F_NESTED`.
const NESTED: u16 = 1 << 15;

/// `NFTA_TABLE_NAME`, and of chains and rules the table's.
const TABLE: u16 = 1;
const TABLE_USER_DATA: u16 = 6;
/// In user data: the comment that `nft` reads and writes (`NFTNL_UDATA_TABLE_COMMENT` of libnftnl).
const COMMENT: u8 = 0;

/// A transaction on one table of the family `inet`.
pub(super) struct Batch<'a> {
    table: &'a str,
    bytes: Vec<u8>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(table: &'a str) -> Self {
        let mut batch = Self { table, bytes: Vec::new() };
        batch.push(BATCH_BEGIN, REQUEST, UNSPECIFIED, SUBSYSTEM, &[]);

        batch
    }

    pub(super) fn add_table(&mut self, comment: Option<&str>) {
        let mut attributes = text(TABLE, self.table);
        if let Some(comment) = comment {
            let length = u8::try_from(comment.len() + 1).unwrap_or(u8::MAX);
            let data = [&[COMMENT, length], comment.as_bytes(), &[0]].concat();
            attributes.extend(attribute(TABLE_USER_DATA, &data));
        }
        self.push(NEW_TABLE, REQUEST | CREATE, INET, 0, &attributes);
    }

    pub(super) fn delete_table(&mut self) {
        self.push(DELETE_TABLE, REQUEST, INET, 0, &text(TABLE, self.table));
    }

    /// A chain that packets meet at a hook, in the order of priorities. Policy: accept.
    pub(super) fn add_base_chain(&mut self, name: &str, kind: &str, hook: Hook, priority: i32) {
        const HOOK: u16 = 4 | NESTED;
        const TYPE: u16 = 7;
        let hook = [attribute(1, &hook.0.to_be_bytes()), attribute(2, &priority.to_be_bytes())];
        let more = [attribute(HOOK, &hook.concat()), text(TYPE, kind)];

        self.chain(name, &more.concat());
    }

    /// A chain for jumps.
    pub(super) fn add_chain(&mut self, name: &str) {
        self.chain(name, &[]);
    }

    fn chain(&mut self, name: &str, more: &[u8]) {
        const NAME: u16 = 3;
        let attributes = [&text(TABLE, self.table), &text(NAME, name), more].concat();
        self.push(NEW_CHAIN, REQUEST | CREATE, INET, 0, &attributes);
    }

    /// Adds a rule at the end of a chain.
    pub(super) fn add_rule(&mut self, chain: &str, expressions: &[u8]) {
        const CHAIN: u16 = 2;
        const EXPRESSIONS: u16 = 4 | NESTED;
        let attributes =
            [text(TABLE, self.table), text(CHAIN, chain), attribute(EXPRESSIONS, expressions)];
        self.push(NEW_RULE, REQUEST | CREATE, INET, 0, &attributes.concat());
    }

    /// The messages. None asks for an acknowledgement: only refusals are answered.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.push(BATCH_END, REQUEST, UNSPECIFIED, SUBSYSTEM, &[]);

        self.bytes
    }

    fn push(&mut self, kind: u16, flags: u16, family: u8, resource: u16, attributes: &[u8]) {
        self.bytes.extend(message(kind, flags, family, resource, attributes));
    }
}

/// Where packets meet a chain (`enum nf_inet_hooks`).
#[derive(Clone, Copy)]
pub(super) struct Hook(u32);

impl Hook {
    pub(super) const FORWARD: Self = Self(2);
    pub(super) const OUTPUT: Self = Self(3);
    pub(super) const POSTROUTING: Self = Self(4);
}

/// The request for a table.
pub(super) fn get_table(name: &str) -> Vec<u8> {
    message(GET_TABLE, REQUEST, INET, 0, &text(TABLE, name))
}

/// The refusal in a datagram; `None` if it has another message, or an acknowledgement.
pub(super) fn error_of(datagram: &[u8]) -> Option<io::Error> {
    let message = match NetlinkBuffer::new_checked(datagram) {
        Ok(message) => message,
        Err(error) => return Some(io::Error::other(error)),
    };
    let number = message.payload().first_chunk().copied().map(i32::from_ne_bytes);

    match (message.message_type(), number) {
        (ERROR, Some(0)) => None,
        (ERROR, number) => Some(io::Error::from_raw_os_error(number.unwrap_or(0).saturating_neg())),
        _ => None,
    }
}

/// The comment of a table.
pub(super) fn comment_of(datagram: &[u8]) -> Option<String> {
    let message = NetlinkBuffer::new_checked(datagram).ok()?;
    let attributes = message.payload().get(FAMILY_BYTES..)?;
    let mut attributes = NlasIterator::new(attributes).map_while(Result::ok);
    let data = attributes.find(|it: &NlaBuffer<&[u8]>| it.kind() == TABLE_USER_DATA)?;

    match data.value() {
        [COMMENT, _, text @ .., 0] => Some(String::from_utf8_lossy(text).into_owned()),
        _ => None,
    }
}

fn message(kind: u16, flags: u16, family: u8, resource: u16, attributes: &[u8]) -> Vec<u8> {
    const HEADER_BYTES: usize = 16;
    let length = HEADER_BYTES + FAMILY_BYTES + attributes.len();
    let mut message = u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    // Sequence number and port: one request per socket at a time.
    message.extend([0; 8]);
    message.extend([family, 0]);
    message.extend(resource.to_be_bytes());
    message.extend(attributes);

    message
}

fn text(kind: u16, text: &str) -> Vec<u8> {
    attribute(kind, &[text.as_bytes(), &[0]].concat())
}

/// An attribute, padded to a multiple of four bytes.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    let mut attribute = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    attribute.extend(value);
    attribute.resize(attribute.len().next_multiple_of(4), 0);

    attribute
}

/// The expressions of rules.
pub(super) mod expressions {
    use super::{IPV4, IPV6, IpNet, NESTED, attribute, text};

    /// `NFT_REG_VERDICT`, `NFT_REG_1`.
    const VERDICT: u32 = 0;
    const REGISTER: u32 = 1;

    /// `NFT_META_IIFTYPE`, `NFT_META_NFPROTO`, `NFT_META_L4PROTO`.
    const INTERFACE_TYPE: u32 = 8;
    const FAMILY: u32 = 15;
    const PROTOCOL: u32 = 16;

    /// `ARPHRD_ETHER`.
    const ETHERNET: u16 = 1;

    /// `NFT_PAYLOAD_LL_HEADER`, `NFT_PAYLOAD_NETWORK_HEADER`, `NFT_PAYLOAD_TRANSPORT_HEADER`.
    const LINK_HEADER: u32 = 0;
    const NETWORK_HEADER: u32 = 1;
    const TRANSPORT_HEADER: u32 = 2;

    /// Which address of a packet.
    #[derive(Clone, Copy)]
    enum Field {
        Source,
        Destination,
        /// Of a redirect: the destination of the packet that it is about.
        Redirected,
    }

    /// Packets from `prefix` continue in `chain`.
    pub(in super::super) fn jump_if_source(prefix: IpNet, chain: &str) -> Vec<u8> {
        [matches(prefix, Field::Source), jump(chain)].concat()
    }

    /// Packets to `prefix` keep their source: it is translated to itself.
    pub(in super::super) fn keep_source_if_destination(prefix: IpNet) -> Vec<u8> {
        let load = load(prefix, Field::Source);

        [matches(prefix, Field::Destination), load, source_nat(prefix)].concat()
    }

    /// Redirects continue in `chain`: ICMP type 5 (RFC 792), ICMPv6 type 137 (RFC 4861 section 4.5).
    pub(in super::super) fn jump_if_redirect(chain: &str) -> [Vec<u8>; 2] {
        [(1, 5), (58, 137)].map(|(protocol, redirect)| {
            let kind = payload(TRANSPORT_HEADER, 0, 1);
            [meta(PROTOCOL), equals(&[protocol]), kind, equals(&[redirect]), jump(chain)].concat()
        })
    }

    /// Redirects about packets to `prefix` are counted and dropped.
    pub(in super::super) fn drop_redirect_if_destination(prefix: IpNet) -> Vec<u8> {
        [matches(prefix, Field::Redirected), counter(), drop()].concat()
    }

    /// Packets from the Ethernet address `mac` continue in `chain`.
    pub(in super::super) fn jump_if_from(mac: [u8; 6], chain: &str) -> Vec<u8> {
        let is_ethernet = [meta(INTERFACE_TYPE), equals(&ETHERNET.to_ne_bytes())].concat();

        [is_ethernet, payload(LINK_HEADER, 6, 6), equals(&mac), jump(chain)].concat()
    }

    /// Packets to `prefix` are counted, and their senders get an ICMP error "host unreachable".
    pub(in super::super) fn reject_if_destination(prefix: IpNet) -> Vec<u8> {
        // `NFT_REJECT_ICMPX_UNREACH`, `NFT_REJECT_ICMPX_HOST_UNREACH`.
        let reject = expression("reject", &[number(1, 2), attribute(2, &[2])]);

        [matches(prefix, Field::Destination), counter(), reject].concat()
    }

    /// Packets to `prefix` are counted and dropped.
    pub(in super::super) fn drop_if_destination(prefix: IpNet) -> Vec<u8> {
        [matches(prefix, Field::Destination), counter(), drop()].concat()
    }

    /// Ends the rule unless an address of the packet is in the prefix.
    fn matches(prefix: IpNet, field: Field) -> Vec<u8> {
        let [network, mask] = bytes(prefix);
        let mut expressions = meta(FAMILY);
        expressions.extend(equals(&[family(prefix)]));
        expressions.extend(load(prefix, field));
        expressions.extend(and(&mask));
        expressions.extend(equals(&network));

        expressions
    }

    fn family(prefix: IpNet) -> u8 {
        match prefix {
            IpNet::V4(_) => IPV4,
            IpNet::V6(_) => IPV6,
        }
    }

    /// The network and the mask.
    fn bytes(prefix: IpNet) -> [Vec<u8>; 2] {
        match prefix {
            IpNet::V4(net) => [net.network().octets(), net.netmask().octets()].map(Vec::from),
            IpNet::V6(net) => [net.network().octets(), net.netmask().octets()].map(Vec::from),
        }
    }

    fn expression(name: &str, attributes: &[Vec<u8>]) -> Vec<u8> {
        const ELEMENT: u16 = 1 | NESTED;
        const NAME: u16 = 1;
        const DATA: u16 = 2 | NESTED;

        attribute(ELEMENT, &[text(NAME, name), attribute(DATA, &attributes.concat())].concat())
    }

    fn number(kind: u16, number: u32) -> Vec<u8> {
        attribute(kind, &number.to_be_bytes())
    }

    /// `NFTA_DATA_VALUE`
    fn value(kind: u16, value: &[u8]) -> Vec<u8> {
        attribute(kind | NESTED, &attribute(1, value))
    }

    /// Loads what the kernel knows of the packet: register and key.
    fn meta(key: u32) -> Vec<u8> {
        expression("meta", &[number(1, REGISTER), number(2, key)])
    }

    /// Loads an address of the packet.
    fn load(prefix: IpNet, field: Field) -> Vec<u8> {
        let (base, offset, length) = match (prefix, field) {
            (IpNet::V4(_), Field::Source) => (NETWORK_HEADER, 12, 4),
            (IpNet::V4(_), Field::Destination) => (NETWORK_HEADER, 16, 4),
            // Behind eight bytes of ICMP is the header of the other packet.
            (IpNet::V4(_), Field::Redirected) => (TRANSPORT_HEADER, 8 + 16, 4),
            (IpNet::V6(_), Field::Source) => (NETWORK_HEADER, 8, 16),
            (IpNet::V6(_), Field::Destination) => (NETWORK_HEADER, 24, 16),
            // Behind eight bytes of ICMPv6 and the target.
            (IpNet::V6(_), Field::Redirected) => (TRANSPORT_HEADER, 8 + 16, 16),
        };

        payload(base, offset, length)
    }

    /// Register, base, offset and length.
    fn payload(base: u32, offset: u32, length: u32) -> Vec<u8> {
        let place = [number(2, base), number(3, offset), number(4, length)];

        expression("payload", &[number(1, REGISTER), place.concat()])
    }

    /// Source register, destination register, length, mask and exclusive or.
    fn and(mask: &[u8]) -> Vec<u8> {
        let length = u32::try_from(mask.len()).unwrap_or(u32::MAX);
        let zero = vec![0; mask.len()];
        let registers = [number(1, REGISTER), number(2, REGISTER), number(3, length)];

        expression("bitwise", &[registers.concat(), value(4, mask), value(5, &zero)])
    }

    /// Register, operation (`NFT_CMP_EQ`) and data.
    fn equals(data: &[u8]) -> Vec<u8> {
        expression("cmp", &[number(1, REGISTER), number(2, 0), value(3, data)])
    }

    /// Verdict `NFT_JUMP` to a chain.
    fn jump(chain: &str) -> Vec<u8> {
        const JUMP: i32 = -3;

        verdict(&[attribute(1, &JUMP.to_be_bytes()), text(2, chain)].concat())
    }

    /// Verdict `NF_DROP`.
    fn drop() -> Vec<u8> {
        verdict(&number(1, 0))
    }

    /// Register and data.
    fn verdict(verdict: &[u8]) -> Vec<u8> {
        const DATA: u16 = 2 | NESTED;
        let data = attribute(DATA, &attribute(DATA, verdict));

        expression("immediate", &[number(1, VERDICT), data])
    }

    fn counter() -> Vec<u8> {
        expression("counter", &[])
    }

    /// Type (`NFT_NAT_SNAT`), family, and the register of the address.
    fn source_nat(prefix: IpNet) -> Vec<u8> {
        let family = u32::from(family(prefix));

        expression("nat", &[number(1, 0), number(2, family), number(3, REGISTER)])
    }
}
