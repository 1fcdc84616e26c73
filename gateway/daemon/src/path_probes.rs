//! Probes of the paths to peers without a connection check: in the session, where only a gateway of Strait answers.
//!
//! A path is probed while packets are sent, so an idle tunnel stays silent. A peer that has not answered gets two probes
//! in each session: other implementations count each as an error.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant, SystemTime};

use strait_io::PeerStatus;
use strait_plan::conncheck::{PROBE_BYTES_MIN, PathMtuDiscovery};
use strait_wg::{PathMtuSource, PublicKey};

/// How many probes a peer gets in a session until it answers one, and their interval.
const TRIES: u8 = 2;
const TRY_INTERVAL: Duration = Duration::from_secs(1);

/// How long a path is probed after a packet: a few times the interval at which packets are counted.
const ACTIVE: Duration = Duration::from_secs(3);

/// After so long without an answer the peer counts as another implementation: as long as a session lasts.
const SILENCE_MAX: Duration = Duration::from_secs(180);

/// The probes of all peers.
#[derive(Debug, Default)]
pub(crate) struct PathProbes {
    peers: HashMap<PublicKey, ProbedPath>,
}

/// What to do for the path to a peer.
#[derive(Debug)]
pub(crate) struct PathProbing {
    pub(crate) peer: PublicKey,
    /// The lengths of the probes to send, in bytes.
    pub(crate) lengths: Vec<u16>,
    /// The longest packet that passes, in bytes, if that is known.
    pub(crate) found: Option<u16>,
}

#[derive(Debug)]
struct ProbedPath {
    /// The start of the session.
    handshake: Option<SystemTime>,
    /// Packets that had been sent to the peer at the last count.
    packets: u64,
    active_until: Instant,
    /// When the last answer arrived, or since when the path is probed again if that is later.
    heard: Instant,
    /// What a former process has found, in bytes: it counts until something is found here.
    inherited: Option<u16>,
    round_trip: Duration,
    state: State,
}

#[derive(Debug)]
enum State {
    /// It has not answered.
    Trying { tries_left: u8, due: Instant },
    /// It answers.
    Discovering(PathMtuDiscovery),
}

impl PathProbes {
    /// Handles the state of the peers: probes follow those that are sent packets, in a session, of up to `mtu` bytes.
    pub(crate) fn handle_status(&mut self, peers: &[PeerStatus], mtu: u16, now: Instant) {
        for peer in peers.iter().filter(|peer| peer.has_session) {
            let path =
                self.peers.entry(peer.public_key).or_insert_with(|| ProbedPath::new(peer, now));
            path.handle_status(peer, mtu, now);
        }
        if self.peers.len() > peers.len() {
            let known: HashSet<_> = peers.iter().map(|peer| peer.public_key).collect();
            self.peers.retain(|key, _| known.contains(key));
        }
    }

    /// When [`Self::handle_timeout`] is due; `None` if no path is probed.
    pub(crate) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let active = self.peers.values().filter(|path| path.active_until > now);

        active.filter_map(ProbedPath::next_timeout).min()
    }

    /// Handles the `answers` to probes of the paths that are due, and returns what to do.
    pub(crate) fn handle_timeout(
        &mut self,
        mtu: u16,
        now: Instant,
        answers: impl Fn(PublicKey) -> Vec<u16>,
    ) -> Vec<PathProbing> {
        let active = self.peers.iter_mut().filter(|(_, path)| path.active_until > now);
        let due = active.filter(|(_, path)| path.next_timeout().is_some_and(|due| due <= now));

        due.map(|(peer, path)| {
            let lengths = path.handle_timeout(&answers(*peer), mtu, now);
            PathProbing { peer: *peer, lengths, found: path.found() }
        })
        .collect()
    }

    /// The longest packet that passes to `peer`, in bytes, if that is known.
    pub(crate) fn found(&self, peer: PublicKey) -> Option<u16> {
        self.peers.get(&peer).and_then(ProbedPath::found)
    }
}

impl ProbedPath {
    fn new(peer: &PeerStatus, now: Instant) -> Self {
        let inherited = peer.path_mtu.filter(|found| found.source == PathMtuSource::Probe);
        let inherited = inherited.map(|found| found.bytes);

        Self {
            handshake: peer.last_handshake,
            packets: 0,
            active_until: now,
            heard: now,
            inherited,
            round_trip: Duration::ZERO,
            state: State::trying(now),
        }
    }

    fn handle_status(&mut self, peer: &PeerStatus, mtu: u16, now: Instant) {
        self.round_trip = peer.rtt.unwrap_or_default();
        if self.packets != peer.transmit_packets {
            self.packets = peer.transmit_packets;
            if self.active_until <= now {
                self.heard = now;
            }
            self.active_until = now + ACTIVE;
        }
        let is_renewed = self.handshake != peer.last_handshake;
        self.handshake = peer.last_handshake;
        match &mut self.state {
            State::Trying { .. } if is_renewed => self.try_again(now),
            State::Trying { .. } => {}
            State::Discovering(discovery) => discovery.set_limit(mtu, now),
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Trying { due, .. } => Some(*due),
            State::Discovering(discovery) => Some(discovery.next_timeout()),
        }
    }

    fn handle_timeout(&mut self, answers: &[u16], mtu: u16, now: Instant) -> Vec<u16> {
        if !answers.is_empty() {
            self.heard = now;
            if matches!(self.state, State::Trying { .. }) {
                self.state = State::Discovering(PathMtuDiscovery::new(mtu, now));
            }
        } else if now.saturating_duration_since(self.heard) > SILENCE_MAX
            && matches!(self.state, State::Discovering(_))
        {
            self.try_again(now);
        }

        match &mut self.state {
            State::Trying { tries_left, due, .. } => {
                *due = now + TRY_INTERVAL;
                if *tries_left == 0 {
                    return Vec::new();
                }
                *tries_left -= 1;
                vec![PROBE_BYTES_MIN]
            }
            State::Discovering(discovery) => {
                for bytes in answers {
                    discovery.handle_answer(*bytes, now);
                }
                discovery.handle_timeout(now, self.round_trip)
            }
        }
    }

    /// Nothing that was found counts any more.
    fn try_again(&mut self, now: Instant) {
        self.inherited = None;
        self.state = State::trying(now);
    }

    fn found(&self) -> Option<u16> {
        match &self.state {
            State::Trying { .. } => self.inherited,
            State::Discovering(discovery) => discovery.get().or(self.inherited),
        }
    }
}

impl State {
    const fn trying(now: Instant) -> Self {
        Self::Trying { tries_left: TRIES, due: now }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use strait_wg::{PathMtu, PrivateKey};

    use super::*;

    const TICK: Duration = Duration::from_secs(1);
    const MTU: u16 = 1420;

    /// A peer, its path, and the packets that are sent to it.
    struct World {
        probes: PathProbes,
        peer: PeerStatus,
        now: Instant,
        next_tick: Instant,
        /// Whether the peer answers.
        is_strait: bool,
        /// The longest packet that passes, in bytes.
        passes: u16,
        sends: bool,
        unread: Vec<u16>,
        sent: Vec<u16>,
    }

    impl World {
        fn new() -> Self {
            let now = crate::service::now();
            let mut peer = PeerStatus::new("rome", PrivateKey::generate().public_key());
            peer.has_session = true;
            peer.last_handshake = Some(SystemTime::UNIX_EPOCH);

            Self {
                probes: PathProbes::default(),
                peer,
                now,
                next_tick: now,
                is_strait: true,
                passes: u16::MAX,
                sends: true,
                unread: Vec::new(),
                sent: Vec::new(),
            }
        }

        fn run(&mut self, most: Duration) {
            let end = self.now + most;
            while self.now < end {
                if self.now >= self.next_tick {
                    self.next_tick += TICK;
                    self.peer.transmit_packets += u64::from(self.sends);
                    let peers = std::slice::from_ref(&self.peer);
                    self.probes.handle_status(peers, MTU, self.now);
                }
                let unread = std::mem::take(&mut self.unread);
                let is_due = self.probes.next_timeout(self.now).is_some_and(|due| due <= self.now);
                if is_due {
                    let probes = self.probes.handle_timeout(MTU, self.now, |_| unread.clone());
                    for bytes in probes.into_iter().flat_map(|probing| probing.lengths) {
                        self.sent.push(bytes);
                        if self.is_strait && bytes <= self.passes {
                            self.unread.push(bytes);
                        }
                    }
                } else {
                    self.unread = unread;
                }
                let next = self.probes.next_timeout(self.now).unwrap_or(self.next_tick);
                self.now = next.min(self.next_tick).max(self.now + Duration::from_millis(1));
            }
        }

        fn found(&self) -> Option<u16> {
            self.probes.found(self.peer.public_key)
        }
    }

    proptest! {
        #[test]
        fn what_passes_is_in_force_within_two_seconds(
            passes in prop::collection::vec(PROBE_BYTES_MIN..MTU, 1..5),
        ) {
            let mut world = World::new();
            world.run(Duration::from_secs(3));
            prop_assert_eq!(world.found(), Some(MTU));

            for passes in passes {
                world.passes = passes;
                world.run(Duration::from_secs(2));
                prop_assert!(world.found().is_some_and(|found| found <= passes), "{:?}", world.found());
                world.run(Duration::from_secs(8));
                prop_assert_eq!(world.found(), Some(passes / 16 * 16));
            }
        }
    }

    #[test]
    fn another_implementation_gets_two_probes_a_session() {
        let mut world = World::new();
        world.is_strait = false;
        for session in 1..4 {
            world.run(Duration::from_secs(120));
            assert_eq!(world.sent.len(), session * usize::from(TRIES));
            assert_eq!(world.found(), None);
            world.peer.last_handshake = world.peer.last_handshake.map(|at| at + SILENCE_MAX);
        }
    }

    #[test]
    fn an_idle_path_is_not_probed() {
        let mut world = World::new();
        world.run(Duration::from_secs(3));
        world.sends = false;
        world.run(ACTIVE + TICK);
        world.sent.clear();

        world.run(Duration::from_secs(600));
        assert_eq!((world.sent.len(), world.found()), (0, Some(MTU)));
        assert_eq!(world.probes.next_timeout(world.now), None);

        world.sends = true;
        world.passes = 1_000;
        world.run(Duration::from_secs(3));
        assert!(world.found().is_some_and(|found| found <= 1_000), "{:?}", world.found());
    }

    #[test]
    fn a_replaced_peer_is_forgotten() {
        let mut world = World::new();
        world.passes = 1_000;
        world.run(Duration::from_secs(10));
        assert_eq!(world.found(), Some(992));

        world.is_strait = false;
        world.run(SILENCE_MAX + Duration::from_secs(5));
        assert_eq!(world.found(), None);
        world.sent.clear();
        world.run(Duration::from_secs(600));
        assert!(world.sent.len() <= usize::from(TRIES), "{}", world.sent.len());
    }

    #[test]
    fn what_was_inherited_counts_until_probed() {
        let mut world = World::new();
        world.peer.path_mtu = Some(PathMtu { bytes: 1_200, source: PathMtuSource::Probe });
        world.passes = 1_200;
        for _ in 0..100 {
            world.run(Duration::from_millis(100));
            assert_eq!(world.found(), Some(1_200));
        }

        world.passes = u16::MAX;
        world.run(Duration::from_secs(10));
        assert_eq!(world.found(), Some(MTU));
    }
}
