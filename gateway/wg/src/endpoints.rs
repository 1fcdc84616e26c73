//! The endpoint of a peer, and the candidates for it.
//!
//! Datagrams go by one path, the one *in use*: to the source of the last authentic datagram, and from the local
//! address that it was sent to. The *candidates* come from the configuration and the DNS. While the peer does not
//! answer, the engine sends initiations to all of them, and the one that answers becomes the endpoint.
//!
//! # Invariants
//!
//! - The endpoint changes when another address answers, or if the peer has no session and the configuration removes
//!   the address. Other candidates alone never replace it.
//! - A local address is learned from received datagrams only.
//! - The packet path reads only the path in use.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use arc_swap::{ArcSwap, ArcSwapOption};

use strait_packet::path::{LocalPort, Path};

use crate::initiation_copies::{CopyQueue, InitiationCopies};
use crate::message::Initiation;

/// The most candidates of a peer. A stock implementation answers ten initiations a second, and all candidates may be
/// addresses of the same peer.
pub const MAX_CANDIDATES: usize = 8;

/// Counts path changes and handshake requests of all peers that share it: the engine walks its peers only after a
/// count has changed. Also holds the queue of copies of their initiations.
#[derive(Debug, Default)]
pub struct EndpointEvents {
    path_changes: AtomicU64,
    handshake_requests: AtomicU64,
    copies: CopyQueue,
}

impl EndpointEvents {
    /// How often a path changed. A path that is read afterwards is at least this new.
    #[must_use]
    pub fn path_changes(&self) -> u64 {
        self.path_changes.load(Ordering::Acquire)
    }

    /// How often a handshake was requested: see [`Endpoints::poll_handshake_request`].
    #[must_use]
    pub fn handshake_requests(&self) -> u64 {
        self.handshake_requests.load(Ordering::Acquire)
    }

    /// The copies of initiations that wait for their turn.
    #[must_use]
    pub const fn copies(&self) -> &CopyQueue {
        &self.copies
    }

    fn count_path_change(&self) {
        self.path_changes.fetch_add(1, Ordering::Release);
    }
}

/// The addresses of one peer.
#[derive(Debug, Default)]
pub struct Endpoints {
    in_use: ArcSwapOption<Path>,
    events: Arc<EndpointEvents>,
    candidates: ArcSwap<Vec<SocketAddr>>,
    /// Where the peer still sends data in a session that a former process had. Until a handshake completes.
    former: ArcSwapOption<SocketAddr>,
    /// The endpoint was removed from the candidates.
    is_withdrawn: AtomicBool,
    is_handshake_requested: AtomicBool,
    is_session_requested: AtomicBool,
    /// The last initiation, until a handshake completes.
    initiation: ArcSwapOption<Initiation>,
    unanswered: AtomicU32,
    /// How often the peer roamed: an authentic datagram came from another address than the endpoint.
    roamed: AtomicU32,
    /// The value of `roamed` when the first unanswered initiation was sent.
    roamed_at_initiation: AtomicU32,
}

impl Endpoints {
    /// Without an endpoint or candidates. Changes are counted in `events`.
    pub(super) fn new(events: Arc<EndpointEvents>) -> Self {
        Self { events, ..Self::default() }
    }

    /// The path to send by: remote and local address.
    #[must_use]
    #[inline]
    pub fn in_use(&self) -> Option<Path> {
        self.in_use.load().as_deref().copied()
    }

    /// Sends by `path` from now on: an authentic datagram arrived by it.
    #[inline]
    pub fn learn(&self, path: Path) {
        if self.set_path(path) {
            self.roamed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sets the endpoint from the configuration. It does not count as roaming: an answer to an earlier initiation,
    /// from any address, still replaces it.
    pub fn set_endpoint(&self, endpoint: SocketAddr) {
        let in_use = self.in_use().filter(|path| path.remote == endpoint);
        let port = in_use.map_or(LocalPort::Listen, |path| path.port);

        self.set_path(Path { port, ..endpoint.into() });
    }

    /// Sends by `path` from now on. Returns whether the endpoint changes.
    #[inline]
    fn set_path(&self, path: Path) -> bool {
        let in_use = self.in_use.load();
        if in_use.as_deref() == Some(&path) {
            return false;
        }
        let is_other_endpoint = in_use.as_deref().is_none_or(|before| before.remote != path.remote);
        self.in_use.store(Some(Arc::new(path)));
        self.events.count_path_change();
        if is_other_endpoint {
            self.is_withdrawn.store(false, Ordering::Relaxed);
        }

        is_other_endpoint
    }

    /// The local address of `path` does not work any more: the route chooses one from now on, unless another path is
    /// in use meanwhile.
    pub fn forget_local(&self, path: Path) {
        let in_use = self.in_use.load();
        if path.local.is_some() && in_use.as_deref() == Some(&path) {
            self.in_use.compare_and_swap(&*in_use, Some(Arc::new(path.without_local())));
            self.events.count_path_change();
        }
    }

    /// Replaces the candidates, the best first; those beyond [`MAX_CANDIDATES`] are ignored. If they have not
    /// changed, nothing happens, and `has_session` is not called.
    pub fn set_candidates(&self, candidates: &[SocketAddr], has_session: impl FnOnce() -> bool) {
        if self.candidates.load().as_slice() == candidates {
            return;
        }
        let mut wanted: Vec<SocketAddr> = Vec::with_capacity(candidates.len().min(MAX_CANDIDATES));
        for candidate in candidates {
            if wanted.len() < MAX_CANDIDATES && !wanted.contains(candidate) {
                wanted.push(*candidate);
            }
        }
        let before = self.candidates.load_full();
        if *before == wanted {
            return;
        }

        let has_session = has_session();
        let is_news = wanted.iter().any(|candidate| !before.contains(candidate));
        let first = wanted.first().copied();
        let in_use = self.endpoint();
        let was_wanted = in_use.is_some_and(|address| before.contains(&address));
        let is_wanted = in_use.is_some_and(|address| wanted.contains(&address));
        self.candidates.store(Arc::new(wanted));

        let is_taken_back = !is_wanted && (was_wanted || self.is_withdrawn.load(Ordering::Relaxed));
        match first {
            Some(first) if in_use.is_none() || (is_taken_back && !has_session) => {
                self.set_endpoint(first);
            }
            Some(_) => self.is_withdrawn.store(is_taken_back, Ordering::Relaxed),
            None => {}
        }
        if in_use.is_none() && first.is_some() {
            // Nothing was sent without an endpoint. What is sent from now on goes to all candidates.
            self.request_session();
        } else if is_taken_back || (is_news && (!has_session || self.unanswered() > 0)) {
            self.request_candidate_handshakes();
        }
    }

    /// Requests a handshake at all candidates, even with a session. Without candidates nothing happens.
    pub fn request_candidate_handshakes(&self) {
        if !self.candidates.load().is_empty() {
            self.request_handshake();
        }
    }

    /// Requests a handshake at the endpoint and all candidates, even if there is only the endpoint.
    pub fn request_handshake(&self) {
        self.is_handshake_requested.store(true, Ordering::Relaxed);
        self.events.handshake_requests.fetch_add(1, Ordering::Release);
    }

    /// Requests a handshake with the source of data in a session that a former process had. Initiations that are repeated
    /// go there as well. Only the first source counts until a handshake completes.
    pub fn request_handshake_at(&self, source: SocketAddr) {
        if self.former.load().is_none() {
            self.former.store(Some(Arc::new(source)));
            self.request_session();
        }
    }

    /// Requests a handshake, unless one is under way.
    pub fn request_session(&self) {
        self.is_session_requested.store(true, Ordering::Relaxed);
        self.events.handshake_requests.fetch_add(1, Ordering::Release);
    }

    /// Whether any handshake is requested, without clearing the request.
    #[must_use]
    pub fn is_handshake_requested(&self) -> bool {
        [&self.is_handshake_requested, &self.is_session_requested]
            .into_iter()
            .any(|request| request.load(Ordering::Relaxed))
    }

    /// Whether a handshake was requested by [`Self::request_handshake`]. Clears the request.
    #[must_use]
    pub fn poll_handshake_request(&self) -> bool {
        poll(&self.is_handshake_requested)
    }

    /// Whether a handshake was requested by [`Self::request_session`] or [`Self::request_handshake_at`]. Clears the
    /// request.
    #[must_use]
    pub fn poll_session_request(&self) -> bool {
        poll(&self.is_session_requested)
    }

    /// The addresses to send initiations to: the endpoint first, unless it was removed from the candidates and no
    /// initiation is unanswered yet.
    #[must_use]
    pub fn handshake_targets(&self) -> Vec<SocketAddr> {
        let is_withdrawn = self.is_withdrawn.load(Ordering::Relaxed) && self.unanswered() == 0;
        let mut addresses: Vec<_> = self.endpoint().filter(|_| !is_withdrawn).into_iter().collect();
        for candidate in self.candidates.load().iter() {
            if !addresses.contains(candidate) {
                addresses.push(*candidate);
            }
        }
        if let Some(former) = self.former.load().as_deref().filter(|it| !addresses.contains(it)) {
            addresses.push(*former);
        }

        addresses
    }

    /// `initiation` was sent.
    pub fn handle_initiation(&self, initiation: &Initiation) {
        self.initiation.store(Some(Arc::new(*initiation)));
        let unanswered = self.unanswered();
        if unanswered == 0 {
            let roamed = self.roamed.load(Ordering::Relaxed);
            self.roamed_at_initiation.store(roamed, Ordering::Relaxed);
        }
        self.unanswered.store(unanswered.saturating_add(1), Ordering::Relaxed);
    }

    /// Whether `initiation` was the last one sent, and no handshake has completed since.
    #[must_use]
    pub fn is_unanswered(&self, initiation: &Initiation) -> bool {
        self.initiation.load().as_deref() == Some(initiation)
    }

    /// Queues copies of the last initiation.
    pub fn queue_copies(&self, copies: InitiationCopies, now: Instant) {
        self.events.copies.push(copies, now);
    }

    /// Whether the peer roamed since the first unanswered initiation: an answer may be older than that.
    #[must_use]
    pub fn has_roamed_since_initiation(&self) -> bool {
        self.roamed.load(Ordering::Relaxed) != self.roamed_at_initiation.load(Ordering::Relaxed)
    }

    /// A handshake completed, or the keys changed.
    pub fn reset_unanswered(&self) {
        self.former.store(None);
        self.initiation.store(None);
        self.unanswered.store(0, Ordering::Relaxed);
    }

    /// The last initiation and the source of data in a session that a former process had, if no handshake has completed
    /// since either.
    pub fn initiation_for_former(&self) -> Option<(Initiation, SocketAddr)> {
        Some((**self.initiation.load().as_ref()?, **self.former.load().as_ref()?))
    }

    /// The remote address of the path in use.
    fn endpoint(&self) -> Option<SocketAddr> {
        self.in_use().map(|path| path.remote)
    }

    /// How many initiations were sent since the last completed handshake. The last may still be answered.
    #[must_use]
    pub fn unanswered(&self) -> u32 {
        self.unanswered.load(Ordering::Relaxed)
    }
}

fn poll(request: &AtomicBool) -> bool {
    request.load(Ordering::Relaxed) && request.swap(false, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::message::MAX_HANDSHAKE_BYTES;

    const INITIATION: Initiation = [0; MAX_HANDSHAKE_BYTES];
    use strait_packet::path::Local;

    #[test]
    fn roaming_is_counted_since_the_first_unanswered_initiation() {
        let endpoints = Endpoints::default();
        endpoints.learn(at(1).into());

        endpoints.handle_initiation(&INITIATION);
        assert!(!endpoints.has_roamed_since_initiation());
        endpoints.learn(at(1).into());
        assert!(!endpoints.has_roamed_since_initiation(), "the same address");
        endpoints.learn(at(2).into());
        assert!(endpoints.has_roamed_since_initiation());
        endpoints.handle_initiation(&INITIATION);
        assert!(endpoints.has_roamed_since_initiation(), "the first may still be answered");

        endpoints.reset_unanswered();
        endpoints.handle_initiation(&INITIATION);
        assert!(!endpoints.has_roamed_since_initiation());
    }

    #[test]
    fn configured_endpoints_are_not_roaming() {
        let endpoints = Endpoints::default();
        endpoints.set_candidates(&[at(1)], || false);
        endpoints.handle_initiation(&INITIATION);

        endpoints.set_candidates(&[at(2), at(3)], || false);
        endpoints.set_endpoint(at(4));

        assert_eq!(endpoints.endpoint(), Some(at(4)));
        assert!(!endpoints.has_roamed_since_initiation());
    }

    #[test]
    fn the_first_candidate_is_the_initial_endpoint() {
        let endpoints = Endpoints::default();

        endpoints.set_candidates(&[at(1), at(2)], || false);

        assert_eq!(endpoints.endpoint(), Some(at(1)));
        assert_eq!(endpoints.handshake_targets(), [at(1), at(2)]);
        assert!(endpoints.poll_session_request());
        assert!(!endpoints.poll_session_request() && !endpoints.poll_handshake_request());
    }

    #[test]
    fn a_learned_address_is_a_handshake_target() {
        let endpoints = with_session_at(at(9), &[at(1), at(2)]);

        assert_eq!(endpoints.handshake_targets(), [at(9), at(1), at(2)]);
    }

    #[test]
    fn a_session_keeps_its_endpoint_without_candidates() {
        let endpoints = with_session_at(at(2), &[at(1), at(2)]);

        endpoints.set_candidates(&[at(3)], || true);
        assert_eq!(endpoints.endpoint(), Some(at(2)));
        endpoints.set_candidates(&[], || true);
        assert_eq!(endpoints.endpoint(), Some(at(2)));
    }

    #[test]
    fn a_removed_endpoint_is_tried_last() {
        let endpoints = with_session_at(at(1), &[at(1)]);

        endpoints.set_candidates(&[at(2)], || true);

        assert!(endpoints.poll_handshake_request());
        assert_eq!(endpoints.handshake_targets(), [at(2)], "the old endpoint would answer first");
        endpoints.handle_initiation(&INITIATION);
        assert_eq!(endpoints.handshake_targets(), [at(1), at(2)], "nothing has answered");
    }

    #[test]
    fn another_local_address_keeps_an_endpoint_removed() {
        let endpoints = with_session_at(at(1), &[at(1)]);
        endpoints.set_candidates(&[at(2)], || true);

        endpoints.learn(Path { local: Local::new([198, 51, 100, 1].into(), 0), ..at(1).into() });

        assert_eq!(endpoints.handshake_targets(), [at(2)]);
    }

    #[test]
    fn more_candidates_do_not_change_the_endpoint() {
        let endpoints = with_session_at(at(1), &[at(1)]);

        endpoints.set_candidates(&[at(2), at(1)], || true);

        assert!(!endpoints.poll_handshake_request());
        assert_eq!(endpoints.endpoint(), Some(at(1)));
    }

    #[test]
    fn without_a_session_a_removed_endpoint_is_replaced() {
        let endpoints = Endpoints::default();
        endpoints.set_candidates(&[at(1)], || false);

        endpoints.set_candidates(&[at(2)], || false);

        assert_eq!(endpoints.endpoint(), Some(at(2)));
        assert_eq!(endpoints.handshake_targets(), [at(2)]);
    }

    #[test]
    fn without_candidates_no_handshake_is_requested() {
        let endpoints = Endpoints::default();
        endpoints.learn(at(1).into());

        endpoints.request_candidate_handshakes();

        assert!(!endpoints.poll_handshake_request());
    }

    proptest! {
        /// For any order of configurations, received datagrams and failed local addresses.
        #[test]
        fn the_endpoint_was_heard_last_or_is_configured(
            steps in prop::collection::vec(
                (
                    prop::collection::vec(0u8..12, 0..12),
                    any::<bool>(),
                    prop::option::of(path()),
                    prop::option::of(path()),
                ),
                1..20,
            ),
        ) {
            let endpoints = Endpoints::default();
            let mut heard = None;

            for (candidates, has_session, hears, refused) in steps {
                let before = endpoints.in_use();
                let candidates: Vec<_> = candidates.into_iter().map(at).collect();
                endpoints.set_candidates(&candidates, || has_session);
                if has_session && before.is_some() {
                    prop_assert_eq!(endpoints.in_use(), before, "a session was disturbed");
                }
                if let Some(path) = hears {
                    endpoints.learn(path);
                    prop_assert_eq!(endpoints.in_use(), Some(path));
                    heard = Some(path);
                }
                let before = endpoints.in_use();
                if let Some(path) = refused {
                    endpoints.forget_local(path);
                }
                let local = |path: Path| path.local;
                prop_assert_eq!(endpoints.endpoint(), before.map(|path| path.remote));
                prop_assert_eq!(
                    endpoints.in_use().and_then(local),
                    before.filter(|path| Some(*path) != refused).and_then(local)
                );
                let is_learned = endpoints.in_use() == heard;
                prop_assert!(is_learned || endpoints.in_use().and_then(local).is_none());

                let targets = endpoints.handshake_targets();
                prop_assert!(targets.len() <= MAX_CANDIDATES + 1);
                if !candidates.is_empty() {
                    prop_assert!(endpoints.in_use().is_some());
                    prop_assert!(candidates.iter().take(1).all(|first| targets.contains(first)));
                }
                if let (Some(heard), []) = (heard, candidates.as_slice()) {
                    prop_assert!(endpoints.in_use().is_some(), "{heard:?} was lost");
                }
            }
        }
    }

    /// A few paths, some with a common local or remote address.
    fn path() -> impl Strategy<Value = Path> {
        (0u8..12, 0u8..3).prop_map(|(remote, local)| Path {
            local: Local::new([198, 51, 100, local].into(), 0).filter(|_| local > 0),
            ..at(remote).into()
        })
    }

    fn with_session_at(address: SocketAddr, candidates: &[SocketAddr]) -> Endpoints {
        let endpoints = Endpoints::default();
        endpoints.set_candidates(candidates, || false);
        endpoints.learn(address.into());
        endpoints.reset_unanswered();
        let _ = endpoints.poll_handshake_request();

        endpoints
    }

    fn at(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], 51840))
    }
}
