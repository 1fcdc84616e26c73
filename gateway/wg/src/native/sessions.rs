//! The sessions of one peer: current, previous and next.
//!
//! Source: WireGuard whitepaper, section 6.3. Each change makes a new value, which is published as a whole.

use std::sync::Arc;
use std::time::Instant;

use super::keypair::Keypair;
use super::timers::{Activity, RECEIVER_REKEY_TIME, REJECT_AFTER_TIME};
use crate::handover::KeypairState;
use crate::message::Message;
use strait_aead::Lanes;

/// Up to four sessions, so that datagrams sent in an older one can still be received. The whitepaper has three, but
/// two whose handshakes crossed may both be in use, one in each direction, until a third one follows.
#[derive(Clone, Default)]
pub(super) struct Sessions {
    /// Used before `previous`.
    earlier: Option<Arc<Keypair>>,
    previous: Option<Arc<Keypair>>,
    /// Used for sending.
    current: Option<Arc<Keypair>>,
    /// Offered in a response, and used once the peer has used it.
    next: Option<Arc<Keypair>>,
}

impl Sessions {
    /// The sessions for a successor of this process, the earliest first and the next last.
    pub(super) fn export(&self) -> [Option<KeypairState>; 4] {
        [&self.earlier, &self.previous, &self.current, &self.next]
            .map(|keypair| keypair.as_ref().map(|keypair| keypair.export()))
    }

    /// The sessions of the predecessor of this process.
    pub(super) fn imported(sessions: [Option<KeypairState>; 4], lanes: Lanes) -> Self {
        let [earlier, previous, current, next] = sessions
            .map(|session| session.map(|session| Arc::new(Keypair::imported(session, lanes))));

        Self { earlier, previous, current, next }
    }

    /// The session to send with, unless it is too old.
    #[inline]
    pub(super) fn usable(&self, now: Instant) -> Option<&Arc<Keypair>> {
        self.current.as_ref().filter(|keypair| keypair.is_fresh(now))
    }

    pub(super) const fn has_current(&self) -> bool {
        self.current.is_some()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all().next().is_none()
    }

    /// The session with this receiver index.
    #[inline]
    pub(super) fn with_index(&self, index: u32) -> Option<&Arc<Keypair>> {
        self.all().find(|keypair| keypair.local_index == index)
    }

    /// The session of a run of transport data messages, each `stride` bytes long but the last one, if it may still
    /// receive.
    #[inline]
    pub(super) fn receiver(
        &self,
        run: &[u8],
        stride: usize,
        now: Instant,
    ) -> Option<&Arc<Keypair>> {
        let first = run.get(..stride.min(run.len()))?;
        let Some(Message::Data { receiver_index }) = Message::classify(first) else { return None };

        self.with_index(receiver_index).filter(|keypair| keypair.may_receive(now))
    }

    /// Whether `keypair` waits for its first datagram from the peer.
    #[inline]
    pub(super) fn is_next(&self, keypair: &Arc<Keypair>) -> bool {
        self.next.as_ref().is_some_and(|next| Arc::ptr_eq(next, keypair))
    }

    /// Whether the peer has switched from `keypair` to the current session, so that datagrams with `keypair` are
    /// late. If their handshakes crossed, the ends may use different ones, and new data may come with either; right
    /// after the handshake it counts as late all the same.
    pub(super) fn is_superseded(&self, keypair: &Arc<Keypair>, now: Instant) -> bool {
        let is_former = [&self.previous, &self.earlier]
            .into_iter()
            .flatten()
            .any(|former| Arc::ptr_eq(former, keypair));

        is_former
            && self.current.as_ref().is_some_and(|current| {
                let is_used = current.window().next() > 0;
                is_used && (current.is_new(now) || !current.has_crossed(keypair))
            })
    }

    /// After a response was sent that offers `next`.
    pub(super) fn with_next(&self, next: Keypair) -> Self {
        Self { next: Some(Arc::new(next)), ..self.clone() }
    }

    /// After a response was received for `current`. A `next` whose handshake crossed stays: the peer may prefer it.
    /// An older `next` is dropped: its response was lost, or it would have been used by now.
    pub(super) fn with_current(&self, current: Keypair) -> Self {
        let next = self.next.clone().filter(|next| current.has_crossed(next));

        Self { current: Some(Arc::new(current)), next, ..self.retired() }
    }

    /// After the peer has used `next`.
    pub(super) fn with_next_confirmed(&self) -> Self {
        Self { current: self.next.clone(), ..self.retired() }
    }

    /// Without a current and a next session.
    fn retired(&self) -> Self {
        let (earlier, previous) = match self.current {
            Some(_) => (&self.previous, &self.current),
            None => (&self.earlier, &self.previous),
        };

        Self { earlier: earlier.clone(), previous: previous.clone(), current: None, next: None }
    }

    /// The newest two sessions, for receiving only.
    pub(super) fn for_receiving(&self) -> Self {
        let retired = self.retired();
        match &self.next {
            Some(_) => Self { earlier: retired.previous, previous: self.next.clone(), ..retired },
            None => retired,
        }
    }

    /// The sessions without expired ones; `None` if none has expired. A session that may no longer send may still
    /// receive for a while.
    pub(super) fn without_expired(&self, now: Instant) -> Option<Self> {
        let is_over = self.current.as_ref().is_some_and(|it| it.age(now) >= REJECT_AFTER_TIME);
        if !is_over && self.all().all(|keypair| keypair.may_receive(now)) {
            return None;
        }
        let rest =
            if is_over { Self { next: self.next.clone(), ..self.retired() } } else { self.clone() };
        let [earlier, previous, current, next] =
            [rest.earlier, rest.previous, rest.current, rest.next]
                .map(|keypair| keypair.filter(|keypair| keypair.may_receive(now)));

        Some(Self { earlier, previous, current, next })
    }

    /// Whether a rekey is due. Keepalives count as traffic: a peer with a persistent keepalive needs a session at all
    /// times.
    pub(super) fn is_rekey_due(&self, activity: Activity, now: Instant) -> bool {
        let Some(current) = &self.current else { return false };
        let age = current.age(now);
        let by_sending =
            activity.has_sent && (age >= current.rekey_age() || current.has_sent_too_many());
        let by_receiving =
            activity.has_received && current.is_initiator && age >= RECEIVER_REKEY_TIME;

        by_sending || by_receiving
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Keypair>> {
        [&self.current, &self.previous, &self.next, &self.earlier].into_iter().flatten()
    }
}
