use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::thread::{self, JoinHandle};

use strait_engine::explain::{Content, Direction};
use tokio::sync::oneshot;

use super::*;

#[test]
fn a_question_gets_its_answer() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("admin.sock"));

    let answer = ask(&server.path, question()).unwrap();

    let Answer::WrongQuestion(text) = answer else { panic!("it is {answer:?}") };
    assert_eq!(text, "no peer knows 10.71.2.7");
}

#[test]
fn a_silent_client_delays_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("admin.sock"));

    let silent = UnixStream::connect(&server.path).unwrap();
    let answer = ask(&server.path, question());

    assert!(answer.is_ok(), "{answer:?}");
    drop(silent);
}

#[test]
fn half_open_clients_delay_no_question() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("admin.sock"));
    let mut silent = Vec::new();

    for number in 0..145 {
        let mut client = UnixStream::connect(&server.path).unwrap();
        // Half of them have started a request. A disconnected one gets an error here.
        let _ = client.write(if number % 2 == 0 { b"" } else { b"{" });
        silent.push(client);
    }
    let start = crate::service::now();
    let answer = ask(&server.path, question());

    assert!(answer.is_ok(), "{answer:?}");
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

#[test]
fn parallel_clients_are_all_answered() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("admin.sock"));
    let callers: Vec<_> = (0..48).map(|_| UnixStream::connect(&server.path).unwrap()).collect();

    for mut caller in callers {
        caller.write_all(b"{\"version\":2}\n").unwrap();
        let mut answer = String::new();
        caller.read_to_string(&mut answer).unwrap();

        assert!(answer.contains("\"refused\""), "{answer}");
    }
}

#[tokio::test]
async fn a_moved_socket_replaces_only_dead_ones() {
    let dir = tempfile::tempdir().unwrap();
    let [path, dead, file] = ["own.sock", "dead.sock", "file"].map(|name| dir.path().join(name));
    drop(UnixListener::bind(&dead).unwrap());
    fs::write(&file, "").unwrap();
    let mut serving = bind(&path).unwrap().accept(1, |_, _| async {}).unwrap();

    let refused = serving.move_to(file.clone()).unwrap_err();
    serving.move_to(dead.clone()).unwrap();

    assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
    assert!(file.exists() && !path.exists());
    assert!(UnixStream::connect(&dead).is_ok());
}

#[test]
fn invalid_requests_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("admin.sock"));
    let long = format!("{{\"version\":1,\"request\":\"{}\"}}\n", "x".repeat(5000));

    for (line, expected) in [
        ("{\"version\":2,\"ask\":1}\n", "version 2, but this gateway knows 1"),
        ("{\"version\":1,\"request\":\"reboot\"}\n", "unknown variant `reboot`"),
        ("what?\n", "expected value"),
        (&long, "at most 4096 bytes"),
    ] {
        let answer = server.say(line);

        assert!(answer.contains("\"refused\"") && answer.contains(expected), "{answer}");
        assert_eq!(answer.lines().count(), 1, "{answer}");
    }
}

#[test]
fn only_the_owner_may_use_the_socket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("strait").join("admin.sock");

    let listener = bind(&path).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let modes = (mode(&path), mode(path.parent().unwrap()));
    drop(listener);

    assert_eq!(modes, (0o600, 0o755));
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 0);
}

#[test]
fn the_socket_listens_after_its_mode_is_set() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("admin.sock");

    let _reserved = listener::reserve(&path).unwrap();

    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let error = UnixStream::connect(&path).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn an_unreadable_socket_path_counts_as_present() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("strait");
    let listener = bind(&folder.join("admin.sock")).unwrap();

    fs::rename(&folder, dir.path().join("moved")).unwrap();
    std::os::unix::fs::symlink(&folder, &folder).unwrap();
    let unknown = listener.file.exists();
    fs::remove_file(&folder).unwrap();

    assert!(unknown, "a link that leads to itself is an error like any other");
    assert!(!listener.file.exists());
}

#[test]
fn the_socket_of_a_dead_gateway_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("admin.sock");
    drop(UnixListener::bind(&path).unwrap());

    let server = Server::start(&path);

    assert!(ask(&server.path, question()).is_ok());
}

#[test]
fn used_sockets_and_other_files_stay() {
    let dir = tempfile::tempdir().unwrap();
    let (used, file) = (dir.path().join("admin.sock"), dir.path().join("notes"));
    let server = Server::start(&used);
    fs::write(&file, "mine").unwrap();

    let [in_use, not_a_socket] = [&used, &file].map(|path| bind(path).unwrap_err().to_string());

    assert!(in_use.contains("admin.sock already: choose another"), "{in_use}");
    assert!(not_a_socket.contains("notes is not a socket"), "{not_a_socket}");
    assert!(ask(&server.path, question()).is_ok());
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
}

#[test]
fn the_socket_of_a_successor_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("admin.sock");
    let first = bind(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let _second = bind(&path).unwrap();

    drop(first);

    assert!(path.exists());
}

#[test]
fn only_a_configured_socket_path_must_work() {
    use super::super::config::example;
    let dir = tempfile::tempdir().unwrap();
    let impossible = dir.path().join("file").join("admin.sock");
    fs::write(dir.path().join("file"), "").unwrap();

    let [asked_for, default] =
        [AdminSocket::At(impossible.clone()), AdminSocket::Default].map(|wanted| {
            let opened = allow_default_failure(bind(&impossible), &wanted);
            opened.map_err(|error| error.to_string())
        });
    let off = Config { admin_socket: AdminSocket::Off, ..example::config() };

    let error = asked_for.unwrap_err();
    assert!(error.contains("choose another admin_socket"), "{error}");
    assert!(default.unwrap().is_none());
    assert!(open(&off).unwrap().is_none());
}

#[test]
fn without_a_gateway_the_socket_is_named() {
    let error = ask(Path::new("/nonexistent/admin.sock"), question()).unwrap_err();

    let text = format!("{:#}", anyhow::Error::from(error));
    for expected in ["on /nonexistent/admin.sock", "--socket", "--config", "No such file"] {
        assert!(text.contains(expected), "{text}");
    }
}

fn question() -> Request {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();

    Request::Explain(Question {
        direction: Direction::Outbound,
        source: ip("10.244.1.5"),
        destination: ip("10.71.2.7"),
        content: Content::Tcp { source_port: 1, destination_port: 2 },
        size: None,
        peer: None,
    })
}

/// A served socket on its own runtime, as in a gateway.
struct Server {
    path: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(path: &Path) -> Self {
        let listener = bind(path).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let _serving = listener
                    .serve(|request| {
                        let Request::Explain(question) = request;
                        Answer::WrongQuestion(format!("no peer knows {}", question.destination))
                    })
                    .unwrap();
                let _ = stopped.await;
            });
        });

        Self { path: path.to_owned(), stop: Some(stop), thread: Some(thread) }
    }

    /// The answer to any line.
    fn say(&self, line: &str) -> String {
        let mut stream = UnixStream::connect(&self.path).unwrap();
        // The gateway may have closed its side by then.
        let _ = stream.write_all(line.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);

        String::from_utf8(answer).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().unwrap().join();
    }
}
