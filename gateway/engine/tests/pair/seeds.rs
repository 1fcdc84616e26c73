// Random sequences of events: each seed is one run.
//
// `STRAIT_SEEDS=100000` sets the number of runs for each pair of engines, uses all cores, and reports progress;
// `STRAIT_SEED=7` repeats one run.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use strait_wg::Engine;

use super::ENGINES;
use super::packets::{packet_id, udp_packet};
use super::world::{MILAN, Network, ROME, World};

/// Default number of runs for each pair of engines.
const SEEDS: u64 = 40;

/// Interval of progress reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Events in one run.
const STEPS: u64 = 60;

/// Time limit for both ends to have a session once the network is perfect. It covers data that is sent in a session
/// that the other end has lost, 15 s of silence, and crossing initiations.
const RECOVERY: Duration = Duration::from_secs(45);

/// `REKEY_TIMEOUT` of the whitepaper, section 6.1.
const REKEY_TIMEOUT: Duration = Duration::from_secs(5);

#[test]
fn random_events_lead_to_recovery() {
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
    assert!(failed == NONE, "{ENGINES:?}: repeat with STRAIT_SEED={failed}");
}

/// The value if no seed has failed.
const NONE: u64 = u64::MAX;

/// Runs that several threads share. Each thread has its own virtual clock.
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

    /// Runs seeds until none is left, or one has failed.
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

    /// Writes around the test harness, which would buffer it until the end.
    fn report(&self, elapsed: Duration) {
        let (begun, all) = (self.next.load(Ordering::Relaxed) - self.first, self.end - self.first);
        let per_second = f64::from(u32::try_from(begun).unwrap()) / elapsed.as_secs_f64();

        // Ignored if stderr is closed.
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
    addresses: u8,
    /// For each side, the initiations that may directly follow another one: the first after a restart, and the second,
    /// which goes to all addresses of the peer.
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
            queues_are_long: false,
        };
        let world = World::new(network);

        Self { random, world, sent: [0; 2], addresses: 0, excused: [(); 2].map(|()| BTreeSet::from([1])) }
    }

    fn run(mut self) {
        for _ in 0..STEPS {
            self.step();
        }

        self.world.set_network(Network::PERFECT);
        self.recover();
        self.assert_initiation_intervals();
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
                self.addresses += 1;
                self.world.move_to(ROME, ([203, 0, 113, self.addresses], 40_000).into());
            }
            15 => {
                let millis = self.below(300_000);
                self.world.suspend(Duration::from_millis(millis));
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

    /// Exempts the next initiations of `side`, which no longer knows its former ones.
    fn excuse(&mut self, side: usize) {
        let sent = self.world.checker.initiations(side).len();
        self.excused[side].extend([sent, sent + 1]);
    }

    /// Restarts a side with the native engine. The library takes timestamps from the clock of the machine, which the
    /// test does not control, and would date its initiations before the former ones.
    fn restart(&mut self) {
        let side = self.side();
        if ENGINES[side] == Engine::Native {
            self.excuse(side);
            self.world.restart(side);
        }
    }

    /// Only with the native engine, for the same reason.
    fn renew(&mut self) {
        let side = self.side();
        if ENGINES[side] == Engine::Native {
            self.excuse(side);
            self.world.renew_sessions(side);
        }
    }

    /// Delivers a datagram that was sent before, from an unrelated address, changed or not.
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

    /// Waits until a packet arrives in both directions.
    fn recover(&mut self) {
        for side in [ROME, MILAN] {
            let deadline = self.world.elapsed() + RECOVERY;
            loop {
                self.send(side);
                self.world.run(Duration::from_secs(1));
                // The recovery time of the library is not under test.
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

    /// Whether the last packet of `from` has arrived. Asserts that every packet that arrived was sent, and arrived
    /// once.
    fn has_arrived(&self, from: usize) -> bool {
        let mut ids = BTreeSet::new();
        for received in self.world.received(1 - from) {
            let id = packet_id(&received);
            assert!(id < self.sent[from] && ids.insert(id), "{id} of {from} arrived twice or was not sent");
            assert_eq!(received, translated(from, id));
        }

        ids.contains(&(self.sent[from] - 1))
    }

    /// Asserts that initiations of one instance keep the interval of section 6.4.
    fn assert_initiation_intervals(&self) {
        for side in [MILAN, ROME] {
            if ENGINES[side] != Engine::Native {
                continue;
            }
            let initiations = self.world.checker.initiations(side);
            for (number, pair) in initiations.windows(2).enumerate() {
                let gap = pair[1] - pair[0];
                let is_excused = self.excused[side].contains(&(number + 1));
                assert!(gap >= REKEY_TIMEOUT || is_excused, "{side}: {gap:?} at {:?}", pair[1]);
            }
        }
    }

    /// Asserts that nothing is sent without data once all sessions have ended.
    fn assert_silence(&mut self) {
        self.world.run(Duration::from_secs(400));
        self.world.clear_records();
        self.world.run(Duration::from_secs(400));

        assert_eq!(self.world.eavesdropped, Vec::<Vec<u8>>::new(), "datagrams without data to send");
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

/// [`packet`] as the other side receives it.
fn translated(from: usize, id: u16) -> Vec<u8> {
    if from == ROME {
        udp_packet("10.71.1.5", "10.244.2.7", id)
    } else {
        udp_packet("10.71.2.7", "10.244.1.5", id)
    }
}

/// splitmix64: its first numbers are good for every seed.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);

    mixed ^ (mixed >> 31)
}
