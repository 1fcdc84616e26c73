//! Numbered UDP datagrams at a steady rate.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use socket2::{Socket, Type};
use strait_packet::counters::as_u64;

use super::super::LabError;
use super::super::Namespace;
use super::super::now;
use super::super::rate;
use super::pattern::Pattern;
use super::{any, domain, is_timeout};

/// Length of the number at the start of a datagram.
const NUMBER_LEN: usize = 8;

/// How long to wait for late datagrams after the last one was sent.
const GRACE: Duration = Duration::from_millis(300);

/// How much of its schedule a sender that falls behind catches up with. The rest is sent later: what a suspended thread
/// missed, sent at once, would overflow queues that the rate does not fill.
const CATCH_UP: Duration = Duration::from_millis(5);

/// Requested receive buffer; the kernel may limit it. Enough for a scheduling delay.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;

/// The largest payload of a UDP datagram over IPv4.
const MAX_LEN: usize = 65_507;

/// The datagrams to send.
#[derive(Clone, Copy, Debug)]
pub struct Datagrams {
    /// Number of datagrams.
    pub count: u64,
    /// Payload of each in bytes, at least 8.
    pub payload_bytes: usize,
    /// Rate. A sender that falls behind catches up with 5 ms of it at most.
    pub per_second: u32,
}

/// Result of sending datagrams.
#[derive(Clone, Debug, Default)]
pub struct UdpReport {
    /// Datagrams that the sender's kernel accepted.
    pub sent: u64,
    /// Distinct datagrams that arrived.
    pub received: u64,
    /// Payload bytes of [`Self::received`].
    pub received_bytes: u64,
    /// Datagrams that arrived after one with a higher number.
    pub reordered: u64,
    /// Duplicates of datagrams that had arrived.
    pub duplicated: u64,
    /// Datagrams with wrong content or length.
    pub corrupted: u64,
    /// The sender's address as the receiver saw it.
    pub client_seen_as: Option<SocketAddr>,
    /// Duration of sending.
    pub elapsed: Duration,
}

impl UdpReport {
    /// Datagrams that never arrived.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.received)
    }

    /// Whether every datagram arrived once, in order and unchanged.
    #[must_use]
    pub const fn is_perfect(&self) -> bool {
        self.lost() == 0 && self.reordered == 0 && self.duplicated == 0 && self.corrupted == 0
    }

    /// Throughput at the receiver in bits per second.
    #[must_use]
    pub fn bits_per_second(&self) -> f64 {
        rate(self.received_bytes.saturating_mul(8), self.elapsed)
    }
}

/// Sends datagrams from one namespace to `target`, an address of the other namespace, and checks each of them there.
///
/// # Errors
///
/// [`LabError::Io`] if a socket operation fails.
pub fn udp(
    from: &Namespace,
    to: &Namespace,
    target: IpAddr,
    datagrams: Datagrams,
) -> Result<UdpReport, LabError> {
    let socket = to.run(move || open(target).map_err(LabError::io("open a UDP socket")))?;
    let port = socket.local_addr().map_err(LabError::io("read the port of a socket"))?.port();
    let is_sent = Arc::new(AtomicBool::new(false));
    let receiver = to.spawn({
        let is_sent = Arc::clone(&is_sent);
        move || receive(&socket, datagrams, &is_sent)
    })?;

    let address = SocketAddr::new(target, port);
    let sent = from.run(move || {
        let operation = format!("send UDP to {address}");
        open(target)
            .and_then(|socket| send(&socket, address, datagrams))
            .map_err(LabError::io(operation))
    });
    is_sent.store(true, Ordering::Relaxed);
    let received = receiver
        .join()
        .map_err(|_| LabError::Panicked { namespace: to.name().to_owned() })?
        .map_err(LabError::io(format!("receive UDP in {}", to.name())))?;
    let (sent, elapsed) = sent?;

    Ok(UdpReport { sent, elapsed, ..received })
}

fn open(like: IpAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(domain(like), Type::DGRAM, None)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    socket.bind(&any(like))?;
    let socket = UdpSocket::from(socket);
    socket.set_read_timeout(Some(GRACE))?;

    Ok(socket)
}

fn send(
    socket: &UdpSocket,
    target: SocketAddr,
    datagrams: Datagrams,
) -> io::Result<(u64, Duration)> {
    let pattern = Pattern::new();
    let Datagrams { count, payload_bytes, per_second } = datagrams;
    let mut payload = vec![0; payload_bytes.max(NUMBER_LEN)];
    let interval = Duration::from_secs(1) / per_second.max(1);
    let start = now();
    let mut due = Duration::ZERO;

    for number in 0..count {
        let elapsed = start.elapsed();
        if let Some(early) = due.checked_sub(elapsed) {
            std::thread::sleep(early);
        }
        due = due.max(elapsed.saturating_sub(CATCH_UP)) + interval;
        write(&mut payload, number, &pattern);
        loop {
            match socket.send_to(&payload, target) {
                Ok(_) => break,
                // An ICMP error about an earlier datagram; the report shows the loss.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(error),
            }
        }
    }

    Ok((count, start.elapsed()))
}

fn receive(
    socket: &UdpSocket,
    datagrams: Datagrams,
    is_sent: &AtomicBool,
) -> io::Result<UdpReport> {
    let pattern = Pattern::new();
    let mut report = UdpReport::default();
    let mut seen = HashSet::new();
    let mut next = 0;
    let mut buffer = vec![0; MAX_LEN];

    while report.received < datagrams.count {
        let (len, client) = match socket.recv_from(&mut buffer) {
            Ok(datagram) => datagram,
            Err(error) if is_timeout(&error) && is_sent.load(Ordering::Relaxed) => break,
            Err(error) if is_timeout(&error) => continue,
            Err(error) => return Err(error),
        };
        report.client_seen_as = Some(client);
        let payload = buffer.get(..len).unwrap_or_default();
        let Some(number) = number(payload, &pattern).filter(|_| len == datagrams.payload_bytes)
        else {
            report.corrupted += 1;
            continue;
        };
        if !seen.insert(number) {
            report.duplicated += 1;
            continue;
        }
        report.received += 1;
        report.received_bytes += as_u64(len);
        report.reordered += u64::from(number < next);
        next = next.max(number + 1);
    }

    Ok(report)
}

/// Writes the number, and the part of the stream that belongs to it.
fn write(payload: &mut [u8], number: u64, pattern: &Pattern) {
    let (head, content) = payload.split_at_mut(NUMBER_LEN.min(payload.len()));
    head.iter_mut().zip(number.to_be_bytes()).for_each(|(byte, value)| *byte = value);

    pattern.fill(content, number.wrapping_mul(as_u64(NUMBER_LEN) + 3));
}

/// Reads the number; `None` if the content does not belong to it.
fn number(payload: &[u8], pattern: &Pattern) -> Option<u64> {
    let (number, content) = payload.split_first_chunk::<NUMBER_LEN>()?;
    let number = u64::from_be_bytes(*number);

    pattern.matches(content, number.wrapping_mul(as_u64(NUMBER_LEN) + 3)).then_some(number)
}
