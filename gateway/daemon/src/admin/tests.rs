use std::any::Any;
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use hyper::{Method, StatusCode};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::time::{ClockId, clock_gettime};
use socket2::SockRef;
use strait_host::http::{Admin, LineStreams, Site as _};
use strait_host::logging::LogFormat;
use strait_io::Status;
use strait_lab::wait_until;

use super::*;
use crate::config::{Config, example};
use crate::device_state::{DeviceState, MissingPrefix};
use crate::forwarding::Forwarding;

#[test]
fn metrics_have_the_content_type_of_openmetrics() {
    let server = Server::start(true);

    let answer = server.request("GET /metrics HTTP/1.0");

    assert!(answer.starts_with("HTTP/1.0 200 "), "{answer}");
    assert!(
        answer.contains(
            "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"
        ),
        "{answer}"
    );
    assert!(answer.ends_with("# EOF\n"), "{answer}");
}

#[test]
fn health_follows_the_packet_threads() {
    assert!(Server::start(true).request("GET /healthz HTTP/1.1").starts_with("HTTP/1.1 200 "));
    assert!(Server::start(false).request("GET /healthz HTTP/1.1").starts_with("HTTP/1.1 503 "));
}

#[test]
fn readiness_names_what_is_missing() {
    let server = Server::start(true);
    let ask = || server.request("GET /readyz HTTP/1.1");
    let (device, list) = ("the device is not up\n", "the first list of objects was not seen\n");

    let before = ask();
    server.board.set_device(up());
    let without_list = ask();
    server.board.set_knows_peers();
    let ready = ask();
    server.board.set_device(DeviceState::default());
    let without_device = ask();
    server.board.set_device(up());
    server.board.set_draining();
    let draining = ask();

    for (answer, body) in [
        (before, format!("{device}{list}").as_str()),
        (without_list, list),
        (without_device, device),
        (draining, "draining\n"),
    ] {
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert!(answer.ends_with(&format!("\r\n\r\n{body}")), "{answer}");
    }
    assert!(ready.starts_with("HTTP/1.1 200 "), "{ready}");
}

#[test]
fn a_ready_gateway_names_missing_routes() {
    let server = Server::start(true);
    server.board.set_knows_peers();
    let missing_prefix = |prefix: &str| MissingPrefix {
        prefix: prefix.parse().unwrap(),
        is_route: true,
        cause: format!("cannot add route {prefix}: no IPv6"),
    };
    let missing = vec![missing_prefix("fd00:71::/64")];

    server.board.set_device(DeviceState { wanted_routes: 2, missing: missing.clone(), ..up() });
    let degraded_reasons = server.request("GET /readyz HTTP/1.1");
    server.board.set_device(DeviceState { wanted_routes: 1, missing, ..up() });
    let not_at_all = server.request("GET /readyz HTTP/1.1");

    let named = "cannot add route fd00:71::/64: no IPv6\n";
    assert!(degraded_reasons.starts_with("HTTP/1.1 200 "), "{degraded_reasons}");
    assert!(degraded_reasons.ends_with(&format!("ready\n{named}")), "{degraded_reasons}");
    assert!(not_at_all.starts_with("HTTP/1.1 503 "), "{not_at_all}");
    assert!(not_at_all.ends_with(&format!("\r\n\r\n{named}")), "{not_at_all}");
}

#[test]
fn ended_packet_threads_are_not_ready() {
    let server = Server::start(false);
    server.board.set_device(up());
    server.board.set_knows_peers();

    let answer = server.request("GET /readyz HTTP/1.1");

    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("a packet thread ended"), "{answer}");
}

#[test]
fn config_shows_the_applied_configuration() {
    let server = Server::start(true);
    let ask = || server.request("GET /config HTTP/1.1");
    let apply = |name: &str, generation| {
        let config = Config { name: name.to_owned(), ..example::config() };
        server.board.set_applied(AppliedConfig {
            config: config.into(),
            mtu_bytes: 1420,
            generation,
        });
    };

    let before = ask();
    apply("milan", 1);
    let first = ask();
    apply("oslo", 2);
    let second = ask();

    assert!(before.starts_with("HTTP/1.1 503 "), "{before}");
    assert!(first.contains("\r\ncontent-type: application/json\r\n"), "{first}");
    for (answer, name, generation) in [(first, "milan", 1), (second, "oslo", 2)] {
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let page: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(page["settings"]["name"]["value"], name);
        assert_eq!(page["settings"]["mtu"]["value"], 1420);
        assert_eq!(page["generation"], generation);
    }
}

#[test]
fn the_log_filter_is_shown_and_changed() {
    let server = Server::start(true);

    let before = server.request("GET /log HTTP/1.1");
    let put = server.request("PUT /log?level=warn%2Cstrait_daemon=trace HTTP/1.1");
    let after = server.request("GET /log HTTP/1.1");

    assert!(!before.contains("strait_daemon"), "{before}");
    for answer in [put, after] {
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        for directive in ["strait_daemon=trace", "warn", "boringtun=off"] {
            assert!(answer.contains(directive), "{answer}");
        }
    }
    assert_eq!(server.sources.log.filter().matches("strait_daemon=trace").count(), 1);
}

#[test]
fn a_wrong_log_filter_is_400() {
    let server = Server::start(true);
    let before = server.sources.log.filter();

    for query in ["?level=loud", "?level=a=b=c", "?level=", "?speed=1", ""] {
        let answer = server.request(&format!("PUT /log{query} HTTP/1.1"));

        assert!(answer.starts_with("HTTP/1.1 400 "), "{query}: {answer}");
        assert!(answer.contains("error, warn, info, debug or trace"), "{query}: {answer}");
    }
    assert_eq!(server.sources.log.filter(), before);
}

#[test]
fn only_loopback_clients_change_the_filter() {
    let server = Server::start(true);
    let pages = Pages::new(server.sources.clone());
    let before = server.sources.log.filter();
    let put = |client: &str| {
        let uri = "/log?level=debug".parse().unwrap();
        pages.answer(&Method::PUT, &uri, client.parse().unwrap()).status()
    };

    for client in ["192.0.2.1", "10.0.0.1", "2001:db8::1", "::ffff:192.0.2.1", "0.0.0.0"] {
        assert_eq!(put(client), StatusCode::FORBIDDEN, "{client}");
    }
    assert_eq!(server.sources.log.filter(), before);
    for client in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
        assert_eq!(put(client), StatusCode::OK, "{client}");
    }
}

#[test]
fn other_pages_are_404_and_other_methods_405() {
    let server = Server::start(true);

    let page = server.request("GET /debug HTTP/1.1");
    let method = server.request("PUT /metrics HTTP/1.1");
    let log = server.request("DELETE /log HTTP/1.1");

    assert!(page.starts_with("HTTP/1.1 404 "), "{page}");
    assert!(method.starts_with("HTTP/1.1 405 "), "{method}");
    assert!(method.contains("allow: GET, HEAD\r\n"), "{method}");
    assert!(log.starts_with("HTTP/1.1 405 "), "{log}");
    assert!(log.contains("allow: GET, HEAD, PUT\r\n"), "{log}");
}

#[test]
fn a_request_beyond_the_size_limit_is_refused() {
    let server = Server::start(true);
    let path = "x".repeat(2 * 8 * 1024);

    let answer = server.request(&format!("GET /{path} HTTP/1.1"));

    // The kernel may discard the 431 together with the rest of the request.
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert!(server.request("GET /healthz HTTP/1.1").starts_with("HTTP/1.1 200 "));
}

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
        // Connections are accepted in turn: all of them are by then.
        assert!(is_answered_within(server.address, PATIENCE));
        let failed: Vec<_> =
            (0..100).filter(|_| !is_answered_within(server.address, PROBE_MAX)).collect();
        is_over.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().unwrap();
        }

        assert_eq!(failed, [0; 0], "of 100, beside {count}");
    }
}

/// What a slow machine needs for what takes a moment.
const PATIENCE: Duration = Duration::from_secs(30);

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

#[test]
fn agents_follow_whether_the_gateway_forwards() {
    let server = Server::start(true);
    server.board.forwarding().publish(forwards(true));
    let mut agent = server.follow();

    let head = agent.head();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(head.contains("content-type: application/x-ndjson\r\n"), "{head}");
    assert!(head.contains("transfer-encoding: chunked\r\n"), "{head}");
    let begun = crate::service::now();
    let lines: Vec<_> = (0..6).map(|_| agent.line()).collect();
    assert_eq!(lines, [r#"{"forwards":true,"own_destinations":["10.81.0.1/32"]}"#; 6]);
    let took = begun.elapsed();
    assert!(took >= 4 * LineStreams::REPEAT, "{took:?}: the same line is repeated after a while");

    server.board.set_draining();
    let told = crate::service::now();
    let expected = r#"{"forwards":false,"own_destinations":["10.81.0.1/32"]}"#;
    while agent.line() != expected {}
    assert!(told.elapsed() < 10 * LineStreams::REPEAT, "{:?}", told.elapsed());
    assert!(server.board.forwarding().is_followed());
    drop(agent);
    wait_until("it knows that no agent follows", PATIENCE, || {
        Ok(!server.board.forwarding().is_followed())
    })
    .unwrap();
}

/// More agents than the port has connections for others; an idle one is closed after ten seconds in any case.
#[test]
fn agents_displace_neither_scrapes_nor_each_other() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let server = Server::start(true);
    let idle = TcpStream::connect(server.address).unwrap();
    let mut agents = Vec::with_capacity(LineStreams::MAX);
    let follow = |agents: &mut Vec<_>, count| {
        for _ in agents.len()..count {
            let mut agent = server.follow();
            assert!(agent.head().starts_with("HTTP/1.1 200 "));
            agents.push(agent);
        }
    };
    follow(&mut agents, 300);
    idle.set_nonblocking(true).unwrap();
    let kind = idle.peek(&mut [0]).unwrap_err().kind();
    assert_eq!(kind, io::ErrorKind::WouldBlock, "it is still open");
    follow(&mut agents, LineStreams::MAX);

    let refused = server.request("GET /forwarding HTTP/1.1");
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert!(refused.ends_with("1024 clients follow this page: close some of them\n"), "{refused}");
    assert!(server.request("GET /healthz HTTP/1.1").starts_with("HTTP/1.1 200 "));
    server.board.forwarding().publish(forwards(true));
    for agent in &mut agents {
        while !agent.line().contains("true") {}
    }

    agents.pop();
    wait_until("another agent may follow", PATIENCE, || {
        Ok(server.follow().head().starts_with("HTTP/1.1 200 "))
    })
    .unwrap();
}

#[test]
fn two_hundred_agents_cost_little() {
    const TIME: Duration = Duration::from_secs(3);
    let server = Server::start(true);
    let mut agents: Vec<_> = (0..200).map(|_| server.follow()).collect();
    for agent in &mut agents {
        agent.head();
    }

    // The agents do not read meanwhile: the kernel keeps thirty lines for each.
    let before = processor_time();
    thread::sleep(TIME);
    let used = processor_time() - before;

    let share = used.as_secs_f64() / TIME.as_secs_f64();
    assert!(share < 0.25, "{share}");
    for agent in &mut agents {
        for _ in 0..20 {
            agent.line();
        }
    }
}

/// Of all threads of this process.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap().into()
}

/// Bytes that the kernel of a client that does not read has accepted do not count.
#[test]
fn little_waits_for_an_agent_that_never_reads() {
    let server = Server::start(true);
    let mut agent = server.follow();
    agent.head();
    let socket = SockRef::from(agent.0.get_ref());
    socket.set_recv_buffer_size(4096).unwrap();

    // Each is another line: 100 MB in all.
    let long = vec!["10.81.0.1/32".parse().unwrap(); 100_000];
    for number in 0..60 {
        let own_destinations = long[number..].to_vec();
        let forwards = number % 2 == 0;
        server.board.forwarding().publish(Forwarding { forwards, own_destinations });
        thread::sleep(Duration::from_millis(5));
    }
    server.board.forwarding().publish(forwards(true));

    let mut read = 0;
    loop {
        let line = agent.line();
        read += line.len();
        if line.len() < 100 {
            break;
        }
    }
    assert!(read < 10_000_000, "{read}: what was not read is not sent later");
}

/// What an agent gets.
struct Agent(BufReader<TcpStream>);

impl Agent {
    /// The status line and the headers.
    fn head(&mut self) -> String {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(self.0.read_line(&mut head).unwrap(), 0, "{head}");
        }

        head
    }

    /// The next line of the body, which is a chunk.
    fn line(&mut self) -> String {
        let mut line = String::new();
        while !line.starts_with('{') {
            line.clear();
            assert_ne!(self.0.read_line(&mut line).unwrap(), 0, "the answer has ended");
        }

        line.trim_end().to_owned()
    }
}

fn forwards(forwards: bool) -> Forwarding {
    Forwarding { forwards, own_destinations: vec!["10.81.0.1/32".parse().unwrap()] }
}

#[test]
fn a_used_port_is_named_with_remedy() {
    let first = Admin::bind("127.0.0.1:0".parse().unwrap()).unwrap();

    let error = format!("{:#}", Admin::bind(first.address()).unwrap_err());

    assert!(error.contains(&first.address().to_string()), "{error}");
    assert!(error.contains("choose another metrics_address"), "{error}");
}

struct Server {
    address: SocketAddr,
    board: StatusBoard,
    sources: Sources,
    /// Keeps the filter alive.
    _layer: Box<dyn Any + Send>,
}

impl Server {
    fn start(is_alive: bool) -> Self {
        let (layer, log) = Log::new("info", LogFormat::Text);
        let board = StatusBoard::default();
        let status = Arc::new(move || Status { is_alive, ..Status::default() });
        let sources = Sources {
            status,
            cluster: None,
            status_board: board.clone(),
            log,
            flag_values: Arc::default(),
        };
        let address = Admin::bind("127.0.0.1:0".parse().unwrap())
            .unwrap()
            .serve(Arc::new(Pages::new(sources.clone())))
            .unwrap();

        Self { address, board, sources, _layer: Box::new(layer) }
    }

    fn follow(&self) -> Agent {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(b"GET /forwarding HTTP/1.1\r\nhost: test\r\n\r\n").unwrap();

        Agent(BufReader::new(stream))
    }

    fn request(&self, line: &str) -> String {
        let mut answer = Vec::new();
        // A refused request may end in a reset after the answer.
        let _ = self.send(line).read_to_end(&mut answer);

        String::from_utf8(answer).unwrap()
    }

    fn send(&self, line: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let request = format!("{line}\r\nhost: test\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();

        stream
    }
}

fn up() -> DeviceState {
    DeviceState { name: "strait0".to_owned(), is_up: true, ..DeviceState::default() }
}
