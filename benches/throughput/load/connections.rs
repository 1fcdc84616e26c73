//! Short connections: each carries one byte in each direction and is closed.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use socket2::SockRef;

use crate::contestant::Contestant;

/// Enough clients that the round trips of one overlap with those of the others.
const CLIENTS: usize = 16;
const SERVERS: usize = 4;
const PORT: u16 = 7_001;
const TIMEOUT: Duration = Duration::from_secs(2);

/// Connections completed per second.
pub(crate) fn connections_per_second(
    contestant: &Contestant,
    duration: Duration,
) -> anyhow::Result<f64> {
    let target = SocketAddr::new(contestant.target()?, PORT);
    let listen = move || TcpListener::bind((std::net::Ipv4Addr::UNSPECIFIED, PORT));
    let listener = Arc::new(contestant.server().run(move || Ok(listen()))?.context("listen")?);
    let is_over = Arc::new(AtomicBool::new(false));

    let mut servers = Vec::new();
    for _ in 0..SERVERS {
        let (listener, is_over) = (listener.clone(), is_over.clone());
        servers.push(contestant.server().spawn(move || serve(&listener, &is_over))?);
    }
    let start = Instant::now();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(contestant.client().spawn(move || connect_until(target, start + duration))?);
    }
    let mut completed = 0;
    for client in clients {
        completed += client.join().map_err(|_| anyhow!("a client panicked"))?;
    }
    let seconds = start.elapsed().as_secs_f64();

    is_over.store(true, Ordering::SeqCst);
    // Each server thread ends with one more connection.
    contestant.server().run(|| {
        for _ in 0..SERVERS {
            let _ = TcpStream::connect((std::net::Ipv4Addr::LOCALHOST, PORT));
        }
        Ok(())
    })?;
    for server in servers {
        server.join().map_err(|_| anyhow!("a server panicked"))?;
    }
    ensure!(completed > 0, "no connection was completed in {duration:?}");

    Ok(f64::from(completed) / seconds)
}

fn serve(listener: &TcpListener, is_over: &AtomicBool) {
    while let Ok((stream, _)) = listener.accept() {
        if is_over.load(Ordering::SeqCst) {
            return;
        }
        // The client notices errors.
        let _ = echo(stream);
    }
}

fn echo(mut stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut byte = [0];
    stream.read_exact(&mut byte)?;
    stream.write_all(&byte)?;
    // Waits until the client closes: the side that closes first keeps the port in TIME-WAIT.
    let _ = stream.read(&mut byte);

    Ok(())
}

/// Connects repeatedly; returns the number of completed connections, without failed ones.
fn connect_until(target: SocketAddr, until: Instant) -> u32 {
    let mut completed = 0;
    while Instant::now() < until {
        completed += u32::from(connect_once(target).is_ok());
    }

    completed
}

fn connect_once(target: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&target, TIMEOUT)?;
    // Closes by RST, so that the port is free again at once: their number is limited.
    SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(&[1])?;

    stream.read_exact(&mut [0])
}
