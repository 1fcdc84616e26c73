//! Buffers for received messages.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, SystemTime};

use crate::sys;
use strait_engine::inbound::{MAX_MESSAGE_BYTES, MAX_MESSAGES, Received};
use strait_packet::ecn::Ecn;
use strait_packet::path::{LocalPort, Path, canonical};

/// Buffers for one receive call: `N` messages of up to `BYTES` bytes each.
#[derive(Debug)]
pub(crate) struct Buffer<const N: usize, const BYTES: usize> {
    parts: [Box<[u8]>; N],
    messages: [sys::Message; N],
    /// The port on which they arrived.
    pub(super) port: LocalPort,
    /// Whether the last call filled all of them.
    pub(super) is_full: bool,
}

/// For transport data: many datagrams in one message.
pub(crate) type ReceiveBuffer = Buffer<MAX_MESSAGES, MAX_MESSAGE_BYTES>;

/// For handshake messages, which the kernel does not merge. A longer message is no handshake message.
pub(crate) type HandshakeBuffer = Buffer<32, 256>;

impl<const N: usize, const BYTES: usize> Buffer<N, BYTES> {
    pub(crate) fn new() -> Self {
        Self {
            parts: std::array::from_fn(|_| vec![0; BYTES].into_boxed_slice()),
            messages: sys::empty_messages(),
            port: LocalPort::Listen,
            is_full: false,
        }
    }

    /// The first `count` messages, without those that were truncated or have no source: they cannot be authentic.
    pub(crate) fn received(&self, count: usize) -> impl Iterator<Item = Received<'_>> {
        (0..count).filter_map(|number| self.message(number))
    }

    /// Message `number`; `None` if it was truncated or has no source.
    pub(crate) fn message(&self, number: usize) -> Option<Received<'_>> {
        let message = self.messages.get(number).filter(|message| !message.is_truncated)?;

        Some(Received {
            bytes: self.parts.get(number)?.get(..message.len)?,
            stride: message.stride,
            path: Path {
                remote: canonical(message.source?),
                local: message.local,
                port: self.port,
            },
            ecn: Ecn::from_traffic_class(message.traffic_class),
        })
    }

    /// Whether the last call filled all messages, so that there may be more.
    pub(crate) const fn is_full(&self) -> bool {
        self.is_full
    }

    /// How long the first message has waited in the socket at `now`; `None` if the socket does not report it.
    pub(crate) fn sojourn(&self, now: SystemTime) -> Option<Duration> {
        let [first, ..] = &self.messages[..] else { return None };

        // The date may have been set since.
        Some(now.duration_since(first.arrival?).unwrap_or_default())
    }

    /// The one of the first `count` messages with the most datagrams.
    pub(crate) fn longest(&self, count: usize) -> Option<usize> {
        let datagrams = |number: &usize| self.message(*number).map_or(0, |m| m.datagrams());

        (0..count).max_by_key(datagrams)
    }

    /// The buffer of message `number`. The caller may exchange it for one of the same length.
    pub(crate) fn part_mut(&mut self, number: usize) -> Option<&mut Box<[u8]>> {
        self.parts.get_mut(number)
    }

    pub(super) fn fill(&mut self, port: LocalPort, socket: BorrowedFd<'_>) -> io::Result<usize> {
        self.port = port;
        self.is_full = false;
        let count = sys::receive(socket, &mut self.parts, &mut self.messages)?;
        self.is_full = count == N;

        Ok(count)
    }
}
