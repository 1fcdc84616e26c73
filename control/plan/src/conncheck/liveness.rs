//! Detects within about half a second that the other end is silent, while packets are sent to it.
//!
//! Packets that arrive show that it is not, so no probe is sent while they do. If packets are sent and none arrives,
//! probes follow every 100 ms. So they do if steady traffic stops in both directions: programs that answer the other end
//! send nothing when it is gone. Once several probes in a row have had the time for their answer, and nothing at all has
//! arrived since the first of them, the other end counts as silent. How many depends on the loss of the path, and the time
//! on its round trips. Without traffic no probe is sent.
//!
//! # Not here
//!
//! The probes of the configured interval, which go on as they are: see [`super::silence`].

use std::collections::VecDeque;
use std::mem;
use std::time::{Duration, Instant};

use super::round_trip::RoundTrip;

/// Between two looks at the traffic, and between two probes.
const INTERVAL: Duration = Duration::from_millis(100);

/// Probes without an answer that make silence: from the first one it takes three intervals and the time for an answer.
/// An end that gets no processor time for less than 400 ms is not silent.
const PROBES_MIN: usize = 4;
const PROBES_MAX: usize = 10;

/// Traffic is steady if so many looks have seen sent packets before one that sees none in either direction. Single
/// requests, as of `ping` once a second, are not steady.
const STEADY_LOOKS: u64 = 2;

/// The accepted share of runs of probes that are all lost although the other end is there.
const FALSE_ALARM_RATIO: f64 = 1e-4;

/// While nothing more is sent, the pause between probes is this share of the time since.
const IDLE_SHARE: u32 = 10;

/// The least time between two findings of silence. Each starts a handshake, and WireGuard repeats one only after
/// `REKEY_TIMEOUT` (whitepaper, section 6.1).
const SILENCE_INTERVAL: Duration = Duration::from_secs(5);

/// What the tunnel has carried so far. May be of several peers, and decrease when they change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of authentic datagrams from the peer, of any kind.
    pub received_bytes: u64,
    /// Packets sent to the peer, with those of the connection check.
    pub sent_packets: u64,
    /// Datagrams of the peer that arrived damaged.
    pub damaged_datagrams: u64,
}

/// Follows the traffic with an end that repeats nonces, from when it is connected.
#[derive(Clone, Debug)]
pub(super) struct Liveness {
    /// The configured interval: no pause between probes is longer.
    pause_max: Duration,
    next_look: Instant,
    last: Option<Traffic>,
    own: OwnPackets,
    /// When a packet last arrived.
    last_heard: Instant,
    /// When a packet that is not ours was last sent.
    last_sent: Instant,
    /// How many looks have seen packets that were sent, since one has seen none in either direction.
    looks_with_sent: u64,
    /// Packets were sent since one last arrived, or steady traffic has stopped.
    is_awaiting: bool,
    next_probe: Instant,
    /// The newest last.
    probes: VecDeque<Probe>,
    /// How many probes without an answer make silence.
    needed: usize,
    stage: Stage,
    last_silence: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    nonce: u64,
    sent: Instant,
}

/// How far the other end is from being silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Alive,
    Suspected,
    Silent,
}

/// A step towards silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// The answers to half of the probes that make silence are overdue.
    Suspicion,
    /// All of them were not answered in time.
    Silence,
}

impl Liveness {
    /// The other end has answered at `now`.
    pub(super) fn new(pause_max: Duration, now: Instant) -> Self {
        Self {
            pause_max,
            next_look: now,
            last: None,
            own: OwnPackets::default(),
            last_heard: now,
            last_sent: now,
            looks_with_sent: 0,
            is_awaiting: false,
            next_probe: now,
            probes: VecDeque::with_capacity(PROBES_MAX),
            needed: PROBES_MIN,
            stage: Stage::Alive,
            last_silence: None,
        }
    }

    /// When [`Self::handle_traffic`] and [`Self::finding`] are due.
    pub(super) fn next_timeout(&self, round_trip: &RoundTrip) -> Instant {
        let Some(probe) = self.deciding_probe().filter(|_| self.stage != Stage::Silent) else {
            return self.next_look;
        };

        let timeout = match self.stage {
            Stage::Alive => round_trip.overdue(),
            Stage::Suspected | Stage::Silent => round_trip.timeout(),
        };

        self.next_look.min(probe.sent + timeout)
    }

    /// The time from the first probe without an answer until the other end counts as silent.
    pub(super) fn limit(&self, round_trip: &RoundTrip) -> Duration {
        let probes = u32::try_from(self.needed - 1).unwrap_or(u32::MAX);

        INTERVAL.saturating_mul(probes).saturating_add(round_trip.timeout())
    }

    /// Looks at the traffic, if that is due.
    pub(super) fn handle_traffic(&mut self, traffic: Traffic, now: Instant) {
        if now < self.next_look {
            return;
        }
        // The process has waited, for a processor or in a suspended machine: what has arrived may wait as well.
        if now > self.next_look + INTERVAL {
            self.last_heard = now;
        }
        self.next_look = now + INTERVAL;
        let Some(last) = self.last.replace(traffic) else { return };
        let sent = traffic.sent_packets.saturating_sub(last.sent_packets);
        let has_sent = self.own.others_of(sent) > 0;

        if has_sent {
            self.last_sent = now;
            self.looks_with_sent += 1;
        }
        if traffic.received_bytes != last.received_bytes {
            self.handle_sign_of_life(now);
        } else if has_sent {
            self.is_awaiting = true;
        } else {
            self.is_awaiting |= mem::take(&mut self.looks_with_sent) >= STEADY_LOOKS;
        }
    }

    /// When a packet last arrived.
    pub(super) const fn last_heard(&self) -> Instant {
        self.last_heard
    }

    /// Whether the answers to at least half of the probes that make silence are overdue, and nothing has arrived since.
    pub(super) const fn is_suspected(&self) -> bool {
        matches!(self.stage, Stage::Suspected | Stage::Silent)
    }

    /// The check has sent a packet of its own.
    pub(super) const fn handle_own_packet(&mut self) {
        self.own.new += 1;
    }

    /// A packet has arrived from the other end.
    pub(super) const fn handle_sign_of_life(&mut self, now: Instant) {
        self.last_heard = now;
        self.is_awaiting = false;
        self.stage = Stage::Alive;
    }

    /// Handles an answer with `nonce`. Returns when the probe that it answers was sent, if it is one of these.
    pub(super) fn handle_answer(&mut self, nonce: u64, now: Instant) -> Option<Instant> {
        let place = self.probes.iter().position(|probe| probe.nonce == nonce)?;
        let probe = self.probes.remove(place)?;
        self.handle_sign_of_life(now);

        Some(probe.sent)
    }

    /// Sets the share of round trips that are lost on the path while the other end is there, 0 to 1.
    pub(super) fn set_loss(&mut self, loss: f64) {
        let mut run = loss.powi(3);
        self.needed = PROBES_MIN;
        while run * loss > FALSE_ALARM_RATIO && self.needed < PROBES_MAX {
            run *= loss;
            self.needed += 1;
        }
    }

    /// Whether to send a probe with `nonce` now.
    pub(super) fn poll_probe(&mut self, now: Instant, nonce: impl FnOnce() -> u64) -> Option<u64> {
        if !self.is_awaiting || now < self.next_probe {
            return None;
        }
        let idle = now.saturating_duration_since(self.last_sent);
        self.next_probe = now + (idle / IDLE_SHARE).min(self.pause_max).max(INTERVAL);
        if self.probes.len() == PROBES_MAX {
            self.probes.pop_front();
        }
        let nonce = nonce();
        self.probes.push_back(Probe { nonce, sent: now });

        Some(nonce)
    }

    /// The step since the last call, if there was one.
    pub(super) fn finding(&mut self, round_trip: &RoundTrip, now: Instant) -> Option<Finding> {
        if self.missed(round_trip.timeout(), now) >= self.needed && self.stage != Stage::Silent {
            self.stage = Stage::Silent;
            let is_soon = |last| now.saturating_duration_since(last) < SILENCE_INTERVAL;
            if self.last_silence.is_some_and(is_soon) {
                return None;
            }
            self.last_silence = Some(now);
            return Some(Finding::Silence);
        }
        if self.stage == Stage::Alive && self.missed(round_trip.overdue(), now) >= self.needed / 2 {
            self.stage = Stage::Suspected;
            return Some(Finding::Suspicion);
        }

        None
    }

    /// How many probes have waited for an answer for `timeout`, and nothing has arrived since.
    fn missed(&self, timeout: Duration, now: Instant) -> usize {
        let is_due = |probe: &&Probe| now.saturating_duration_since(probe.sent) >= timeout;

        self.unheard_probes().filter(is_due).count()
    }

    /// The probe whose timeout is the next step to silence.
    fn deciding_probe(&self) -> Option<Probe> {
        let needed = match self.stage {
            Stage::Alive => self.needed / 2,
            Stage::Suspected | Stage::Silent => self.needed,
        };

        self.unheard_probes().nth(needed - 1).copied()
    }

    /// The probes since which nothing has arrived.
    fn unheard_probes(&self) -> impl Iterator<Item = &Probe> {
        self.probes.iter().filter(|probe| probe.sent >= self.last_heard)
    }
}

/// Separates the packets of the check from others. The tunnel counts a packet some time after it was sent.
#[derive(Clone, Copy, Debug, Default)]
struct OwnPackets {
    /// Since the last look.
    new: u64,
    /// Since the look before, and not counted by the last one.
    late: u64,
}

impl OwnPackets {
    /// How many of `sent` packets, which were counted since the last look, are not ours. A packet that is not counted
    /// by the next look but one was lost.
    fn others_of(&mut self, sent: u64) -> u64 {
        let own = self.new + self.late;
        self.late = own.saturating_sub(sent).min(self.new);
        self.new = 0;

        sent.saturating_sub(own)
    }
}

#[cfg(test)]
mod tests;
