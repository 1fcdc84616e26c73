//! Reads which flows of pods leave this node with another source, from the kernel's table of connections (nfnetlink),
//! which is never written.
//!
//! Exact for existing flows, and blind to rules that none has met yet. Translation by a program in front of the
//! kernel's own (eBPF), or by the network between nodes, is not visible.

use std::io;
use std::net::IpAddr;

use rtnetlink::packet_core::{NetlinkBuffer, NlaBuffer, NlasIterator};
use rtnetlink::sys::{Socket, SocketAddr};

/// `NETLINK_NETFILTER`.
const NETLINK_NETFILTER: isize = 12;

/// The request for all connections: `IPCTNL_MSG_CT_GET` of `NFNL_SUBSYS_CTNETLINK`.
const GET: u16 = 1 << 8 | 1;

/// A connection: `IPCTNL_MSG_CT_NEW` of the same subsystem.
const NEW: u16 = 1 << 8;

/// The error message of netlink itself.
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// `NLM_F_REQUEST | NLM_F_DUMP`.
const REQUEST_OF_ALL: u16 = 0x301;

/// Bytes of a `struct nlmsghdr` and of a `struct nfgenmsg`.
const HEADER_BYTES: u32 = 16;
const FAMILY_BYTES: usize = 4;

/// Attributes of a connection, of its tuples, and of their addresses.
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const TUPLE_IP: u16 = 1;
const SOURCES: [u16; 2] = [1, 3];
const DESTINATIONS: [u16; 2] = [2, 4];

/// Source and destination of a flow, and the source that the next node sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) source: IpAddr,
    /// The source of the answers: packets to a Service have the address of one of its pods here.
    pub(super) destination: IpAddr,
    pub(super) seen_as: IpAddr,
}

impl Flow {
    pub(super) fn is_masqueraded(&self) -> bool {
        self.source != self.seen_as
    }
}

/// Calls `visit` with every connection of this network namespace. Takes time in proportion to their number; not for the
/// thread that keeps routes.
///
/// # Errors
///
/// If the kernel tracks no connections, or does not show them to this process.
pub(super) fn for_each(mut visit: impl FnMut(Flow)) -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&request(), 0)?;
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        if !read(&datagram, &mut visit)? {
            return Ok(());
        }
    }
}

/// The request for all connections of both IP versions.
fn request() -> Vec<u8> {
    let length = HEADER_BYTES.saturating_add(4);
    let mut request = length.to_ne_bytes().to_vec();
    request.extend(GET.to_ne_bytes());
    request.extend(REQUEST_OF_ALL.to_ne_bytes());
    // Sequence number and port: one request per socket.
    request.extend([0; 8]);
    // Any family, version 0, no resource.
    request.extend([0; FAMILY_BYTES]);

    request
}

/// Reads the messages of a datagram; returns false after the last one.
fn read(datagram: &[u8], visit: &mut impl FnMut(Flow)) -> io::Result<bool> {
    let mut rest = datagram;
    while !rest.is_empty() {
        let message = NetlinkBuffer::new_checked(rest).map_err(io::Error::other)?;
        match message.message_type() {
            DONE => return Ok(false),
            ERROR => {
                let number = message.payload().first_chunk().copied().map(i32::from_ne_bytes);
                return match number.unwrap_or(0) {
                    0 => Ok(false),
                    number => Err(io::Error::from_raw_os_error(number.saturating_neg())),
                };
            }
            NEW => {
                if let Some(flow) = message.payload().get(FAMILY_BYTES..).and_then(flow) {
                    visit(flow);
                }
            }
            _ => {}
        }
        // Messages begin at multiples of four.
        let length = usize::try_from(message.length()).unwrap_or(usize::MAX);
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }

    Ok(true)
}

fn flow(attributes: &[u8]) -> Option<Flow> {
    let original = within(attributes, &[TUPLE_ORIGINAL])?;
    let reply = within(attributes, &[TUPLE_REPLY])?;
    let [original, reply] = [within(&original, &[TUPLE_IP])?, within(&reply, &[TUPLE_IP])?];

    Some(Flow {
        source: address(&within(&original, &SOURCES)?)?,
        destination: address(&within(&reply, &SOURCES)?)?,
        // The destination of the answers is the source that the other end saw.
        seen_as: address(&within(&reply, &DESTINATIONS)?)?,
    })
}

/// The first attribute of one of `kinds`.
fn within(attributes: &[u8], kinds: &[u16]) -> Option<Vec<u8>> {
    let mut found = NlasIterator::new(attributes).map_while(Result::ok);

    found
        .find(|attribute: &NlaBuffer<&[u8]>| kinds.contains(&attribute.kind()))
        .map(|attribute| attribute.value().to_vec())
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);

    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(value.len() + 4).unwrap();
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);

        bytes
    }

    /// A message of the kernel, with the other attributes of a tuple.
    fn message(
        source: [u8; 4],
        destination: [u8; 4],
        answers: [u8; 4],
        seen_as: [u8; 4],
    ) -> Vec<u8> {
        const NESTED: u16 = 1 << 15;
        let tuple = |kind, source: [u8; 4], destination: [u8; 4]| {
            let ip = [attribute(1, &source), attribute(2, &destination)].concat();
            let protocol = attribute(2 | NESTED, &attribute(1, &[6]));
            attribute(kind | NESTED, &[attribute(1 | NESTED, &ip), protocol].concat())
        };
        let content = [
            vec![2, 0, 0, 0],
            tuple(1, source, destination),
            tuple(2, answers, seen_as),
            attribute(3, &[0; 4]),
        ]
        .concat();
        let mut bytes = u32::try_from(content.len() + 16).unwrap().to_ne_bytes().to_vec();
        bytes.extend(NEW.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(content);

        bytes
    }

    fn all(datagram: &[u8]) -> (Vec<Flow>, Option<bool>) {
        let mut flows = Vec::new();
        let more = read(datagram, &mut |flow| flows.push(flow)).ok();

        (flows, more)
    }

    #[test]
    fn the_destination_of_answers_is_the_seen_source() {
        const REMOTE: [u8; 4] = [10, 71, 2, 7];
        let masqueraded = message([10, 244, 2, 5], REMOTE, REMOTE, [172, 18, 0, 2]);
        let untouched = message([10, 244, 2, 6], REMOTE, REMOTE, [10, 244, 2, 6]);
        let to_service = message([10, 244, 2, 5], [10, 96, 0, 9], REMOTE, [172, 18, 0, 2]);
        let mut done = 20_u32.to_ne_bytes().to_vec();
        done.extend(DONE.to_ne_bytes());
        done.resize(20, 0);

        let (flows, more) = all(&[masqueraded, untouched, to_service].concat());

        let is_masqueraded: Vec<_> = flows.iter().map(Flow::is_masqueraded).collect();
        assert_eq!(is_masqueraded, [true, false, true]);
        assert_eq!(flows[0].seen_as, IpAddr::from([172, 18, 0, 2]));
        assert!(flows.iter().all(|flow| flow.destination == IpAddr::from(REMOTE)), "{flows:?}");
        assert_eq!(more, Some(true));
        assert_eq!(all(&done), (Vec::new(), Some(false)));
    }

    proptest! {
        #[test]
        fn any_datagram_is_read_without_a_panic(
            noise in proptest::collection::vec(any::<u8>(), 0..200), place in 0..100_usize,
        ) {
            let _ = all(&noise);
            let mut broken =
                message([10, 244, 2, 5], [10, 71, 2, 7], [10, 71, 2, 7], [172, 18, 0, 2]);
            for (byte, noise) in broken.iter_mut().skip(place).zip(noise) {
                *byte = noise;
            }
            let _ = all(&broken);
        }
    }
}
