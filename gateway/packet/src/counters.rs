//! The packet-for-packet account of one direction.
//!
//! Each direction has one [`Counters`]. It is added to once per batch, by whichever thread carries the
//! batch, and anybody may read it. A reader gets a [`Snapshot`].
//!
//! The account: everything that came in went out, was dropped under a reason, was a message of the
//! protocol itself, or is staged. [`Snapshot::balance`] computes what is left over; it is zero
//! whenever the direction is at rest.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::DropReason;

/// A length or a count, for a counter.
#[must_use]
pub fn as_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Several threads may add, so this is a locked instruction: call it once per batch.
    pub fn add(&self, n: u64) {
        if n > 0 {
            self.0.fetch_add(n, Ordering::Relaxed);
        }
    }

    /// The number so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The account of one direction. Packets are inner packets, bytes are theirs, headers included.
#[derive(Debug, Default)]
pub struct Counters {
    /// Outbound: packets from the device, the segments of an offload frame one by one (a frame that
    /// is dropped before it is cut is one packet). Inbound: datagrams from the network.
    pub packets_in: Counter,
    /// Bytes of [`Self::packets_in`]. Inbound these are UDP payload bytes.
    pub bytes_in: Counter,
    /// Outbound: datagrams that carry a packet. Inbound: packets written to the device.
    pub packets_out: Counter,
    /// Bytes of [`Self::packets_out`]. Outbound these are UDP payload bytes.
    pub bytes_out: Counter,
    /// Inbound only: messages of the protocol that carry no packet, accepted: handshakes, cookie
    /// replies, keepalives.
    pub protocol_messages: Counter,
    /// Outbound only: senders of packets that were dropped, told so by an ICMP error. Not part of the account:
    /// the packet is a drop.
    pub icmp_errors: Counter,
    /// Outbound only: frames that another thread than the direction's own has sealed. Not part of the account.
    pub worker_frames: Counter,
    drops: [Counter; DropReason::ALL.len()],
}

impl Counters {
    /// Counts `n` packets dropped for `reason`.
    pub fn count_drops(&self, reason: DropReason, n: u64) {
        if let Some(counter) = self.drops.get(reason.index()) {
            counter.add(n);
        }
    }

    /// A copy of every number. Not one instant's: a packet under way may be in and not yet out.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut drops = [0; DropReason::ALL.len()];
        for (copy, counter) in drops.iter_mut().zip(&self.drops) {
            *copy = counter.get();
        }

        Snapshot {
            packets_in: self.packets_in.get(),
            bytes_in: self.bytes_in.get(),
            packets_out: self.packets_out.get(),
            bytes_out: self.bytes_out.get(),
            protocol_messages: self.protocol_messages.get(),
            icmp_errors: self.icmp_errors.get(),
            worker_frames: self.worker_frames.get(),
            drops,
        }
    }
}

/// A copy of the counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of Counters")]
pub struct Snapshot {
    pub packets_in: u64,
    pub bytes_in: u64,
    pub packets_out: u64,
    pub bytes_out: u64,
    pub protocol_messages: u64,
    pub icmp_errors: u64,
    pub worker_frames: u64,
    drops: [u64; DropReason::ALL.len()],
}

impl Snapshot {
    /// How many packets were dropped for `reason`.
    #[must_use]
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops.get(reason.index()).copied().unwrap_or(0)
    }

    /// How many packets were dropped in all.
    #[must_use]
    pub fn total_drops(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// What came in and is not accounted for: under way, staged, or lost by a defect of ours.
    ///
    /// Negative while a batch is half counted.
    #[must_use]
    pub fn balance(&self) -> i128 {
        let out = self.packets_out + self.protocol_messages + self.total_drops();

        i128::from(self.packets_in) - i128::from(out)
    }
}
