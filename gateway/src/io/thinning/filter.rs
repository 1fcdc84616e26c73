//! The program in the kernel that says which handshakes a socket gets.
//!
//! ```text
//!              no initiation, or with a cookie ────────────────┐
//!   message ─  an initiation without a cookie                  ├─▶ passes
//!                from anybody else ────────────────────────────┤
//!                from one of those to be thinned ─ one of some ┘
//!                                                └ the others ───┐
//!                from one of those to be shut out ───────────────┴▶ dropped
//! ```
//!
//! Sources are known by their [`SourceKey`], and each program has a seed of its own: who has the key of another is
//! taken for him no longer than a program lasts. Whoever is to be shut out is looked for in a tree: comparisons halve the
//! keys until no more than [`LEAF_KEYS`] are left, which are compared one by one, as a branch in such a program
//! skips no more than 255 instructions.
//!
//! Source: socket(7), `SO_ATTACH_FILTER`.

use std::net::IpAddr;

use libc::sock_filter;
use socket2::SockFilter;

use crate::io::bpf::{
    AND, ANSWER, IS_EQUAL, IS_NOT_LESS, JUMP, LOAD_LENGTH, LOAD_WORD, RANDOM, SourceKey, branch,
    step,
};

/// One of so many messages of a source that is thinned passes.
pub(super) const PASSING: u32 = 16;

/// So many sources are shut out at the most: the kernel takes no more than 4,096 instructions.
pub(super) const SHUT_OUT_MAX: usize = 3_500;

/// So many sources are thinned at the most: all are compared one by one.
pub(super) const THINNED_MAX: usize = 16;

/// To compare them one by one takes less room than to halve them.
const LEAF_KEYS: usize = 32;

const UDP_HEADER_BYTES: u32 = 8;
const INITIATION_BYTES: u32 = 148;

/// How much of a datagram is taken.
const PASS: u32 = u32::MAX;
const DROP: u32 = 0;

/// See the head of this file; nothing if there are no sources. `thinned` may be [`THINNED_MAX`] sources,
/// `shut_out` [`SHUT_OUT_MAX`]: more are left alone. `seed` is one that nobody can guess.
pub(super) fn program(thinned: &[IpAddr], shut_out: &[IpAddr], seed: u64) -> Vec<SockFilter> {
    if thinned.is_empty() && shut_out.is_empty() {
        return Vec::new();
    }
    let keys = SourceKey::new(seed);

    let mut steps = vec![];
    let mut pass_unless = |load, at, value| {
        steps.push(step(load, at));
        // Where to is known when all is there.
        steps.push(branch(IS_EQUAL, value, 0, u8::MAX));
    };
    let end_of_message = UDP_HEADER_BYTES + INITIATION_BYTES;
    pass_unless(LOAD_LENGTH, 0, end_of_message);
    pass_unless(LOAD_WORD, UDP_HEADER_BYTES, 0x0100_0000);
    for before_end in [16, 12, 8, 4] {
        pass_unless(LOAD_WORD, end_of_message - before_end, 0);
    }
    let questions = steps.len();

    steps.extend(keys.load());
    let thin = [
        step(LOAD_WORD, RANDOM),
        step(AND, PASSING - 1),
        branch(IS_EQUAL, 0, 1, 0),
        step(ANSWER, DROP),
        step(ANSWER, PASS),
    ];
    let thinned: Vec<_> = thinned.iter().take(THINNED_MAX).map(|source| keys.of(*source)).collect();
    for (number, key) in thinned.iter().enumerate() {
        // Over those that follow, and the jump behind them.
        steps.push(branch(IS_EQUAL, *key, skip(thinned.len() - number), 0));
    }
    steps.push(step(JUMP, len_of(&thin)));
    steps.extend(thin);
    let pass = steps.len() - 1;
    for (place, asked) in steps.iter_mut().enumerate().take(questions).skip(1).step_by(2) {
        *asked = branch(IS_EQUAL, asked.k, 0, skip(pass - place - 1));
    }

    let mut shut_out: Vec<_> =
        shut_out.iter().take(SHUT_OUT_MAX).map(|source| keys.of(*source)).collect();
    shut_out.sort_unstable();
    steps.extend(tree(&shut_out));

    steps.iter().map(|step| SockFilter::new(step.code, step.jt, step.jf, step.k)).collect()
}

/// Drops what has one of these keys, which are sorted, and lets pass what has none.
fn tree(keys: &[u32]) -> Vec<sock_filter> {
    if keys.len() <= LEAF_KEYS {
        let compare = |(number, key): (usize, &u32)| {
            // Over those that follow, and the answer behind them.
            branch(IS_EQUAL, *key, skip(keys.len() - number), 0)
        };
        let answers = [step(ANSWER, PASS), step(ANSWER, DROP)];
        return keys.iter().enumerate().map(compare).chain(answers).collect();
    }

    let leaves = keys.len().div_ceil(LEAF_KEYS);
    let (below, above) = keys.split_at(leaves / 2 * LEAF_KEYS);
    let [below, above_steps] = [below, above].map(tree);
    let least = above.first().copied().unwrap_or_default();
    let mut steps = match u8::try_from(below.len()) {
        Ok(len) => vec![branch(IS_NOT_LESS, least, len, 0)],
        Err(_) => vec![branch(IS_NOT_LESS, least, 0, 1), step(JUMP, len_of(&below))],
    };
    steps.extend(below);
    steps.extend(above_steps);

    steps
}

/// As a jump skips them.
fn len_of(steps: &[sock_filter]) -> u32 {
    u32::try_from(steps.len()).unwrap_or(u32::MAX)
}

/// The parts that are skipped have fewer than a hundred instructions.
fn skip(steps: usize) -> u8 {
    u8::try_from(steps).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

    use proptest::prelude::*;
    use socket2::{Domain, Socket, Type};

    use super::*;
    use crate::io::bpf::caller;
    use crate::path::network;

    #[test]
    fn a_filter_leaves_one_of_sixteen_and_everything_else() {
        let here = |last| IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
        let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
        let mut many: Vec<_> = (100..).take(THINNED_MAX - 2).map(here).collect();
        many.extend([here(7), network(v6)]);
        let mut sources = vec![here(7), here(8)];
        sources.extend(UdpSocket::bind((v6, 0)).is_ok().then_some(v6));

        for thinned in [vec![here(7)], vec![network(v6)], many] {
            for &source in &sources {
                let is_thinned = thinned.contains(&network(source));
                for (sent, is_flood) in
                    [(initiation(0), true), (initiation(1), false), (vec![2; 92], false)]
                {
                    let passed = passing(&program(&thinned, &[], SEED), source, &sent);
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
            thinned in prop::collection::vec(any::<IpAddr>(), 0..=THINNED_MAX),
            shut_out in prop::collection::vec(any::<IpAddr>(), 0..200),
            seed: u64,
        ) {
            let filter = program(&thinned, &shut_out, seed);
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();

            if thinned.is_empty() && shut_out.is_empty() {
                prop_assert!(filter.is_empty());
            } else {
                prop_assert!(filter.len() < 80 + 2 * shut_out.len());
                prop_assert!(socket.attach_filter(&filter).is_ok());
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        /// The kernel says so itself: nobody else is, and with a cookie nobody is.
        #[test]
        fn who_is_shut_out_needs_a_cookie(
            count in prop::sample::select(vec![1, 31, 32, 33, 64, 65, 1_000, 3_499, 3_500, 3_600]),
            of_ipv6 in 0u32..=4,
            start: u32,
            seed: u64,
        ) {
            // Neighbours, so that comparisons have to be right.
            let source = |number: u32| {
                let place = start.wrapping_add(number);
                if number % 4 < of_ipv6 {
                    let [a, b] = [place >> 16, place & 0xffff].map(|part| u16::try_from(part).unwrap());
                    IpAddr::from([0x2001, 0xdb8 ^ a, b, a, 0, 0, 0, 7])
                } else {
                    // All but the first and the last.
                    IpAddr::V4(Ipv4Addr::from_bits(0x7f00_0001 + place % 0x00ff_fffe))
                }
            };
            let shut_out: Vec<_> = (0..count).map(|number| source(2 * number)).collect();
            let filter = program(&[], &shut_out, seed);
            let doors = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]
                .map(|called: IpAddr| Door::new(called, &filter));

            let asked = [0, 1, count / 2, count - 1].into_iter().flat_map(|n| [2 * n, 2 * n + 1]);
            for number in asked {
                let from = source(number);
                let is_in = shut_out.iter().take(SHUT_OUT_MAX).any(|one| *one == from);
                let Some(door) = doors[usize::from(from.is_ipv6())].as_ref() else { continue };
                for (sent, is_insistent) in
                    [(initiation(0), true), (initiation(1), false), (vec![2; 92], false)]
                {
                    prop_assert_eq!(door.passes(from, &sent), !(is_in && is_insistent), "{}", from);
                }
            }
        }
    }

    #[test]
    fn a_filter_of_full_size_is_taken_beside_another() {
        let sources = |first: u32| (first..).take(SHUT_OUT_MAX);
        for first in [0, u32::MAX - 4_000] {
            let v4: Vec<_> = sources(first).map(|n| IpAddr::V4(Ipv4Addr::from_bits(n))).collect();
            let thinned: Vec<_> = v4.iter().copied().take(THINNED_MAX).collect();
            let filter = program(&thinned, &v4, SEED);
            assert!(filter.len() <= 4096, "{}", filter.len());
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
            // Not where memory for such things has been left as small as it once was.
            let limit = std::fs::read_to_string("/proc/sys/net/core/optmem_max").unwrap();
            if limit.trim().parse::<u32>().unwrap() >= 131_072 {
                socket.attach_filter(&filter).unwrap();
                socket.attach_filter(&filter).unwrap();
            }
        }
    }

    const SEED: u64 = 7;

    /// A socket behind a filter.
    struct Door(Socket);

    impl Door {
        /// `None` if the host has no such address.
        fn new(called: IpAddr, filter: &[SockFilter]) -> Option<Self> {
            let at = SocketAddr::new(called, 0);
            let socket = Socket::new(Domain::for_address(at), Type::DGRAM, None).ok()?;
            socket.bind(&at.into()).ok()?;
            socket.set_nonblocking(true).unwrap();
            socket.attach_filter(filter).unwrap();

            Some(Self(socket))
        }

        /// Sends from an address that nobody needs to have.
        fn passes(&self, source: IpAddr, sent: &[u8]) -> bool {
            let called = self.0.local_addr().unwrap().as_socket().unwrap();
            caller(source).send_to(sent, called).unwrap();
            let mut buffer = [MaybeUninit::uninit(); 2048];

            self.0.recv(&mut buffer).is_ok_and(|len| len == sent.len())
        }
    }

    const SENT: usize = 1_000;

    /// How many of [`SENT`] messages from `source` get through.
    fn passing(filter: &[SockFilter], source: IpAddr, sent: &[u8]) -> usize {
        let called = if source.is_ipv6() { source } else { Ipv4Addr::LOCALHOST.into() };
        let door = Door::new(called, filter).unwrap();

        (0..SENT).filter(|_| door.passes(source, sent)).count()
    }

    /// One whose second MAC is so many times `mac`.
    fn initiation(mac: u8) -> Vec<u8> {
        let mut message = vec![1, 0, 0, 0];
        message.resize(132, 9);
        message.resize(148, mac);

        message
    }
}
