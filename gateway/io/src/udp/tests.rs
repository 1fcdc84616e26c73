use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use super::socket::bind_ipv4;
use super::*;
use strait_engine::inbound::{MAX_MESSAGES, Received};
use strait_packet::DropReason;
use strait_packet::buffer::Outer;

#[test]
fn answers_come_from_the_called_address() {
    for (udp, is_dual_stack) in sockets() {
        let called =
            ["127.0.0.1", "127.0.0.7", "::1"].into_iter().take(2 + usize::from(is_dual_stack));
        for called in called.map(|address| address.parse::<IpAddr>().unwrap()) {
            let (client, path) = call(&udp, called);
            assert_eq!(path.remote, client.local_addr().unwrap());
            assert_eq!(path.local, Local::new(called, 0));

            send(&udp, path, |refused| panic!("{refused:?}"));

            assert_eq!(sources(&client), [SocketAddr::new(called, udp.port()); DATAGRAMS]);
        }
    }
}

#[test]
fn a_missing_source_address_is_replaced() {
    for (udp, is_dual_stack) in sockets() {
        let cases = [("127.0.0.1", "192.0.2.77"), ("::1", "2001:db8::77")];
        for (called, gone) in cases.into_iter().take(1 + usize::from(is_dual_stack)) {
            let (client, path) = call(&udp, called.parse().unwrap());
            let path = Path { local: Local::new(gone.parse().unwrap(), 0), ..path };
            let mut refused = Vec::new();

            let accounts = send(&udp, path, |path| refused.push(path));

            assert_eq!(refused, [path]);
            assert_eq!(sources(&client).len(), DATAGRAMS);
            assert_eq!(accounts.outbound.snapshot().drops(DropReason::WriteFailed), 0);
        }
    }
}

#[test]
fn spare_port_answers_have_their_path() {
    for (udp, _) in sockets() {
        let client = client([127, 0, 0, 1].into());
        let remote = client.local_addr().unwrap();
        let path = Path { port: LocalPort::Spare, ..remote.into() };

        send(&udp, path, |_| ());

        let asked_from = sources(&client);
        assert!(asked_from.iter().all(|from| from.port() == udp.spare_port()), "{asked_from:?}");
        assert!(![0, udp.port()].contains(&udp.spare_port()));
        client.send_to(b"answer", asked_from[0]).unwrap();
        let mut buffer = ReceiveBuffer::new();
        let count = polled(|| udp.receive(&mut buffer));
        let path = buffer.received(count).next().unwrap().path;
        assert_eq!((path.remote, path.port), (remote, LocalPort::Spare));

        client.send_to(b"call", ("127.0.0.1", udp.port())).unwrap();
        let count = polled(|| udp.receive(&mut buffer));
        assert_eq!(buffer.received(count).next().unwrap().path.port, LocalPort::Listen);
    }
}

#[test]
fn a_busy_port_does_not_starve_the_spare() {
    let udp = Udp::bind(0, Offload { udp_gro: false, ..Offload::default() }).unwrap();
    let client = client([127, 0, 0, 1].into());
    let path = Path { port: LocalPort::Spare, ..client.local_addr().unwrap().into() };
    send(&udp, path, |_| ());
    sources(&client);
    for _ in 0..3 * MAX_MESSAGES {
        client.send_to(b"call", ("127.0.0.1", udp.port())).unwrap();
    }
    client.send_to(b"answer", ("127.0.0.1", udp.spare_port())).unwrap();

    let mut buffer = ReceiveBuffer::new();
    let received = [(); 4].map(|()| (polled(|| udp.receive(&mut buffer)), buffer.port));

    let [full, answer] = [(MAX_MESSAGES, LocalPort::Listen), (1, LocalPort::Spare)];
    assert_eq!(received, [full, answer, full, full]);
}

#[test]
fn one_rejected_datagram_stops_no_other() {
    let datagrams = || [10, 20, 30, 40, 5].map(|len| vec![0; len]);
    let send = |refused: &[usize], errno| {
        let mut sent = Vec::new();
        let each = datagrams();
        let result = send_each(each.iter().map(Vec::as_slice), |datagram| {
            if refused.contains(&datagram.len()) {
                return Err(io::Error::from_raw_os_error(errno));
            }
            sent.push(datagram.len());
            Ok(())
        });

        (result.ok(), sent)
    };

    let rejected = |datagrams, bytes| Some(Rejected { datagrams, bytes });
    assert_eq!(send(&[20, 5], libc::EPERM), (rejected(2, 25), vec![10, 30, 40]));
    assert_eq!(send(&[10], libc::EPERM), (rejected(1, 10), vec![20, 30, 40, 5]));
    assert_eq!(send(&[20], libc::ENETUNREACH), (rejected(1, 20), vec![10, 30, 40, 5]));
    assert_eq!(
        send(&[10], libc::ENETUNREACH),
        (None, vec![]),
        "the caller sends all of them again"
    );
    assert_eq!(send(&[10, 20, 30, 40, 5], libc::EPERM), (None, vec![]));
}

/// The destination is at fault.
#[test]
fn a_failed_send_keeps_a_valid_source() {
    for (udp, _) in sockets() {
        let nowhere = SocketAddr::from(([255, 255, 255, 255], 9));
        let path = Path { local: Local::new([127, 0, 0, 1].into(), 0), ..nowhere.into() };

        send(&udp, path, |refused| panic!("{refused:?}"));
    }
}

#[test]
fn handshakes_arrive_on_their_own_sockets() {
    for (udp, is_dual_stack) in sockets() {
        let called = ["127.0.0.7", "::1"].into_iter().take(1 + usize::from(is_dual_stack));
        for called in called.map(|address| address.parse::<IpAddr>().unwrap()) {
            let client = client(called);
            let (initiation, data) = (message(1, 148), message(4, 148));
            for sent in [&initiation, &data] {
                client.send_to(sent, (called, udp.port())).unwrap();
            }

            let mut buffer = HandshakeBuffer::new();
            let count = polled(|| udp.receive_handshakes(Steered::WithoutCookie, &mut buffer));
            let received: Vec<_> = buffer.received(count).collect();
            assert_eq!(received.len(), 1);
            assert_eq!(received[0].bytes, initiation);
            let path = Path { local: Local::new(called, 0), ..client.local_addr().unwrap().into() };
            assert_eq!(received[0].path, path);
            let mut buffer = ReceiveBuffer::new();
            let count = polled(|| udp.receive(&mut buffer));
            let received: Vec<_> = buffer.received(count).map(|one| one.bytes).collect();
            assert_eq!(received, [data]);
        }
    }
}

/// As on a kernel that cannot steer.
#[test]
fn without_steering_handshakes_arrive_on_one_socket() {
    let udp = Udp::bind(0, Offload { udp_steering: false, ..Offload::default() }).unwrap();
    let initiation = message(1, 148);
    let client = client([127, 0, 0, 1].into());
    client.send_to(&initiation, ("127.0.0.1", udp.port())).unwrap();

    assert!(!udp.steers() && udp.handshakes().next().is_none());
    let error =
        udp.receive_handshakes(Steered::WithoutCookie, &mut HandshakeBuffer::new()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    let mut buffer = ReceiveBuffer::new();
    assert_eq!(polled(|| udp.receive(&mut buffer)), 1);
    assert_eq!(buffer.received(1).next().unwrap().bytes, initiation);
}

#[test]
fn only_one_gateway_gets_a_port() {
    let with = Offload::default();
    let without = Offload { udp_steering: false, ..with };
    for (one, other) in [(with, with), (with, without), (without, with)] {
        let udp = Udp::bind(0, one).unwrap();
        let port = udp.port();

        let refused = Udp::bind(port, other).unwrap_err();
        assert!(matches!(refused, StartError::Port { port: taken, .. } if taken == port));
        drop(udp);
        Udp::bind(port, other).unwrap();
    }
}

/// Each message is either received or counted as dropped.
#[test]
fn dropped_handshakes_are_counted() {
    let (udp, _) = &sockets()[0];
    let client = client([127, 0, 0, 1].into());
    let before = udp.dropped_handshakes();
    for _ in 0..SENT {
        client.send_to(&message(1, 148), ("127.0.0.1", udp.port())).unwrap();
    }
    let mut buffer = HandshakeBuffer::new();
    let mut received = 0;
    while let Ok(count) = udp.receive_handshakes(Steered::WithoutCookie, &mut buffer) {
        received += buffer.received(count).count();
    }

    let dropped = usize::try_from(udp.dropped_handshakes() - before).unwrap();
    assert!(received > 0 && dropped > 0, "{received} of {SENT}");
    assert_eq!(received + dropped, SENT);
}

/// The flow decides which socket's option the kernel uses. This test sends what no peer sends: 148 bytes in two
/// datagrams that begin as an initiation.
#[test]
fn all_sockets_merge_or_none() {
    for coalesces in [true, false] {
        let offload = Offload { udp_gro: coalesces, ..Offload::default() };
        let udp = Udp::bind(0, offload).unwrap();
        assert_eq!(udp.coalesces(), coalesces);
        let client = client([127, 0, 0, 1].into());
        sys::set_option(client.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 100).unwrap();
        for kind in [1, 4] {
            client.send_to(&message(kind, 148), ("127.0.0.1", udp.port())).unwrap();
        }

        let mut handshakes = HandshakeBuffer::new();
        let count = polled(|| udp.receive_handshakes(Steered::WithoutCookie, &mut handshakes));
        let handshakes = handshakes.received(count);
        let mut rest = ReceiveBuffer::new();
        let count = polled(|| udp.receive(&mut rest));
        let expected = if coalesces { vec![(148, 100)] } else { vec![(100, 100), (48, 48)] };
        let parts = |received: Received<'_>| (received.bytes.len(), received.stride);
        assert_eq!(handshakes.map(parts).collect::<Vec<_>>(), expected);
        assert_eq!(rest.received(count).map(parts).collect::<Vec<_>>(), expected);
    }
}

/// More than the receive buffer holds.
const SENT: usize = 20_000;

const DATAGRAMS: usize = 3;

/// A socket as on a host with IPv6 and one as on a host without, and whether each is dual-stack.
fn sockets() -> Vec<(Arc<Udp>, bool)> {
    let any = Udp::bind(0, Offload::default()).unwrap();
    let ipv4 = Udp::new(bind_ipv4(0).unwrap(), false, 0, Offload::default()).unwrap();
    let is_dual_stack = any.is_dual_stack && UdpSocket::bind("[::1]:0").is_ok();

    vec![(any, is_dual_stack), (ipv4, false)]
}

/// A client that sent a datagram to `called`, and the path of that datagram.
fn call(udp: &Udp, called: IpAddr) -> (UdpSocket, Path) {
    let client = client(called);
    client.send_to(b"hello", (called, udp.port())).unwrap();
    let mut buffer = ReceiveBuffer::new();
    let count = polled(|| udp.receive(&mut buffer));
    let received = buffer.received(count).next().unwrap();
    assert_eq!(received.bytes, b"hello");

    (client, received.path)
}

/// Receives within a second: the kernel may deliver after the send has returned.
fn polled(mut receive: impl FnMut() -> io::Result<usize>) -> usize {
    for _ in 0..1_000 {
        match receive() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
            }
            received => return received.unwrap(),
        }
    }

    panic!("nothing arrived within a second")
}

fn client(called: IpAddr) -> UdpSocket {
    let own = if called.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" };
    let client = UdpSocket::bind(own).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(3))).unwrap();

    client
}

fn message(kind: u8, len: usize) -> Vec<u8> {
    let mut message = vec![0; len];
    message[0] = kind;

    message
}

fn send(udp: &Udp, path: Path, refused: impl FnMut(Path)) -> Accounts {
    let accounts = Accounts::default();
    let mut batch = TransmitBatch::default();
    for _ in 0..DATAGRAMS {
        batch.push_message(&[7; 100], Outer::message(path));
    }
    assert_eq!(batch.transmits().len(), 1);
    udp.send_first(1, &mut batch, &accounts, refused);

    accounts
}

fn sources(client: &UdpSocket) -> Vec<SocketAddr> {
    (0..DATAGRAMS).map(|_| client.recv_from(&mut [0; 200]).unwrap().1).collect()
}
