//! The page of a gateway pod on which it says whether it forwards.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use serde_json::json;
use strait_lab::Namespace;

use super::STATE_PORT;

/// How often a line is repeated.
const PERIOD: Duration = Duration::from_millis(100);

/// The page of one gateway, for any number of connections. It is served until the test ends.
pub(crate) struct StatePage(Arc<Page>);

struct Page {
    line: Mutex<Line>,
    changed: Condvar,
}

#[derive(Default)]
struct Line {
    text: String,
    version: u64,
}

impl StatePage {
    /// Serves the page of a gateway that forwards.
    pub(crate) fn serve(gateway: &Namespace, own_destinations: &[&str]) -> Self {
        let page = Arc::new(Page { line: Mutex::default(), changed: Condvar::new() });
        let served = Self(Arc::clone(&page));
        served.say(true, own_destinations);
        let listener =
            gateway.run(|| Ok(TcpListener::bind(("0.0.0.0", STATE_PORT)).unwrap())).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let page = Arc::clone(&page);
                thread::spawn(move || page.answer(stream));
            }
        });

        served
    }

    /// Has the gateway say this from now on.
    pub(crate) fn say(&self, forwards: bool, own_destinations: &[&str]) {
        let line = json!({"forwards": forwards, "own_destinations": own_destinations});
        let mut last = self.0.lock();
        last.text = format!("{line}\n");
        last.version += 1;
        self.0.changed.notify_all();
    }
}

impl Page {
    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap()
    }

    /// Answers one request, without end.
    fn answer(&self, mut stream: TcpStream) {
        stream.set_nodelay(true).unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if stream.read_exact(&mut byte).is_err() {
                return;
            }
            request.extend(byte);
        }
        assert!(request.starts_with(b"GET /forwarding HTTP/1.1\r\n"));
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n\
                    transfer-encoding: chunked\r\n\r\n";
        let mut answer = head.to_owned();
        loop {
            let (text, version) = {
                let line = self.lock();
                (line.text.clone(), line.version)
            };
            answer += &format!("{:x}\r\n{text}\r\n", text.len());
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
            answer.clear();
            let is_same = |line: &mut Line| line.version == version;
            drop(self.changed.wait_timeout_while(self.lock(), PERIOD, is_same).unwrap());
        }
    }
}
