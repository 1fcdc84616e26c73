//! Whether the gateway at the other end of the tunnel answers: Liqo's connection check.
//!
//! Each gateway sends a PING every interval and answers those of the other with a PONG, in UDP inside
//! the tunnel. Between two of ours, padded PINGs show how long packets on the path may be. The state machine here does
//! no I/O: datagrams, time and randomness are arguments.
//!
//! # Invariants
//!
//! - A datagram causes at most one answer, which goes to its source.
//! - Only the gateway at the other end can change what is reported, and only by a PONG to a PING that
//!   was sent. Once it has proved to be one of ours, it must repeat a nonce as well.
//! - Every stock gateway accepts what is sent here.
//!
//! # Not here
//!
//! The socket, and the `Connection` in which the result is reported.

mod gso_guard;
mod message;
mod path_mtu;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use gso_guard::GsoGuard;
use message::{Kind, Message};
use path_mtu::PathMtu;

/// The UDP port on which a gateway listens by default, over IPv4.
pub const PORT: u16 = 12345;

/// Longest datagram that a stock gateway reads whole, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 1024;

/// Bytes of the IPv4 and the UDP header in front of a message.
const HEADER_BYTES: u16 = 28;

/// The most PINGs of the path MTU whose answers are awaited: those of a few rounds.
const SIZED_PROBES: usize = 64;

/// The number of probes over which loss is computed.
const WINDOW: usize = 32;

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

/// The state of the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// No answer yet, and too little time has passed to call it lost.
    #[default]
    Connecting,
    /// The other end answers.
    Connected,
    /// The other end does not answer, or no longer.
    Lost,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Whether the other end answers.
    pub state: State,
    /// The round trip of the newest probe that was answered. `None` unless connected.
    pub latency: Option<Duration>,
    /// The smoothed difference between consecutive round trips (RFC 3550 section 6.4.1).
    pub jitter: Duration,
    /// The share of the last probes without an answer, 0 to 1.
    pub loss: f64,
    /// The number of the newest probes in a row without an answer in time.
    pub missed: u32,
    /// Whether the other end is a gateway of Strait, which repeats nonces. `false` until it answers.
    pub is_strait: bool,
    /// The longest packet in bytes that reaches the other end, if that is one of ours and connected.
    pub path_mtu: Option<u16>,
    /// Datagrams that the kernel segments arrive damaged at the other end, which is one of ours: send them one by one.
    pub is_gso_harmful: bool,
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

/// Checks one connection.
#[derive(Clone, Debug)]
pub struct ConnCheck {
    settings: Settings,
    next_ping: Instant,
    /// When the other end was last heard; until then, the start of the check.
    last_heard: Instant,
    report: Report,
    /// The newest last.
    probes: VecDeque<Probe>,
    /// Of a connected end that repeats nonces.
    path_mtu: Option<PathMtu>,
    /// The newest last.
    sized_probes: VecDeque<SizedProbe>,
    /// The datagrams of the other end that arrived damaged.
    damaged: u64,
    gso_guard: GsoGuard,
}

/// A PING that was sent.
#[derive(Clone, Debug)]
struct Probe {
    time_stamp: String,
    nonce: u64,
    sent: Instant,
    is_answered: bool,
}

/// A PING that was padded to a length, and is not answered yet.
#[derive(Clone, Copy, Debug)]
struct SizedProbe {
    nonce: u64,
    bytes: u16,
}

impl ConnCheck {
    /// Starts at `now`, when the first PING is due: a gateway that takes over soon knows the path.
    #[must_use]
    pub fn new(settings: Settings, now: Instant) -> Self {
        Self {
            settings,
            next_ping: now,
            last_heard: now,
            report: Report::default(),
            probes: VecDeque::with_capacity(WINDOW),
            path_mtu: None,
            sized_probes: VecDeque::with_capacity(SIZED_PROBES),
            damaged: 0,
            gso_guard: GsoGuard::default(),
        }
    }

    /// The current result.
    #[must_use]
    pub const fn report(&self) -> Report {
        self.report
    }

    /// The MTU of the tunnel device has changed to `mtu` bytes.
    pub fn set_mtu(&mut self, mtu: u16, now: Instant) {
        self.settings.mtu = mtu;
        if let Some(path_mtu) = &mut self.path_mtu {
            path_mtu.set_limit(mtu, now);
            self.report.path_mtu = path_mtu.get();
        }
    }

    /// Sets the number of datagrams of the other end that arrived damaged, which is reported to it.
    pub const fn set_damaged(&mut self, damaged: u64) {
        self.damaged = damaged;
    }

    /// When [`Self::handle_timeout`] and [`Self::sized_pings`] are due.
    #[must_use]
    pub fn next_timeout(&self) -> Instant {
        let next = match self.report.state {
            State::Connecting | State::Connected => self.next_ping.min(self.deadline()),
            State::Lost => self.next_ping,
        };

        self.path_mtu.as_ref().map_or(next, |path_mtu| path_mtu.next_timeout().min(next))
    }

    /// Detects loss of the connection, and returns the PING to send to the other end, if one is due.
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
        }
        if now < self.next_ping {
            return None;
        }

        // PINGs missed while the process slept are not sent late.
        self.next_ping = now + self.settings.interval;
        self.report.loss = self.loss(now);
        self.report.missed = self.missed(now);
        let time_stamp = wall_clock.to_string();
        let ping = Message::ping(&self.settings.cluster_id, &time_stamp, nonce);
        if self.probes.len() == WINDOW {
            self.probes.pop_front();
        }
        self.probes.push_back(Probe { time_stamp, nonce, sent: now, is_answered: false });

        Some(ping.to_bytes())
    }

    /// The padded PINGs that are due, which show what the path carries: none to a stock gateway. Each gets a `nonce`.
    pub fn sized_pings(
        &mut self,
        now: Instant,
        wall_clock: Timestamp,
        mut nonce: impl FnMut() -> u64,
    ) -> Vec<Vec<u8>> {
        let Some(path_mtu) = &mut self.path_mtu else { return Vec::new() };
        let lengths = path_mtu.handle_timeout(now, self.report.latency.unwrap_or_default());
        self.report.path_mtu = path_mtu.get();
        let time_stamp = wall_clock.to_string();

        let ping = |bytes: u16| {
            let nonce = nonce();
            if self.sized_probes.len() == SIZED_PROBES {
                self.sized_probes.pop_front();
            }
            self.sized_probes.push_back(SizedProbe { nonce, bytes });
            let ping = Message::ping(&self.settings.cluster_id, &time_stamp, nonce);
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
            Kind::Ping => Reaction::Answer(message.into_pong(self.damaged).to_bytes()),
            Kind::Pong => match self.handle_pong(&message, now) {
                Ok(()) => Reaction::Heard,
                Err(ignored) => Reaction::Ignored(ignored),
            },
        }
    }

    fn handle_pong(&mut self, pong: &Message, now: Instant) -> Result<(), Ignored> {
        if pong.cluster_id != self.settings.cluster_id {
            return Err(Ignored::OtherCluster);
        }
        if self.handle_sized_pong(pong, now) {
            return Ok(());
        }
        let newest_answered = self.probes.iter().rposition(|probe| probe.is_answered);
        let (place, probe) = self
            .probes
            .iter_mut()
            .enumerate()
            .rev()
            .find(|(_, probe)| probe.time_stamp == pong.time_stamp && !probe.is_answered)
            .ok_or(Ignored::Unexpected)?;
        match pong.nonce {
            Some(nonce) if nonce == probe.nonce => self.report.is_strait = true,
            None if !self.report.is_strait => {}
            Some(_) | None => return Err(Ignored::WrongNonce),
        }

        probe.is_answered = true;
        // A PONG that arrives after a newer one counts as an answer, but its round trip is out of date.
        if newest_answered.is_none_or(|newest| place > newest) {
            let round_trip = now.saturating_duration_since(probe.sent);
            if let Some(before) = self.report.latency {
                let (jitter, change) = (self.report.jitter, round_trip.abs_diff(before));
                self.report.jitter = jitter - jitter / JITTER_GAIN + change / JITTER_GAIN;
            }
            self.report.latency = Some(round_trip);
            self.report.missed = 0;
            if let Some(damaged) = pong.damaged.filter(|_| pong.nonce.is_some()) {
                self.report.is_gso_harmful = self.gso_guard.handle_report(damaged);
            }
            self.report.state = State::Connected;
            self.last_heard = now;
        }
        if self.report.is_strait && self.report.state == State::Connected {
            self.path_mtu.get_or_insert_with(|| PathMtu::new(self.settings.mtu, now));
        }

        Ok(())
    }

    /// Whether it answers a padded PING.
    fn handle_sized_pong(&mut self, pong: &Message, now: Instant) -> bool {
        let place = self.sized_probes.iter().position(|probe| pong.nonce == Some(probe.nonce));
        let Some(probe) = place.and_then(|place| self.sized_probes.remove(place)) else {
            return false;
        };
        if let Some(path_mtu) = &mut self.path_mtu {
            path_mtu.handle_answer(probe.bytes, now);
            self.report.path_mtu = path_mtu.get();
        }

        true
    }

    fn deadline(&self) -> Instant {
        self.last_heard + self.settings.patience()
    }

    fn missed(&self, now: Instant) -> u32 {
        let is_due =
            |probe: &&Probe| now.saturating_duration_since(probe.sent) >= self.settings.interval;
        let due = self.probes.iter().rev().skip_while(|probe| !is_due(probe));
        let missed = due.take_while(|probe| !probe.is_answered).count();

        u32::try_from(missed).unwrap_or(u32::MAX)
    }

    /// Over the probes that had an interval for their answer.
    fn loss(&self, now: Instant) -> f64 {
        let is_due = |probe: &&Probe| {
            probe.is_answered || now.saturating_duration_since(probe.sent) >= self.settings.interval
        };
        let due = self.probes.iter().filter(is_due).count();
        let lost = self.probes.iter().filter(is_due).filter(|probe| !probe.is_answered).count();
        // Neither is more than `WINDOW`.
        let share = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));

        if due == 0 { 0.0 } else { share(lost) / share(due) }
    }
}
