//! A source address that all nodes have in packets of senders that a remote cluster does not know.
//!
//! Replies to it do not say which node they are for. So each node has an address of its own inside the gateway: the shared
//! source of a packet from the node becomes that, and masquerade gives it back before the packet leaves, with a port
//! that no other node has. On the way to the node the replacement is undone.

use std::net::IpAddr;

use crate::ports::Side;
use crate::rewrite::{self, Checksum, Mismatch};
use crate::{Header, icmp};

/// The two addresses of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedSource {
    /// The address that all nodes have as a source.
    pub shared: IpAddr,
    /// The address of the node alone.
    pub own: IpAddr,
}

impl SharedSource {
    /// Replaces the shared source of `packet`, which came from the node. An ICMP error about a packet to the shared address
    /// quotes it.
    ///
    /// # Errors
    ///
    /// [`Mismatch`] if the addresses are of the other IP version, or `header` is not that of `packet`.
    #[inline]
    pub fn replace(
        &self,
        packet: &mut [u8],
        header: &mut Header,
        checksum: Checksum,
    ) -> Result<(), Mismatch> {
        if let Some(mut embedded) = icmp::embedded(packet, header)
            && embedded.destination() == self.shared
        {
            rewrite::embedded_address(packet, header, &mut embedded, Side::Destination, self.own)?;
        }
        if header.source() == self.shared {
            rewrite::address(packet, header, Side::Source, self.own, checksum)?;
        }

        Ok(())
    }

    /// Undoes the replacement in `packet`, which goes to the node and has complete checksums.
    ///
    /// # Errors
    ///
    /// As [`Self::replace`].
    pub fn restore(&self, packet: &mut [u8], header: &mut Header) -> Result<(), Mismatch> {
        if let Some(mut embedded) = icmp::embedded(packet, header)
            && embedded.source() == self.own
        {
            rewrite::embedded_address(packet, header, &mut embedded, Side::Source, self.shared)?;
        }
        if header.destination() == self.own {
            let complete = Checksum::Complete;
            rewrite::address(packet, header, Side::Destination, self.shared, complete)?;
        }

        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{Packet, UDP, udp};

    const ICMP: u8 = 1;

    const NODE: SharedSource = SharedSource {
        shared: IpAddr::V4(std::net::Ipv4Addr::new(10, 70, 0, 0)),
        own: IpAddr::V4(std::net::Ipv4Addr::new(10, 80, 0, 1)),
    };

    #[test]
    fn a_shared_source_becomes_that_of_the_node() {
        let replaced = |source: &str| {
            let mut packet = datagram(source, "10.71.0.9");
            let mut header = Header::parse(&packet).unwrap();
            NODE.replace(&mut packet, &mut header, Checksum::Complete).unwrap();
            packet
        };

        assert_eq!(replaced("10.70.0.0"), datagram("10.80.0.1", "10.71.0.9"));
        assert_eq!(replaced("10.244.0.7"), datagram("10.244.0.7", "10.71.0.9"));
    }

    #[test]
    fn a_reply_goes_to_the_shared_address() {
        let restored = |destination: &str| {
            let mut packet = datagram("10.71.0.9", destination);
            let mut header = Header::parse(&packet).unwrap();
            NODE.restore(&mut packet, &mut header).unwrap();
            packet
        };

        assert_eq!(restored("10.80.0.1"), datagram("10.71.0.9", "10.70.0.0"));
        assert_eq!(restored("10.244.0.7"), datagram("10.71.0.9", "10.244.0.7"));
    }

    #[test]
    fn icmp_errors_quote_the_same_address() {
        let (inside, outside) = ("10.80.0.1", "10.70.0.0");
        let error = |source: &str, destination: &str, quoted: Vec<u8>| {
            let mut message = vec![3, 3, 0, 0, 0, 0, 0, 0];
            message.extend(quoted);
            Packet::new(source.parse().unwrap(), destination.parse().unwrap(), ICMP, message)
                .build()
        };

        // The node reports a reply.
        let mut packet = error(outside, "10.71.0.9", datagram("10.71.0.9", outside));
        let mut header = Header::parse(&packet).unwrap();
        NODE.replace(&mut packet, &mut header, Checksum::Complete).unwrap();
        assert_eq!(packet, error(inside, "10.71.0.9", datagram("10.71.0.9", inside)));

        // The remote reports a request.
        let mut packet = error("10.71.0.9", inside, datagram(inside, "10.71.0.9"));
        let mut header = Header::parse(&packet).unwrap();
        NODE.restore(&mut packet, &mut header).unwrap();
        assert_eq!(packet, error("10.71.0.9", outside, datagram(outside, "10.71.0.9")));
    }

    fn datagram(source: &str, destination: &str) -> Vec<u8> {
        let [source, destination] = [source, destination].map(|text| text.parse().unwrap());

        Packet::new(source, destination, UDP, udp([5, 53], b"question")).build()
    }
}
