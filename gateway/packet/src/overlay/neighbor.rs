//! Address resolution with the nodes: who has an address, and which station that is.
//!
//! A node sends a packet to the gateway as a frame to the gateway's station, and asks for that by the gateway's address.
//! The gateway does the same with the addresses of nodes. Messages are ARP for IPv4, and solicitations and advertisements
//! of neighbor discovery for IPv6. The caller keeps the table of neighbors.

use std::net::IpAddr;

use super::ethernet::{self, Content, Ethernet, Mac};
use crate::DropReason;

mod arp;
mod discovery;

/// The length of the longest frame that is written here, in bytes.
pub const MAX_FRAME_LEN: usize = ethernet::HEADER_LEN + discovery::PACKET_LEN;

/// An address, and the station that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The address inside the overlay.
    pub address: IpAddr,
    /// The station.
    pub mac: Mac,
}

/// What a received message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// A binding that the sender announces; `None` if it only asks.
    pub announced: Option<Binding>,
    /// What the sender asks; `None` in an answer.
    pub question: Option<Question>,
}

/// The question for the station that has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    target: IpAddr,
    /// The unspecified address if the sender has none yet, and asks whether the target is in use.
    from: IpAddr,
    /// The station to answer to.
    to: Mac,
}

impl Message {
    /// Reads the message in `frame`, whose header is `ethernet`; `None` if it holds another packet.
    ///
    /// # Errors
    ///
    /// [`DropReason::Malformed`] if a message violates RFC 826, or RFC 4861 sections 7.1.1 and 7.1.2.
    #[inline]
    pub fn parse(frame: &[u8], ethernet: &Ethernet) -> Result<Option<Self>, DropReason> {
        let content = frame.get(ethernet::HEADER_LEN..).unwrap_or_default();
        let parsed = match ethernet.content {
            Content::Ipv4 => return Ok(None),
            Content::Ipv6 if !discovery::is_message(content) => return Ok(None),
            Content::Ipv6 => discovery::parse(content, ethernet),
            Content::Arp => arp::parse(content),
        };

        parsed.map(Some).ok_or(DropReason::Malformed)
    }
}

impl Question {
    /// The address that the sender looks for.
    #[must_use]
    #[inline]
    pub const fn target(&self) -> IpAddr {
        self.target
    }

    /// Writes the answer that the station `own` has the target, and returns the frame.
    #[must_use]
    pub fn answer<'a>(&self, own: Mac, buffer: &'a mut [u8; MAX_FRAME_LEN]) -> &'a [u8] {
        match (self.target, self.from) {
            (IpAddr::V4(target), IpAddr::V4(from)) => {
                write(buffer, own, self.to, Content::Arp, &arp::reply(own, target, self.to, from))
            }
            (IpAddr::V6(target), IpAddr::V6(from)) => {
                let (to, packet) = discovery::advertisement(own, target, self.to, from);
                write(buffer, own, to, Content::Ipv6, &packet)
            }
            // A question has addresses of one version.
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => &[],
        }
    }
}

/// Writes the question of `own` for the station that has `target`, and returns the frame; `None` if the addresses are of
/// different versions.
#[must_use]
pub fn ask(own: Binding, target: IpAddr, buffer: &mut [u8; MAX_FRAME_LEN]) -> Option<&[u8]> {
    match (own.address, target) {
        (IpAddr::V4(from), IpAddr::V4(target)) => {
            let message = arp::request(own.mac, from, target);
            Some(write(buffer, own.mac, Mac::BROADCAST, Content::Arp, &message))
        }
        (IpAddr::V6(from), IpAddr::V6(target)) => {
            let (to, packet) = discovery::solicitation(own.mac, from, target);
            Some(write(buffer, own.mac, to, Content::Ipv6, &packet))
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => None,
    }
}

fn write<'a>(
    buffer: &'a mut [u8; MAX_FRAME_LEN],
    source: Mac,
    destination: Mac,
    content: Content,
    payload: &[u8],
) -> &'a [u8] {
    let len = ethernet::HEADER_LEN + payload.len();
    let header = Ethernet { destination, source, content }.to_bytes();
    if let Some((front, rest)) = buffer.split_first_chunk_mut()
        && let Some(rest) = rest.get_mut(..payload.len())
    {
        *front = header;
        rest.copy_from_slice(payload);
    }

    buffer.get(..len).unwrap_or_default()
}
