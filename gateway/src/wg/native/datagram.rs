//! Packets in and out of the datagrams of one session: no state but the session's.
//!
//! Source: WireGuard whitepaper, section 5.4.6.
//!
//! ```text
//! 4 0 0 0 | receiver | counter 8 | packet, and zeros up to a multiple of 16 | tag 16
//! ```

use super::keypair::{HEADER_LEN, Keypair};
use super::noise::TAG_LEN;
use crate::buffer::{Outer, PacketBatch, TransmitBatch};
use crate::counters::as_u64;
use crate::packet::segment::Segments;
use crate::wg::message::DATA_OVERHEAD_BYTES;
use crate::wg::opening::{Authentic, OpenedRun, OpeningKeys};
use crate::wg::tunnel::{Opened, Sealed, SealingKeys};

/// Contents of datagrams are padded to a multiple of this, in bytes.
const PADDING: usize = 16;

/// How much content a datagram has for a packet of `len` bytes through a device with this MTU: padding
/// makes no datagram longer than a full packet's.
#[inline]
fn padded(len: usize, mtu: u16) -> usize {
    len.next_multiple_of(PADDING).min(usize::from(mtu).max(len))
}

/// Seals the segments until they or `out` are used up. Counters for all of them were taken in one step, of
/// which `counter` is the first; those that are left over belong to nobody.
#[inline]
pub(super) fn seal_segments(
    (keypair, mut counter): (&Keypair, u64),
    segments: &mut Segments<'_>,
    (outer, mtu): (Outer, u16),
    out: &mut TransmitBatch,
    sealed: &mut Sealed,
) {
    while let Some(len) = segments.next_len() {
        let Some(room) = room(out, padded(len, mtu)) else { break };
        let Some(packet) = segments.next_segment() else { break };
        fill(room, packet);
        keypair.seal(counter, room);
        counter += 1;
        let len = room.len();
        out.commit(len, outer, true);
        sealed.add(len);
    }
}

/// What sealing all of the segments will come to, counted as [`seal_segments`] does.
pub(super) fn foresee(segments: &Segments<'_>, mtu: u16) -> Sealed {
    let mut sealed = Sealed::default();
    for len in segments.lengths() {
        sealed.add(padded(len, mtu) + DATA_OVERHEAD_BYTES);
    }

    sealed
}

impl SealingKeys for Keypair {
    fn seal_reserved(
        &self,
        first_counter: u64,
        segments: &mut Segments<'_>,
        way: (Outer, u16),
        out: &mut TransmitBatch,
    ) -> Sealed {
        let mut sealed = Sealed::default();
        seal_segments((self, first_counter), segments, way, out, &mut sealed);

        sealed
    }
}

/// Seals one packet, or none: a keepalive. Gives the length of the datagram; `None` without room for it.
pub(super) fn seal_one(
    keypair: &Keypair,
    packet: &[u8],
    (outer, mtu): (Outer, u16),
    out: &mut TransmitBatch,
) -> Option<usize> {
    let room = room(out, padded(packet.len(), mtu))?;
    fill(room, packet);
    keypair.seal(keypair.reserve(1), room);
    let len = room.len();
    out.commit(len, outer, !packet.is_empty());

    Some(len)
}

/// Opens a run of datagrams, all of them of this session, and appends the packets to `out`.
#[inline]
pub(super) fn open_run(
    keypair: &Keypair,
    run: &[u8],
    stride: usize,
    out: &mut PacketBatch,
) -> Opened {
    let mut opened = Opened::default();
    let mut window = keypair.window();
    let before = window.next();
    for datagram in run.chunks(stride) {
        let Some((header, rest)) = datagram.split_first_chunk::<HEADER_LEN>() else {
            opened.malformed += 1;
            continue;
        };
        let Some((sealed, tag)) = rest.split_last_chunk::<TAG_LEN>() else {
            opened.malformed += 1;
            continue;
        };
        let counter = counter(header);
        if !Keypair::allows(counter) || !window.is_new(counter) {
            opened.replayed += 1;
            continue;
        }
        let Some(room) = out.room(sealed.len()).and_then(|room| room.get_mut(..sealed.len()))
        else {
            opened.malformed += 1;
            continue;
        };
        room.copy_from_slice(sealed);
        if !keypair.open(counter, room, *tag) {
            opened.unauthenticated += 1;
            continue;
        }
        window.accept(counter);
        if let Some(len) = count_authentic(&mut opened, datagram.len(), room) {
            out.commit(len);
        }
    }
    opened.is_late = window.next() == before;

    opened
}

impl OpeningKeys for Keypair {
    fn open_in_place(&self, run: &mut [u8], stride: usize, out: &mut OpenedRun) {
        let mut start = 0;
        for datagram in run.chunks_mut(stride) {
            let datagram_bytes = datagram.len();
            let content_start = start + HEADER_LEN;
            start += datagram_bytes;
            let Some((header, rest)) = datagram.split_first_chunk_mut::<HEADER_LEN>() else {
                out.count_malformed();
                continue;
            };
            let Some((content, tag)) = rest.split_last_chunk_mut::<TAG_LEN>() else {
                out.count_malformed();
                continue;
            };
            let counter = counter(header);
            if !Self::allows(counter) {
                out.count_replayed();
            } else if self.open(counter, content, *tag) {
                let content = content_start..content_start + content.len();
                out.push(Authentic { counter, content, datagram_bytes });
            } else {
                out.count_unauthenticated();
            }
        }
    }
}

/// Asks the replay window about a run that was opened in `bytes`, all of it of this session.
pub(super) fn admit(keypair: &Keypair, run: &mut OpenedRun, bytes: &[u8]) -> Opened {
    let mut opened = run.refused();
    let mut window = keypair.window();
    let before = window.next();
    run.admit(|datagram| {
        if !window.accept(datagram.counter) {
            opened.replayed += 1;
            return None;
        }
        let content = bytes.get(datagram.content.clone()).unwrap_or_default();
        count_authentic(&mut opened, datagram.datagram_bytes, content)
    });
    opened.is_late = window.next() == before;

    opened
}

/// Counts a datagram that is authentic and new. Gives the length of the packet in its content, if there is
/// one.
#[inline]
fn count_authentic(opened: &mut Opened, datagram_len: usize, content: &[u8]) -> Option<usize> {
    opened.authentic += 1;
    opened.bytes += as_u64(datagram_len);
    if content.is_empty() {
        opened.keepalives += 1;
        return None;
    }
    let len = packet_len(content);
    match len {
        Some(_) => opened.packets += 1,
        None => opened.malformed += 1,
    }

    len
}

#[inline]
fn counter(header: &[u8; HEADER_LEN]) -> u64 {
    header.last_chunk::<8>().map_or(u64::MAX, |number| u64::from_le_bytes(*number))
}

/// Room for a datagram with `padded` bytes of content.
#[inline]
fn room(out: &mut TransmitBatch, padded: usize) -> Option<&mut [u8]> {
    let len = padded + DATA_OVERHEAD_BYTES;

    out.room(len)?.get_mut(..len)
}

/// Puts `packet` where its datagram has it, and zeros behind it.
#[inline]
fn fill(room: &mut [u8], packet: &[u8]) {
    let end = room.len() - TAG_LEN;
    let Some(content) = room.get_mut(HEADER_LEN..end) else { return };
    if let Some((start, padding)) = content.split_at_mut_checked(packet.len()) {
        start.copy_from_slice(packet);
        padding.fill(0);
    }
}

/// The length of the packet at the start of `content`, behind which there is padding; `None` if it is
/// none, or not all of it is there.
#[inline]
fn packet_len(content: &[u8]) -> Option<usize> {
    let len = match content.first()? >> 4 {
        4 => u16::from_be_bytes(*content.get(2..)?.first_chunk::<2>()?).into(),
        6 => usize::from(u16::from_be_bytes(*content.get(4..)?.first_chunk::<2>()?)) + 40,
        _ => return None,
    };

    (len >= 20 && len <= content.len()).then_some(len)
}
