//! What is left of a flood from few sources before anybody reads it.
//!
//! Most of what it costs to turn a message away is to receive it, and what is not received in time the kernel
//! drops, whoever sent it. So if a source sends far more initiations without a cookie than anybody would
//! answer, a filter on the socket lets one of [`PASSING`] pass:
//!
//! ```text
//!              no initiation, or with a cookie ───────────────┐
//!   message ─  an initiation without a cookie                 ├─▶ passes
//!                from anybody else ───────────────────────────┤
//!                from one of the sources ─ one of sixteen ────┘
//!                                          └ the others ────────▶ dropped
//! ```
//!
//! Who shares an address with a flood, or whose address a flood pretends to have, loses nothing: of so many
//! messages no larger part would be sent a cookie, and with a cookie his own pass. So do those of a flood
//! with cookies that are none, as nobody here can tell.
//!
//! What is dropped counts as what there was no room for. Source: socket(7), `SO_ATTACH_FILTER`; the
//! extensions `SKF_NET_OFF` and `SKF_AD_RANDOM` in the kernel's documentation, networking/filter.

use std::mem;
use std::net::IpAddr;

use socket2::SockFilter;

use crate::engine::inbound::Received;
use crate::path::network;
use crate::wg::message::Message;

/// One of so many messages passes.
const PASSING: u32 = 16;

/// Above this many initiations without a cookie a second, a source is thinned. What passes is then more
/// than there are cookies for, see `MORE_COOKIES` of the native core.
const INSISTENCE: u32 = 50_000;

/// One of so many messages is looked at: a prime, so that sources in turn are all seen.
const SAMPLED: u32 = 17;

/// So many samples in a second are a source to be thinned, and so many of those that pass are one that still is.
const INSISTENT_SAMPLES: u32 = INSISTENCE.div_ceil(SAMPLED);
const PASSING_SAMPLES: u32 = INSISTENCE.div_ceil(SAMPLED * PASSING);

/// So many sources are thinned at the most.
const SOURCES_MAX: usize = 16;

const UDP_HEADER_BYTES: u32 = 8;
const INITIATION_BYTES: u32 = 148;
/// The first byte of the IP header, of which one half says the version.
const VERSION: u32 = libc::SKF_NET_OFF.cast_unsigned();
const IPV4_SOURCE: u32 = VERSION + 12;
const IPV6_SOURCE: u32 = VERSION + 8;
/// Something else each time.
const RANDOM: u32 = libc::SKF_AD_OFF.wrapping_add(libc::SKF_AD_RANDOM).cast_unsigned();

const LOAD_LENGTH: u16 = 0x80;
const LOAD_WORD: u16 = 0x20;
const LOAD_BYTE: u16 = 0x30;
const SHIFT_RIGHT: u16 = 0x74;
const AND: u16 = 0x54;
const IS_EQUAL: u16 = 0x15;
const ANSWER: u16 = 0x06;

/// How much of a datagram is taken.
const PASS: u32 = u32::MAX;
const DROP: u32 = 0;

/// Finds the sources whose messages are to be thinned.
#[derive(Debug, Default)]
pub(super) struct Thinning {
    /// Messages since one was looked at.
    unsampled: u32,
    /// Samples of those that are thinned, and of others, in this second.
    thinned: Vec<(IpAddr, u32)>,
    others: Heavy,
    /// Whether one of the others is to be thinned before the second is over.
    is_due: bool,
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
        let free = SOURCES_MAX - self.thinned.len().min(SOURCES_MAX);
        let come = self.others.counts.extract_if(.., |(_, samples)| *samples >= INSISTENT_SAMPLES);
        let before = self.thinned.len();
        // Whoever comes late in a second stays for the next one.
        self.thinned.extend(come.take(free).map(|(source, _)| (source, PASSING_SAMPLES)));

        (self.thinned.len() > before).then(|| program(&self.sources()))
    }

    /// Another second is over. Gives the filter that the socket is to have from now on, if that is another
    /// one; an empty one if none.
    pub(super) fn handle_second(&mut self) -> Option<Vec<SockFilter>> {
        let before = self.sources();
        self.is_due = false;
        let thinned = mem::take(&mut self.thinned);
        let others = mem::take(&mut self.others).counts;
        let stay = thinned.iter().filter(|(_, samples)| *samples >= PASSING_SAMPLES);
        let come = others.iter().filter(|(_, samples)| *samples >= INSISTENT_SAMPLES);
        self.thinned = stay.chain(come).take(SOURCES_MAX).map(|(source, _)| (*source, 0)).collect();

        let now = self.sources();
        (now != before).then(|| program(&now))
    }

    fn sources(&self) -> Vec<IpAddr> {
        self.thinned.iter().map(|(source, _)| *source).collect()
    }
}

/// Those that came most often: whoever is more than one in [`SOURCES_MAX`] and one is among them.
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
        if self.counts.len() < SOURCES_MAX {
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

/// See the head of this file; nothing if there are no `sources`. Offsets are from the UDP header, integers
/// as the network orders bytes.
fn program(sources: &[IpAddr]) -> Vec<SockFilter> {
    if sources.is_empty() {
        return Vec::new();
    }
    let end_of_message = UDP_HEADER_BYTES + INITIATION_BYTES;
    let mut steps = vec![
        Step::load(LOAD_LENGTH, 0),
        Step::unless(end_of_message, Target::Pass),
        Step::load(LOAD_WORD, UDP_HEADER_BYTES),
        Step::unless(0x0100_0000, Target::Pass),
    ];
    for before_end in [16, 12, 8, 4] {
        steps.push(Step::load(LOAD_WORD, end_of_message - before_end));
        steps.push(Step::unless(0, Target::Pass));
    }

    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for source in sources {
        match source {
            IpAddr::V4(address) => v4.push(Step::when(address.to_bits(), Target::Thin)),
            IpAddr::V6(address) => {
                let [a, b, c, d, e, f, g, h, ..] = address.octets();
                let [first, second] = [[a, b, c, d], [e, f, g, h]].map(u32::from_be_bytes);
                v6.extend([
                    Step::load(LOAD_WORD, IPV6_SOURCE),
                    Step::unless(first, Target::Skip(2)),
                    Step::load(LOAD_WORD, IPV6_SOURCE + 4),
                    Step::when(second, Target::Thin),
                ]);
            }
        }
    }
    v4.insert(0, Step::load(LOAD_WORD, IPV4_SOURCE));
    v4.push(Step::answer(PASS));
    steps.extend([
        Step::load(LOAD_BYTE, VERSION),
        Step::load(SHIFT_RIGHT, 4),
        Step::unless(4, Target::Skip(v4.len())),
    ]);
    steps.append(&mut v4);
    steps.append(&mut v6);
    steps.push(Step::answer(PASS));

    let thin = steps.len();
    steps.extend([
        Step::load(LOAD_WORD, RANDOM),
        Step::load(AND, PASSING - 1),
        Step::unless(0, Target::Skip(1)),
        Step::answer(PASS),
        Step::answer(DROP),
    ]);
    let pass = steps.len();
    steps.push(Step::answer(PASS));

    let number = |(place, step): (usize, &Step)| {
        let [yes, no] = [step.yes, step.no].map(|target| {
            let skipped = match target {
                Target::Skip(steps) => steps,
                Target::Thin => thin - place - 1,
                Target::Pass => pass - place - 1,
            };
            // There are a hundred steps at the most.
            u8::try_from(skipped).unwrap_or(u8::MAX)
        });
        SockFilter::new(step.code, yes, no, step.operand)
    };

    steps.iter().enumerate().map(number).collect()
}

/// An instruction, and where it goes on if what it asks is so, and if not.
#[derive(Clone, Copy, Debug)]
struct Step {
    code: u16,
    operand: u32,
    yes: Target,
    no: Target,
}

/// Where a program goes on.
#[derive(Clone, Copy, Debug)]
enum Target {
    /// Behind so many steps.
    Skip(usize),
    Thin,
    Pass,
}

impl Step {
    /// What asks nothing.
    const fn load(code: u16, operand: u32) -> Self {
        Self { code, operand, yes: Target::Skip(0), no: Target::Skip(0) }
    }

    /// Goes on at `target` if `value` was loaded.
    const fn when(value: u32, target: Target) -> Self {
        Self { code: IS_EQUAL, operand: value, yes: target, no: Target::Skip(0) }
    }

    /// Goes on at `target` if something other than `value` was loaded.
    const fn unless(value: u32, target: Target) -> Self {
        Self { code: IS_EQUAL, operand: value, yes: Target::Skip(0), no: target }
    }

    /// Ends: so many bytes of the datagram are taken.
    const fn answer(bytes: u32) -> Self {
        Self::load(ANSWER, bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

    use proptest::prelude::*;
    use socket2::{Domain, Socket, Type};

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
            thinning.handle_second().map(|filter| filter.len())
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
        let mut second = || thinning.handle_second().map(|filter| filter.len());
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

        assert!(thinning.handle_second().is_none_or(|filter| filter.len() <= 60));
        assert!(thinning.thinned.len() <= SOURCES_MAX);
    }

    #[test]
    fn only_initiations_without_a_cookie_are_insistent() {
        let mut thinning = Thinning::default();
        for other in [initiation(1), vec![2; 92], vec![4; 148], vec![1; 7]] {
            for _ in 0..SECOND {
                thinning.handle_message(message(1, &other));
            }
            assert!(thinning.handle_second().is_none());
        }
    }

    #[test]
    fn a_filter_leaves_one_of_sixteen_and_everything_else() {
        let here = |last| IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
        let v6 = IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);
        let mut many: Vec<_> = (100..).take(SOURCES_MAX - 2).map(here).collect();
        many.extend([here(7), network(v6)]);
        let mut sources = vec![here(7), here(8)];
        sources.extend(UdpSocket::bind((v6, 0)).is_ok().then_some(v6));

        for thinned in [vec![here(7)], vec![network(v6)], many] {
            for &source in &sources {
                let is_thinned = thinned.contains(&network(source));
                for (sent, is_flood) in
                    [(initiation(0), true), (initiation(1), false), (vec![2; 92], false)]
                {
                    let passed = passing(&program(&thinned), source, &sent);
                    let expected = if is_flood && is_thinned { 20..=130 } else { SENT..=SENT };
                    assert!(expected.contains(&passed), "{passed} from {source} of {thinned:?}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// Whatever sources there are, the kernel takes the program, and it never leads out of itself.
        #[test]
        fn the_kernel_takes_every_filter(
            sources in prop::collection::vec(any::<IpAddr>().prop_map(network), 1..=SOURCES_MAX),
        ) {
            let filter = program(&sources);
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();

            prop_assert!(filter.len() < 200);
            prop_assert!(socket.attach_filter(&filter).is_ok());
        }
    }

    const SENT: usize = 1_000;

    /// How many of [`SENT`] messages from `source` get through.
    fn passing(filter: &[SockFilter], source: IpAddr, sent: &[u8]) -> usize {
        let (domain, to) = match source {
            IpAddr::V4(_) => (Domain::IPV4, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
            IpAddr::V6(_) => (Domain::IPV6, SocketAddr::from((source, 0))),
        };
        let socket = Socket::new(domain, Type::DGRAM, None).unwrap();
        socket.bind(&to.into()).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.attach_filter(filter).unwrap();
        let to = socket.local_addr().unwrap().as_socket().unwrap();
        let caller = UdpSocket::bind((source, 0)).unwrap();

        let mut passed = 0;
        for _ in 0..SENT {
            caller.send_to(sent, to).unwrap();
            let mut buffer = [MaybeUninit::uninit(); 2048];
            passed += usize::from(socket.recv(&mut buffer).is_ok_and(|len| len == sent.len()));
        }

        passed
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
