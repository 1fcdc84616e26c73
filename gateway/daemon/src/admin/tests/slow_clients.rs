//! Clients that send or read slowly, or nothing.

use super::*;

/// Some clients send nothing, some send a request byte by byte, some never read the answer.
#[test]
fn every_probe_is_answered_beside_slow_clients() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    for count in [40, 1_000] {
        let server = Server::start(true);
        let is_over = Arc::new(AtomicBool::new(false));
        let are_connected = Arc::new(Barrier::new(5));
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let (address, is_over) = (server.address, Arc::clone(&is_over));
                let are_connected = Arc::clone(&are_connected);
                thread::spawn(move || stay(address, count / 4, &are_connected, &is_over))
            })
            .collect();

        are_connected.wait();
        // All of them come at once, which a busy machine needs some time for.
        wait_until("a probe is answered in time", PATIENCE, || {
            Ok(is_answered_within(server.address, PROBE_MAX))
        })
        .unwrap();
        let failed: Vec<_> =
            (0..100).filter(|_| !is_answered_within(server.address, PROBE_MAX)).collect();
        is_over.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().unwrap();
        }

        assert_eq!(failed, [0; 0], "of 100, beside {count}");
    }
}

const PROBE_MAX: Duration = Duration::from_secs(1);

/// Connections that a thread replaces in each round: few enough that a probe is never among the longest idle before
/// its request arrives.
const RECONNECTIONS: usize = 10;

/// Keeps `count` connections, and replaces those that the server has closed.
fn stay(address: SocketAddr, count: usize, are_connected: &Barrier, is_over: &AtomicBool) {
    let start: [&[u8]; 4] = [b"", b"GET /he", b"GET /config HTTP/1.1\r\n", UNREAD];
    let connect = |number: usize| {
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_nonblocking(true).ok()?;
        let _ = stream.write(start[number % start.len()]);
        Some(stream)
    };
    let mut streams: Vec<_> = (0..count).map(connect).collect();
    are_connected.wait();

    while !is_over.load(Ordering::Relaxed) {
        let mut reconnections = 0;
        for (number, stream) in streams.iter_mut().enumerate() {
            let is_closed = |stream: &mut TcpStream| match stream.peek(&mut [0]) {
                Ok(len) => len == 0,
                Err(error) => error.kind() != io::ErrorKind::WouldBlock,
            };
            if stream.as_mut().is_none_or(is_closed) {
                if reconnections < RECONNECTIONS {
                    *stream = connect(number);
                    reconnections += 1;
                }
            } else if let Some(stream) = stream {
                let _ = stream.write(b"x");
            }
        }
        thread::sleep(Duration::from_millis(50));
    }
}

const UNREAD: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";

fn is_answered_within(address: SocketAddr, limit: Duration) -> bool {
    let start = crate::service::now();
    let ask = || {
        let mut stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_read_timeout(Some(limit.saturating_sub(start.elapsed())))?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        io::Result::Ok(answer)
    };

    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 ")) && start.elapsed() < limit
}
