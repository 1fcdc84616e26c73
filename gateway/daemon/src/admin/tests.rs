mod agents;
mod slow_clients;

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

use agents::Agent;

/// What a slow machine needs for what takes a moment.
const PATIENCE: Duration = Duration::from_secs(30);

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

#[test]
fn a_used_port_is_named_with_remedy() {
    let first = Admin::bind("127.0.0.1:0".parse().unwrap()).unwrap();

    let error = format!("{:#}", Admin::bind(first.address()).unwrap_err());

    assert!(error.contains(&first.address().to_string()), "{error}");
    assert!(error.contains("choose another metrics_address"), "{error}");
}

/// Another replica takes over once the port of the leader refuses a connection.
#[test]
fn inherited_ports_stay_open() {
    let predecessor = [(); 3].map(|()| Admin::bind("127.0.0.1:0".parse().unwrap()).unwrap());
    let addresses = predecessor.each_ref().map(Admin::address);
    let mut inherited: Vec<_> = predecessor.iter().map(|admin| admin.socket().unwrap()).collect();
    drop(predecessor);

    // In another order, and one of them is not wanted any more.
    let mut successor = Vec::new();
    for address in [addresses[1], addresses[0]] {
        successor.push(Admin::inherit_or_bind(address, &mut inherited).unwrap());
        for address in addresses {
            TcpStream::connect(address).unwrap();
        }
    }
    assert_eq!(inherited.len(), 1);
    drop(inherited);

    assert!(TcpStream::connect(addresses[2]).is_err());
    let bound = Admin::inherit_or_bind(addresses[2], &mut Vec::new()).unwrap();
    assert_eq!(bound.address(), addresses[2]);
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
