use std::io::{Read, Write};
use std::net::TcpStream;

use strait_gateway::io::Status;

use super::*;

#[test]
fn metrics_have_the_content_type_of_openmetrics() {
    let server = Server::start(true);

    let answer = server.request("GET /metrics HTTP/1.1");

    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
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
fn readiness_waits_for_the_first_configuration() {
    let server = Server::start(true);

    let before = server.request("GET /readyz HTTP/1.1");
    server.readiness.set(true);
    let after = server.request("GET /readyz HTTP/1.1");

    assert!(before.starts_with("HTTP/1.1 503 "), "{before}");
    assert!(after.starts_with("HTTP/1.1 200 "), "{after}");
}

#[test]
fn other_pages_are_404_and_other_methods_405() {
    let server = Server::start(true);

    let page = server.request("GET /debug HTTP/1.1");
    let method = server.request("DELETE /metrics HTTP/1.1");

    assert!(page.starts_with("HTTP/1.1 404 "), "{page}");
    assert!(method.starts_with("HTTP/1.1 405 "), "{method}");
    assert!(method.contains("allow: GET, HEAD\r\n"), "{method}");
}

#[test]
fn a_request_beyond_the_size_limit_is_refused() {
    let server = Server::start(true);
    let path = "x".repeat(2 * REQUEST_LIMIT_BYTES);

    let answer = server.request(&format!("GET /{path} HTTP/1.1"));

    // The kernel may throw the 431 away together with the rest of the request.
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert!(server.request("GET /healthz HTTP/1.1").starts_with("HTTP/1.1 200 "));
}

#[test]
fn more_connections_than_the_limit_wait_and_are_served() {
    let server = Server::start(true);
    let idle: Vec<_> =
        (0..CONNECTION_LIMIT).map(|_| TcpStream::connect(server.address).unwrap()).collect();

    let mut late = server.send("GET /healthz HTTP/1.1");
    drop(idle);

    let mut answer = String::new();
    late.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn a_port_in_use_is_named_with_the_remedy() {
    let first = Admin::bind("127.0.0.1:0".parse().unwrap()).unwrap();

    let error = format!("{:#}", Admin::bind(first.address).unwrap_err());

    assert!(error.contains(&first.address.to_string()), "{error}");
    assert!(error.contains("choose another metrics_address"), "{error}");
}

struct Server {
    address: SocketAddr,
    readiness: Readiness,
}

impl Server {
    fn start(is_alive: bool) -> Self {
        let readiness = Readiness::default();
        let source = Arc::new(move || Status { is_alive, ..Status::default() });
        let address = Admin::bind("127.0.0.1:0".parse().unwrap())
            .unwrap()
            .serve(source, readiness.clone())
            .unwrap();

        Self { address, readiness }
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
