//! Where a peer may be, and where it is.
//!
//! Datagrams go by one path, the one *in use*: to where the peer was heard from last, and from the address
//! of ours that it had called. The *candidates* are where the configuration and the DNS say that it may
//! be. They matter while nobody is heard: then the engine sends a handshake to all of them, and whoever
//! answers is in use from then on.
//!
//! # Invariants
//!
//! - An address in use is given up for one that answers, or if the peer has no session and the
//!   configuration takes the address back. Other candidates alone never replace it.
//! - An address of ours is learned from what came in, and from nothing else.
//! - Packets read the path in use and nothing else of this.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use arc_swap::{ArcSwap, ArcSwapOption};

use strait_packet::path::{LocalPort, Path};

/// The most candidates of a peer. A stock peer answers ten initiations a second, and they may all be
/// its own.
pub const MAX_CANDIDATES: usize = 8;

/// How often a peer came to be reached by another path, and how often one was sought: any of those that have
/// this in common. Thousands of peers are looked through only after one of these counts has changed.
#[derive(Debug, Default)]
pub struct Moves {
    moved: AtomicU64,
    sought: AtomicU64,
}

impl Moves {
    /// How often one has moved until now. A path that is read afterwards is no older than this.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.moved.load(Ordering::Acquire)
    }

    /// How often one was sought until now: see [`Endpoints::poll_seek`].
    #[must_use]
    pub fn count_sought(&self) -> u64 {
        self.sought.load(Ordering::Acquire)
    }

    fn add_one(&self) {
        self.moved.fetch_add(1, Ordering::Release);
    }
}

/// The addresses of one peer.
#[derive(Debug, Default)]
pub struct Endpoints {
    in_use: ArcSwapOption<Path>,
    moves: Arc<Moves>,
    candidates: ArcSwap<Vec<SocketAddr>>,
    /// The address in use was a candidate and is none any more.
    is_withdrawn: AtomicBool,
    is_sought: AtomicBool,
    unanswered: AtomicU32,
    /// How often the peer was heard elsewhere than before.
    roamed: AtomicU32,
    /// The same when the first initiation went out that is unanswered.
    roamed_before_asking: AtomicU32,
}

impl Endpoints {
    /// Of a peer that was not heard of, and whose `moves` are counted.
    pub(super) fn new(moves: Arc<Moves>) -> Self {
        Self { moves, ..Self::default() }
    }

    /// Where to send to, and from where.
    #[must_use]
    #[inline]
    pub fn in_use(&self) -> Option<Path> {
        self.in_use.load().as_deref().copied()
    }

    /// The peer was heard by `path`: goes that way from now on.
    #[inline]
    pub fn learn(&self, path: Path) {
        if self.go(path) {
            self.roamed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The peer is said to be at `endpoint`: goes there from now on. Wherever it answers from instead, to
    /// whatever it was asked before, is better known.
    pub fn tell(&self, endpoint: SocketAddr) {
        let in_use = self.in_use().filter(|path| path.remote == endpoint);
        let port = in_use.map_or(LocalPort::Listen, |path| path.port);

        self.go(Path { port, ..endpoint.into() });
    }

    /// Goes by `path` from now on. Says whether that leads elsewhere.
    #[inline]
    fn go(&self, path: Path) -> bool {
        let in_use = self.in_use.load();
        if in_use.as_deref() == Some(&path) {
            return false;
        }
        let is_elsewhere = in_use.as_deref().is_none_or(|before| before.remote != path.remote);
        self.in_use.store(Some(Arc::new(path)));
        self.moves.add_one();
        if is_elsewhere {
            self.is_withdrawn.store(false, Ordering::Relaxed);
        }

        is_elsewhere
    }

    /// Our end of `path` is no good any more: the route chooses one from now on, unless the peer has been
    /// heard by another path since.
    pub fn forget_local(&self, path: Path) {
        let in_use = self.in_use.load();
        if path.local.is_some() && in_use.as_deref() == Some(&path) {
            self.in_use.compare_and_swap(&*in_use, Some(Arc::new(path.without_local())));
            self.moves.add_one();
        }
    }

    /// From now on the peer may be at `candidates`, the best first; those beyond
    /// [`MAX_CANDIDATES`] are left out. What has not changed has no consequence, and nobody is asked then
    /// whether the peer `has_session`.
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
                self.tell(first);
            }
            Some(_) => self.is_withdrawn.store(is_taken_back, Ordering::Relaxed),
            None => {}
        }
        if is_taken_back || (is_news && (!has_session || self.unanswered() > 0)) {
            self.seek();
        }
    }

    /// Has the peer looked for at all candidates, whether or not it has a session. Without candidates
    /// there is nowhere to look.
    pub fn seek(&self) {
        if !self.candidates.load().is_empty() {
            self.ask();
        }
    }

    /// Has a handshake begun wherever the peer may be, also if that is only where it was heard last.
    pub fn ask(&self) {
        self.is_sought.store(true, Ordering::Relaxed);
        self.moves.sought.fetch_add(1, Ordering::Release);
    }

    /// Whether [`Self::poll_seek`] would say so.
    #[must_use]
    pub fn is_sought(&self) -> bool {
        self.is_sought.load(Ordering::Relaxed)
    }

    /// Whether the peer is to be looked for. Taking it clears it.
    #[must_use]
    pub fn poll_seek(&self) -> bool {
        self.is_sought.load(Ordering::Relaxed) && self.is_sought.swap(false, Ordering::Relaxed)
    }

    /// Where to look for the peer: the address in use first, unless it was taken back.
    #[must_use]
    pub fn to_seek(&self) -> Vec<SocketAddr> {
        let is_withdrawn = self.is_withdrawn.load(Ordering::Relaxed) && self.unanswered() == 0;
        let mut addresses: Vec<_> = self.endpoint().filter(|_| !is_withdrawn).into_iter().collect();
        for candidate in self.candidates.load().iter() {
            if !addresses.contains(candidate) {
                addresses.push(*candidate);
            }
        }

        addresses
    }

    /// An initiation goes out.
    pub fn handle_initiation(&self) {
        let unanswered = self.unanswered();
        if unanswered == 0 {
            let roamed = self.roamed.load(Ordering::Relaxed);
            self.roamed_before_asking.store(roamed, Ordering::Relaxed);
        }
        self.unanswered.store(unanswered.saturating_add(1), Ordering::Relaxed);
    }

    /// Whether the peer was heard elsewhere since the first initiation went out that is unanswered: an answer
    /// may be older than that.
    #[must_use]
    pub fn has_roamed_since_asked(&self) -> bool {
        self.roamed.load(Ordering::Relaxed) != self.roamed_before_asking.load(Ordering::Relaxed)
    }

    /// A handshake with the peer succeeds, or others begin with other keys.
    pub fn forget_unanswered(&self) {
        self.unanswered.store(0, Ordering::Relaxed);
    }

    /// The far end of the path in use.
    fn endpoint(&self) -> Option<SocketAddr> {
        self.in_use().map(|path| path.remote)
    }

    /// How many initiations went out since a handshake succeeded. The last of them may yet be
    /// answered.
    #[must_use]
    pub fn unanswered(&self) -> u32 {
        self.unanswered.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use strait_packet::path::Local;

    #[test]
    fn an_answer_may_be_older_than_what_was_heard_since_it_was_asked_for() {
        let endpoints = Endpoints::default();
        endpoints.learn(at(1).into());

        endpoints.handle_initiation();
        assert!(!endpoints.has_roamed_since_asked());
        endpoints.learn(at(1).into());
        assert!(!endpoints.has_roamed_since_asked(), "it was heard where it was");
        endpoints.learn(at(2).into());
        assert!(endpoints.has_roamed_since_asked());
        endpoints.handle_initiation();
        assert!(endpoints.has_roamed_since_asked(), "the first may yet be answered");

        endpoints.forget_unanswered();
        endpoints.handle_initiation();
        assert!(!endpoints.has_roamed_since_asked());
    }

    #[test]
    fn what_somebody_says_of_a_peer_makes_its_answer_no_older() {
        let endpoints = Endpoints::default();
        endpoints.set_candidates(&[at(1)], || false);
        endpoints.handle_initiation();

        endpoints.set_candidates(&[at(2), at(3)], || false);
        endpoints.tell(at(4));

        assert_eq!(endpoints.endpoint(), Some(at(4)));
        assert!(!endpoints.has_roamed_since_asked());
    }

    #[test]
    fn the_first_candidate_is_in_use_until_somebody_is_heard() {
        let endpoints = Endpoints::default();

        endpoints.set_candidates(&[at(1), at(2)], || false);

        assert_eq!(endpoints.endpoint(), Some(at(1)));
        assert_eq!(endpoints.to_seek(), [at(1), at(2)]);
        assert!(endpoints.poll_seek());
        assert!(!endpoints.poll_seek());
    }

    #[test]
    fn a_learned_address_is_looked_at_as_well() {
        let endpoints = with_session_at(at(9), &[at(1), at(2)]);

        assert_eq!(endpoints.to_seek(), [at(9), at(1), at(2)]);
    }

    #[test]
    fn what_works_outlives_every_other_list() {
        let endpoints = with_session_at(at(2), &[at(1), at(2)]);

        endpoints.set_candidates(&[at(3)], || true);
        assert_eq!(endpoints.endpoint(), Some(at(2)));
        endpoints.set_candidates(&[], || true);
        assert_eq!(endpoints.endpoint(), Some(at(2)));
    }

    #[test]
    fn a_peer_is_looked_for_elsewhere_when_its_address_is_taken_back() {
        let endpoints = with_session_at(at(1), &[at(1)]);

        endpoints.set_candidates(&[at(2)], || true);

        assert!(endpoints.poll_seek());
        assert_eq!(endpoints.to_seek(), [at(2)], "it would win where it is");
        endpoints.handle_initiation();
        assert_eq!(endpoints.to_seek(), [at(1), at(2)], "better there than nowhere");
    }

    #[test]
    fn an_address_that_is_taken_back_is_so_whatever_end_of_ours_it_calls() {
        let endpoints = with_session_at(at(1), &[at(1)]);
        endpoints.set_candidates(&[at(2)], || true);

        endpoints.learn(Path { local: Local::new([198, 51, 100, 1].into(), 0), ..at(1).into() });

        assert_eq!(endpoints.to_seek(), [at(2)]);
    }

    #[test]
    fn more_candidates_do_not_disturb_a_session() {
        let endpoints = with_session_at(at(1), &[at(1)]);

        endpoints.set_candidates(&[at(2), at(1)], || true);

        assert!(!endpoints.poll_seek());
        assert_eq!(endpoints.endpoint(), Some(at(1)));
    }

    #[test]
    fn without_a_session_an_address_that_is_taken_back_is_left() {
        let endpoints = Endpoints::default();
        endpoints.set_candidates(&[at(1)], || false);

        endpoints.set_candidates(&[at(2)], || false);

        assert_eq!(endpoints.endpoint(), Some(at(2)));
        assert_eq!(endpoints.to_seek(), [at(2)]);
    }

    #[test]
    fn a_peer_without_candidates_is_nowhere_to_be_looked_for() {
        let endpoints = Endpoints::default();
        endpoints.learn(at(1).into());

        endpoints.seek();

        assert!(!endpoints.poll_seek());
    }

    proptest! {
        /// Whatever is configured, heard and refused, in whatever order.
        #[test]
        fn an_address_in_use_was_heard_last_or_configured(
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

                let sought = endpoints.to_seek();
                prop_assert!(sought.len() <= MAX_CANDIDATES + 1);
                if !candidates.is_empty() {
                    prop_assert!(endpoints.in_use().is_some());
                    prop_assert!(candidates.iter().take(1).all(|first| sought.contains(first)));
                }
                if let (Some(heard), []) = (heard, candidates.as_slice()) {
                    prop_assert!(endpoints.in_use().is_some(), "{heard:?} was forgotten");
                }
            }
        }
    }

    /// A few that have an end in common.
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
        endpoints.forget_unanswered();
        let _ = endpoints.poll_seek();

        endpoints
    }

    fn at(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], 51840))
    }
}
