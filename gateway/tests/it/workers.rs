//! Threads that help with backlog, end to end: the order stays, in the tunnel and on the wire.
//!
//! Needs root and `/dev/net/tun`. Two workers are forced, also on one core.

use std::cmp::Ordering::{Equal, Greater, Less};
use std::collections::HashMap;
use std::io::{self, Read as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use strait_io::Offload;
use strait_lab::Cluster;
use strait_lab::LabError;
use strait_lab::Layout;
use strait_lab::Namespace;
use strait_lab::topology::{LISTEN_PORT, POD_LINK};
use strait_lab::traffic::{Amount, Datagrams, tcp, udp};

use crate::harness::require::Need::{Root, Tun};
use crate::harness::require::require;
use crate::harness::world::World;

/// How often order is looked for where there may be none.
const ATTEMPTS: usize = 5;

/// UDP payloads of probes of the path and of their answers, which may leave in one send, in bytes. Another thread sends
/// them, so their counters have another order than those of packets.
const PROBE_LENGTHS: [u16; 5] = [32 + 576, 32 + 1420, 2 * (32 + 1420), 32 + 16, 2 * (32 + 16)];

/// Of the links of pods, in bytes: no packet with data is as long as a probe.
const POD_MTU: u32 = 1400;

/// `ETH_P_ALL`: what leaves is heard only by who listens to everything.
const EVERYTHING: u16 = 0x0003;
const TCP: u8 = 6;
const UDP: u8 = 17;

#[test]
fn workers_keep_packets_and_counters_in_order() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    // Without segmentation offload each datagram is seen by itself, with it a send at a time.
    for udp_gso in [true, false] {
        let offload = Offload { udp_gso, ..Offload::default() };
        let world = World::start_with(&Layout::equal().without_ipv6(), |clusters| {
            for cluster in [&mut clusters.milan, &mut clusters.rome] {
                cluster.pod.set_mtu(POD_LINK, POD_MTU).unwrap();
                cluster.config.set_workers(2);
                cluster.config.set_offload(offload);
            }
        });

        for (from, to) in [(world.rome(), world.milan()), (world.milan(), world.rome())] {
            assert_order(from, to, udp_gso);
        }
        world.finish();
    }
}

#[test]
fn workers_are_off_by_default() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let world = World::start(&Layout::equal().without_ipv6());

    world.assert_traffic();

    for cluster in [world.milan(), world.rome()] {
        for direction in ["outbound", "inbound"] {
            assert_eq!(worker_frames(cluster, direction), 0, "{} {direction}", cluster.name);
        }
    }
    world.finish();
}

/// Bulk TCP and small datagrams at once, from one cluster to the other. A veth pair has a queue on each
/// core: a sender that changes cores may overtake itself before anything reaches a gateway, and then the order
/// behind it tells nothing.
fn assert_order(from: &Cluster, to: &Cluster, merges: bool) {
    let is_telling = (0..ATTEMPTS).any(|_| has_kept_order(from, to, merges));

    assert!(is_telling, "{} sent nothing in order", from.name);
}

/// Whether there was an order to keep.
fn has_kept_order(from: &Cluster, to: &Cluster, merges: bool) -> bool {
    let way = format!("{} to {}", from.name, to.name);
    let target = from.side.sees(&to.side).next().unwrap();
    let before = (worker_frames(from, "outbound"), worker_frames(to, "inbound"));
    let wire = Listener::start(&from.gateway, counter);
    let sent = Listener::start(&from.gateway, departure);
    let inner = Listener::start(&to.gateway, departure);

    let datagrams = Datagrams { count: 20_000, payload_bytes: 1200, per_second: 10_000 };
    let (bulk, train) = std::thread::scope(|scope| {
        let train = scope.spawn(|| udp(&from.pod, &to.pod, target, datagrams).unwrap());
        let bulk = tcp(&from.pod, &to.pod, target, Amount::Bytes(150_000_000)).unwrap();
        (bulk, train.join().unwrap())
    });
    let (sent, wire, inner) = (sent.stop(), wire.stop(), inner.stop());

    assert!(bulk.is_intact, "{way}: {bulk:?}");
    assert_eq!((train.reordered, train.duplicated, train.corrupted), (0, 0, 0), "{way}: {train:?}");
    assert_eq!(wire.reordered, 0, "{way}, counters: {wire:?}");
    assert!(inner.reordered == 0 || sent.reordered > 0, "{way}, packets: {sent:?} {inner:?}");
    assert!(wire.seen > 1000 && inner.seen > 1000, "{way}: {wire:?} {inner:?}");
    let (sealed, opened) = (worker_frames(from, "outbound"), worker_frames(to, "inbound"));
    assert!(sealed > before.0, "{way}: no worker sealed anything");
    // Without segmentation offload each datagram is a message, and none is worth a worker.
    assert!(opened > before.1 || !merges, "{way}: no worker opened anything");

    sent.reordered == 0
}

fn worker_frames(cluster: &Cluster, direction: &str) -> u64 {
    cluster.metrics().unwrap().sum("strait_worker_frames_total", &[("direction", direction)])
}

/// A stream, and a place in it. Of the second number only the lowest sixteen bits are known.
type Place = (u64, (u64, u16));

/// The session and the sending counter of an outer datagram that carries a packet.
fn counter(packet: &[u8]) -> Option<Place> {
    let (protocol, _, udp) = parse(packet)?;
    let field = |at: usize| udp.get(at..)?.first_chunk().map(|field| u16::from_be_bytes(*field));
    let is_ours = field(0)? == LISTEN_PORT || field(2)? == LISTEN_PORT;
    if protocol != UDP || !is_ours || PROBE_LENGTHS.contains(&field(4)?.saturating_sub(8)) {
        return None;
    }
    let message = udp.get(8..)?.strip_prefix(&[4, 0, 0, 0])?;
    let (index, counter) = message.split_first_chunk::<4>()?;

    let counter = u64::from_le_bytes(*counter.first_chunk()?);

    Some((u32::from_le_bytes(*index).into(), (counter, 0)))
}

/// The flow of an inner TCP packet with data, and when it was sent: its timestamp in milliseconds, and among equal
/// ones the identification, of which Linux gives each packet of a socket the next. Both are new in a packet that
/// is sent again. Acknowledgements are left out: they go the other way, and come to the listener from a pod, on
/// several cores at once, before the gateway has had them.
fn departure(packet: &[u8]) -> Option<Place> {
    let (protocol, identification, tcp) = parse(packet)?;
    let total_len = u16::from_be_bytes(*packet.get(2..)?.first_chunk()?);
    let header_len = usize::from(tcp.get(12)? >> 4) * 4;
    let has_data = usize::from(total_len) > packet.len() - tcp.len() + header_len;
    let source = u32::from_be_bytes(*packet.get(12..)?.first_chunk()?);
    let ports = u32::from_be_bytes(*tcp.first_chunk()?);
    let flow = (u64::from(source) << 32) | u64::from(ports);
    // As Linux lays out the options of every packet but the first two.
    let timestamp = tcp.get(20..)?.strip_prefix(&[1, 1, 8, 10])?.first_chunk()?;
    let timestamp = u32::from_be_bytes(*timestamp);

    (protocol == TCP && has_data).then_some((flow, (timestamp.into(), identification)))
}

/// Protocol, identification and what follows the header of an IPv4 packet.
fn parse(packet: &[u8]) -> Option<(u8, u16, &[u8])> {
    let header_len = match packet.first()? {
        first if first >> 4 == 4 => usize::from(first & 0x0f) * 4,
        _ => return None,
    };
    let identification = u16::from_be_bytes(*packet.get(4..)?.first_chunk()?);

    Some((*packet.get(9)?, identification, packet.get(header_len..)?))
}

/// What was heard.
#[derive(Debug, Default)]
struct Heard {
    seen: u64,
    /// What came after something later of the same stream.
    reordered: u64,
}

/// Listens to every link of a namespace.
struct Listener {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<Heard>>,
}

impl Listener {
    fn start(namespace: &Namespace, place: fn(&[u8]) -> Option<Place>) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let socket = namespace.run(|| open().map_err(LabError::io("listen"))).unwrap();
        let listen = {
            let is_over = Arc::clone(&is_over);
            move || listen(socket, place, &is_over)
        };

        Self { is_over, thread: namespace.spawn(listen).unwrap() }
    }

    fn stop(self) -> Heard {
        self.is_over.store(true, Ordering::Relaxed);

        self.thread.join().unwrap().unwrap()
    }
}

fn open() -> io::Result<Socket> {
    let protocol = Protocol::from(i32::from(EVERYTHING.to_be()));
    let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(protocol))?;
    socket.set_recv_buffer_size(8 << 20)?;
    socket.set_read_timeout(Some(Duration::from_millis(200)))?;

    Ok(socket)
}

fn listen(
    mut socket: Socket,
    place: fn(&[u8]) -> Option<Place>,
    is_over: &AtomicBool,
) -> io::Result<Heard> {
    let mut heard = Heard::default();
    let mut newest = HashMap::new();
    // Headers are enough.
    let mut buffer = [0; 128];
    loop {
        let len = match socket.read(&mut buffer) {
            Ok(len) => len,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock) => {
                if is_over.load(Ordering::Relaxed) {
                    return Ok(heard);
                }
                continue;
            }
            Err(error) => return Err(error),
        };
        let Some((stream, number)) = buffer.get(..len).and_then(place) else { continue };
        heard.seen += 1;
        // A packet that is forwarded is heard on two links.
        let newest = newest.entry(stream).or_insert(number);
        let is_later = match number.0.cmp(&newest.0) {
            Equal => number.1.wrapping_sub(newest.1) < 1 << 15,
            Greater => true,
            Less => false,
        };
        if is_later {
            *newest = number;
        } else {
            heard.reordered += 1;
        }
    }
}
