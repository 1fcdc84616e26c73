//! Whether the gateway at the other end of the tunnel answers: Liqo's connection check.
//!
//! Each gateway sends a PING every interval and answers those of the other with a PONG, in UDP inside
//! the tunnel. Padded PINGs show how long packets on the path may be. Between two of ours, quick ones follow while
//! packets are sent and none arrives. The state machine here does no I/O: datagrams, counters, time and randomness are
//! arguments.
//!
//! # Invariants
//!
//! - A datagram causes at most one answer, which goes to its source.
//! - Only the gateway at the other end can change what is reported, and only by a PONG to a PING that
//!   was sent. Once it has proved to be one of ours, it must repeat a nonce as well. A message that says that it is
//!   draining repeats a nonce, too.
//! - Every stock gateway accepts what is sent here.
//!
//! # Not here
//!
//! The socket, and the `Connection` in which the result is reported.

mod draining;
mod gso_guard;
mod liveness;
mod message;
mod path_mtu;
mod report;
mod round_trip;
mod silence;
#[cfg(test)]
mod tests;
mod window;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use draining::Draining;
use gso_guard::{DamageCount, GsoGuard};
use liveness::Liveness;
use message::{Kind, Message};
use round_trip::RoundTrip;
use silence::Silence;
use window::Window;

pub use liveness::Traffic;
pub use path_mtu::{LEAST as PROBE_BYTES_MIN, PathMtuDiscovery};
pub use report::{Report, State};

/// The UDP port on which a gateway listens by default, over IPv4.
pub const PORT: u16 = 12345;

/// Longest datagram that a stock gateway reads whole, in bytes. It ignores the rest of a longer one, which is padding.
pub const MESSAGE_BYTES_MAX: usize = 1024;

/// Bytes of the IPv4 and the UDP header in front of a message.
const HEADER_BYTES: u16 = 28;

/// The most PINGs of the path MTU whose answers are awaited: those of a few rounds.
const SIZED_PROBES: usize = 64;

/// What tells PINGs apart that are sent at the same time: the digits of a time stamp are nanoseconds.
const TIME_STEP: Duration = Duration::from_nanos(1);

/// The gain of the jitter estimate (RFC 3550 section 6.4.1).
const JITTER_GAIN: u32 = 16;

/// The settings of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The id of the remote cluster, as in this cluster.
    pub cluster_id: String,
    /// The address of the gateway at the other end of the tunnel.
    pub peer: IpAddr,
    /// The UDP port of both gateways.
    pub port: u16,
    /// Time between two PINGs.
    pub interval: Duration,
    /// The number of intervals without an answer after which the connection is lost.
    pub loss_threshold: u32,
    /// The MTU of the tunnel device in bytes: the longest packet that is tried on the path.
    pub mtu: u16,
}

impl Settings {
    /// How long the other end may be silent.
    fn patience(&self) -> Duration {
        self.interval.saturating_mul(self.loss_threshold)
    }
}

/// The result of a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// Send this to the source of the datagram.
    Answer(Vec<u8>),
    /// The other end has answered: the report may have changed.
    Heard,
    /// The datagram is ignored, and why.
    Ignored(Ignored),
}

/// Why a datagram is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// It did not come from the other end of the tunnel.
    ForeignSource,
    /// It is too long, or not a message.
    Malformed,
    /// A PONG for another cluster.
    OtherCluster,
    /// A PONG that answers no outstanding PING.
    Unexpected,
    /// A PONG without the nonce, from a gateway that repeats nonces, or with a wrong one.
    WrongNonce,
}

/// The PONG to `datagram`, if that is a PING. For nodes of Liqo after 1.2, which check the gateway and are not checked.
#[must_use]
pub fn answer(datagram: &[u8]) -> Option<Vec<u8>> {
    let message = Message::from_bytes(datagram).filter(|message| message.kind == Kind::Ping)?;

    Some(message.into_pong(0, false).to_bytes())
}

/// Checks one connection.
#[derive(Clone, Debug)]
pub struct ConnCheck {
    settings: Settings,
    next_ping: Instant,
    /// When the other end was last heard; until then, the start of the check.
    last_heard: Instant,
    /// When the connection was last established; until then, the start of the check.
    connected_at: Instant,
    /// The previous round trip, for the jitter.
    last_round_trip: Option<Duration>,
    report: Report,
    window: Window,
    /// Of PINGs that only a connected end gets: any other may have waited for a session.
    round_trip: RoundTrip,
    silence: Silence,
    /// Of a connected end that repeats nonces.
    liveness: Option<Liveness>,
    /// When such an end last answered a quick PING.
    last_quick_answer: Option<Instant>,
    /// Of a connected end.
    path_mtu: Option<PathMtuDiscovery>,
    /// The newest last.
    sized_probes: VecDeque<SizedProbe>,
    damage_count: DamageCount,
    /// The packets sent to the other end, at the last look.
    sent_packets: u64,
    gso_guard: GsoGuard,
    draining: Draining,
}

/// A PING that was padded to a length, and is not answered yet.
#[derive(Clone, Debug)]
struct SizedProbe {
    nonce: u64,
    /// Of no other PING: a stock gateway repeats nothing else.
    time_stamp: String,
    bytes: u16,
    sent: Instant,
}

impl ConnCheck {
    /// Starts at `now`, when the first PING is due: a gateway that takes over soon knows the path.
    #[must_use]
    pub fn new(settings: Settings, now: Instant) -> Self {
        Self {
            window: Window::new(settings.interval),
            silence: Silence::new(settings.interval),
            settings,
            next_ping: now,
            last_heard: now,
            connected_at: now,
            last_round_trip: None,
            report: Report::default(),
            round_trip: RoundTrip::default(),
            liveness: None,
            last_quick_answer: None,
            path_mtu: None,
            sized_probes: VecDeque::with_capacity(SIZED_PROBES),
            damage_count: DamageCount::default(),
            sent_packets: 0,
            gso_guard: GsoGuard::default(),
            draining: Draining::default(),
        }
    }

    /// The current result.
    #[must_use]
    pub fn report(&self) -> Report {
        let is_draining = self.draining.is_other_draining();

        Report { is_suspected: self.is_suspected(), is_draining, ..self.report }
    }

    /// Whether quick PINGs are not answered, or those of the interval and nothing else has arrived since.
    fn is_suspected(&self) -> bool {
        let has_arrived_since = |found_at| {
            self.liveness.as_ref().is_some_and(|liveness| liveness.last_heard() > found_at)
        };
        let is_silent = self.silence.found_at().is_some_and(|at| !has_arrived_since(at));

        is_silent || self.liveness.as_ref().is_some_and(Liveness::is_suspected)
    }

    /// This end is draining: it tells the other end with every message from now on.
    pub fn drain(&mut self, now: Instant) {
        self.draining.start(now);
    }

    /// The MTU of the tunnel device has changed to `mtu` bytes.
    pub fn set_mtu(&mut self, mtu: u16, now: Instant) {
        self.settings.mtu = mtu;
        if let Some(path_mtu) = &mut self.path_mtu {
            path_mtu.set_limit(mtu, now);
            self.report.path_mtu = path_mtu.get();
        }
    }

    /// When [`Self::handle_traffic`], [`Self::handle_timeout`], [`Self::quick_ping`], [`Self::draining_ping`] and
    /// [`Self::sized_pings`] are due.
    #[must_use]
    pub fn next_timeout(&self) -> Instant {
        let next = match self.report.state {
            State::Connecting | State::Connected => self.next_ping.min(self.deadline()),
            State::Lost => self.next_ping,
        };
        let path_mtu = self.path_mtu.as_ref().map(PathMtuDiscovery::next_timeout);
        let liveness =
            self.liveness.as_ref().map(|liveness| liveness.next_timeout(&self.round_trip));

        let draining = self.draining.next_timeout();

        [path_mtu, liveness, draining].into_iter().flatten().fold(next, Instant::min)
    }

    /// Handles the counters of the tunnel to the other end.
    pub fn handle_traffic(&mut self, traffic: Traffic, now: Instant) {
        let is_connected = self.report.state == State::Connected;
        self.damage_count.handle_traffic(traffic.damaged_datagrams, is_connected);
        self.sent_packets = traffic.sent_packets;
        if let Some(liveness) = &mut self.liveness {
            liveness.handle_traffic(traffic, now);
        }
    }

    /// Detects silence and loss of the connection, and returns the PING to send to the other end, if one is due.
    ///
    /// `wall_clock` is the time that the PING carries; `nonce` must be unpredictable.
    pub fn handle_timeout(
        &mut self,
        now: Instant,
        wall_clock: Timestamp,
        nonce: u64,
    ) -> Option<Vec<u8>> {
        if now > self.deadline() && self.report.state != State::Lost {
            self.report =
                Report { state: State::Lost, latency: None, path_mtu: None, ..self.report };
            // The other end may return as another release.
            self.report.is_strait = false;
            self.path_mtu = None;
            self.liveness = None;
            self.round_trip = RoundTrip::default();
            self.draining.forget_other();
        }
        if let Some(liveness) = &mut self.liveness
            && let Some(finding) = liveness.finding(&self.round_trip, now)
        {
            self.silence.handle_finding(finding, now);
        }
        let ping = (now >= self.next_ping).then(|| self.ping(now, wall_clock, nonce));
        let Silence { suspicions, silences, .. } = self.silence;
        let limit = self.liveness.as_ref().map(|liveness| liveness.limit(&self.round_trip));
        self.report = Report { suspicions, silences, silence_limit: limit, ..self.report };

        ping
    }

    /// The PING of the configured interval.
    fn ping(&mut self, now: Instant, wall_clock: Timestamp, nonce: u64) -> Vec<u8> {
        // PINGs missed while the process slept are not sent late.
        self.next_ping = now + self.settings.interval;
        self.report.loss = self.window.loss(now);
        let missed = self.window.missed(self.last_quick_answer, now);
        self.silence.handle_missed(missed, self.report.state == State::Connected, now);

        let time_stamp = wall_clock.to_string();
        let ping = self.draining.message(&self.settings.cluster_id, &time_stamp, nonce);
        self.window.push(time_stamp, nonce, now);
        self.count_own_packet();

        ping.to_bytes()
    }

    /// The PING that is due because packets are sent to the other end and none arrives: none to a stock gateway. It gets a
    /// `nonce`.
    pub fn quick_ping(
        &mut self,
        now: Instant,
        wall_clock: Timestamp,
        nonce: impl FnOnce() -> u64,
    ) -> Option<Vec<u8>> {
        let nonce = self.liveness.as_mut()?.poll_probe(now, nonce)?;
        self.count_own_packet();
        let time_stamp = wall_clock.to_string();
        let ping = self.draining.message(&self.settings.cluster_id, &time_stamp, nonce);

        Some(ping.to_bytes())
    }

    /// The PING that is due because this end is draining: none to a stock gateway. It gets a `nonce`. No answer is awaited.
    pub fn draining_ping(
        &mut self,
        now: Instant,
        wall_clock: Timestamp,
        nonce: impl FnOnce() -> u64,
    ) -> Option<Vec<u8>> {
        if !self.draining.poll(now) {
            return None;
        }
        self.count_own_packet();
        let time_stamp = wall_clock.to_string();
        let ping = self.draining.message(&self.settings.cluster_id, &time_stamp, nonce());

        Some(ping.to_bytes())
    }

    /// The padded PINGs that are due, which show what the path carries. Each gets a `nonce`, and a time of its own.
    pub fn sized_pings(
        &mut self,
        now: Instant,
        wall_clock: Timestamp,
        mut nonce: impl FnMut() -> u64,
    ) -> Vec<Vec<u8>> {
        let Some(path_mtu) = &mut self.path_mtu else { return Vec::new() };
        let lengths = path_mtu.handle_timeout(now, self.report.latency.unwrap_or_default());
        self.report.path_mtu = path_mtu.get();
        lengths.iter().for_each(|_| self.count_own_packet());

        let mut time = wall_clock;
        let ping = |bytes: u16| {
            let nonce = nonce();
            time = time.saturating_add(TIME_STEP).unwrap_or(time);
            let time_stamp = time.to_string();
            let ping = self.draining.message(&self.settings.cluster_id, &time_stamp, nonce);
            if self.sized_probes.len() == SIZED_PROBES {
                self.sized_probes.pop_front();
            }
            self.sized_probes.push_back(SizedProbe { nonce, time_stamp, bytes, sent: now });
            ping.to_padded_bytes(bytes.saturating_sub(HEADER_BYTES).into())
        };
        lengths.into_iter().map(ping).collect()
    }

    /// Handles a datagram from `source`.
    pub fn handle_datagram(&mut self, source: IpAddr, bytes: &[u8], now: Instant) -> Reaction {
        if source != self.settings.peer {
            return Reaction::Ignored(Ignored::ForeignSource);
        }
        let Some(message) = Message::from_bytes(bytes) else {
            return Reaction::Ignored(Ignored::Malformed);
        };

        match message.kind {
            Kind::Ping => {
                self.count_own_packet();
                self.draining.handle_ping(&message);
                let is_draining = self.draining.is_draining();
                let pong = message.into_pong(self.damage_count.total(), is_draining);
                Reaction::Answer(pong.to_bytes())
            }
            Kind::Pong => match self.handle_pong(&message, now) {
                Ok(()) => {
                    self.draining.handle_mark(message.draining);
                    Reaction::Heard
                }
                Err(ignored) => Reaction::Ignored(ignored),
            },
        }
    }

    fn handle_pong(&mut self, pong: &Message, now: Instant) -> Result<(), Ignored> {
        if pong.cluster_id != self.settings.cluster_id {
            return Err(Ignored::OtherCluster);
        }
        if self.handle_sized_pong(pong, now) || self.handle_quick_pong(pong, now) {
            return Ok(());
        }
        let (probe, is_newest) =
            self.window.unanswered(&pong.time_stamp).ok_or(Ignored::Unexpected)?;
        match pong.nonce {
            Some(nonce) if nonce == probe.nonce => self.report.is_strait = true,
            None if !self.report.is_strait => {}
            Some(_) | None => return Err(Ignored::WrongNonce),
        }

        probe.is_answered = true;
        let sent = probe.sent;
        // A PONG that arrives after a newer one counts as an answer, but its round trip is out of date.
        if is_newest {
            if let Some(damaged) = pong.damaged.filter(|_| pong.nonce.is_some()) {
                self.report.is_gso_harmful =
                    self.gso_guard.handle_report(damaged, self.sent_packets);
            }
            self.handle_round_trip(sent, now);
        }
        if self.report.state != State::Connected {
            return Ok(());
        }
        let Settings { mtu, interval, .. } = self.settings;
        self.path_mtu.get_or_insert_with(|| PathMtuDiscovery::new(mtu, now));
        if self.report.is_strait {
            let liveness = self.liveness.get_or_insert_with(|| Liveness::new(interval, now));
            liveness.handle_sign_of_life(now);
            liveness.set_loss(self.window.loss_of_path(now));
        }

        Ok(())
    }

    /// The other end has answered a PING that was `sent` then.
    fn handle_round_trip(&mut self, sent: Instant, now: Instant) {
        let round_trip = now.saturating_duration_since(sent);
        if self.report.state != State::Connected {
            self.connected_at = now;
        }
        if let Some(before) = self.last_round_trip {
            let (jitter, change) = (self.report.jitter, round_trip.abs_diff(before));
            self.report.jitter = jitter - jitter / JITTER_GAIN + change / JITTER_GAIN;
        }
        // A PING that was sent before may have waited for a session.
        self.last_round_trip = (sent >= self.connected_at).then_some(round_trip);
        self.report.latency = Some(round_trip);
        self.report.state = State::Connected;
        self.last_heard = now;
        self.silence.handle_answer();
    }

    /// Whether it answers a quick PING.
    fn handle_quick_pong(&mut self, pong: &Message, now: Instant) -> bool {
        let answered = self
            .liveness
            .as_mut()
            .zip(pong.nonce)
            .and_then(|(it, nonce)| it.handle_answer(nonce, now));
        let Some(sent) = answered else { return false };
        self.last_quick_answer = Some(now);
        self.round_trip.handle_sample(now.saturating_duration_since(sent));
        self.handle_round_trip(sent, now);

        true
    }

    /// Whether it answers a padded PING.
    fn handle_sized_pong(&mut self, pong: &Message, now: Instant) -> bool {
        let is_of = |probe: &SizedProbe| match pong.nonce {
            Some(nonce) => nonce == probe.nonce,
            None => !self.report.is_strait && pong.time_stamp == probe.time_stamp,
        };
        let place = self.sized_probes.iter().position(is_of);
        let Some(probe) = place.and_then(|place| self.sized_probes.remove(place)) else {
            return false;
        };
        if let Some(path_mtu) = &mut self.path_mtu {
            path_mtu.handle_answer(probe.bytes, now);
            self.report.path_mtu = path_mtu.get();
            self.round_trip.handle_sample(now.saturating_duration_since(probe.sent));
        }

        true
    }

    fn deadline(&self) -> Instant {
        self.last_heard + self.settings.patience()
    }

    /// A packet of the check goes to the other end.
    const fn count_own_packet(&mut self) {
        if let Some(liveness) = &mut self.liveness {
            liveness.handle_own_packet();
        }
    }
}
