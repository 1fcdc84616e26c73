// Whatever happens, in an order that nobody has thought of: each seed is one run.
//
// `STRAIT_SEEDS=100000` makes it so many runs for each pair of engines, on all cores, and says how far they
// are; `STRAIT_SEED=7` makes it that one only.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use strait_wg::Engine;

use super::ENGINES;
use super::world::{MILAN, Network, ROME, World, packet_id, udp_packet};

/// Runs for each pair of engines, unless somebody wants more.
const SEEDS: u64 = 40;

/// How often somebody who wants more hears of them.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// What happens in one run.
const STEPS: u64 = 60;

/// How long two ends may need to find each other once the network is good: data that was sent in a session
/// which the other end has lost, 15 s of silence, and an initiation that crosses another one.
const RECOVERY: Duration = Duration::from_secs(45);

/// `REKEY_TIMEOUT` of the whitepaper, section 6.1.
const REKEY_TIMEOUT: Duration = Duration::from_secs(5);

#[test]
fn whatever_happens_what_arrives_was_sent_and_both_ends_find_each_other_again() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let wanted = number("STRAIT_SEEDS");
    let seeds = match number("STRAIT_SEED") {
        Some(seed) => Seeds::new(seed..seed + 1),
        None => Seeds::new(0..wanted.unwrap_or(SEEDS)),
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = if wanted.is_some() { cores } else { 1 };

    thread::scope(|scope| {
        for number in 0..threads {
            let is_reporter = number == 0 && wanted.is_some();
            let seeds = &seeds;
            scope.spawn(move || seeds.work(is_reporter));
        }
    });

    let failed = seeds.failed.load(Ordering::Relaxed);
    assert!(failed == NONE, "{ENGINES:?}: see above, and again with STRAIT_SEED={failed}");
}

/// No seed has failed.
const NONE: u64 = u64::MAX;

/// Runs that several threads share. The virtual clock is one of each thread.
struct Seeds {
    start: Instant,
    first: u64,
    end: u64,
    next: AtomicU64,
    failed: AtomicU64,
}

impl Seeds {
    #[expect(clippy::disallowed_methods, reason = "how long it takes is measured in real time")]
    fn new(seeds: std::ops::Range<u64>) -> Self {
        let next = AtomicU64::new(seeds.start);

        Self {
            start: Instant::now(),
            first: seeds.start,
            end: seeds.end,
            next,
            failed: AtomicU64::new(NONE),
        }
    }

    /// Until none is left, or one has failed.
    fn work(&self, is_reporter: bool) {
        let mut reported = Duration::ZERO;
        while self.failed.load(Ordering::Relaxed) == NONE {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if seed >= self.end {
                return;
            }
            let result = catch_unwind(AssertUnwindSafe(|| Run::new(seed).run()));
            if result.is_err() {
                self.failed.fetch_min(seed, Ordering::Relaxed);
            }
            let elapsed = self.start.elapsed();
            if is_reporter && elapsed - reported >= REPORT_INTERVAL {
                reported = elapsed;
                self.report(elapsed);
            }
        }
    }

    /// Past the test harness, which would keep it to itself until the end.
    fn report(&self, elapsed: Duration) {
        let (begun, all) = (self.next.load(Ordering::Relaxed) - self.first, self.end - self.first);
        let per_second = f64::from(u32::try_from(begun).unwrap()) / elapsed.as_secs_f64();

        // Nobody is left to tell if stderr is closed.
        let _ = writeln!(
            std::io::stderr(),
            "{ENGINES:?}: seed {begun} of {all} after {:.0} s, {per_second:.1} a second",
            elapsed.as_secs_f64(),
        );
    }
}

struct Run {
    random: u64,
    world: World,
    sent: [u16; 2],
    places: u8,
    /// Which initiations may follow another one at once, by whom: the first of a life, and the second, which
    /// goes to all addresses of the peer.
    excused: [BTreeSet<usize>; 2],
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = seed;
        let mut below = |bound: u32| u32::try_from(next(&mut random) % u64::from(bound)).unwrap();
        let millis = |millis: u32| Duration::from_millis(millis.into());
        let network = Network {
            seed,
            loss_percent: below(30),
            repeat_percent: below(20),
            handshake_loss_percent: below(30),
            delay: millis(below(100)),
            jitter: millis(below(200)),
            marks_congestion: false,
        };
        let world = World::new(network);

        Self { random, world, sent: [0; 2], places: 0, excused: [(); 2].map(|()| BTreeSet::from([1])) }
    }

    fn run(mut self) {
        for _ in 0..STEPS {
            self.step();
        }

        self.world.set_network(Network::PERFECT);
        self.recover();
        self.assert_pace();
        self.world.assert_accounts_balance();
        self.assert_silence();
    }

    fn step(&mut self) {
        match self.below(21) {
            0..=6 => {
                let side = self.side();
                for _ in 0..=self.below(8) {
                    self.send(side);
                }
            }
            7..=11 => self.pass(3_000),
            12 => self.pass(30_000),
            13 => self.pass(250_000),
            14 => {
                self.places += 1;
                self.world.move_to(ROME, ([203, 0, 113, self.places], 40_000).into());
            }
            15 => {
                let millis = self.below(300_000);
                self.world.leap(Duration::from_millis(millis));
            }
            16 => self.restart(),
            17 => self.inject(|_, _| {}),
            18 => self.inject(|bytes, random| {
                let bit = usize::try_from(random).unwrap() % (8 * bytes.len());
                bytes[bit / 8] ^= 1 << (bit % 8);
            }),
            19 => self.renew(),
            _ => self.inject(|bytes, random| {
                bytes.truncate(usize::try_from(random).unwrap() % bytes.len());
            }),
        }
    }

    fn pass(&mut self, most_millis: u64) {
        let millis = self.below(most_millis);
        self.world.run(Duration::from_millis(millis));
    }

    fn send(&mut self, side: usize) {
        let packet = packet(side, self.sent[side]);
        self.sent[side] += 1;
        self.world.send(side, &packet);
    }

    /// What `side` begins from now on it begins without knowing what it has begun before.
    fn excuse(&mut self, side: usize) {
        let sent = self.world.watcher.initiations(side).len();
        self.excused[side].extend([sent, sent + 1]);
    }

    /// One of ours: the library takes the time of day from the machine, whose clock the test does not own,
    /// and would date its initiations before those of its former life.
    fn restart(&mut self) {
        let side = self.side();
        if ENGINES[side] == Engine::Native {
            self.excuse(side);
            self.world.restart(side);
        }
    }

    /// For the same reason one of ours.
    fn renew(&mut self) {
        let side = self.side();
        if ENGINES[side] == Engine::Native {
            self.excuse(side);
            self.world.renew(side);
        }
    }

    /// Something that was once sent appears again, from nobody's address, changed or not.
    fn inject(&mut self, change: impl FnOnce(&mut Vec<u8>, u64)) {
        let seen = u64::try_from(self.world.eavesdropped.len()).unwrap();
        if seen == 0 {
            return;
        }
        let place = usize::try_from(self.below(seen)).unwrap();
        let mut bytes = self.world.eavesdropped[place].clone();
        change(&mut bytes, next(&mut self.random));
        let (side, there) = (self.side(), self.below(250));
        let source = ([198, 18, 0, u8::try_from(there).unwrap()], 4500).into();
        if !bytes.is_empty() {
            self.world.inject_from(source, side, &bytes);
        }
    }

    /// The client finds the server, and the server answers.
    fn recover(&mut self) {
        for side in [ROME, MILAN] {
            let deadline = self.world.elapsed() + RECOVERY;
            loop {
                self.send(side);
                self.world.run(Duration::from_secs(1));
                // What the library needs to send again is not ours to promise.
                let is_excused = ENGINES[side] == Engine::Boringtun;
                if self.has_arrived(side) || is_excused && self.world.elapsed() >= deadline {
                    break;
                }
                assert!(
                    self.world.elapsed() < deadline,
                    "nothing arrives from {side}, which sends to {:?}: {:?}, {:?}",
                    self.world.endpoint(side),
                    self.world.outbound(side),
                    self.world.inbound(1 - side),
                );
            }
        }
    }

    /// Whether the last packet of `from` came out, and all that came out was sent, and came out once.
    fn has_arrived(&self, from: usize) -> bool {
        let mut ids = BTreeSet::new();
        for received in self.world.received(1 - from) {
            let id = packet_id(&received);
            assert!(id < self.sent[from] && ids.insert(id), "{from} has sent {id} once or never");
            assert_eq!(received, translated(from, id));
        }

        ids.contains(&(self.sent[from] - 1))
    }

    /// Initiations of one end and one life are no closer than section 6.4 lets them be.
    fn assert_pace(&self) {
        for side in [MILAN, ROME] {
            if ENGINES[side] != Engine::Native {
                continue;
            }
            let initiations = self.world.watcher.initiations(side);
            for (number, pair) in initiations.windows(2).enumerate() {
                let gap = pair[1] - pair[0];
                let is_excused = self.excused[side].contains(&(number + 1));
                assert!(gap >= REKEY_TIMEOUT || is_excused, "{side}: {gap:?} at {:?}", pair[1]);
            }
        }
    }

    /// Who has nothing to say says nothing, once all sessions have ended.
    fn assert_silence(&mut self) {
        self.world.run(Duration::from_secs(400));
        self.world.forget();
        self.world.run(Duration::from_secs(400));

        assert_eq!(self.world.eavesdropped, Vec::<Vec<u8>>::new(), "somebody talks about nothing");
    }

    fn side(&mut self) -> usize {
        if self.below(2) == 0 { MILAN } else { ROME }
    }

    fn below(&mut self, bound: u64) -> u64 {
        next(&mut self.random) % bound
    }
}

fn packet(from: usize, id: u16) -> Vec<u8> {
    if from == ROME {
        udp_packet("10.244.1.5", "10.71.2.7", id)
    } else {
        udp_packet("10.244.2.7", "10.71.1.5", id)
    }
}

/// [`packet`] as the other side gets it.
fn translated(from: usize, id: u16) -> Vec<u8> {
    if from == ROME {
        udp_packet("10.71.1.5", "10.244.2.7", id)
    } else {
        udp_packet("10.71.2.7", "10.244.1.5", id)
    }
}

/// splitmix64: also its first numbers are good, whatever the seed.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);

    mixed ^ (mixed >> 31)
}
