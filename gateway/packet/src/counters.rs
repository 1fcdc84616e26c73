//! The packet counters of one direction.
//!
//! Each direction has one [`Counters`]. The thread that processes a batch adds to it once per batch; any
//! thread may read a [`Snapshot`].
//!
//! The balance: every packet in is a packet out, a drop with a reason, a message of the
//! protocol itself, or staged. [`Snapshot::balance`] computes the difference, which is zero
//! when the direction is idle.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::DropReason;

/// Converts a length or a count for a counter.
#[must_use]
pub fn as_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// A monotonic counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Several threads may add, so this is a locked instruction: call it once per batch.
    pub fn add(&self, n: u64) {
        if n > 0 {
            self.0.fetch_add(n, Ordering::Relaxed);
        }
    }

    /// The value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of one direction. Packets are inner packets; bytes are theirs, headers included.
#[derive(Debug, Default)]
pub struct Counters {
    /// Outbound: packets from the device, each segment of an offload frame counted (a frame that
    /// is dropped before it is segmented is one packet). Inbound: datagrams from the network.
    pub packets_in: Counter,
    /// Bytes of [`Self::packets_in`]. Inbound these are UDP payload bytes.
    pub bytes_in: Counter,
    /// Outbound: datagrams that carry a packet. Inbound: packets written to the device.
    pub packets_out: Counter,
    /// Bytes of [`Self::packets_out`]. Outbound these are UDP payload bytes.
    pub bytes_out: Counter,
    /// Accepted messages that carry no packet. Inbound: handshakes, cookie replies, keepalives. Outbound: address
    /// resolution of an overlay.
    pub protocol_messages: Counter,
    /// Outbound only: ICMP errors sent for dropped packets. Not part of the balance: the packet is counted as
    /// a drop.
    pub icmp_errors: Counter,
    /// Outbound only: frames that a worker thread has sealed. Not part of the balance.
    pub worker_frames: Counter,
    /// Inbound only: datagrams between the peer and the gateway that led before this one, passed on to the other. Not part
    /// of the balance, nor of [`Self::packets_in`].
    pub relayed: Counter,
    drops: [Counter; DropReason::ALL.len()],
}

impl Counters {
    /// Counts `n` packets dropped for `reason`.
    pub fn count_drops(&self, reason: DropReason, n: u64) {
        if let Some(counter) = self.drops.get(reason.index()) {
            counter.add(n);
        }
    }

    /// A copy of all counters. Not atomic: a packet in processing may be counted in and not yet out.
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
            relayed: self.relayed.get(),
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
    pub relayed: u64,
    drops: [u64; DropReason::ALL.len()],
}

impl Snapshot {
    /// The number of packets dropped for `reason`.
    #[must_use]
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops.get(reason.index()).copied().unwrap_or(0)
    }

    /// The number of packets dropped for any reason.
    #[must_use]
    pub fn total_drops(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Packets in without an outcome: in processing, staged, or lost by a defect.
    ///
    /// Negative while a batch is partly counted.
    #[must_use]
    pub fn balance(&self) -> i128 {
        let out = self.packets_out + self.protocol_messages + self.total_drops();

        i128::from(self.packets_in) - i128::from(out)
    }
}
