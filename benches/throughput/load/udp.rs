//! The highest rate of UDP datagrams that arrives.
//!
//! iperf3 is not suitable: in a search over a dozen rates it needs a second to start and end for each,
//! and its pacing makes bursts that a slow path loses at any rate.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use socket2::{Domain, Socket, Type};

use crate::contestant::{Contestant, Usage};
use crate::steal::{CpuTime, is_disturbed};

/// Share of datagrams that may be lost.
pub(crate) const LOSS_LIMIT: f64 = 0.01;

/// Start of the search: nearly every implementation reaches this rate.
const FIRST_RATE: f64 = 20_000.0;
/// Halvings of the interval between the highest good rate and the lowest bad one, down to 3 % of the former.
const HALVINGS: u32 = 5;
/// A rate is too high when its failures add up to this: 1 for a disturbed attempt, 2 for another.
const FAILURES: u32 = 3;
/// A sender that sends less than this share of the requested rate is the bottleneck itself.
const MIN_SENT_SHARE: f64 = 0.9;
/// Interval between bursts of the sender.
const TICK: Duration = Duration::from_micros(250);
/// Datagrams that arrive later than this count as lost.
const GRACE: Duration = Duration::from_millis(60);
/// Requested receive buffer, enough for a scheduling delay of the receiver; the kernel may limit it.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// Any port: no other program runs in the pods.
const PORT: u16 = 7_000;

/// The highest rate without too much loss.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rate {
    /// Datagrams that arrived, per second of sending.
    pub(crate) per_second: f64,
    /// Datagrams that arrived.
    pub(crate) received: f64,
    /// Resources that the gateways had used before and after.
    pub(crate) before: Vec<Usage>,
    pub(crate) after: Vec<Usage>,
}

/// Searches for the highest rate of datagrams with `payload_bytes` bytes at which at most
/// [`LOSS_LIMIT`] are lost.
pub(crate) fn highest_rate(
    contestant: &Contestant,
    payload_bytes: usize,
    trial: Duration,
) -> anyhow::Result<Rate> {
    let receiver = Receiver::start(contestant)?;
    let sender = Sender { target: SocketAddr::new(contestant.target()?, PORT), payload_bytes };
    let mut number = 0;
    let mut attempt_once = |rate: f64| -> anyhow::Result<Attempt> {
        number += 1;
        let before = contestant.usage();
        receiver.expect(number);
        let worker = contestant.client().spawn(move || sender.run(number, rate, trial))?;
        let sent = worker.join().map_err(|_| anyhow!("the sending thread panicked"))?;
        let (sent, elapsed) = sent.context("send datagrams")?;
        thread::sleep(GRACE);
        let received = receiver.count();
        let seconds = elapsed.as_secs_f64();

        Ok(Attempt {
            is_good: received >= f64::from(sent) * (1.0 - LOSS_LIMIT),
            kept_up: f64::from(sent) >= rate * seconds * MIN_SENT_SHARE,
            rate: Rate {
                per_second: received / seconds,
                received,
                before,
                after: contestant.usage(),
            },
        })
    };

    // A single pause of the machine can cause the loss, so a failure is confirmed.
    let mut attempt = |rate: f64| -> anyhow::Result<Attempt> {
        let mut failures = 0;
        loop {
            let before = CpuTime::now();
            let tried = attempt_once(rate)?;
            failures += if is_disturbed(CpuTime::now().stolen_since(before)) { 1 } else { 2 };
            if tried.is_good || failures >= FAILURES {
                return Ok(tried);
            }
        }
    };

    let mut best = Rate::default();
    let (mut good, mut bad) = (0.0, FIRST_RATE);
    loop {
        let tried = attempt(bad)?;
        let kept_up = tried.kept_up;
        if !best.improve(tried) {
            break;
        }
        if !kept_up {
            return Ok(best);
        }
        good = bad;
        bad *= 2.0;
    }
    for _ in 0..HALVINGS {
        let rate = f64::midpoint(good, bad);
        if best.improve(attempt(rate)?) {
            good = rate;
        } else {
            bad = rate;
        }
    }

    Some(best).filter(|best| best.per_second > 0.0).context("too many datagrams lost at any rate")
}

impl Rate {
    /// Replaces `self` by the rate of a good attempt; returns whether it was good.
    fn improve(&mut self, tried: Attempt) -> bool {
        if tried.is_good && tried.rate.per_second > self.per_second {
            *self = tried.rate;
        }

        tried.is_good
    }
}

struct Attempt {
    is_good: bool,
    kept_up: bool,
    rate: Rate,
}

#[derive(Clone, Copy)]
struct Sender {
    target: SocketAddr,
    payload_bytes: usize,
}

impl Sender {
    /// Sends at `rate` for `duration`; returns the number of datagrams and the time taken.
    fn run(self, number: u32, rate: f64, duration: Duration) -> std::io::Result<(u32, Duration)> {
        let socket = UdpSocket::bind((wildcard(self.target.ip()), 0))?;
        socket.connect(self.target)?;
        let mut payload = vec![0; self.payload_bytes];
        if let Some(head) = payload.first_chunk_mut() {
            *head = number.to_be_bytes();
        }

        let start = Instant::now();
        let mut sent = 0u32;
        loop {
            let elapsed = start.elapsed();
            if elapsed >= duration {
                return Ok((sent, elapsed));
            }
            // Catches up after a pause, but with at most one burst at a time.
            let due = (elapsed + TICK).as_secs_f64() * rate;
            let burst = rate * 8.0 * TICK.as_secs_f64() + 1.0;
            let until = due.min(f64::from(sent) + burst);
            while f64::from(sent) < until {
                match socket.send(&payload) {
                    Ok(_) => sent += 1,
                    // The socket buffer is full; the rest of the burst is not sent.
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
            if f64::from(sent) >= due {
                thread::sleep((start + elapsed + TICK).saturating_duration_since(Instant::now()));
            }
        }
    }
}

/// Counts the datagrams of one attempt.
struct Receiver {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    expected: AtomicU32,
    count: AtomicU64,
    is_over: AtomicBool,
}

impl Receiver {
    fn start(contestant: &Contestant) -> anyhow::Result<Self> {
        let address = SocketAddr::new(wildcard(contestant.target()?), PORT);
        let shared = Arc::new(Shared::default());
        let socket = contestant.server().run(move || Ok(listen(address)))?.context("listen")?;
        let worker = contestant.server().spawn({
            let shared = shared.clone();
            move || shared.receive(&socket)
        })?;

        Ok(Self { shared, worker: Some(worker) })
    }

    fn expect(&self, number: u32) {
        self.shared.expected.store(number, Ordering::SeqCst);
        self.shared.count.store(0, Ordering::SeqCst);
    }

    fn count(&self) -> f64 {
        f64::from(u32::try_from(self.shared.count.load(Ordering::SeqCst)).unwrap_or(u32::MAX))
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn receive(&self, socket: &UdpSocket) {
        let mut payload = [0; 2048];
        while !self.is_over.load(Ordering::Relaxed) {
            let Ok(length) = socket.recv(&mut payload) else { continue };
            let number = payload.get(..length).and_then(|payload| payload.first_chunk());
            if number.copied().map(u32::from_be_bytes)
                == Some(self.expected.load(Ordering::Relaxed))
            {
                self.count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

fn listen(address: SocketAddr) -> std::io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    socket.set_read_timeout(Some(Duration::from_millis(50)))?;
    socket.bind(&address.into())?;

    Ok(socket.into())
}

fn wildcard(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => IpAddr::from([0; 4]),
        IpAddr::V6(_) => IpAddr::from([0; 16]),
    }
}
