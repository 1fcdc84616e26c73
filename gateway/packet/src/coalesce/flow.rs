//! The flows of a batch that have an open group.

use std::net::IpAddr;

use crate::Fragment;
use crate::Header;
use crate::Transport;
use crate::field;

/// Groups that are open at a time. More flows than this in one batch are rare, and each gives up
/// only the rest of its group.
const MAX_OPEN: usize = 8;

/// What packets must not overtake each other: addresses, protocol and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// Source port in the upper half, destination port in the lower.
    ports: u32,
    protocol: u8,
    source: IpAddr,
    destination: IpAddr,
}

impl Key {
    /// The flow of a packet; `None` if it is neither TCP nor UDP, or holds no ports.
    #[inline]
    pub(super) fn of(packet: &[u8], header: &Header) -> Option<Self> {
        let has_ports = matches!(header.transport(), Transport::Tcp | Transport::Udp);
        if !has_ports || header.fragment() == Fragment::Later {
            return None;
        }

        Some(Self {
            ports: field::double_word(packet, header.transport_offset())?,
            protocol: header.protocol(),
            source: header.source(),
            destination: header.destination(),
        })
    }
}

/// An open group and its place in the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub(super) slot: usize,
    pub(super) group: usize,
}

/// Which flow has which group open. Small enough to be searched from end to end.
#[derive(Debug, Default)]
pub(super) struct FlowTable {
    slots: [Option<(Key, usize)>; MAX_OPEN],
    /// Where the last search ended: a batch is mostly one flow.
    recent: usize,
    /// Which slot gives way when all are taken: each in turn.
    victim: usize,
}

impl FlowTable {
    #[inline]
    pub(super) fn find(&mut self, key: &Key) -> Option<Open> {
        let recent = self.slots.get(self.recent).and_then(Option::as_ref);
        if let Some((open, group)) = recent
            && open == key
        {
            return Some(Open { slot: self.recent, group: *group });
        }

        let (slot, group) = self.slots.iter().enumerate().find_map(|(slot, entry)| {
            entry.as_ref().filter(|(open, _)| open == key).map(|(_, group)| (slot, *group))
        })?;
        self.recent = slot;

        Some(Open { slot, group })
    }

    /// Enters a flow that is not in the table. If there is no room, the open groups close in
    /// turn.
    pub(super) fn open(&mut self, key: Key, group: usize) {
        let free = self.slots.iter().position(Option::is_none);
        let slot = free.unwrap_or_else(|| {
            let victim = self.victim;
            self.victim = (victim + 1) % MAX_OPEN;
            victim
        });

        if let Some(entry) = self.slots.get_mut(slot) {
            *entry = Some((key, group));
        }
        self.recent = slot;
    }

    #[inline]
    pub(super) fn close(&mut self, slot: usize) {
        if let Some(entry) = self.slots.get_mut(slot) {
            *entry = None;
        }
    }

    /// Closes every flow from `source` to `destination`.
    pub(super) fn close_pair(&mut self, source: IpAddr, destination: IpAddr) {
        for entry in &mut self.slots {
            entry.take_if(|(key, _)| key.source == source && key.destination == destination);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
