//! Transport data messages: sealing and opening with the keys of one session.
//!
//! Source: WireGuard whitepaper, section 5.4.6.
//!
//! ```text
//! 4 0 0 0 | receiver | counter 8 | packet, zeros up to a multiple of 16 | tag 16
//! ```

use super::keypair::{HEADER_LEN, Keypair, nonce};
use super::replay::Window;
use crate::PathProbe;
use crate::message::DATA_OVERHEAD_BYTES;
use crate::opening::{Authentic, OpenedRun, OpeningKeys};
use crate::tunnel::{Opened, Sealed, SealingKeys};
use strait_aead::{LANES, Message, TAG_LEN};
use strait_packet::buffer::{Outer, PacketBatch, TransmitBatch};
use strait_packet::counters::as_u64;
use strait_packet::segment::Segments;

/// Contents of datagrams are padded to a multiple of this, in bytes.
const PADDING: usize = 16;

/// The length of the content for a packet of `len` bytes. Padding makes no content longer than `mtu`, the device's.
#[inline]
fn padded(len: usize, mtu: u16) -> usize {
    len.next_multiple_of(PADDING).min(usize::from(mtu).max(len))
}

/// Seals the segments of one frame, for which counters were reserved.
pub(super) struct Sealer<'a> {
    pub(super) keypair: &'a Keypair,
    /// Of the next datagram. Reserved counters that are not used are skipped.
    pub(super) counter: u64,
    pub(super) outer: Outer,
    /// Of the device, in bytes.
    pub(super) mtu: u16,
}

impl Sealer<'_> {
    /// Seals the segments into `out` until either is used up, and adds to `sealed`.
    #[inline]
    pub(super) fn seal(
        self,
        segments: &mut Segments<'_>,
        out: &mut TransmitBatch,
        sealed: &mut Sealed,
    ) {
        if self.keypair.width(segments.remaining(), segments.next_len().unwrap_or(0)) == 1 {
            self.seal_singly(segments, out, sealed);
        } else {
            self.seal_in_lanes(segments, out, sealed);
        }
    }

    /// Seals each datagram right after it is copied, while it is in the cache.
    #[inline]
    fn seal_singly(
        mut self,
        segments: &mut Segments<'_>,
        out: &mut TransmitBatch,
        sealed: &mut Sealed,
    ) {
        while let Some(len) = segments.next_len() {
            let Some(room) = room(out, padded(len, self.mtu)) else { break };
            let Some(packet) = segments.next_segment() else { break };
            fill(room, packet);
            self.keypair.seal(self.counter, room);
            self.counter += 1;
            let len = room.len();
            out.commit(len, self.outer, true);
            sealed.add(len);
        }
    }

    /// Copies one datagram for each lane, then seals them together.
    fn seal_in_lanes(
        mut self,
        segments: &mut Segments<'_>,
        out: &mut TransmitBatch,
        sealed: &mut Sealed,
    ) {
        loop {
            let start = out.len();
            let mut lens = [0; LANES];
            let mut count = 0;
            for len_of_room in &mut lens {
                let Some(len) = segments.next_len() else { break };
                let Some(room) = room(out, padded(len, self.mtu)) else { break };
                let Some(packet) = segments.next_segment() else { break };
                fill(room, packet);
                *len_of_room = room.len();
                out.commit(*len_of_room, self.outer, true);
                sealed.add(*len_of_room);
                count += 1;
            }
            if count == 0 {
                break;
            }

            let lens = lens.get(..count).unwrap_or_default();
            self.keypair.seal_all(self.counter, out.bytes_from(start), lens);
            self.counter += as_u64(count);
        }
    }
}

/// The result that [`Sealer::seal`] will have with room for all of the segments.
pub(super) fn predict_sealed(segments: &Segments<'_>, mtu: u16) -> Sealed {
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
        outer: Outer,
        mtu: u16,
        out: &mut TransmitBatch,
    ) -> Sealed {
        let mut sealed = Sealed::default();
        let sealer = Sealer { keypair: self, counter: first_counter, outer, mtu };
        sealer.seal(segments, out, &mut sealed);

        sealed
    }
}

/// What one transport data message carries.
#[derive(Clone, Copy)]
pub(super) enum Content<'a> {
    Packet(&'a [u8]),
    /// A keepalive, which is empty, or a probe of the path.
    Other(&'a [u8]),
}

/// Seals one message. Returns the length of the datagram; `None` without room for it.
pub(super) fn seal_one(
    keypair: &Keypair,
    content: Content<'_>,
    outer: Outer,
    mtu: u16,
    out: &mut TransmitBatch,
) -> Option<usize> {
    let (Content::Packet(bytes) | Content::Other(bytes)) = content;
    let room = room(out, padded(bytes.len(), mtu))?;
    fill(room, bytes);
    keypair.seal(keypair.reserve(1), room);
    let len = room.len();
    out.commit(len, outer, matches!(content, Content::Packet(_)));

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
    if keypair.width(run.len().div_ceil(stride), stride) == 1 {
        open_singly(keypair, &mut window, run, stride, out, &mut opened);
    } else {
        open_in_lanes(keypair, &mut window, run, stride, out, &mut opened);
    }
    opened.is_late = window.next() == before;

    opened
}

/// A datagram whose tag is not checked yet.
struct Unopened<'a> {
    counter: u64,
    sealed: &'a [u8],
    tag: [u8; TAG_LEN],
}

/// Opens each datagram right after it is copied, while it is in the cache.
#[inline]
fn open_singly(
    keypair: &Keypair,
    window: &mut Window,
    run: &[u8],
    stride: usize,
    out: &mut PacketBatch,
    opened: &mut Opened,
) {
    for datagram in run.chunks(stride) {
        let Some(Unopened { counter, sealed, tag }) = unopened(datagram, window, opened) else {
            continue;
        };
        let Some(room) = out.room(sealed.len()).and_then(|room| room.get_mut(..sealed.len()))
        else {
            opened.malformed += 1;
            continue;
        };
        room.copy_from_slice(sealed);
        if !keypair.open(counter, room, tag) {
            opened.unauthenticated += 1;
            continue;
        }
        window.accept(counter);
        if let Some(len) = count_authentic(opened, datagram.len(), room) {
            out.commit(len);
        }
    }
}

/// Copies one datagram for each lane, then opens them together.
fn open_in_lanes(
    keypair: &Keypair,
    window: &mut Window,
    run: &[u8],
    stride: usize,
    out: &mut PacketBatch,
    opened: &mut Opened,
) {
    let mut datagrams = run.chunks(stride);
    while datagrams.len() > 0 {
        let mut messages: [Message<'_>; LANES] = Default::default();
        let (mut tags, mut counters) = ([[0; TAG_LEN]; LANES], [0; LANES]);
        let mut count = 0;
        let mut places = messages.iter_mut().zip(&mut tags).zip(&mut counters);
        let (mut room, packets) = out.rest();
        while count < LANES {
            let next = datagrams.by_ref().find_map(|datagram| unopened(datagram, window, opened));
            let Some(unopened) = next else { break };
            let len = unopened.sealed.len();
            if count == packets || len > room.len() {
                opened.malformed += 1;
                continue;
            }
            let Some(((message, tag), counter)) = places.next() else { break };
            let (text, behind) = room.split_at_mut(len);
            text.copy_from_slice(unopened.sealed);
            room = behind;
            *message = Message { nonce: nonce(unopened.counter), text };
            (*tag, *counter) = (unopened.tag, unopened.counter);
            count += 1;
        }

        // A datagram without a packet has no packet length, but occupies its room all the same.
        let mut lens = [(None, 0); LANES];
        let messages = messages.get_mut(..count).unwrap_or_default();
        let authentic = keypair.open_all(messages, &tags);
        let each = messages.iter().zip(counters).zip(authentic).zip(&mut lens);
        for (((message, counter), is_authentic), lens) in each {
            let content = &*message.text;
            lens.1 = content.len();
            if !is_authentic {
                opened.unauthenticated += 1;
            } else if !window.accept(counter) {
                opened.replayed += 1;
            } else {
                let datagram_len = content.len() + DATA_OVERHEAD_BYTES;
                lens.0 = count_authentic(opened, datagram_len, content);
            }
        }
        for (packet_len, content_len) in lens.into_iter().take(count) {
            out.commit_within(packet_len, content_len);
        }
    }
}

/// Parses a datagram. `None` if it is malformed or replayed.
#[inline]
fn unopened<'a>(datagram: &'a [u8], window: &Window, opened: &mut Opened) -> Option<Unopened<'a>> {
    let Some((header, rest)) = datagram.split_first_chunk::<HEADER_LEN>() else {
        opened.malformed += 1;
        return None;
    };
    let Some((sealed, tag)) = rest.split_last_chunk::<TAG_LEN>() else {
        opened.malformed += 1;
        return None;
    };
    let counter = counter(header);
    if !Keypair::allows(counter) || !window.is_new(counter) {
        opened.replayed += 1;
        return None;
    }

    Some(Unopened { counter, sealed, tag: *tag })
}

impl OpeningKeys for Keypair {
    fn open_in_place(&self, run: &mut [u8], stride: usize, out: &mut OpenedRun) {
        if self.width(run.len().div_ceil(stride), stride) == 1 {
            open_in_place_singly(self, run, stride, out);
        } else {
            open_in_place_in_lanes(self, run, stride, out);
        }
    }
}

fn open_in_place_singly(keypair: &Keypair, run: &mut [u8], stride: usize, out: &mut OpenedRun) {
    for (datagram, start) in run.chunks_mut(stride).zip((0..).step_by(stride)) {
        let Some((counter, text, tag)) = sealed_of(datagram, out) else { continue };
        if keypair.open(counter, text, tag) {
            out.push(authentic(counter, text.len(), start));
        } else {
            out.count_unauthenticated();
        }
    }
}

fn open_in_place_in_lanes(keypair: &Keypair, run: &mut [u8], stride: usize, out: &mut OpenedRun) {
    let mut datagrams = run.chunks_mut(stride).zip((0..).step_by(stride));
    loop {
        let mut messages: [Message<'_>; LANES] = Default::default();
        let (mut tags, mut places) = ([[0; TAG_LEN]; LANES], [(0, 0); LANES]);
        let mut count = 0;
        for ((message, tag), place) in messages.iter_mut().zip(&mut tags).zip(&mut places) {
            let next = datagrams.by_ref().find_map(|(datagram, start)| {
                let (counter, text, tag) = sealed_of(datagram, out)?;
                Some((Message { nonce: nonce(counter), text }, tag, (counter, start)))
            });
            let Some(next) = next else { break };
            (*message, *tag, *place) = next;
            count += 1;
        }
        if count == 0 {
            break;
        }

        let messages = messages.get_mut(..count).unwrap_or_default();
        let are_authentic = keypair.open_all(messages, &tags);
        let each = messages.iter().zip(are_authentic).zip(places);
        for ((message, is_authentic), (counter, start)) in each {
            if is_authentic {
                out.push(authentic(counter, message.text.len(), start));
            } else {
                out.count_unauthenticated();
            }
        }
    }
}

/// Parses a datagram into counter, sealed content and tag. `None` if it is malformed or its counter is not allowed.
#[inline]
fn sealed_of<'a>(
    datagram: &'a mut [u8],
    out: &mut OpenedRun,
) -> Option<(u64, &'a mut [u8], [u8; TAG_LEN])> {
    let parts = datagram
        .split_first_chunk_mut::<HEADER_LEN>()
        .and_then(|(header, rest)| Some((header, rest.split_last_chunk_mut::<TAG_LEN>()?)));
    let Some((header, (text, tag))) = parts else {
        out.count_malformed();
        return None;
    };
    let counter = counter(header);
    if !Keypair::allows(counter) {
        out.count_replayed();
        return None;
    }

    Some((counter, text, *tag))
}

/// The entry for an authentic datagram that begins at the byte `start` of its run, with `len` bytes of content.
#[inline]
fn authentic(counter: u64, len: usize, start: usize) -> Authentic {
    let content_start = start + HEADER_LEN;

    Authentic {
        counter,
        content: content_start..content_start + len,
        datagram_bytes: len + DATA_OVERHEAD_BYTES,
    }
}

/// Checks a run of this session, opened in `bytes`, against the replay window.
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

/// Counts a datagram that is authentic and new. Returns the length of the packet in its content, if there is one.
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
        None => count_other(opened, content),
    }

    len
}

/// Counts an authentic datagram without a packet.
#[cold]
fn count_other(opened: &mut Opened, content: &[u8]) {
    if let Some(probe) = PathProbe::read(content) {
        opened.keepalives += 1;
        opened.probes.add(probe);
    } else {
        opened.malformed += 1;
    }
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

/// Copies `packet` into its place in the datagram, and pads it with zeros.
#[inline]
fn fill(room: &mut [u8], packet: &[u8]) {
    let end = room.len() - TAG_LEN;
    let Some(content) = room.get_mut(HEADER_LEN..end) else { return };
    if let Some((start, padding)) = content.split_at_mut_checked(packet.len()) {
        start.copy_from_slice(packet);
        padding.fill(0);
    }
}

/// The length of the IP packet at the start of `content`, without the padding; `None` if there is none, or it is
/// truncated.
#[inline]
fn packet_len(content: &[u8]) -> Option<usize> {
    let len = match content.first()? >> 4 {
        4 => u16::from_be_bytes(*content.get(2..)?.first_chunk::<2>()?).into(),
        6 => usize::from(u16::from_be_bytes(*content.get(4..)?.first_chunk::<2>()?)) + 40,
        _ => return None,
    };

    (len >= 20 && len <= content.len()).then_some(len)
}
