//! The two MACs at the end of a handshake message, and the cookies that the second one is made with.
//!
//! Source: WireGuard whitepaper, sections 5.4.4 (MACs), 5.4.7 (cookie reply) and 5.3 (denial of service).
//!
//! The first MAC says that the sender knows our public key; without it nothing is answered. The second
//! says that the sender has received what we sent to its address and port; under load nothing else is
//! worked for.

use std::iter;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use blake2::Blake2sMac;
use blake2::digest::consts::U16;
use blake2::digest::{FixedOutput as _, KeyInit, Mac as _};
use chacha20poly1305::aead::AeadInPlace as _;
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use zeroize::Zeroizing;

use super::noise::{Forged, LEN, Secret, TAG_LEN, hash};
use crate::PublicKey;
use crate::message::COOKIE_REPLY_BYTES;

/// Length of a MAC and of a cookie in bytes.
pub(super) const MAC_LEN: usize = 16;

/// How long cookies are made with the same secret.
const COOKIE_LIFE: Duration = Duration::from_secs(120);

/// What a cookie and the message with it may take on their way: a cookie that is older than the life of a
/// secret less this is not worth a message.
const COOKIE_LATENCY: Duration = Duration::from_secs(5);

/// How long cookies made with the secret before are good: as long as a peer waits before it uses one (section 6.1,
/// `REKEY_TIMEOUT` and its jitter), and [`COOKIE_LATENCY`].
const PREVIOUS_LIFE: Duration = Duration::from_secs(11);

/// Nonce of a cookie reply, in bytes.
pub(super) const COOKIE_NONCE_LEN: usize = 24;

/// Length of a cookie reply in bytes.
const COOKIE_REPLY_LEN: usize = COOKIE_REPLY_BYTES;

const LABEL_MAC1: &[u8] = b"mac1----";
const LABEL_COOKIE: &[u8] = b"cookie--";

pub(super) type Mac = [u8; MAC_LEN];

/// What messages to the owner of a public key are made with.
#[derive(Clone)]
pub(super) struct MacKeys {
    mac1: [u8; LEN],
    cookie: [u8; LEN],
}

impl MacKeys {
    pub(super) fn new(receiver: PublicKey) -> Self {
        Self {
            mac1: hash(&[LABEL_MAC1, receiver.as_bytes()]),
            cookie: hash(&[LABEL_COOKIE, receiver.as_bytes()]),
        }
    }

    /// Whether `message` was made by somebody who knows the receiver's public key.
    ///
    /// # Errors
    ///
    /// [`Forged`] if not.
    pub(super) fn check(&self, message: &[u8]) -> Result<(), Forged> {
        let (body, mac1, _) = parts(message).ok_or(Forged)?;

        verify(&self.mac1, body, mac1)
    }

    /// Writes both MACs of `message`: the second with a cookie if there is one. Gives the first.
    pub(super) fn stamp(&self, message: &mut [u8], cookie: Option<&Mac>) -> Mac {
        let Some(split) = message.len().checked_sub(2 * MAC_LEN) else { return Mac::default() };
        let (body, macs) = message.split_at_mut(split);
        let first = mac(&self.mac1, &[body]);
        let (mac1, mac2) = macs.split_at_mut(MAC_LEN);
        mac1.copy_from_slice(&first);
        match cookie {
            Some(cookie) => mac2.copy_from_slice(&mac(cookie, &[body, &first])),
            None => mac2.fill(0),
        }

        first
    }

    /// The cookie in a reply of the receiver to our message with the MAC `mac1`.
    ///
    /// # Errors
    ///
    /// [`Forged`] if it is for another message, or from somebody else.
    pub(super) fn open_cookie(&self, reply: &[u8], mac1: &Mac) -> Result<Mac, Forged> {
        let nonce = reply.get(8..8 + COOKIE_NONCE_LEN).ok_or(Forged)?;
        let sealed = reply.get(8 + COOKIE_NONCE_LEN..COOKIE_REPLY_LEN).ok_or(Forged)?;
        let (text, tag) = sealed.split_at_checked(MAC_LEN).ok_or(Forged)?;
        let mut cookie = Mac::try_from(text).map_err(|_| Forged)?;
        let tag = <[u8; TAG_LEN]>::try_from(tag).map_err(|_| Forged)?;
        self.cipher()
            .decrypt_in_place_detached(XNonce::from_slice(nonce), mac1, &mut cookie, &tag.into())
            .map_err(|_| Forged)?;

        Ok(cookie)
    }

    fn seal_cookie(&self, nonce: &[u8; COOKIE_NONCE_LEN], mac1: &[u8], cookie: &mut Mac) -> Mac {
        let nonce = XNonce::from_slice(nonce);

        self.cipher()
            .encrypt_in_place_detached(nonce, mac1, cookie)
            .map_or([0; TAG_LEN], Into::into)
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new(&self.cookie.into())
    }
}

/// What our own cookies are made with.
pub(super) struct CookieMint {
    secret: Secret,
    /// `None` before the first one is asked for.
    made: Option<Instant>,
    /// The one before, until every message with a cookie from it has come that was sent in time: a peer that
    /// gets a cookie uses it five seconds later.
    previous: Option<Secret>,
}

impl CookieMint {
    pub(super) fn new() -> Self {
        Self { secret: Secret::default(), made: None, previous: None }
    }

    /// Makes another secret if the one before is old, with fresh randomness.
    pub(super) fn refresh(&mut self, now: Instant, fill: impl FnOnce(&mut [u8])) {
        let age = self.made.map(|made| now.saturating_duration_since(made));
        if age.is_none_or(|age| age >= COOKIE_LIFE) {
            // One that was never filled is known to all, and cookies of an earlier load are too old.
            let is_recent = age.is_some_and(|age| age < COOKIE_LIFE + PREVIOUS_LIFE);
            self.previous = is_recent.then(|| self.secret.clone());
            fill(&mut *self.secret);
            self.made = Some(now);
        } else if age.is_some_and(|age| age >= PREVIOUS_LIFE) {
            self.previous = None;
        }
    }

    /// Whether the second MAC of `message` was made with the cookie of `source`.
    pub(super) fn check(&self, message: &[u8], source: SocketAddr) -> bool {
        let Some((_, _, mac2)) = parts(message).filter(|_| has_cookie(message)) else {
            return false;
        };
        let body = message.get(..message.len() - MAC_LEN).unwrap_or_default();
        let mut secrets = iter::once(&self.secret).chain(&self.previous);

        secrets.any(|secret| verify(&cookie(secret, source), body, mac2).is_ok())
    }

    /// A reply to `message`, which goes nowhere but to `source`. Shorter than what it answers.
    pub(super) fn reply(
        &self,
        own: &MacKeys,
        message: &[u8],
        source: SocketAddr,
        nonce: &[u8; COOKIE_NONCE_LEN],
    ) -> Option<[u8; COOKIE_REPLY_LEN]> {
        let (_, mac1, _) = parts(message)?;
        let sender = message.get(4..8)?;
        let mut cookie = cookie(&self.secret, source);
        let tag = own.seal_cookie(nonce, mac1, &mut cookie);

        let mut reply = [0; COOKIE_REPLY_LEN];
        let fields = [&[3, 0, 0, 0], sender, nonce, &cookie, &tag];
        let mut rest = reply.as_mut_slice();
        for field in fields {
            let (room, others) = rest.split_at_mut_checked(field.len())?;
            room.copy_from_slice(field);
            rest = others;
        }

        Some(reply)
    }
}

/// That of an address and a port, for as long as the secret is the same.
fn cookie(secret: &Secret, source: SocketAddr) -> Mac {
    let port = source.port().to_be_bytes();
    match source.ip() {
        IpAddr::V4(address) => mac(&**secret, &[&address.octets(), &port]),
        IpAddr::V6(address) => mac(&**secret, &[&address.octets(), &port]),
    }
}

/// A cookie that a peer gave us.
pub(super) struct Cookie {
    pub(super) value: Zeroizing<Mac>,
    pub(super) received: Instant,
}

impl Cookie {
    /// What to make the second MAC with, unless it is too old.
    pub(super) fn get(&self, now: Instant) -> Option<&Mac> {
        let age = now.saturating_duration_since(self.received);

        (age < COOKIE_LIFE - COOKIE_LATENCY).then_some(&*self.value)
    }
}

/// Whether the sender of `message` says that it has a cookie: who has none says so with zeros, and in a
/// flood that is everybody.
pub(super) fn has_cookie(message: &[u8]) -> bool {
    parts(message).is_some_and(|(_, _, mac2)| mac2 != [0; MAC_LEN])
}

/// What the first MAC is over, the first and the second MAC.
fn parts(message: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let split = message.len().checked_sub(2 * MAC_LEN)?;
    let (body, macs) = message.split_at_checked(split)?;
    let (mac1, mac2) = macs.split_at_checked(MAC_LEN)?;

    Some((body, mac1, mac2))
}

fn mac(key: &[u8], parts: &[&[u8]]) -> Mac {
    keyed(key, parts).finalize_fixed().into()
}

/// In constant time.
fn verify(key: &[u8], data: &[u8], expected: &[u8]) -> Result<(), Forged> {
    keyed(key, &[data]).verify_slice(expected).map_err(|_| Forged)
}

fn keyed(key: &[u8], parts: &[&[u8]]) -> Blake2sMac<U16> {
    let Ok(mut mac) = <Blake2sMac<U16> as KeyInit>::new_from_slice(key) else {
        unreachable!("keys here have 16 or 32 bytes, at most 32 are allowed")
    };
    for part in parts {
        mac.update(part);
    }

    mac
}
