//! A client that follows `/forwarding`, as the agent of a node does.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use strait_lab::{LabError, Namespace, now, wait_until};

/// What a slow machine needs for what takes a moment.
const PATIENCE: Duration = Duration::from_secs(30);

/// One answer, until its end.
pub(crate) struct Follower {
    lines: Arc<Mutex<Vec<Line>>>,
    reading: JoinHandle<()>,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    at: Instant,
    forwards: bool,
}

impl Follower {
    /// Follows the gateway at `address` in `namespace`.
    pub(crate) fn start(namespace: &Namespace, address: SocketAddr) -> Self {
        let lines = Arc::default();
        let stream = namespace.run(move || open(address)).unwrap();
        let read = Arc::clone(&lines);
        let reading = std::thread::spawn(move || read_lines(stream, &read));

        Self { lines, reading }
    }

    /// Waits until the last line is so. Returns when that began.
    pub(crate) fn wait_for(&self, forwards: bool) -> Instant {
        let condition = format!("forwards is {forwards}");
        wait_until(condition, PATIENCE, || Ok(self.last() == Some(forwards))).unwrap();
        let lines = self.lines.lock().unwrap();
        let same = lines.iter().rev().take_while(|line| line.forwards == forwards);

        same.last().unwrap().at
    }

    /// What the last line says.
    pub(crate) fn last(&self) -> Option<bool> {
        self.lines.lock().unwrap().last().map(|line| line.forwards)
    }

    /// The longest time between two lines.
    pub(crate) fn longest_pause(&self) -> Duration {
        let lines = self.lines.lock().unwrap();
        let pauses = lines.windows(2).map(|pair| pair[1].at - pair[0].at);

        pauses.max().unwrap_or_default()
    }

    /// Waits for the end of the answer. Returns when it was.
    pub(crate) fn wait_for_end(&self) -> Instant {
        wait_until("the answer ends", PATIENCE, || Ok(self.reading.is_finished())).unwrap();

        now()
    }
}

fn open(address: SocketAddr) -> Result<TcpStream, LabError> {
    let error = || LabError::io(format!("GET http://{address}/forwarding"));
    let mut stream = TcpStream::connect(address).map_err(error())?;
    write!(stream, "GET /forwarding HTTP/1.1\r\nHost: {address}\r\n\r\n").map_err(error())?;

    Ok(stream)
}

/// Until the other side closes.
fn read_lines(stream: TcpStream, lines: &Mutex<Vec<Line>>) {
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        // Between them are the headers, and the lengths of chunks.
        if let Some(value) = line.starts_with('{').then(|| serde_json::from_str::<Value>(&line)) {
            let forwards = value.unwrap()["forwards"].as_bool().unwrap();
            lines.lock().unwrap().push(Line { at: now(), forwards });
        }
    }
}
