//! The inner packets of opened datagrams: check, translate, coalesce.

use std::ops::Range;

use remap::PeerId;

use crate::translate::{self, Context};
use strait_packet::coalesce::{Coalescer, Merge};
use strait_packet::counters::Counters;
use strait_packet::ecn::{self, Ecn};
use strait_packet::{DropReason, Header, Transport, rewrite};
use strait_wg::Peer;

/// Checks, translates and coalesces the opened packets of one peer.
pub(super) struct Acceptor<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) id: PeerId,
    pub(super) peer: &'a Peer,
    pub(super) outer_ecn: Ecn,
    /// Packets are marked as congested if their senders react to it.
    pub(super) is_congested: bool,
    pub(super) account: &'a Counters,
    pub(super) coalescer: &'a mut Coalescer,
    pub(super) merge: Merge,
}

impl Acceptor<'_> {
    /// Takes the packets of a run, which are ranges of `bytes`.
    #[inline]
    pub(super) fn accept_all(&mut self, bytes: &mut [u8], packets: &[Range<usize>]) {
        for range in packets {
            let packet = bytes.get_mut(range.clone()).unwrap_or_default();
            match self.translate(packet) {
                Ok(header) if self.coalescer.push(bytes, range.clone(), &header, self.merge) => {}
                Ok(_) => self.account.count_drops(DropReason::WriteFailed, 1),
                Err(reason) => self.account.count_drops(reason, 1),
            }
        }
    }

    /// Checks and translates one packet.
    #[inline]
    fn translate(&self, packet: &mut [u8]) -> Result<Header, DropReason> {
        let mut header = Header::parse(packet).map_err(|_| DropReason::Malformed)?;
        let inner_ecn = header.ecn();

        translate::inbound(self.context, self.id, self.peer, packet, &mut header)?;
        let reacts = header.transport() == Transport::Tcp || inner_ecn != Ecn::NotEct;
        let outer_ecn = if self.is_congested && reacts { Ecn::Ce } else { self.outer_ecn };
        let merged_ecn =
            ecn::decapsulate(inner_ecn, outer_ecn).ok_or(DropReason::CongestionUnmarkable)?;
        if merged_ecn != inner_ecn {
            rewrite::set_ecn(packet, &mut header, merged_ecn)?;
        }

        Ok(header)
    }
}
