//! Answers the check that Liqo's nodes make of their Geneve tunnels: PINGs to the gateway's address in the overlay.
//!
//! The nodes measure, and write the results to the status of each `GeneveTunnel`; Liqo after 1.2.

use std::io;
use std::net::IpAddr;
use std::os::unix::net::UnixDatagram as StdUnixDatagram;

use strait_plan::conncheck;
use tokio::net::UnixDatagram;
use tracing::debug;

use super::own_packets::{PACKET_BYTES_MAX, Packet, parse, udp};

/// Answers what arrives in `packets` for UDP port `port`, and ICMP echo requests. Returns only if the socket fails.
pub(super) async fn run(packets: StdUnixDatagram, port: u16) {
    if let Err(error) = answer_all(packets, port).await {
        debug!(%error, "PINGs of nodes are not answered any more");
    }
}

async fn answer_all(packets: StdUnixDatagram, port: u16) -> io::Result<()> {
    let packets = UnixDatagram::from_std(packets)?;
    let mut buffer = vec![0; PACKET_BYTES_MAX];
    loop {
        let len = packets.recv(&mut buffer).await?;
        match answer(buffer.get(..len).unwrap_or_default(), port) {
            Some(answer) => drop(packets.send(&answer).await?),
            None => debug!("a packet of a node to the gateway's own address is not for the check"),
        }
    }
}

/// The packet in answer to `packet`.
fn answer(packet: &[u8], port: u16) -> Option<Vec<u8>> {
    match parse(packet, port) {
        Packet::Datagram { source, destination, payload } => {
            let IpAddr::V4(node) = source.ip() else { return None };
            let pong = conncheck::answer(&payload)?;
            udp((destination.octets(), node.octets()), (port, source.port()), &pong).ok()
        }
        Packet::Echo(answer) => Some(answer),
        Packet::Other => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GATEWAY: [u8; 4] = [10, 80, 0, 9];
    const NODE: [u8; 4] = [10, 80, 0, 3];
    const PORT: u16 = 54_321;
    const PING: &[u8] =
        br#"{"clusterID":"milan-n1","msgType":"PING","timeStamp":"2026-08-24T10:00:00Z"}"#;

    #[test]
    fn a_ping_returns_to_the_node() {
        let ping = udp((NODE, GATEWAY), (PORT, PORT), PING).unwrap();

        let answer = answer(&ping, PORT).unwrap();

        let pong = str::from_utf8(PING).unwrap().replace("PING", "PONG");
        assert_eq!(answer, udp((GATEWAY, NODE), (PORT, PORT), pong.as_bytes()).unwrap());
        assert_eq!(super::answer(&answer, PORT), None, "a PONG");
        assert_eq!(super::answer(&ping, PORT + 1), None);
    }

    #[tokio::test]
    async fn requests_of_the_socket_are_answered() {
        let (here, there) = StdUnixDatagram::pair().unwrap();
        here.set_nonblocking(true).unwrap();
        there.set_nonblocking(true).unwrap();
        let there = UnixDatagram::from_std(there).unwrap();
        let mut buffer = [0; 256];

        let asked = async {
            there.send(b"no packet").await.unwrap();
            there.send(&udp((NODE, GATEWAY), (9, PORT), PING).unwrap()).await.unwrap();
            there.recv(&mut buffer).await.unwrap()
        };
        let len = tokio::select! {
            () = run(here, PORT) => panic!("the socket failed"),
            len = asked => len,
        };

        assert!(matches!(
            parse(&buffer[..len], 9),
            Packet::Datagram { source, .. } if source == (GATEWAY, PORT).into()
        ));
    }
}
