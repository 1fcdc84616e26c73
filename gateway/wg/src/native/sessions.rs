//! The sessions of one peer, and how one follows another.
//!
//! Source: WireGuard whitepaper, section 6.3. Each change is another value, published whole: who reads
//! one sees all of it.

use std::sync::Arc;
use std::time::Instant;

use super::keypair::Keypair;
use super::timers::{News, RECEIVER_REKEY_TIME, REJECT_AFTER_TIME};
use crate::message::Message;

/// Four at the most: what is under way when another one begins still arrives. The whitepaper has three, but two
/// that were made at once may both be in use, one in each direction, until a third one follows.
#[derive(Clone, Default)]
pub(super) struct Sessions {
    /// In use before `previous`.
    earlier: Option<Arc<Keypair>>,
    previous: Option<Arc<Keypair>>,
    /// What is sent with.
    current: Option<Arc<Keypair>>,
    /// Promised in a response, and used as soon as the peer does.
    next: Option<Arc<Keypair>>,
}

impl Sessions {
    /// What is sent with, unless it is too old.
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

    /// That whose datagrams have this receiver index.
    #[inline]
    pub(super) fn with_index(&self, index: u32) -> Option<&Arc<Keypair>> {
        self.all().find(|keypair| keypair.local_index == index)
    }

    /// That of a run of data messages, each `stride` bytes long but the last one, if they may still come.
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

    /// Whether the peer has not used `keypair` yet, as far as is known here.
    #[inline]
    pub(super) fn is_promised(&self, keypair: &Arc<Keypair>) -> bool {
        self.next.as_ref().is_some_and(|next| Arc::ptr_eq(next, keypair))
    }

    /// Whether the peer has gone on from `keypair` to the session in use. Of two that were made at the same
    /// time each end may have settled on another one, and new data may come with either; what comes at once
    /// may as well be late.
    pub(super) fn is_over(&self, keypair: &Arc<Keypair>, now: Instant) -> bool {
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

    /// A response promises the peer `next`.
    pub(super) fn promised(&self, next: Keypair) -> Self {
        Self { next: Some(Arc::new(next)), ..self.clone() }
    }

    /// A response has granted `current`. One that was promised at the same time stays: the peer may
    /// prefer it. One that was promised long before was never heard of, or it would have been used by now.
    pub(super) fn granted(&self, current: Keypair) -> Self {
        let next = self.next.clone().filter(|next| current.has_crossed(next));

        Self { current: Some(Arc::new(current)), next, ..self.retired() }
    }

    /// The peer has used what it was promised.
    pub(super) fn confirmed(&self) -> Self {
        Self { current: self.next.clone(), ..self.retired() }
    }

    /// Those that were in use, when none is.
    fn retired(&self) -> Self {
        let (earlier, previous) = match self.current {
            Some(_) => (&self.previous, &self.current),
            None => (&self.earlier, &self.previous),
        };

        Self { earlier: earlier.clone(), previous: previous.clone(), current: None, next: None }
    }

    /// The newest two, none of which is sent with any more.
    pub(super) fn for_receiving(&self) -> Self {
        let retired = self.retired();
        match &self.next {
            Some(_) => Self { earlier: retired.previous, previous: self.next.clone(), ..retired },
            None => retired,
        }
    }

    /// Those that may still be used, if there are others. What was sent with may still be received with for a
    /// moment.
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

    /// Whether another one should take the place of the one in use. A keepalive is reason enough: whoever
    /// has them sent wants a session at any time.
    pub(super) fn is_succession_due(&self, news: News, now: Instant) -> bool {
        let Some(current) = &self.current else { return false };
        let age = current.age(now);
        let by_sending = news.has_sent && (age >= current.rekey_age() || current.is_worn());
        let by_receiving = news.has_received && current.is_initiator && age >= RECEIVER_REKEY_TIME;

        by_sending || by_receiving
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Keypair>> {
        [&self.current, &self.previous, &self.next, &self.earlier].into_iter().flatten()
    }
}
