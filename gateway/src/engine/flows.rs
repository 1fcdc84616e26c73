//! What is remembered of flows: who shares an external address, and who is answered under one.

use std::net::IpAddr;
use std::time::Instant;

use super::Settings;
use crate::DropReason;
use crate::packet::Header;
use crate::packet::ports::Ports;

use super::translate::Memory;

/// The realm of flows that stay in the cluster.
pub const OWN_REALM: u32 = 0;

/// Seconds since the engine started.
pub type Tick = u32;

/// The memory of flows. Shared by both directions, without a lock between them.
#[derive(Debug)]
pub struct Flows {
    start: Instant,
}

impl Flows {
    pub(super) fn new(settings: Settings) -> Self {
        Self { start: settings.start }
    }

    /// `now` as the memory counts it.
    #[must_use]
    #[inline]
    pub fn tick(&self, now: Instant) -> Tick {
        let seconds = now.saturating_duration_since(self.start).as_secs();

        u32::try_from(seconds).unwrap_or(u32::MAX)
    }

    pub(super) fn handle_timeout(&self, _now: Instant) {}

    pub(super) fn leave(
        &self,
        _realm: u32,
        _packet: (&[u8], &Header),
        _remote: IpAddr,
        _pool: &[IpAddr],
        _memory: Memory,
        _now: Tick,
    ) -> Result<(IpAddr, Option<u16>), DropReason> {
        Err(DropReason::MasqueradeFull)
    }

    pub(super) fn arrive(
        &self,
        _realm: u32,
        _packet: (&[u8], &Header),
        _memory: Memory,
        _now: Tick,
    ) -> Result<(IpAddr, Option<u16>), DropReason> {
        Err(DropReason::NoMapping)
    }

    pub(super) fn internal_of(
        &self,
        _realm: u32,
        _protocol: u8,
        _external: (IpAddr, u16),
        _now: Tick,
    ) -> Option<(IpAddr, u16)> {
        None
    }

    pub(super) fn external_of(
        &self,
        _realm: u32,
        _protocol: u8,
        _internal: (IpAddr, u16),
        _now: Tick,
    ) -> Option<(IpAddr, u16)> {
        None
    }

    pub(super) fn pin(
        &self,
        _realm: u32,
        _packet: (&[u8], &Header),
        _internal: IpAddr,
        _memory: Memory,
        _now: Tick,
    ) -> Result<(), DropReason> {
        Ok(())
    }

    pub(super) fn is_pinned(
        &self,
        _realm: u32,
        _flow: (u8, IpAddr, IpAddr, Option<Ports>),
        _external: IpAddr,
        _now: Tick,
    ) -> bool {
        false
    }
}
