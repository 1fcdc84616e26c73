//! Virtual time: two and more replicas, one lease, an API server with outages.

use proptest::prelude::*;

use super::*;

const LEASE: Duration = Duration::from_secs(15);
const RETRY: Duration = Duration::from_secs(2);

fn settings(holder: &str) -> Settings {
    Settings { holder: holder.to_owned(), place: None, lease_duration: LEASE }
}

fn candidate(holder: &str) -> Candidate {
    Candidate::new(settings(holder))
}

/// An API server with one lease, and the time.
struct World {
    lease: Option<LeaseSpec>,
    start: Instant,
    now: Instant,
}

impl World {
    fn new() -> Self {
        let start = Instant::now();

        Self { lease: None, start, now: start }
    }

    fn wall(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH + self.now.duration_since(self.start)
    }

    /// One attempt of `candidate`; its write succeeds.
    fn try_acquire(&mut self, candidate: &mut Candidate) -> Role {
        self.try_acquire_at(candidate, self.wall())
    }

    /// The same, for a candidate whose clock is at `wall`.
    fn try_acquire_at(&mut self, candidate: &mut Candidate, wall: Timestamp) -> Role {
        if let Step::Write(spec) = candidate.decide(self.lease.as_ref(), self.now, wall) {
            self.lease = Some(*spec);
            candidate.written();
        }

        candidate.role()
    }
}

#[test]
fn the_second_takes_over_when_renewals_stop() {
    let (mut first, mut second, mut world) = (candidate("a"), candidate("b"), World::new());
    assert_eq!(world.try_acquire(&mut first), Role::Leader);
    assert_eq!(world.try_acquire(&mut second), Role::Standby);

    // While it is renewed, the leader does not change.
    for _ in 0..20 {
        world.now += RETRY;
        assert_eq!(world.try_acquire(&mut first), Role::Leader);
        assert_eq!(world.try_acquire(&mut second), Role::Standby);
    }
    let died = world.now;
    while world.try_acquire(&mut second) == Role::Standby {
        world.now += RETRY;
    }

    let waited = world.now - died;
    assert!((LEASE..=LEASE + RETRY).contains(&waited), "{waited:?}");
    let lease = world.lease.clone().unwrap();
    assert_eq!(lease.lease_transitions, Some(1));
    assert_eq!(lease.acquire_time, lease.renew_time);
    // The first was only asleep: it sees the new leader.
    assert_eq!(world.try_acquire(&mut first), Role::Standby);
}

#[test]
fn a_restarted_leader_takes_its_lease_at_once() {
    let restarted = |holder: &str, place: &str| {
        Candidate::new(Settings { place: Some(place.to_owned()), ..settings(holder) })
    };
    let (mut first, mut second) = (restarted("gw-1_7_a", "gw-1_7_"), candidate("gw-2_8_b"));
    let mut world = World::new();
    world.try_acquire(&mut first);
    world.try_acquire(&mut second);
    world.now += RETRY;

    let mut moved = restarted("gw-1_9_c", "gw-1_9_");
    assert_eq!(world.try_acquire(&mut moved), Role::Standby);
    let mut again = restarted("gw-1_7_d", "gw-1_7_");
    assert_eq!(world.try_acquire(&mut again), Role::Leader);

    assert_eq!(world.lease.as_ref().unwrap().lease_transitions, Some(1));
    assert!(again.clock.continue_after(world.now, world.wall()).is_some());
    assert_eq!(world.try_acquire(&mut second), Role::Standby);
}

#[test]
fn lease_durations_are_rounded_up() {
    for (requested, promised) in [(400, 1), (1_000, 1), (1_001, 2), (1_900, 2), (15_000, 15)] {
        let lease_duration = Duration::from_millis(requested);
        let settings = Settings { holder: "a".to_owned(), place: None, lease_duration };
        let (mut first, mut second, mut world) =
            (Candidate::new(settings), candidate("b"), World::new());
        world.try_acquire(&mut first);
        assert_eq!(world.lease.as_ref().unwrap().lease_duration_seconds, Some(promised));

        world.try_acquire(&mut second);
        world.now += lease_duration - Duration::from_millis(1);
        assert_eq!(world.try_acquire(&mut second), Role::Standby, "{lease_duration:?}");
        world.now += Duration::from_secs(1);
        assert_eq!(world.try_acquire(&mut second), Role::Leader, "{lease_duration:?}");
    }
}

#[test]
fn a_released_lease_is_taken_at_once() {
    let (mut first, mut second, mut world) = (candidate("a"), candidate("b"), World::new());
    world.try_acquire(&mut first);
    assert_eq!(world.try_acquire(&mut second), Role::Standby);

    world.lease = first.release(world.lease.as_ref().unwrap(), world.now, world.wall());

    assert_eq!(first.role(), Role::Standby);
    assert_eq!(world.try_acquire(&mut second), Role::Leader);
    assert_eq!(second.release(&LeaseSpec::default(), world.now, world.wall()), None, "not its own");
}

/// For any offset of the clocks, as long as no two are a quarter of an hour apart: a leader's dates are never earlier
/// than those of the leader before.
#[test]
fn a_new_leader_dates_after_the_former_one() {
    let minutes = |minutes: i64| jiff::SignedDuration::from_mins(minutes);
    for clocks in [[60, 50, 47], [60, 60, 60], [50, 60, 50], [55, 60, 46]] {
        let mut world = World::new();
        let mut newest = Duration::ZERO;
        for (number, clock) in clocks.into_iter().enumerate() {
            let mut replica = candidate(&number.to_string());
            let wall = |world: &World| world.wall() + minutes(clock);
            while world.try_acquire_at(&mut replica, wall(&world)) == Role::Standby {
                world.now += RETRY;
            }

            let after = replica.clock.continue_after(world.now, wall(&world));
            assert_eq!(after.is_some(), number > 0);
            let first = after.unwrap_or_default().max(since_1970(wall(&world)));
            assert!(first > newest, "{clocks:?}: {first:?} {newest:?}");
            // It renews for a while; the others see that it is alive.
            for _ in 0..100 {
                world.now += RETRY;
                let before = world.lease.clone();
                world.try_acquire_at(&mut replica, wall(&world));
                assert_ne!(before, world.lease, "a renewal must change the lease");
            }
            let since = RETRY * 100;
            newest = (first + since).max(since_1970(wall(&world)));
        }
    }
}

/// The dates it has used do not become earlier by that.
#[test]
fn setting_the_clock_back_keeps_the_recorded_date() {
    let minutes = jiff::SignedDuration::from_mins;
    let (mut first, mut second, mut world) = (candidate("a"), candidate("b"), World::new());
    let ahead = world.wall() + minutes(65);
    world.try_acquire_at(&mut first, ahead);
    world.now += RETRY;
    world.try_acquire_at(&mut first, world.wall() + minutes(60));

    assert!(world.lease.clone().unwrap().renew_time.unwrap().0 > ahead);
    let right = world.wall() + minutes(60);
    world.lease = first.release(world.lease.as_ref().unwrap(), world.now, right);
    world.try_acquire_at(&mut second, right);
    let after = second.clock.continue_after(world.now, right).unwrap();
    assert!(after > since_1970(ahead), "{after:?}");
    assert_eq!(first.clock.continue_after(world.now, right), None, "there was no leader before");
}

/// How long ago a Lease was released is not known, but it is less than a retry period.
#[test]
fn a_released_lease_counts_for_a_retry_period() {
    for behind in [0, 1, 300] {
        let behind = jiff::SignedDuration::from_secs(behind);
        let (mut first, mut second, mut world) = (candidate("a"), candidate("b"), World::new());
        world.now += Duration::from_secs(3_600);
        world.try_acquire(&mut first);
        world.lease = first.release(world.lease.as_ref().unwrap(), world.now, world.wall());
        let released = world.wall();
        world.now += RETRY;

        world.try_acquire_at(&mut second, world.wall() - behind);
        let after = second.clock.continue_after(world.now, world.wall() - behind).unwrap();
        assert!(after > since_1970(released + RETRY), "{after:?}");
    }
}

#[test]
fn a_clock_far_ahead_is_not_followed() {
    let mut world = World::new();
    let year = jiff::SignedDuration::from_hours(24 * 365);
    world.try_acquire_at(&mut candidate("a"), world.wall() + year);
    world.lease.as_mut().unwrap().holder_identity = None;

    let mut second = candidate("b");
    assert_eq!(world.try_acquire(&mut second), Role::Leader);
    assert_eq!(second.clock.continue_after(world.now, world.wall()), None);
    assert_eq!(world.lease.unwrap().renew_time, Some(MicroTime(World::new().wall())));
}

fn since_1970(date: Timestamp) -> Duration {
    date.as_duration().try_into().unwrap()
}

#[test]
fn an_api_server_outage_changes_no_leader() {
    let (mut first, mut second, mut world) = (candidate("a"), candidate("b"), World::new());
    world.try_acquire(&mut first);
    world.try_acquire(&mut second);

    for _ in 0..100 {
        world.now += RETRY;
        first.failed();
        second.failed();
    }
    assert_eq!(first.role(), Role::Leader);
    // The standby is the first to reach the server, and reads the lease once more before the leader renews.
    assert_eq!(world.try_acquire(&mut second), Role::Standby);
    world.now += RETRY;
    assert_eq!(world.try_acquire(&mut second), Role::Standby);
    assert_eq!(world.try_acquire(&mut first), Role::Leader);
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Stands(usize),
    CannotAsk(usize),
    Releases(usize),
    TimePasses(u16),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        5 => (0..3_usize).prop_map(Event::Stands),
        1 => (0..3_usize).prop_map(Event::CannotAsk),
        1 => (0..3_usize).prop_map(Event::Releases),
        3 => (0..3_000_u16).prop_map(Event::TimePasses),
    ]
}

proptest! {
    /// The lease has one holder; another candidate takes it only after its release, or after it was not renewed for its
    /// duration.
    #[test]
    fn a_renewed_lease_is_never_taken(events in prop::collection::vec(event(), 1..200)) {
        let mut replicas = ["a", "b", "c"].map(candidate);
        let mut world = World::new();
        let mut renewed = world.now;
        let mut holder = None;
        for event in events {
            match event {
                Event::TimePasses(ms) => world.now += Duration::from_millis(ms.into()),
                Event::CannotAsk(one) => replicas[one].failed(),
                Event::Releases(one) => {
                    let Some(lease) = world.lease.clone() else { continue };
                    if let Some(free) = replicas[one].release(&lease, world.now, world.wall()) {
                        prop_assert_eq!(holder, Some(one));
                        (world.lease, holder) = (Some(free), None);
                    }
                }
                Event::Stands(one) => if world.try_acquire(&mut replicas[one]) == Role::Leader {
                    let is_over = world.now - renewed >= LEASE;
                    prop_assert!(holder.is_none_or(|holder| holder == one || is_over));
                    (holder, renewed) = (Some(one), world.now);
                },
            }
        }
    }
}

#[test]
fn the_former_leader_sees_its_successor() {
    let (mut first, mut second, mut world) = (candidate("a"), candidate("b"), World::new());
    world.try_acquire(&mut first);
    assert!(!first.has_successor(world.lease.as_ref().unwrap()), "it is its own");

    world.lease = first.release(world.lease.as_ref().unwrap(), world.now, world.wall());
    assert!(!first.has_successor(world.lease.as_ref().unwrap()), "it has no holder");

    world.try_acquire(&mut second);
    assert!(first.has_successor(world.lease.as_ref().unwrap()));
}
