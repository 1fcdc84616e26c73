//! What a packet must meet besides having a peer.
//!
//! Few gateways have rules: what needs them is not inlined into the path of every packet.

use std::net::IpAddr;

use remap::policy::{Addresses, Passing, Way};
use remap::ruleset::Verdict;

use super::Context;
use strait_packet::rewrite::Checksum;
use strait_packet::{DropReason, Fragment, Header, mss};

/// Bytes of the headers of IP and TCP without options.
const HEADERS_V4: u16 = 40;
const HEADERS_V6: u16 = 60;

/// What rules read of a packet as it came in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    addresses: Addresses,
    protocol: u8,
    ports: Option<[u16; 2]>,
}

impl Facts {
    /// Reads them before the packet is translated; `None` if there are no rules.
    #[inline]
    pub(super) fn read(context: &Context<'_>, packet: &[u8], header: &Header) -> Option<Self> {
        context.forwarding.table().policy().map(|_| Self::of(packet, header))
    }

    #[cold]
    fn of(packet: &[u8], header: &Header) -> Self {
        let words = match header.fragment() {
            Fragment::Later => None,
            Fragment::None | Fragment::First => {
                packet.get(header.transport_offset()..).and_then(<[u8]>::first_chunk::<4>)
            }
        };
        let ports = words.map(|[a, b, c, d]| [[*a, *b], [*c, *d]].map(u16::from_be_bytes));

        Self {
            addresses: Addresses { source: header.source(), destination: header.destination() },
            protocol: header.protocol(),
            ports,
        }
    }
}

/// Passes a packet whose destination becomes `destination` through the rules; `None` if there are none.
///
/// # Errors
///
/// [`DropReason::Filtered`], [`DropReason::Rejected`].
#[inline]
pub(super) fn forward<'a>(
    context: &Context<'a>,
    way: Way,
    facts: Option<Facts>,
    destination: IpAddr,
) -> Result<Option<Passing<'a>>, DropReason> {
    let Some(facts) = facts else { return Ok(None) };

    forward_by_rules(context, way, &facts, destination)
}

#[cold]
fn forward_by_rules<'a>(
    context: &Context<'a>,
    way: Way,
    facts: &Facts,
    destination: IpAddr,
) -> Result<Option<Passing<'a>>, DropReason> {
    let Some(policy) = context.forwarding.table().policy() else { return Ok(None) };
    let Facts { addresses, protocol, ports } = *facts;

    policy.forward(way, addresses, destination, protocol, ports).map(Some).map_err(reason)
}

/// Passes the packet, which is translated now, through the last rules, and lowers its MSS as they say.
///
/// # Errors
///
/// As [`forward`].
#[inline]
pub(super) fn leave(
    passing: Option<Passing<'_>>,
    packet: &mut [u8],
    header: &Header,
    checksum: Checksum,
) -> Result<(), DropReason> {
    let Some(passing) = passing else { return Ok(()) };

    leave_by_rules(passing, packet, header, checksum)
}

#[cold]
fn leave_by_rules(
    passing: Passing<'_>,
    packet: &mut [u8],
    header: &Header,
    checksum: Checksum,
) -> Result<(), DropReason> {
    let clamp = passing.leave(header.source()).map_err(reason)?;
    // That to the route is done for every packet.
    if let Some(max) = clamp.to
        && mss::opens_connection(packet, header)
    {
        let headers = if header.is_ipv6() { HEADERS_V6 } else { HEADERS_V4 };
        mss::clamp(packet, header, max.saturating_add(headers), checksum)?;
    }

    Ok(())
}

const fn reason(verdict: Verdict) -> DropReason {
    match verdict {
        Verdict::Reject => DropReason::Rejected,
        Verdict::Accept | Verdict::Drop => DropReason::Filtered,
    }
}
