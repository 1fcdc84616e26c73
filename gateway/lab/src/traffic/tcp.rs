//! One TCP connection that sends at full speed in one direction.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use strait_packet::counters::as_u64;

use super::super::LabError;
use super::super::Namespace;
use super::super::now;
use super::super::rate;
use super::pattern::Pattern;
use super::{any, domain};

/// A connection without progress for this long has failed.
const STALL_TIMEOUT: Duration = Duration::from_secs(15);

/// Size of the read buffer.
const READ_BYTES: usize = 256 * 1024;

/// How much to send.
#[derive(Clone, Copy, Debug)]
pub enum Amount {
    /// A number of bytes.
    Bytes(u64),
    /// As much as possible in this time.
    Time(Duration),
}

/// Result of a connection.
#[derive(Clone, Debug)]
pub struct TcpReport {
    /// Bytes that the sender sent.
    pub sent_bytes: u64,
    /// Bytes that the receiver received.
    pub received_bytes: u64,
    /// Whether the received bytes are exactly those that were sent.
    pub is_intact: bool,
    /// From the first byte sent until the receiver has the last one.
    pub elapsed: Duration,
    /// The sender's address as the receiver saw it.
    pub client_seen_as: SocketAddr,
}

impl TcpReport {
    /// Throughput in bits per second.
    #[must_use]
    pub fn bits_per_second(&self) -> f64 {
        rate(self.received_bytes.saturating_mul(8), self.elapsed)
    }
}

/// Sends from one namespace to `target`, an address of the other namespace, and checks every byte there.
///
/// # Errors
///
/// [`LabError::Io`] if the connection fails or stalls.
pub fn tcp(
    from: &Namespace,
    to: &Namespace,
    target: IpAddr,
    amount: Amount,
) -> Result<TcpReport, LabError> {
    tcp_with(from, to, target, amount, None)
}

/// As [`tcp`], with a congestion control by name instead of the sender's default. It is set on the socket, not in the
/// namespace: then root may use each one that the kernel has, independent of the list that the host allows to all users.
///
/// # Errors
///
/// Those of [`tcp`], and if the kernel does not have that congestion control.
pub fn tcp_with(
    from: &Namespace,
    to: &Namespace,
    target: IpAddr,
    amount: Amount,
    congestion_control: Option<&'static str>,
) -> Result<TcpReport, LabError> {
    let listener = to.run(move || listen(target).map_err(LabError::io("listen on TCP")))?;
    let port = listener.local_addr().map_err(LabError::io("read the port of a socket"))?.port();
    let receiver = to.spawn(move || receive(&listener))?;

    let address = SocketAddr::new(target, port);
    let sender = from.spawn(move || send(address, amount, congestion_control))?;
    let operation = format!("send over TCP from {} to {address}", from.name());
    let panicked =
        |namespace: &Namespace| LabError::Panicked { namespace: namespace.name().into() };
    let sent = sender.join().map_err(|_| panicked(from))?.map_err(LabError::io(operation))?;
    let received = receiver
        .join()
        .map_err(|_| panicked(to))?
        .map_err(LabError::io(format!("receive over TCP in {}", to.name())))?;

    Ok(TcpReport {
        sent_bytes: sent.bytes,
        received_bytes: received.bytes,
        is_intact: received.is_intact && received.bytes == sent.bytes,
        elapsed: sent.elapsed,
        client_seen_as: received.client,
    })
}

struct Sent {
    bytes: u64,
    elapsed: Duration,
}

struct Received {
    bytes: u64,
    is_intact: bool,
    client: SocketAddr,
}

fn listen(like: IpAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(domain(like), Type::STREAM, None)?;
    socket.bind(&any(like))?;
    socket.listen(1)?;
    // On Linux the read timeout of a listening socket applies to accept, see socket(7).
    socket.set_read_timeout(Some(STALL_TIMEOUT))?;

    Ok(socket.into())
}

fn send(target: SocketAddr, amount: Amount, congestion_control: Option<&str>) -> io::Result<Sent> {
    let pattern = Pattern::new();
    let socket = Socket::new(Domain::for_address(target), Type::STREAM, None)?;
    if let Some(name) = congestion_control {
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("congestion control {name}: {error}"))
        };
        socket.set_tcp_congestion(name.as_bytes()).map_err(named)?;
    }
    socket.connect_timeout(&target.into(), STALL_TIMEOUT)?;
    let mut stream = TcpStream::from(socket);
    set_timeouts(&stream)?;

    let start = now();
    let mut bytes = 0;
    loop {
        let piece = pattern.piece(bytes);
        let wanted = match amount {
            Amount::Bytes(total) => usize::try_from(total - bytes).unwrap_or(usize::MAX),
            Amount::Time(duration) if start.elapsed() < duration => usize::MAX,
            Amount::Time(_) => 0,
        };
        let piece = piece.get(..wanted.min(piece.len())).unwrap_or_default();
        if piece.is_empty() {
            break;
        }
        bytes += as_u64(stream.write(piece)?);
    }
    stream.shutdown(Shutdown::Write)?;

    // The receiver closes when it has received everything.
    let _ = stream.read(&mut [0])?;

    Ok(Sent { bytes, elapsed: start.elapsed() })
}

fn receive(listener: &TcpListener) -> io::Result<Received> {
    let pattern = Pattern::new();
    let (mut stream, client) = listener.accept()?;
    set_timeouts(&stream)?;

    let mut buffer = vec![0; READ_BYTES];
    let (mut bytes, mut is_intact) = (0, true);
    loop {
        let len = stream.read(&mut buffer)?;
        let Some(part) = buffer.get(..len).filter(|part| !part.is_empty()) else {
            break;
        };
        is_intact &= pattern.matches(part, bytes);
        bytes += as_u64(len);
    }

    Ok(Received { bytes, is_intact, client })
}

fn set_timeouts(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(STALL_TIMEOUT))?;

    stream.set_write_timeout(Some(STALL_TIMEOUT))
}
