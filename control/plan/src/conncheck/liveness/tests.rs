use std::net::IpAddr;

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::conncheck::{ConnCheck, PORT, Reaction, Report, Settings, State};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_millis(500);
const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(169, 254, 18, 1));

/// Packets of a program behind the gateway.
#[derive(Clone, Copy, Debug)]
struct Program {
    /// Between two packets; zero is none.
    gap: Duration,
    is_answered: bool,
}

const NONE: Program = Program { gap: Duration::ZERO, is_answered: false };

/// A check, the end that it asks, the path between, and a virtual clock.
struct World {
    now: Instant,
    wall_clock: Timestamp,
    client: ConnCheck,
    server: ConnCheck,
    is_stock: bool,
    is_alive: bool,
    /// Both ways together.
    round_trip: Duration,
    /// Added to each round trip, up to this.
    variation: Duration,
    /// Of both ways together, 0 to 1.
    loss: f64,
    /// How late the tunnel counts a packet.
    lag: Duration,
    /// Until then the check gets no processor.
    frozen_until: Instant,
    program: Program,
    next_packet: Instant,
    traffic: Traffic,
    counted: Vec<Instant>,
    /// Answers on their way; `None` is one to the program.
    arriving: Vec<(Instant, Option<Vec<u8>>)>,
    random: u64,
    quick_pings: usize,
    wakes: usize,
}

impl World {
    fn new(round_trip: Duration, interval: Duration) -> Self {
        let now = Instant::now();
        let settings = Settings {
            cluster_id: "milan".to_owned(),
            peer: PEER,
            port: PORT,
            interval,
            loss_threshold: 20,
            mtu: 1340,
        };

        Self {
            now,
            wall_clock: Timestamp::UNIX_EPOCH,
            client: ConnCheck::new(settings.clone(), now),
            server: ConnCheck::new(settings, now),
            is_stock: false,
            is_alive: true,
            round_trip,
            variation: Duration::ZERO,
            loss: 0.0,
            lag: MS,
            frozen_until: now,
            program: NONE,
            next_packet: now,
            traffic: Traffic::default(),
            counted: Vec::new(),
            arriving: Vec::new(),
            random: 1,
            quick_pings: 0,
            wakes: 0,
        }
    }

    /// After the first answers.
    fn connected(round_trip: Duration) -> Self {
        let mut world = Self::new(round_trip, INTERVAL);
        world.run(3 * SECOND);
        assert_eq!(world.report().state, State::Connected);

        world
    }

    fn report(&self) -> Report {
        self.client.report()
    }

    fn run(&mut self, time: Duration) {
        self.run_until(time, |_| false);
    }

    /// Until `is_so`, at most for `time`. Returns how long.
    fn run_until(&mut self, time: Duration, is_so: impl Fn(&Self) -> bool) -> Duration {
        let start = self.now;
        while self.now < start + time && !is_so(self) {
            self.now += MS;
            self.wall_clock += MS;
            self.step();
        }

        self.now - start
    }

    fn step(&mut self) {
        let now = self.now;
        if !self.program.gap.is_zero() && now >= self.next_packet {
            self.next_packet = now + self.program.gap;
            self.send(self.program.is_answered.then_some(None));
        }
        let before = self.counted.len();
        self.counted.retain(|at| *at > now);
        self.traffic.sent_packets += u64::try_from(before - self.counted.len()).unwrap();
        let (due, later) = mem::take(&mut self.arriving).into_iter().partition(|it| it.0 <= now);
        self.arriving = later;
        let due: Vec<(Instant, Option<Vec<u8>>)> = due;
        self.traffic.received_bytes += 100 * u64::try_from(due.len()).unwrap();

        if now < self.frozen_until {
            let waiting = due.into_iter().filter(|it| it.1.is_some());
            self.arriving.extend(waiting.map(|(_, pong)| (self.frozen_until, pong)));
            return;
        }
        for pong in due.into_iter().filter_map(|it| it.1) {
            self.client.handle_datagram(PEER, &pong, now);
        }
        if now >= self.client.next_timeout() {
            self.wakes += 1;
            self.wake();
        }
    }

    fn wake(&mut self) {
        let (now, wall_clock) = (self.now, self.wall_clock);
        self.client.handle_traffic(self.traffic, now);
        let mut number = self.random();
        let mut nonce = || {
            number = number.wrapping_add(1);
            number
        };
        let ping = self.client.handle_timeout(now, wall_clock, nonce());
        let quick_ping = self.client.quick_ping(now, wall_clock, &mut nonce);
        let sized = self.client.sized_pings(now, wall_clock, nonce);
        self.quick_pings += usize::from(quick_ping.is_some());

        for ping in ping.into_iter().chain(quick_ping).chain(sized) {
            let Reaction::Answer(mut pong) = self.server.handle_datagram(PEER, &ping, now) else {
                panic!("a PING is answered");
            };
            if self.is_stock {
                let text = String::from_utf8(pong).unwrap();
                pong = text.split(",\"nonce\"").next().unwrap().to_owned().into_bytes();
                pong.push(b'}');
            }
            self.send(Some(Some(pong)));
        }
    }

    /// Sends a packet that has this answer, if any.
    fn send(&mut self, answer: Option<Option<Vec<u8>>>) {
        self.counted.push(self.now + self.lag);
        let is_lost = !self.is_alive || self.share() < self.loss;
        let delay = self.round_trip + self.variation.mul_f64(self.share());
        if let Some(answer) = answer.filter(|_| !is_lost) {
            self.arriving.push((self.now + delay, answer));
        }
    }

    /// Xorshift: any sequence will do, if it is the same each time.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;

        self.random
    }

    fn share(&mut self) -> f64 {
        f64::from(u32::try_from(self.random() >> 32).unwrap()) / f64::from(u32::MAX)
    }
}

fn any_program() -> impl Strategy<Value = Program> {
    (1_u32..60, any::<bool>()).prop_map(|(gap, is_answered)| Program { gap: gap * MS, is_answered })
}

/// Ends whose program has run for a while. The times are those of round trips, of the program's steps and of the run, in
/// milliseconds.
fn running_world(program: Program, [round_trip, lag, uptime]: [u32; 3]) -> World {
    let mut world = World::connected(round_trip * MS);
    world.lag = lag * MS;
    world.program = program;
    world.run(uptime * MS);

    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_dead_end_is_found_within_600_ms(
        program in any_program(),
        round_trip in 0_u32..80,
        lag in 0_u32..5,
        uptime in 0_u32..3_000,
    ) {
        let mut world = running_world(program, [round_trip, lag, uptime]);
        prop_assert_eq!(world.report().silences, 0);

        world.is_alive = false;
        let since_arrival = world.round_trip;
        let took = world.run_until(2 * SECOND, |world| world.report().silences > 0);
        // Two looks at the traffic, three intervals, and the time for the last answer.
        prop_assert!(took <= since_arrival + 610 * MS, "{:?}", took);
        prop_assert!(took >= 390 * MS, "{:?}", took);
        prop_assert!(world.report().suspicions > 0);
    }

    /// From the last packet that has arrived.
    #[test]
    fn a_dead_end_is_suspected_within_350_ms(
        program in any_program(),
        round_trip in 0_u32..30,
        lag in 0_u32..5,
        uptime in 0_u32..3_000,
    ) {
        let mut world = running_world(program, [round_trip, lag, uptime]);
        prop_assert!(!world.report().is_suspected);

        world.is_alive = false;
        let took = world.run_until(2 * SECOND, |world| world.report().is_suspected);
        let since_arrival = world.round_trip + program.gap;
        prop_assert!(took <= since_arrival + 355 * MS, "{:?}", took);

        world.is_alive = true;
        let took = world.run_until(SECOND, |world| !world.report().is_suspected);
        prop_assert!(took <= 110 * MS + world.round_trip, "{:?}", took);
    }

    /// The program answers packets of the other end, so nothing is sent when that one is gone.
    #[test]
    fn a_dead_end_is_suspected_without_packets(
        gap in 1_u32..60,
        round_trip in 0_u32..30,
        lag in 0_u32..5,
        uptime in 500_u32..3_000,
    ) {
        let program = Program { gap: gap * MS, is_answered: true };
        let mut world = running_world(program, [round_trip, lag, uptime]);

        (world.is_alive, world.program) = (false, NONE);
        let took = world.run_until(2 * SECOND, |world| world.report().is_suspected);
        prop_assert!(took <= world.round_trip + program.gap + 355 * MS, "{:?}", took);
    }

    #[test]
    fn a_pause_at_both_ends_is_probed_once(
        gap in 1_u32..60,
        round_trip in 0_u32..300,
        uptime in 500_u32..3_000,
    ) {
        let program = Program { gap: gap * MS, is_answered: true };
        let mut world = running_world(program, [round_trip, 1, uptime]);
        // On a long path nothing arrives at first.
        let before = world.quick_pings;

        world.program = NONE;
        world.run(30 * SECOND);
        // Further ones until the first is answered.
        let probes = world.quick_pings - before;
        prop_assert!(probes <= 2 + usize::try_from(round_trip / 100).unwrap(), "{}", probes);
        prop_assert_eq!((world.report().silences, world.report().is_suspected), (0, false));
    }

    #[test]
    fn packets_that_arrive_replace_quick_pings(
        gap in 1_u32..50,
        round_trip in 0_u32..45,
        variation in 0_u32..45,
    ) {
        let mut world = World::connected(round_trip * MS);
        world.variation = variation * MS;
        world.program = Program { gap: gap * MS, is_answered: true };
        // The first packet may be on its way when the check looks.
        world.run(SECOND);
        let before = world.quick_pings;
        world.run(20 * SECOND);

        prop_assert!(before <= 1);
        prop_assert_eq!((world.quick_pings, world.report().silences), (before, 0));
    }

    #[test]
    fn without_packets_there_is_no_quick_ping(lag in 0_u32..95, round_trip in 0_u32..300) {
        let mut world = World::connected(round_trip * MS);
        world.lag = lag * MS;
        world.run(30 * SECOND);

        prop_assert_eq!(world.quick_pings, 0);
    }

    /// One that sends and hears nothing has no other sign of life than quick probes.
    #[test]
    fn a_path_that_varies_is_not_silent(
        round_trip in 0_u32..200,
        variation in 0_u32..200,
        seed in 1_u64..,
    ) {
        let mut world = World::connected(round_trip * MS);
        world.random = seed;
        world.variation = variation * MS;
        world.program = Program { gap: 10 * MS, is_answered: false };
        world.run(30 * SECOND);

        prop_assert_eq!(world.report().silences, 0);
        prop_assert!(world.quick_pings > 50);
    }

    #[test]
    fn waiting_for_the_processor_is_not_silence(
        freezes in prop::collection::vec((0_u32..2_000, 0_u32..4_000), 1..10),
    ) {
        let mut world = World::connected(5 * MS);
        world.program = Program { gap: 10 * MS, is_answered: false };
        for (uptime, freeze) in freezes {
            world.run(uptime * MS);
            world.frozen_until = world.now + freeze * MS;
        }
        world.run(SECOND);

        prop_assert_eq!(world.report().silences, 0);
    }

    #[test]
    fn a_pause_of_350_ms_is_no_silence(uptimes in prop::collection::vec(500_u32..2_500, 1..20)) {
        let mut world = World::connected(5 * MS);
        world.program = Program { gap: 10 * MS, is_answered: true };
        for uptime in uptimes {
            world.run(uptime * MS);
            world.is_alive = false;
            world.run(350 * MS);
            world.is_alive = true;
        }

        prop_assert_eq!(world.report().silences, 0);
    }

    #[test]
    fn loss_starts_few_handshakes(loss in 0.0_f64..0.4, seed in 1_u64..) {
        let mut world = World::connected(20 * MS);
        world.random = seed;
        world.loss = loss;
        world.program = Program { gap: 10 * MS, is_answered: false };
        world.run(60 * SECOND);

        let silences = world.report().silences;
        // Two regular probes in a row are silence with a stock gateway as well.
        prop_assert!(silences <= 12 + 12, "{}", silences);
        prop_assert!(loss > 0.02 || silences <= 1, "{} at {}", silences, loss);
    }
}

/// Over all times of death between two looks at the traffic.
#[test]
fn suspicion_takes_300_ms_on_average() {
    let times = (0_u32..100).map(|uptime| {
        let mut world = World::connected(5 * MS);
        world.program = Program { gap: 5 * MS, is_answered: true };
        world.run(SECOND + uptime * MS);
        world.is_alive = false;
        world.run_until(SECOND, |world| world.report().is_suspected)
    });
    let times: Vec<_> = times.collect();

    let mean = times.iter().sum::<Duration>() / 100;
    let longest = times.iter().max().unwrap();
    assert!(mean <= 305 * MS, "{mean:?}");
    assert!(*longest <= 360 * MS, "{longest:?}");
}

#[test]
fn a_second_outage_is_suspected_as_soon() {
    let mut world = World::connected(5 * MS);
    world.program = Program { gap: 10 * MS, is_answered: true };
    for _ in 0..3 {
        world.run(5 * SECOND);
        assert!(!world.report().is_suspected);
        world.is_alive = false;
        let took = world.run_until(SECOND, |world| world.report().is_suspected);
        assert!(took <= 365 * MS, "{took:?}");
        world.run(9 * SECOND);
        world.is_alive = true;
    }
}

#[test]
fn a_stock_gateway_gets_no_quick_ping() {
    let mut world = World::new(5 * MS, INTERVAL);
    world.is_stock = true;
    world.program = Program { gap: 10 * MS, is_answered: false };
    world.run(10 * SECOND);
    assert_eq!(world.report().state, State::Connected);

    world.is_alive = false;
    let took = world.run_until(3 * SECOND, |world| world.report().silences > 0);
    assert!((INTERVAL..=3 * INTERVAL + 2 * MS).contains(&took), "{took:?}");
    assert_eq!((world.quick_pings, world.report().silence_limit), (0, None));
}

#[test]
fn silence_is_found_each_second_until_the_loss() {
    let mut world = World::connected(5 * MS);
    world.program = Program { gap: 10 * MS, is_answered: true };
    world.run(SECOND);

    world.is_alive = false;
    world.wakes = 0;
    let mut found = Vec::new();
    for number in 1..=9 {
        found.push(world.run_until(3 * SECOND, |world| world.report().silences == number));
    }
    for later in &found[1..] {
        assert!((SECOND..=SECOND + INTERVAL + 2 * MS).contains(later), "{found:?}");
    }
    world.run(20 * SECOND);
    assert!(world.wakes < 40 * 30, "{}", world.wakes);
    assert_eq!(world.report().state, State::Lost);
    assert!(world.report().silences <= 10, "{:?}", world.report());

    world.is_alive = true;
    world.run(SECOND);
    assert_eq!(world.report().state, State::Connected);
}

/// As when the peer answers handshakes, but not what comes through the tunnel.
#[test]
fn silence_is_found_at_most_every_five_seconds() {
    // Only quick probes are missed twice in a row.
    let mut world = World::new(5 * MS, 2 * SECOND);
    world.program = Program { gap: 10 * MS, is_answered: true };
    world.run(3 * SECOND);
    for _ in 0..30 {
        world.is_alive = false;
        world.run(700 * MS);
        world.is_alive = true;
        world.run(450 * MS);
    }

    let silences = world.report().silences;
    assert!((5..=7).contains(&silences), "{silences}");
}

#[test]
fn quick_pings_become_rare_when_nothing_is_sent() {
    let mut world = World::connected(5 * MS);
    world.program = Program { gap: 10 * MS, is_answered: true };
    world.run(SECOND);

    world.is_alive = false;
    world.run(200 * MS);
    world.program = NONE;
    world.run(9 * SECOND);
    assert_eq!(world.report().silences, 9);
    // Ten in the first second, then ever fewer, down to those of the configured interval.
    assert!((10..=40).contains(&world.quick_pings), "{}", world.quick_pings);
}

#[test]
fn an_idle_check_wakes_every_50_ms() {
    let mut world = World::connected(5 * MS);
    world.wakes = 0;
    world.run(60 * SECOND);

    assert!(world.wakes <= 20 * 60, "{}", world.wakes);
}

/// One is lost, one waits for a session.
#[test]
fn early_probes_change_no_limit() {
    let mut world = World::new(5 * MS, INTERVAL);
    world.is_alive = false;
    world.run(INTERVAL);
    world.is_alive = true;
    world.round_trip = 5 * SECOND;
    world.run(MS);
    world.round_trip = 5 * MS;
    world.run_until(20 * SECOND, |world| world.report().silence_limit.is_some());
    world.run(2 * INTERVAL);

    assert_eq!(world.report().silence_limit, Some(400 * MS));
    assert!(world.report().jitter < MS, "{:?}", world.report());
}

#[test]
fn a_lossy_path_needs_more_probes() {
    let mut liveness = Liveness::new(INTERVAL, Instant::now());
    let mut needed = |loss| {
        liveness.set_loss(loss);
        liveness.needed
    };

    assert_eq!([0.0, 0.09, 0.125, 0.25, 1.0].map(&mut needed), [4, 4, 5, 7, 10]);
}
