//! Whether the gateway at the other end of the tunnel answers: Liqo's connection check.
//!
//! Each gateway sends a PING every interval and answers those of the other with a PONG, in UDP inside
//! the tunnel. The state machine here does no I/O: datagrams, time and randomness are arguments.
//!
//! # Invariants
//!
//! - A datagram makes one answer at the most, and that goes to where it came from.
//! - Only the gateway at the other end can change what is reported, and only by a PONG to a PING that
//!   was sent. Once it has proved to be one of ours, it must repeat a nonce as well.
//! - Any stock gateway is content with what is sent here.
//!
//! # Not here
//!
//! The socket, and the `Connection` in which the outcome is reported.

mod message;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use message::{Kind, Message};

/// Where a gateway listens that nobody has told otherwise, UDP over IPv4.
pub const PORT: u16 = 12345;

/// Longest datagram that a stock gateway reads whole, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 1024;

/// How many of the last probes decide what is lost.
const WINDOW: usize = 32;

/// The gain of the jitter estimate (RFC 3550 section 6.4.1).
const JITTER_GAIN: u32 = 16;

/// What a check needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The remote cluster, as this one calls it.
    pub cluster_id: String,
    /// Of the gateway at the other end of the tunnel.
    pub peer: IpAddr,
    /// Where both gateways listen.
    pub port: u16,
    /// Between two PINGs.
    pub interval: Duration,
    /// After how many intervals of silence the connection is lost.
    pub loss_threshold: u32,
}

impl Settings {
    /// How long the other end may be silent.
    fn patience(&self) -> Duration {
        self.interval.saturating_mul(self.loss_threshold)
    }
}

/// What is known about the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Nothing was heard, and there was not enough time to conclude anything.
    #[default]
    Connecting,
    /// The other end answers.
    Connected,
    /// It does not, or does no more.
    Lost,
}

/// The outcome of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Whether the other end answers.
    pub state: State,
    /// The round trip of the newest probe that was answered. `None` unless connected.
    pub latency: Option<Duration>,
    /// How much round trips differ from one to the next, smoothed (RFC 3550 section 6.4.1).
    pub jitter: Duration,
    /// The share of the last probes that nobody answered, 0 to 1.
    pub loss: f64,
    /// How many of the newest probes nobody answered in time, in a row.
    pub missed: u32,
}

/// What a datagram leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// Send this back to where the datagram came from.
    Answer(Vec<u8>),
    /// The other end has answered: the report may have changed.
    Heard,
    /// Nothing, and why.
    Ignored(Ignored),
}

/// Why a datagram leads to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// It did not come from the other end of the tunnel.
    ForeignSource,
    /// It is too long, or no message.
    Malformed,
    /// A PONG for another cluster.
    OtherCluster,
    /// A PONG to no PING that is waited for.
    NotAsked,
    /// A PONG without the nonce, from a gateway that knows about nonces, or with a wrong one.
    WrongNonce,
}

/// Checks one connection.
#[derive(Clone, Debug)]
pub struct ConnCheck {
    settings: Settings,
    next_ping: Instant,
    /// When the other end was last heard; the start before that.
    last_heard: Instant,
    report: Report,
    /// The newest last.
    probes: VecDeque<Probe>,
    repeats_nonces: bool,
}

/// A PING that was sent.
#[derive(Clone, Debug)]
struct Probe {
    time_stamp: String,
    nonce: u64,
    sent: Instant,
    is_answered: bool,
}

impl ConnCheck {
    /// Begins at `now`; the first PING is due after one interval, as stock gateways have it.
    #[must_use]
    pub fn new(settings: Settings, now: Instant) -> Self {
        let next_ping = now + settings.interval;

        Self {
            settings,
            next_ping,
            last_heard: now,
            report: Report::default(),
            probes: VecDeque::with_capacity(WINDOW),
            repeats_nonces: false,
        }
    }

    /// What is known.
    #[must_use]
    pub const fn report(&self) -> Report {
        self.report
    }

    /// When [`Self::handle_timeout`] has something to do.
    #[must_use]
    pub fn next_timeout(&self) -> Instant {
        match self.report.state {
            State::Connecting | State::Connected => self.next_ping.min(self.deadline()),
            State::Lost => self.next_ping,
        }
    }

    /// Notices silence, and gives the PING to send to the other end, if one is due.
    ///
    /// `wall_clock` is the time that the PING carries; `nonce` must be unpredictable.
    pub fn handle_timeout(
        &mut self,
        now: Instant,
        wall_clock: Timestamp,
        nonce: u64,
    ) -> Option<Vec<u8>> {
        if now > self.deadline() && self.report.state != State::Lost {
            self.report = Report { state: State::Lost, latency: None, ..self.report };
            // It may come back as another release.
            self.repeats_nonces = false;
        }
        if now < self.next_ping {
            return None;
        }

        // What was missed while the process slept is not made up for.
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

    /// Takes a datagram that `source` sent.
    pub fn handle_datagram(&mut self, source: IpAddr, bytes: &[u8], now: Instant) -> Reaction {
        if source != self.settings.peer {
            return Reaction::Ignored(Ignored::ForeignSource);
        }
        let Some(message) = Message::from_bytes(bytes) else {
            return Reaction::Ignored(Ignored::Malformed);
        };

        match message.kind {
            Kind::Ping => Reaction::Answer(message.into_pong().to_bytes()),
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
        let newest_answered = self.probes.iter().rposition(|probe| probe.is_answered);
        let (place, probe) = self
            .probes
            .iter_mut()
            .enumerate()
            .rev()
            .find(|(_, probe)| probe.time_stamp == pong.time_stamp && !probe.is_answered)
            .ok_or(Ignored::NotAsked)?;
        match pong.nonce {
            Some(nonce) if nonce == probe.nonce => self.repeats_nonces = true,
            None if !self.repeats_nonces => {}
            Some(_) | None => return Err(Ignored::WrongNonce),
        }

        probe.is_answered = true;
        // A PONG that was overtaken says that nothing was lost, and nothing about now.
        if newest_answered.is_none_or(|newest| place > newest) {
            let round_trip = now.saturating_duration_since(probe.sent);
            if let Some(before) = self.report.latency {
                let (jitter, change) = (self.report.jitter, round_trip.abs_diff(before));
                self.report.jitter = jitter - jitter / JITTER_GAIN + change / JITTER_GAIN;
            }
            self.report.latency = Some(round_trip);
            self.report.missed = 0;
            self.report.state = State::Connected;
            self.last_heard = now;
        }

        Ok(())
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

    /// Of the probes that had an interval for their answer.
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
