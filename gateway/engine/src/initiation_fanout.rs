//! Where an initiation goes: to the address in use, or to all at which the peer may be.
//!
//! A tunnel writes one message for one destination. Whoever made it do so calls [`spread`], which sends
//! copies of an initiation to the other addresses while the peer may have moved. A responder takes the
//! copy that comes first and drops the others as repeated, so the answer comes from the quickest
//! address, and being authentic it makes that address the one in use.
//!
//! The quickest way may lead there and not back: its copy is taken each time, and the answer to it is lost.
//! So once a few initiations went unanswered, every other goes to one address alone, to each in turn.
//!
//! An address of ours may have died as well, with the link that it is on, and the kernel would send from
//! it all the same. So the copies come from whatever address the route chooses, one of them to the address
//! in use, and until somebody answers nothing else is sent from where the peer does not answer.
//!
//! A NAT or a load balancer on the way may have remembered our port for a place where the peer is no more, and
//! each initiation keeps that in mind. So the ports take turns: [`SAME_PORT`] initiations from one, as many from
//! the other. An answer comes back to the port that asked, which is then part of the path in use. The session is
//! renewed from the first port all the same: what is on the way may have forgotten by then, and that is the port
//! that firewalls know.
//!
//! Nothing here is reached by packets that find a session.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use strait_packet::buffer::{Outer, TransmitBatch};
use strait_packet::path::{LocalPort, Path};
use strait_wg::Peer;
use strait_wg::message::{MAX_HANDSHAKE_BYTES, Message};
use strait_wg::tunnel::SessionState;

/// A session that is younger has no other reason for a handshake than silence: it is renewed at
/// `REKEY_AFTER_TIME`, 120 s (WireGuard whitepaper section 6.2), and timers may be a second off.
const YOUNGER_THAN_A_REKEY: Duration = Duration::from_secs(115);

/// How many initiations go to all addresses before one goes to one alone: what is lost by chance or comes
/// back in seconds needs no more.
const TOGETHER: u32 = 2;

/// How many unanswered initiations come from one port before as many come from the other. They are 5 s apart, so that
/// any session is over by then, and what a NAT knows of the other port has expired by the next turn: by default,
/// Linux forgets UDP after 120 s.
const SAME_PORT: u32 = 24;

/// If initiations were written behind the first `before` bytes of `out`, counts that as one, and sends
/// each to the other addresses of `peer` as well unless its session is merely renewed.
///
/// Says how many.
pub(super) fn fan_out(peer: &Peer, before: usize, out: &mut TransmitBatch, now: Instant) -> usize {
    let initiations = initiations_behind(before, out);
    let count = initiations.len();
    if count == 0 {
        return 0;
    }
    let unanswered = peer.endpoints.unanswered();
    let addresses = peer.endpoints.to_seek();
    peer.endpoints.handle_initiation();
    let is_renewal = unanswered == 0 && is_renewal(peer.tunnel.session(), now);
    let alone = alone(&addresses, unanswered);
    let port = if is_renewal { LocalPort::Listen } else { port(peer, unanswered) };
    out.redirect_handshakes(before, |path| Path { port, ..alone.map_or(path, Path::from) });

    for (initiation, sent_to) in initiations {
        if is_renewal && addresses.contains(&sent_to.remote) {
            continue;
        }
        if alone.is_none() {
            send_copies(&initiation, &addresses, Path { port, ..sent_to }, out);
        }
        if !is_renewal {
            peer.endpoints.forget_local(sent_to);
        }
    }

    count
}

/// Begins a handshake at all addresses of `peer` if that was asked for. Says how many it began.
pub(super) fn seek(peer: &Peer, out: &mut TransmitBatch, now: Instant) -> usize {
    if !peer.endpoints.poll_seek() {
        return 0;
    }
    let addresses = peer.endpoints.to_seek();
    let Some(first) = addresses.first().copied() else {
        return 0;
    };
    let in_use = peer.path().filter(|path| path.remote == first);
    let path =
        Path { port: port(peer, peer.endpoints.unanswered()), ..in_use.unwrap_or(first.into()) };

    let before = out.len();
    peer.tunnel.restart(path, out, now);
    let [(initiation, sent_to)] = &*initiations_behind(before, out) else {
        return 0;
    };
    peer.endpoints.handle_initiation();
    send_copies(initiation, &addresses, *sent_to, out);

    1
}

type Initiation = [u8; MAX_HANDSHAKE_BYTES];

/// With where each was sent. Does not allocate if there is none.
fn initiations_behind(before: usize, out: &TransmitBatch) -> Vec<(Initiation, Path)> {
    let is_initiation = |datagram: &[u8]| Message::classify(datagram) == Some(Message::Initiation);
    let initiations = out.datagrams_behind(before).filter(|(datagram, _)| is_initiation(datagram));

    initiations.filter_map(|(bytes, sent_to)| Some((bytes.try_into().ok()?, sent_to))).collect()
}

/// From which port the next initiation comes, after so many were `unanswered`.
fn port(peer: &Peer, unanswered: u32) -> LocalPort {
    let in_use = peer.path().map_or(LocalPort::Listen, |path| path.port);
    let is_turn_of_other = !(unanswered / SAME_PORT).is_multiple_of(2);

    if is_turn_of_other { in_use.other() } else { in_use }
}

/// Sends to all `addresses`, from wherever the route leads, what went by the path `sent_to` already. A copy
/// that finds no room is lost, as on the network.
fn send_copies(
    initiation: &Initiation,
    addresses: &[SocketAddr],
    sent_to: Path,
    out: &mut TransmitBatch,
) {
    let paths = addresses.iter().map(|address| Path { port: sent_to.port, ..(*address).into() });
    for path in paths.filter(|path| *path != sent_to) {
        if !out.push_message(initiation, Outer::handshake(path)) {
            return;
        }
    }
}

/// Which of the `addresses` has its turn to be asked alone, if any, after so many initiations were `unanswered`.
/// The last comes first: the one in use, which is at the front, is what did not work.
fn alone(addresses: &[SocketAddr], unanswered: u32) -> Option<SocketAddr> {
    let later = usize::try_from(unanswered.checked_sub(TOGETHER)?).ok()?;
    let is_turn = later.is_multiple_of(2) && addresses.len() > 1;
    let turn = (later / 2).checked_rem(addresses.len())?;

    addresses.iter().rev().nth(turn).copied().filter(|_| is_turn)
}

/// Whether a handshake is begun in time for a session that works, as far as its age tells.
fn is_renewal(session: SessionState, now: Instant) -> bool {
    let age = session.last_handshake.map(|at| now.saturating_duration_since(at));

    session.is_established && age.is_some_and(|age| age >= YOUNGER_THAN_A_REKEY)
}
