//! Waits for Liqo's gateway container to start this one. In Liqo's protocol this side is the guest.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};

use super::LeaderTerm;
use crate::service::now;

/// Pause between attempts to connect, before and after the start.
const CONNECT: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];

/// Time without a start after which a warning is logged; Liqo's containers give up then.
const CONNECT_PATIENCE: Duration = Duration::from_secs(30);

/// Longest message between the containers, in bytes.
const MESSAGE_BYTES_MAX: usize = 4096;

/// Connects as `guest` to the container that listens on `socket`, and becomes active when that container commands it.
///
/// That container may restart, and then waits for all guests to reconnect. An active guest stays active, because
/// packets do not depend on it.
pub(super) async fn attend(socket: &Path, guest: &str, term: watch::Sender<Option<LeaderTerm>>) {
    let start = now();
    let [mut pause, after] = CONNECT;
    let mut is_logged = false;

    loop {
        match wait_for_start(socket, guest).await {
            Ok(()) => {
                info!("started by the gateway container");
                term.send_replace(Some(LeaderTerm::default()));
                pause = after;
            }
            Err(error) if !is_logged && now() - start >= CONNECT_PATIENCE => {
                let socket = socket.display();
                warn!(%error, %socket, "the gateway container does not start this one; waiting");
                is_logged = true;
            }
            Err(_) => {}
        }
        sleep(pause).await;
    }
}

/// Waits for the start message.
async fn wait_for_start(socket: &Path, guest: &str) -> io::Result<()> {
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(guest.as_bytes()).await?;

    let start = format!("Start {guest}");
    let mut message = Vec::with_capacity(MESSAGE_BYTES_MAX);
    while message != start.as_bytes() {
        let is_possible = start.as_bytes().starts_with(&message);
        if !is_possible || stream.read_buf(&mut message).await? == 0 {
            let text = String::from_utf8_lossy(&message).into_owned();
            return Err(io::Error::other(format!("it sent {text:?}, not {start:?}")));
        }
    }

    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_guest_reconnects_until_started() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("leader.sock");
        let term = watch::Sender::new(None);
        let mut started = term.subscribe();
        let guest = tokio::spawn({
            let socket = socket.clone();
            async move { attend(&socket, "wireguard", term).await }
        });
        // The socket does not exist yet.
        sleep(CONNECT[0] * 2).await;
        let listener = UnixListener::bind(&socket).unwrap();

        // One that closes, one for another guest, one in two parts.
        for answer in [&[][..], &["Start geneve"], &["Start wire", "guard"]] {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut name = [0; 64];
            let length = stream.read(&mut name).await.unwrap();
            assert_eq!(&name[..length], b"wireguard");
            assert!(started.borrow().is_none());
            for piece in answer {
                stream.write_all(piece.as_bytes()).await.unwrap();
                sleep(Duration::from_millis(5)).await;
            }
        }
        started.wait_for(Option::is_some).await.unwrap();

        // A restart of the container does not end leadership.
        let (stream, _) = listener.accept().await.unwrap();
        drop(stream);
        assert!(started.borrow().is_some());
        guest.abort();
    }
}
