//! Sends initiations to several endpoints: to the one in use, or to all candidates of the peer.
//!
//! A tunnel writes one message for one destination. Its caller then calls [`fan_out`], which has copies of an
//! initiation sent to the other endpoints while the peer may have moved: one after another, as long as none is answered
//! (see [`initiation_copies`](strait_wg::initiation_copies)). A responder answers the copy that arrives first and drops
//! the others as replayed. Since the response is authentic, its source becomes the endpoint in use.
//!
//! The first path may work in one direction only: its copy is accepted each time, and the response is lost. So after
//! a few unanswered initiations, every second one goes to a single endpoint, to each of them in turn.
//!
//! An address of ours may be dead too, if its link is down, and the kernel still sends from it. So the copies leave
//! from the address that the route selects, the last of them to the endpoint in use. Until the peer answers, nothing
//! else is sent from the address at which it did not answer.
//!
//! A NAT or a load balancer may hold state that maps our port to a former endpoint of the peer, and each initiation
//! refreshes that state. So the ports take turns: [`SAME_PORT`] initiations from one port, as many from the other. A
//! response arrives at the port that the initiation came from, which becomes part of the path in use. The session is
//! still renewed from the listen port: the state may have expired by then, and firewalls allow that port.
//!
//! Packets that find a session do not reach this code.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use strait_packet::buffer::TransmitBatch;
use strait_packet::path::{LocalPort, Path};
use strait_wg::Peer;
use strait_wg::initiation_copies::InitiationCopies;
use strait_wg::message::{Initiation, Message};
use strait_wg::tunnel::SessionState;

/// A younger session has only one reason for a handshake, silence: it is renewed at `REKEY_AFTER_TIME`, 120 s
/// (WireGuard whitepaper section 6.2), and timers may be a second off.
const RENEWAL_MIN_AGE: Duration = Duration::from_secs(115);

/// How many initiations go to all endpoints before one goes to a single endpoint: enough for random loss and for
/// outages of seconds.
const SENT_TO_ALL: u32 = 2;

/// How many unanswered initiations are sent from one port before as many are sent from the other. They are 5 s apart,
/// so any session has ended by then, and NAT state of the other port has expired by its next turn: by default, Linux
/// forgets UDP flows after 120 s.
const SAME_PORT: u32 = 24;

/// If initiations were appended to the first `before` bytes of `out`, counts that as one, and queues copies of each to
/// the other endpoints of `peer` unless its session is only renewed.
///
/// Returns the number of initiations.
pub(super) fn fan_out(peer: &Peer, before: usize, out: &mut TransmitBatch, now: Instant) -> usize {
    let initiations = initiations_behind(before, out);
    let Some((newest, _)) = initiations.last() else {
        return 0;
    };
    let unanswered = peer.endpoints.unanswered();
    let addresses = peer.endpoints.handshake_targets();
    peer.endpoints.handle_initiation(newest);
    let is_renewal = unanswered == 0 && is_renewal(peer.tunnel.session(), now);
    let target = single_target(&addresses, unanswered);
    let port = if is_renewal { LocalPort::Listen } else { port(peer, unanswered) };
    out.redirect_handshakes(before, |path| Path { port, ..target.map_or(path, Path::from) });

    let count = initiations.len();
    for (initiation, sent_to) in initiations {
        if is_renewal && addresses.contains(&sent_to.remote) {
            continue;
        }
        if target.is_none() {
            let sent_to = Path { port, ..sent_to };
            queue_copies(peer, initiation, other_paths(&addresses, sent_to), now);
        }
        if !is_renewal {
            peer.endpoints.forget_local(sent_to);
        }
    }

    count
}

/// Starts a handshake with all endpoints of `peer` if that was requested. Returns how many were started.
///
/// A request for a session starts none within `REKEY_TIMEOUT` of another. So replayed datagrams cannot start more
/// handshakes than timers do: the source gets a copy of the initiation that was sent.
pub(super) fn seek(peer: &Peer, out: &mut TransmitBatch, now: Instant) -> usize {
    let is_requested = peer.endpoints.poll_handshake_request();
    let is_session_requested = peer.endpoints.poll_session_request();
    if !is_requested && !is_session_requested {
        return 0;
    }
    if !is_requested && peer.tunnel.is_handshaking(now) {
        if let Some((initiation, source)) = peer.endpoints.initiation_for_former() {
            let port = port(peer, peer.endpoints.unanswered());
            queue_copies(peer, initiation, [Path { port, ..source.into() }], now);
        }
        return 0;
    }
    let addresses = peer.endpoints.handshake_targets();
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
    peer.endpoints.handle_initiation(initiation);
    queue_copies(peer, *initiation, other_paths(&addresses, *sent_to), now);

    1
}

/// The initiations with the path of each. Does not allocate if there is none.
fn initiations_behind(before: usize, out: &TransmitBatch) -> Vec<(Initiation, Path)> {
    let is_initiation = |datagram: &[u8]| Message::classify(datagram) == Some(Message::Initiation);
    let initiations = out.datagrams_behind(before).filter(|(datagram, _)| is_initiation(datagram));

    initiations.filter_map(|(bytes, sent_to)| Some((bytes.try_into().ok()?, sent_to))).collect()
}

/// The port that the next initiation is sent from, after so many `unanswered` ones.
fn port(peer: &Peer, unanswered: u32) -> LocalPort {
    let in_use = peer.path().map_or(LocalPort::Listen, |path| path.port);
    let is_turn_of_other = !(unanswered / SAME_PORT).is_multiple_of(2);

    if is_turn_of_other { in_use.other() } else { in_use }
}

/// The paths for copies of an initiation that was sent by the path `sent_to`: to the other `addresses`, and then to the
/// same one, if it is among them, from the address that the route selects.
fn other_paths(addresses: &[SocketAddr], sent_to: Path) -> impl Iterator<Item = Path> {
    let others = addresses.iter().filter(move |address| **address != sent_to.remote);
    let others = others.map(move |address| Path { port: sent_to.port, ..(*address).into() });

    let same = Some(sent_to.without_local()).filter(|path| *path != sent_to);
    others.chain(same.filter(|path| addresses.contains(&path.remote)))
}

/// Queues copies of an initiation to `paths`, which are sent until one is answered.
fn queue_copies(
    peer: &Peer,
    initiation: Initiation,
    paths: impl IntoIterator<Item = Path>,
    now: Instant,
) {
    let paths = paths.into_iter().collect();
    let copies = InitiationCopies { peer: peer.keys.public_key, initiation, paths };

    peer.endpoints.queue_copies(copies, now);
}

/// The only address that the next initiation goes to, or `None` if it goes to all, after so many `unanswered` ones. The
/// last address comes first: the one in use, which is at the front, did not work.
fn single_target(addresses: &[SocketAddr], unanswered: u32) -> Option<SocketAddr> {
    let later = usize::try_from(unanswered.checked_sub(SENT_TO_ALL)?).ok()?;
    let is_turn = later.is_multiple_of(2) && addresses.len() > 1;
    let turn = (later / 2).checked_rem(addresses.len())?;

    addresses.iter().rev().nth(turn).copied().filter(|_| is_turn)
}

/// Whether a handshake only renews a working session, judged by its age.
fn is_renewal(session: SessionState, now: Instant) -> bool {
    let age = session.last_handshake.map(|at| now.saturating_duration_since(at));

    session.is_established && age.is_some_and(|age| age >= RENEWAL_MIN_AGE)
}
