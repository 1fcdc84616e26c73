//! What is left of a flood before anybody reads it.
//!
//! Most of what it costs to turn a message away is to receive it, and what is not received in time the kernel
//! drops, whoever sent it. So a [`filter`] on the socket drops initiations without a cookie, of which there are two
//! kinds that are not worth to be received:
//!
//! - Of a source that sends far more of them than anybody would answer, one of [`PASSING`] passes. Who shares
//!   an address with a flood, or whose address a flood pretends to have, loses nothing: of so many messages no
//!   larger part would be sent a cookie.
//! - In a torrent of messages from thousands of sources, nothing passes of those that insist, as far as
//!   there is room for them in a filter, each for [some time](SHUT_OUT_SECONDS). Of all messages in a torrent no more than a
//!   few in a hundred would be sent a cookie, of these none is. Nobody is shut out where a peer was heard before:
//!   he would be sent one.
//!
//! With a cookie everybody's messages pass. So do those of a flood with cookies that are none, as nobody here can
//! tell.
//!
//! What is dropped counts as what there was no room for.

mod filter;

use std::collections::HashMap;
use std::mem;
use std::net::IpAddr;

use filter::{PASSING, SHUT_OUT_MAX, THINNED_MAX, program};
use socket2::SockFilter;

use crate::engine::inbound::Received;
use crate::path::network;
use crate::wg::message::Message;

/// Above this many initiations without a cookie a second, a source is thinned. What passes is then more
/// than there are cookies for, see `MORE_COOKIES` of the native core.
const INSISTENCE: u32 = 50_000;

/// One of so many messages is looked at: a prime, so that sources in turn are all seen.
const SAMPLED: u32 = 17;

/// So many samples in a second are a source to be thinned, and so many of those that pass are one that still is.
const INSISTENT_SAMPLES: u32 = INSISTENCE.div_ceil(SAMPLED);
const PASSING_SAMPLES: u32 = INSISTENCE.div_ceil(SAMPLED * PASSING);

/// For how long somebody is shut out at the least, and how much longer at the most. He has to insist again after
/// that. Not all of them are let in again at once, so that a flood does not begin anew each time.
const SHUT_OUT_SECONDS: u8 = 5;
const SHUT_OUT_MORE: u8 = 10;

/// Finds the sources whose messages are to be dropped.
#[derive(Debug)]
pub(super) struct Thinning {
    /// Messages since one was looked at.
    unsampled: u32,
    /// Samples of those that are thinned, and of others, in this second.
    thinned: Vec<(IpAddr, u32)>,
    others: Heavy,
    /// Whether one of the others is to be thinned before the second is over.
    is_due: bool,
    /// Those that are shut out, and for how many seconds yet.
    shut_out: HashMap<IpAddr, u8>,
    /// How many may be.
    room: usize,
    /// How much longer than all others the last one is.
    longer: u8,
}

impl Default for Thinning {
    fn default() -> Self {
        Self {
            unsampled: 0,
            thinned: Vec::new(),
            others: Heavy::default(),
            is_due: false,
            shut_out: HashMap::new(),
            room: SHUT_OUT_MAX,
            longer: 0,
        }
    }
}

impl Thinning {
    /// A message was received.
    pub(super) fn handle_message(&mut self, received: Received<'_>) {
        self.unsampled += 1;
        if self.unsampled < SAMPLED {
            return;
        }
        self.unsampled = 0;
        if !is_without_cookie(received.bytes) {
            return;
        }
        let source = network(received.path.remote.ip());
        match self.thinned.iter_mut().find(|(thinned, _)| *thinned == source) {
            Some((_, samples)) => *samples += 1,
            None => self.is_due |= self.others.add(source) == INSISTENT_SAMPLES,
        }
    }

    /// A batch was received: a flood that has just begun is not received for the rest of the second. Gives the
    /// filter as [`Self::handle_second`] does.
    pub(super) fn handle_batch(&mut self) -> Option<Vec<SockFilter>> {
        if !mem::take(&mut self.is_due) {
            return None;
        }
        let free = THINNED_MAX - self.thinned.len().min(THINNED_MAX);
        let come = self.others.counts.extract_if(.., |(_, samples)| *samples >= INSISTENT_SAMPLES);
        let before = self.thinned.len();
        // Whoever comes late in a second stays for the next one.
        self.thinned.extend(come.take(free).map(|(source, _)| (source, PASSING_SAMPLES)));

        (self.thinned.len() > before).then(|| self.program())
    }

    /// Another second is over, and these insist in a torrent. Gives the filter that the socket is to have from now on, if
    /// that is another one; an empty one if none.
    pub(super) fn handle_second(
        &mut self,
        insistent: impl IntoIterator<Item = IpAddr>,
    ) -> Option<Vec<SockFilter>> {
        let before = self.sources();
        self.is_due = false;
        let thinned = mem::take(&mut self.thinned);
        let others = mem::take(&mut self.others).counts;
        let stay = thinned.iter().filter(|(_, samples)| *samples >= PASSING_SAMPLES);
        let come = others.iter().filter(|(_, samples)| *samples >= INSISTENT_SAMPLES);
        self.thinned = stay.chain(come).take(THINNED_MAX).map(|(source, _)| (*source, 0)).collect();
        let is_another = self.shut(insistent);

        (is_another || self.sources() != before).then(|| self.program())
    }

    /// Shuts these out, and those before them for a second less. Says whether it is others now.
    fn shut(&mut self, insistent: impl IntoIterator<Item = IpAddr>) -> bool {
        let before = self.shut_out.len();
        self.shut_out.retain(|_, seconds| {
            *seconds -= 1;
            *seconds > 0
        });
        let stay = self.shut_out.len();
        for source in insistent {
            if self.shut_out.len() >= self.room {
                break;
            }
            self.longer = (self.longer + 1) % SHUT_OUT_MORE;
            self.shut_out.insert(network(source), SHUT_OUT_SECONDS + self.longer);
        }

        stay < before || self.shut_out.len() > stay
    }

    /// The kernel has no memory for the last filter: it has none now, and the next is to be a smaller one.
    pub(super) fn handle_refusal(&mut self) {
        *self = Self { room: self.room / 2, ..Self::default() };
    }

    fn program(&self) -> Vec<SockFilter> {
        let shut_out: Vec<_> = self.shut_out.keys().copied().collect();

        program(&self.sources(), &shut_out, super::random())
    }

    fn sources(&self) -> Vec<IpAddr> {
        self.thinned.iter().map(|(source, _)| *source).collect()
    }
}

/// Those that came most often: whoever is more than one in [`THINNED_MAX`] and one is among them.
///
/// Source: J. Misra, D. Gries, Finding repeated elements, Science of Computer Programming 2 (1982).
#[derive(Debug, Default)]
struct Heavy {
    counts: Vec<(IpAddr, u32)>,
}

impl Heavy {
    /// Says how often it has come, as far as is known.
    fn add(&mut self, source: IpAddr) -> u32 {
        if let Some((_, count)) = self.counts.iter_mut().find(|(known, _)| *known == source) {
            *count += 1;
            return *count;
        }
        if self.counts.len() < THINNED_MAX {
            self.counts.push((source, 1));
            return 1;
        }
        self.counts.retain_mut(|(_, count)| {
            *count -= 1;
            *count > 0
        });

        0
    }
}

fn is_without_cookie(message: &[u8]) -> bool {
    matches!(Message::classify(message), Some(Message::Initiation)) && message.ends_with(&[0; 16])
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::*;
    use crate::packet::ecn::Ecn;
    use crate::path::Path;

    const SECOND: u32 = 200_000;

    #[test]
    fn one_source_of_many_messages_is_thinned_until_it_stops() {
        let mut thinning = Thinning::default();
        let mut second = |of_one: u32| {
            for number in 0..SECOND {
                // The others are ten thousand.
                let source = if number % 100 < of_one { 1 } else { 2 + number % 10_000 };
                thinning.handle_message(message(source, &initiation(0)));
            }
            thinning.handle_second([]).map(|filter| filter.len())
        };

        assert_eq!(second(0), None);
        assert!(second(50).is_some_and(|len| len > 0));
        // A sixteenth of that passes, and then of half of it.
        assert_eq!(second(3), None);
        assert_eq!(second(2), None);
        assert_eq!(second(0), Some(0));
        assert_eq!(second(15), None, "thirty thousand a second may all be read");
    }

    #[test]
    fn a_flood_is_thinned_before_its_first_second_is_over_and_after_it() {
        let mut thinning = Thinning::default();
        let mut receive = |count: u32| {
            for number in 0..count {
                thinning.handle_message(message(1 + number % 2, &initiation(0)));
            }
            let filter = thinning.handle_batch().map(|filter| filter.len());
            (filter, thinning.sources().len())
        };

        assert_eq!(receive(INSISTENCE), (None, 0), "half of it from each");
        let (filter, sources) = receive(INSISTENCE + 4 * SAMPLED);
        assert!(filter.is_some_and(|len| len > 0));
        assert_eq!(sources, 2);
        assert_eq!(receive(SAMPLED), (None, 2));
        let mut second = || thinning.handle_second([]).map(|filter| filter.len());
        assert_eq!(second(), None, "they came late in this one");
        assert_eq!(second(), Some(0), "and have stopped");
    }

    #[test]
    fn more_sources_than_fit_a_filter_are_no_harm() {
        let mut thinning = Thinning::default();
        for number in 0..50 * SECOND {
            thinning.handle_message(message(number % 40, &initiation(0)));
            assert!(thinning.handle_batch().is_none_or(|filter| filter.len() <= 60));
        }

        assert!(thinning.handle_second([]).is_none_or(|filter| filter.len() <= 60));
        assert!(thinning.thinned.len() <= THINNED_MAX);
    }

    #[test]
    fn those_who_insist_in_a_torrent_are_shut_out_as_far_as_there_is_room() {
        let mut thinning = Thinning::default();
        let sources = |from: u32| (from..from + 3_000).map(|n| IpAddr::V4(Ipv4Addr::from_bits(n)));
        let len = |filter: Option<Vec<SockFilter>>| filter.map(|filter| filter.len());

        let first = len(thinning.handle_second(sources(0)));
        assert!(first.is_some_and(|len| len > 3_000));
        let second = len(thinning.handle_second(sources(10_000)));
        assert!(second > first && thinning.shut_out.len() == SHUT_OUT_MAX);
        assert_eq!(len(thinning.handle_second(sources(20_000))), None, "there is no room");
    }

    /// Else a flood would begin anew each time.
    #[test]
    fn those_who_are_shut_out_are_let_in_little_by_little() {
        let mut thinning = Thinning::default();
        thinning.handle_second((0..3_000).map(|n| IpAddr::V4(Ipv4Addr::from_bits(n))));

        let mut left = Vec::new();
        let mut filter = None;
        while !thinning.shut_out.is_empty() {
            filter = thinning.handle_second([]);
            left.push(thinning.shut_out.len());
        }

        let expected = [3_000; 4].into_iter().chain((0..10).map(|n| 2_700 - 300 * n));
        assert_eq!(left, expected.collect::<Vec<_>>());
        assert_eq!(filter.map(|filter| filter.len()), Some(0));
    }

    #[test]
    fn where_there_is_less_memory_fewer_are_shut_out() {
        let mut thinning = Thinning::default();
        let sources = || (0..10_000).map(|n| IpAddr::V4(Ipv4Addr::from_bits(n)));
        let mut len = || thinning.handle_second(sources()).map_or(0, |filter| filter.len());

        let mut lens = vec![len()];
        for _ in 0..20 {
            thinning.handle_refusal();
            assert!(thinning.shut_out.is_empty(), "what was not taken is not in force");
            lens.push(thinning.handle_second(sources()).map_or(0, |filter| filter.len()));
        }

        assert!(lens.is_sorted_by(|one, next| one > next || (*one, *next) == (0, 0)), "{lens:?}");
    }

    #[test]
    fn only_initiations_without_a_cookie_are_insistent() {
        let mut thinning = Thinning::default();
        for other in [initiation(1), vec![2; 92], vec![4; 148], vec![1; 7]] {
            for _ in 0..SECOND {
                thinning.handle_message(message(1, &other));
            }
            assert!(thinning.handle_second([]).is_none());
        }
    }

    /// One whose second MAC is so many times `mac`.
    fn initiation(mac: u8) -> Vec<u8> {
        let mut message = vec![1, 0, 0, 0];
        message.resize(132, 9);
        message.resize(148, mac);

        message
    }

    fn message(source: u32, bytes: &[u8]) -> Received<'_> {
        let remote = SocketAddr::from((Ipv4Addr::from_bits(source), 7));

        Received { bytes, stride: bytes.len(), path: Path::from(remote), ecn: Ecn::NotEct }
    }
}
