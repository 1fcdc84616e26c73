use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;

use strait_wg::uapi::{Configuration, DeviceReport};
use tokio::io::AsyncReadExt;

use super::*;

#[tokio::test]
async fn one_connection_carries_many_requests() {
    let server = Server::start();

    let answers =
        server.talk(b"set=1\nlisten_port=7\n\nget=1\n\nset=1\nlisten_port=x\n\nget=1\n\n").await;

    assert_eq!(
        answers,
        "errno=0\n\nlisten_port=7\nerrno=0\n\nerrno=-22\n\nlisten_port=7\nerrno=0\n\n"
    );
}

#[tokio::test]
async fn half_open_clients_delay_no_request() {
    let server = Server::start();
    let mut silent = Vec::new();
    for number in 0..145 {
        let mut client = UnixStream::connect(&server.path).await.unwrap();
        let _ = client.write(if number % 2 == 0 { b"" } else { b"set=1\n" }).await;
        silent.push(client);
    }

    let answer = timeout(Duration::from_secs(1), server.talk(b"get=1\n\n")).await;

    assert_eq!(answer.unwrap(), "errno=0\n\n");
}

#[tokio::test]
async fn a_set_without_an_end_changes_nothing() {
    let server = Server::start();

    let unfinished = server.talk(b"set=1\nlisten_port=7\n").await;
    let later = server.talk(b"get=1\n\n").await;

    assert_eq!((unfinished.as_str(), later.as_str()), ("", "errno=0\n\n"));
}

#[tokio::test]
async fn a_too_long_request_ends_the_connection() {
    let server = Server::start();
    let line = [&b"set=1\nfwmark="[..], &[b'1'; 9000]].concat();

    let answers = server.talk(&line).await;

    assert_eq!(answers, "errno=-7\n\n");
}

#[tokio::test]
async fn other_protocols_get_no_answer() {
    let server = Server::start();

    assert_eq!(server.talk(b"GET / HTTP/1.1\n\n").await, "");
}

#[tokio::test]
async fn the_socket_is_private_to_its_owner() {
    let server = Server::start();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;

    let modes = (mode(&server.path), mode(server.path.parent().unwrap()));
    let was_there = server.serving.exists();
    std::fs::remove_file(&server.path).unwrap();

    assert_eq!(modes, (0o600, 0o700));
    assert!(was_there && !server.serving.exists());
}

/// A device that only keeps its configuration.
struct Server {
    path: PathBuf,
    serving: Serving,
    _dir: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("wireguard").join("wg0.sock");
        let listener = Listener::bind(&path, DIRECTORY_MODE).unwrap();
        let kept = Mutex::new(Configuration::default());
        let answer = move |operation| {
            let mut kept = kept.lock().unwrap();
            match operation {
                Operation::Get => {
                    let device =
                        DeviceReport { listen_port: kept.listen_port, ..DeviceReport::default() };
                    Ok(Some(Report { device, peers: Vec::new() }))
                }
                Operation::Set(changes) => {
                    *kept = kept.with(&changes);
                    Ok(None)
                }
            }
        };

        Self { serving: serve(listener, Arc::new(answer)).unwrap(), path, _dir: dir }
    }

    /// All answers until the server closes.
    async fn talk(&self, text: &[u8]) -> String {
        let mut stream = UnixStream::connect(&self.path).await.unwrap();
        stream.write_all(text).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answers = String::new();
        stream.read_to_string(&mut answers).await.unwrap();

        answers
    }
}
