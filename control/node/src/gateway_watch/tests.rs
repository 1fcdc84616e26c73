//! Against gateways that are played by a listener of this test.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n\
                    transfer-encoding: chunked\r\n\r\n";
const UP: &str = "{\"forwards\":true,\"own_destinations\":[\"10.81.0.1/32\"]}\n";
const DOWN: &str = "{\"forwards\":false,\"own_destinations\":[]}\n";

/// What a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(10);

/// A gateway that answers by hand.
struct Gateway {
    listener: TcpListener,
    endpoint: Endpoint,
}

impl Gateway {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();

        Self { listener, endpoint: endpoint(address) }
    }

    /// The next connection, after its request was read.
    async fn accept(&self) -> TcpStream {
        let (mut stream, _) = timeout(PATIENCE, self.listener.accept()).await.unwrap().unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.unwrap());
        }
        let request = String::from_utf8(request).unwrap().to_lowercase();
        assert!(request.starts_with("get /forwarding http/1.1\r\n"), "{request}");
        let host = format!("host: {}\r\n", self.endpoint.address);
        assert!(request.contains(&host), "{request}");

        stream
    }

    /// The next connection, which has the head of an answer and one line.
    async fn answer(&self, line: &str) -> TcpStream {
        let mut stream = self.accept().await;
        stream.write_all(HEAD.as_bytes()).await.unwrap();
        chunk(&mut stream, line).await.unwrap();

        stream
    }
}

async fn chunk(stream: &mut TcpStream, text: &str) -> io::Result<()> {
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).await
}

fn endpoint(address: SocketAddr) -> Endpoint {
    Endpoint { pod: "tenant/gw".to_owned(), address }
}

/// The next state that is published.
async fn next(watch: &mut GatewayWatch, endpoint: &Endpoint) -> GatewayState {
    timeout(PATIENCE, watch.changed()).await.unwrap();

    watch.forwarding()[endpoint].clone()
}

async fn is_unchanged_for(watch: &mut GatewayWatch, time: Duration) {
    assert!(timeout(time, watch.changed()).await.is_err(), "{:?}", watch.forwarding());
}

/// Sends the same line as often as a gateway does.
async fn repeat(stream: &mut TcpStream, line: &str, times: usize) {
    for _ in 0..times {
        sleep(Duration::from_millis(100)).await;
        chunk(stream, line).await.unwrap();
    }
}

/// A gateway that has said that it forwards, the watch that follows it, and their connection.
async fn followed() -> (Gateway, GatewayWatch, TcpStream) {
    let gateway = Gateway::new().await;
    let mut watch = GatewayWatch::new();
    watch.follow(&[gateway.endpoint.clone()].into());
    let stream = gateway.answer(UP).await;
    assert!(next(&mut watch, &gateway.endpoint).await.forwards);

    (gateway, watch, stream)
}

#[tokio::test]
async fn each_changed_line_is_published_once() {
    let gateway = Gateway::new().await;
    let mut watch = GatewayWatch::new();
    watch.follow(&[gateway.endpoint.clone()].into());

    let mut stream = gateway.answer(UP).await;
    let up = next(&mut watch, &gateway.endpoint).await;
    assert_eq!((up.forwards, &*up.own_destinations), (true, &["10.81.0.1/32".to_owned()][..]));
    let unchanged = is_unchanged_for(&mut watch, Duration::from_millis(450));
    tokio::join!(unchanged, repeat(&mut stream, UP, 4));
    chunk(&mut stream, DOWN).await.unwrap();
    assert!(!next(&mut watch, &gateway.endpoint).await.forwards);
    // In parts, and two at once.
    for part in ["{\"forwards\":true,\"a\":", "7}\n{\"forwards\":true}\n{\"forw", "ards\":true}\n"]
    {
        chunk(&mut stream, part).await.unwrap();
    }
    assert!(next(&mut watch, &gateway.endpoint).await.forwards);
    let same = repeat(&mut stream, "{\"forwards\":true}\n", 2);
    tokio::join!(is_unchanged_for(&mut watch, Duration::from_millis(200)), same);
}

#[tokio::test]
async fn a_silent_gateway_does_not_forward() {
    let (gateway, mut watch, _silent) = followed().await;

    let since = Instant::now();
    assert!(!next(&mut watch, &gateway.endpoint).await.forwards);
    let took = since.elapsed();
    assert!(took >= Duration::from_millis(200) && took < Duration::from_millis(450), "{took:?}");

    // It is asked again, and believed.
    let _stream = gateway.answer(UP).await;
    assert!(next(&mut watch, &gateway.endpoint).await.forwards);
}

#[tokio::test]
async fn a_connection_that_is_reopened_changes_nothing() {
    let (gateway, mut watch, mut stream) = followed().await;
    repeat(&mut stream, UP, 2).await;

    // As a server does whose time for a connection is over: in the middle of the answer.
    drop(stream);
    let mut stream = gateway.answer(UP).await;
    let unchanged = is_unchanged_for(&mut watch, Duration::from_millis(250));
    tokio::join!(unchanged, repeat(&mut stream, UP, 3));

    // In order.
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    drop(stream);
    let _stream = gateway.answer(UP).await;
    is_unchanged_for(&mut watch, Duration::from_millis(150)).await;
}

#[tokio::test]
async fn an_ended_process_is_noticed_at_once() {
    let (gateway, mut watch, mut stream) = followed().await;
    repeat(&mut stream, UP, 2).await;

    let Gateway { listener, endpoint } = gateway;
    let since = Instant::now();
    drop((listener, stream));
    assert!(!next(&mut watch, &endpoint).await.forwards);
    let took = since.elapsed();
    assert!(took < SILENCE_MAX, "{took:?}");
}

/// The kernel accepts connections for a process that hangs.
#[tokio::test]
async fn a_reopened_connection_must_answer_soon() {
    let (gateway, mut watch, mut stream) = followed().await;
    repeat(&mut stream, UP, 2).await;

    let since = Instant::now();
    drop(stream);
    let _unanswered = gateway.accept().await;
    assert!(!next(&mut watch, &gateway.endpoint).await.forwards);
    let took = since.elapsed();
    assert!(took >= REOPENED_WITHIN && took < SILENCE_MAX, "{took:?}");
}

#[tokio::test]
async fn an_absent_gateway_is_known_at_once() {
    let Gateway { listener, endpoint } = Gateway::new().await;
    drop(listener);
    let mut watch = GatewayWatch::new();
    watch.follow(&[endpoint.clone()].into());

    assert!(!next(&mut watch, &endpoint).await.forwards);

    // It starts later.
    let listener = TcpListener::bind(endpoint.address).await.unwrap();
    let gateway = Gateway { listener, endpoint };
    let _stream = gateway.answer(UP).await;
    assert!(next(&mut watch, &gateway.endpoint).await.forwards);
}

#[tokio::test]
async fn an_answer_without_a_state_is_no_gateway() {
    let long = format!("{{\"forwards\":true,\"a\":\"{}\"}}\n", "a".repeat(40_000));
    for answer in [
        "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nalive".to_owned(),
        "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nalive\n".to_owned(),
        format!("{HEAD}{:x}\r\n{long}\r\n", long.len()),
        "SSH-2.0-OpenSSH\r\n".to_owned(),
    ] {
        let gateway = Gateway::new().await;
        let mut watch = GatewayWatch::new();
        watch.follow(&[gateway.endpoint.clone()].into());
        let mut stream = gateway.accept().await;
        stream.write_all(answer.as_bytes()).await.unwrap();

        assert!(!next(&mut watch, &gateway.endpoint).await.forwards, "{answer:.60}");
    }
}

#[tokio::test]
async fn a_gone_pod_is_asked_no_more() {
    let (gone, stays) = (Gateway::new().await, Gateway::new().await);
    let mut watch = GatewayWatch::new();
    watch.follow(&[gone.endpoint.clone(), stays.endpoint.clone()].into());
    let mut closed = gone.answer(UP).await;
    next(&mut watch, &gone.endpoint).await;
    let mut stream = stays.answer(UP).await;
    next(&mut watch, &stays.endpoint).await;

    watch.follow(&[stays.endpoint.clone()].into());

    assert!(watch.forwarding().keys().eq([&stays.endpoint]));
    let end = timeout(PATIENCE, closed.read_u8()).await.unwrap();
    assert!(end.is_err(), "the connection is closed");
    chunk(&mut stream, DOWN).await.unwrap();
    assert!(!next(&mut watch, &stays.endpoint).await.forwards, "on the same connection");
    let again = timeout(Duration::from_millis(300), gone.listener.accept()).await;
    assert!(again.is_err(), "there is no other");
}
