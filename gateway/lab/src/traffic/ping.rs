//! Echo requests through a raw socket, and the replies and ICMP errors to them.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use socket2::{Protocol, Socket, Type};
use strait_packet::counters::as_u64;

use super::super::LabError;
use super::super::Namespace;
use super::super::now;
use super::pattern::Pattern;
use super::{domain, is_timeout};

/// Type, code, checksum, identifier, sequence number (RFC 792, RFC 4443 section 4.1).
const HEADER_LEN: usize = 8;

/// Lower limit of a read timeout: a shorter one gains no useful precision.
const MIN_READ_TIMEOUT: Duration = Duration::from_millis(1);

/// Identifiers, so that concurrent pings in one namespace do not read each other's replies.
static NEXT_IDENTIFIER: AtomicU16 = AtomicU16::new(1);

/// The echo requests to send.
#[derive(Clone, Copy, Debug)]
pub struct Ping {
    /// Destination.
    pub target: IpAddr,
    /// Number of requests.
    pub count: u16,
    /// Time between requests.
    pub interval: Duration,
    /// Bytes after the ICMP header.
    pub payload_bytes: usize,
    /// Type of service or traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// How long to wait for the last reply.
    pub timeout: Duration,
}

/// Replies and errors.
#[derive(Clone, Debug, Default)]
pub struct PingReport {
    /// Requests sent.
    pub sent: u64,
    /// Requests with an intact reply from the target.
    pub received: u64,
    /// Replies beyond the first.
    pub duplicated: u64,
    /// Replies with wrong content.
    pub corrupted: u64,
    /// When the first reply arrived.
    pub first_reply: Option<Instant>,
    /// Round-trip time of each reply, in the order of arrival.
    pub round_trips: Vec<Duration>,
    /// Numbers of the requests without a reply, from 0.
    pub unanswered: Vec<usize>,
    /// ICMP errors about these requests.
    pub errors: Vec<IcmpError>,
}

/// An ICMP error as the sender of the offending packet sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// The ICMP or ICMPv6 type.
    pub kind: u8,
    /// The code.
    pub code: u8,
    /// The next-hop MTU in bytes, where the type has one.
    pub mtu_bytes: u32,
    /// Source of the packet that the error is about.
    pub embedded_source: IpAddr,
    /// Destination of the packet that the error is about.
    pub embedded_destination: IpAddr,
}

impl Ping {
    /// `count` requests of 56 bytes, as `ping` sends them, but every 50 ms.
    #[must_use]
    pub const fn new(target: IpAddr, count: u16) -> Self {
        Self {
            target,
            count,
            interval: Duration::from_millis(50),
            payload_bytes: 56,
            traffic_class: 0,
            timeout: Duration::from_secs(1),
        }
    }

    /// Sends the requests from the namespace `from` and collects replies and errors.
    ///
    /// # Errors
    ///
    /// [`LabError::Io`] if there is no route or no permission for raw sockets.
    pub fn run(self, from: &Namespace) -> Result<PingReport, LabError> {
        let operation = format!("ping {} from {}", self.target, from.name());
        let worker = from.spawn(move || self.run_here())?;

        worker
            .join()
            .map_err(|_| LabError::Panicked { namespace: from.name().to_owned() })?
            .map_err(LabError::io(operation))
    }

    /// The same from the namespace of the calling thread.
    ///
    /// # Errors
    ///
    /// Those of the socket.
    pub fn run_here(self) -> io::Result<PingReport> {
        let mut session = Session::new(self)?;
        let start = now();
        for number in 0..self.count {
            session.receive_until(start + self.interval * u32::from(number))?;
            session.send(number)?;
        }
        session.receive_until(now() + self.timeout)?;

        let unanswered = session.pending.iter().enumerate().filter(|(_, sent)| sent.is_some());
        session.report.unanswered = unanswered.map(|(number, _)| number).collect();

        Ok(session.report)
    }
}

impl PingReport {
    /// Requests without a reply.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.received)
    }

    /// Whether each request had exactly one intact reply.
    #[must_use]
    pub const fn is_perfect(&self) -> bool {
        self.sent > 0 && self.lost() == 0 && self.duplicated == 0 && self.corrupted == 0
    }

    /// The median of the round-trip times.
    #[must_use]
    pub fn median_round_trip(&self) -> Option<Duration> {
        let mut sorted = self.round_trips.clone();
        sorted.sort_unstable();

        sorted.get(sorted.len() / 2).copied()
    }
}

struct Session {
    ping: Ping,
    socket: Socket,
    identifier: u16,
    pattern: Pattern,
    /// When each request was sent; `None` once it has its reply.
    pending: Vec<Option<Instant>>,
    report: PingReport,
}

impl Session {
    fn new(ping: Ping) -> io::Result<Self> {
        let protocol = match ping.target {
            IpAddr::V4(_) => Protocol::ICMPV4,
            IpAddr::V6(_) => Protocol::ICMPV6,
        };
        let socket = Socket::new(domain(ping.target), Type::RAW, Some(protocol))?;
        match ping.target {
            IpAddr::V4(_) => socket.set_tos_v4(ping.traffic_class.into())?,
            IpAddr::V6(_) => socket.set_tclass_v6(ping.traffic_class.into())?,
        }

        Ok(Self {
            ping,
            socket,
            identifier: NEXT_IDENTIFIER.fetch_add(1, Ordering::Relaxed),
            pattern: Pattern::new(),
            pending: Vec::new(),
            report: PingReport::default(),
        })
    }

    fn send(&mut self, number: u16) -> io::Result<()> {
        let is_ipv4 = self.ping.target.is_ipv4();
        let mut message = vec![if is_ipv4 { 8 } else { 128 }, 0, 0, 0];
        message.extend(self.identifier.to_be_bytes());
        message.extend(number.to_be_bytes());
        message.resize(HEADER_LEN + self.ping.payload_bytes, 0);
        if let Some(payload) = message.get_mut(HEADER_LEN..) {
            self.pattern.fill(payload, number.into());
        }
        let checksum = checksum(&message);
        // For ICMPv6 the kernel computes it, because it knows the source address.
        if is_ipv4 && let Some(field) = message.get_mut(2..).and_then(|m| m.first_chunk_mut()) {
            *field = checksum.to_be_bytes();
        }

        self.pending.push(Some(now()));
        self.report.sent += 1;
        let target = SocketAddr::new(self.ping.target, 0).into();
        match self.socket.send_to(&message, &target) {
            Ok(_) => Ok(()),
            // The request exceeds the path MTU that the kernel has learned; the report shows the loss.
            Err(error) if error.raw_os_error().map(Errno::from_raw) == Some(Errno::EMSGSIZE) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Receives until `deadline`, or until all requests, also those not sent yet, have a reply.
    fn receive_until(&mut self, deadline: Instant) -> io::Result<()> {
        let mut buffer = vec![0; usize::from(u16::MAX)];
        loop {
            let rest = deadline.saturating_duration_since(now());
            let is_complete = as_u64(usize::from(self.ping.count)) == self.report.received;
            if rest.is_zero() || is_complete {
                return Ok(());
            }
            self.socket.set_read_timeout(Some(rest.max(MIN_READ_TIMEOUT)))?;
            match self.socket.read(&mut buffer) {
                Ok(len) => {
                    self.handle_message(buffer.get(..len).unwrap_or_default(), now());
                }
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Handles one message; `None` if it is too short. For IPv4 the kernel returns the IP header too.
    fn handle_message(&mut self, packet: &[u8], at: Instant) -> Option<()> {
        let (source, message) = match self.ping.target {
            IpAddr::V4(_) => {
                let (source, _, message) = ipv4(packet)?;
                (Some(source), message)
            }
            IpAddr::V6(_) => (None, packet),
        };
        let (header, rest) = message.split_first_chunk::<HEADER_LEN>()?;
        let &[kind, code, _, _, a, b, c, d] = header;

        match (self.ping.target, kind) {
            (IpAddr::V4(_), 0) | (IpAddr::V6(_), 129) => {
                let is_ours = u16::from_be_bytes([a, b]) == self.identifier;
                let is_from_target = source.is_none_or(|source| source == self.ping.target);
                if is_ours && is_from_target {
                    self.handle_reply(u16::from_be_bytes([c, d]), rest, at);
                }
            }
            (IpAddr::V4(_), 3..=5 | 11 | 12) | (IpAddr::V6(_), 1..=4) => {
                let (embedded_source, embedded_destination, request) = match self.ping.target {
                    IpAddr::V4(_) => ipv4(rest)?,
                    IpAddr::V6(_) => ipv6(rest)?,
                };
                let &[_, _, _, _, identifier @ .., _, _] = request.first_chunk::<HEADER_LEN>()?;
                if u16::from_be_bytes(identifier) == self.identifier {
                    self.report.errors.push(IcmpError {
                        kind,
                        code,
                        mtu_bytes: match self.ping.target {
                            IpAddr::V4(_) => u16::from_be_bytes([c, d]).into(),
                            IpAddr::V6(_) => u32::from_be_bytes([a, b, c, d]),
                        },
                        embedded_source,
                        embedded_destination,
                    });
                }
            }
            _ => {}
        }

        Some(())
    }

    fn handle_reply(&mut self, number: u16, payload: &[u8], at: Instant) {
        let is_intact = payload.len() == self.ping.payload_bytes
            && self.pattern.matches(payload, number.into());
        let Some(sent) = self.pending.get_mut(usize::from(number)) else {
            self.report.corrupted += 1;
            return;
        };

        if !is_intact {
            self.report.corrupted += 1;
        } else if let Some(sent) = sent.take() {
            self.report.received += 1;
            self.report.first_reply.get_or_insert(at);
            self.report.round_trips.push(at.saturating_duration_since(sent));
        } else {
            self.report.duplicated += 1;
        }
    }
}

/// Source, destination and content of an IPv4 packet. Independent of the code of the packet path, which these pings
/// check.
fn ipv4(packet: &[u8]) -> Option<(IpAddr, IpAddr, &[u8])> {
    let header_len = usize::from(packet.first()? & 0x0f) * 4;
    let source = packet.get(12..16)?.first_chunk::<4>()?;
    let destination = packet.get(16..20)?.first_chunk::<4>()?;

    Some(((*source).into(), (*destination).into(), packet.get(header_len..)?))
}

/// Source, destination and content of an IPv6 packet without extension headers.
fn ipv6(packet: &[u8]) -> Option<(IpAddr, IpAddr, &[u8])> {
    let source = packet.get(8..24)?.first_chunk::<16>()?;
    let destination = packet.get(24..40)?.first_chunk::<16>()?;

    Some(((*source).into(), (*destination).into(), packet.get(40..)?))
}

/// The Internet checksum (RFC 1071 section 1).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| match *pair {
        [high, low] => u32::from(u16::from_be_bytes([high, low])),
        [high] => u32::from(u16::from_be_bytes([high, 0])),
        _ => 0,
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }

    !u16::try_from(sum).unwrap_or(0)
}
