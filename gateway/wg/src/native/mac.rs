//! The two MACs at the end of a handshake message, and cookies.
//!
//! Source: WireGuard whitepaper, sections 5.4.4 (MACs), 5.4.7 (cookie reply) and 5.3 (denial of service).
//!
//! mac1 proves that the sender knows our public key; without it nothing is answered. mac2 is keyed with a cookie, and
//! proves that the sender receives datagrams at its address and port; under load it is required.

use std::iter;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use blake2::Blake2sMac;
use blake2::digest::consts::U16;
use blake2::digest::{FixedOutput as _, KeyInit, Mac as _};
use chacha20poly1305::aead::AeadInPlace as _;
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use zeroize::Zeroizing;

use super::noise::{AuthError, LEN, Secret, TAG_LEN, hash};
use crate::PublicKey;
use crate::message::COOKIE_REPLY_BYTES;

/// Length of a MAC and of a cookie in bytes.
pub(super) const MAC_LEN: usize = 16;

/// How long one secret is used for cookies.
const COOKIE_LIFE: Duration = Duration::from_secs(120);

/// The time for a cookie reply and the message with its cookie to arrive: the peer does not use a cookie for longer
/// than the life of a secret less this.
const COOKIE_LATENCY: Duration = Duration::from_secs(5);

/// How long cookies made with the previous secret stay valid: as long as a peer waits before it uses one (section
/// 6.1, `REKEY_TIMEOUT` and its jitter), plus [`COOKIE_LATENCY`].
const PREVIOUS_LIFE: Duration = Duration::from_secs(11);

/// Nonce of a cookie reply, in bytes.
pub(super) const COOKIE_NONCE_LEN: usize = 24;

/// Length of a cookie reply in bytes.
const COOKIE_REPLY_LEN: usize = COOKIE_REPLY_BYTES;

const LABEL_MAC1: &[u8] = b"mac1----";
const LABEL_COOKIE: &[u8] = b"cookie--";

pub(super) type Mac = [u8; MAC_LEN];

/// The keys for the MACs of messages to the owner of a public key.
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

    /// Checks mac1 of `message`.
    ///
    /// # Errors
    ///
    /// [`AuthError`] if it is wrong.
    pub(super) fn check(&self, message: &[u8]) -> Result<(), AuthError> {
        let (body, mac1, _) = parts(message).ok_or(AuthError)?;

        verify(&self.mac1, body, mac1)
    }

    /// Writes mac1 of `message`, and mac2 if there is a cookie. Returns mac1.
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

    /// The cookie in a reply of the receiver to our message with this `mac1`.
    ///
    /// # Errors
    ///
    /// [`AuthError`] if it is for another message, or from another sender.
    pub(super) fn open_cookie(&self, reply: &[u8], mac1: &Mac) -> Result<Mac, AuthError> {
        let nonce = reply.get(8..8 + COOKIE_NONCE_LEN).ok_or(AuthError)?;
        let sealed = reply.get(8 + COOKIE_NONCE_LEN..COOKIE_REPLY_LEN).ok_or(AuthError)?;
        let (text, tag) = sealed.split_at_checked(MAC_LEN).ok_or(AuthError)?;
        let mut cookie = Mac::try_from(text).map_err(|_| AuthError)?;
        let tag = <[u8; TAG_LEN]>::try_from(tag).map_err(|_| AuthError)?;
        self.cipher()
            .decrypt_in_place_detached(XNonce::from_slice(nonce), mac1, &mut cookie, &tag.into())
            .map_err(|_| AuthError)?;

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

/// Makes and checks our own cookies.
pub(super) struct CookieMint {
    secret: Secret,
    /// When the secret was made; `None` before the first one.
    made: Option<Instant>,
    /// The previous secret, for [`PREVIOUS_LIFE`]: a peer uses a cookie five seconds after it got it.
    previous: Option<Secret>,
}

impl CookieMint {
    pub(super) fn new() -> Self {
        Self { secret: Secret::default(), made: None, previous: None }
    }

    /// Makes a new secret with `fill` if the current one is too old.
    pub(super) fn refresh(&mut self, now: Instant, fill: impl FnOnce(&mut [u8])) {
        let age = self.made.map(|made| now.saturating_duration_since(made));
        if age.is_none_or(|age| age >= COOKIE_LIFE) {
            // A secret that was never filled is not secret, and after a longer time its cookies are too old.
            let is_recent = age.is_some_and(|age| age < COOKIE_LIFE + PREVIOUS_LIFE);
            self.previous = is_recent.then(|| self.secret.clone());
            fill(&mut *self.secret);
            self.made = Some(now);
        } else if age.is_some_and(|age| age >= PREVIOUS_LIFE) {
            self.previous = None;
        }
    }

    /// Whether mac2 of `message` was made with the cookie of `source`.
    pub(super) fn check(&self, message: &[u8], source: SocketAddr) -> bool {
        let Some((_, _, mac2)) = parts(message).filter(|_| has_cookie(message)) else {
            return false;
        };
        let body = message.get(..message.len() - MAC_LEN).unwrap_or_default();
        let mut secrets = iter::once(&self.secret).chain(&self.previous);

        secrets.any(|secret| verify(&cookie(secret, source), body, mac2).is_ok())
    }

    /// A cookie reply to `message`, for `source` only. It is shorter than the message.
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

/// The cookie of an address and a port under `secret`.
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
    /// The cookie, unless it is too old.
    pub(super) fn get(&self, now: Instant) -> Option<&Mac> {
        let age = now.saturating_duration_since(self.received);

        (age < COOKIE_LIFE - COOKIE_LATENCY).then_some(&*self.value)
    }
}

/// Whether `message` has a mac2: without a cookie it is zero.
pub(super) fn has_cookie(message: &[u8]) -> bool {
    parts(message).is_some_and(|(_, _, mac2)| mac2 != [0; MAC_LEN])
}

/// The bytes under mac1, mac1, and mac2.
fn parts(message: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let split = message.len().checked_sub(2 * MAC_LEN)?;
    let (body, macs) = message.split_at_checked(split)?;
    let (mac1, mac2) = macs.split_at_checked(MAC_LEN)?;

    Some((body, mac1, mac2))
}

fn mac(key: &[u8], parts: &[&[u8]]) -> Mac {
    keyed(key, parts).finalize_fixed().into()
}

/// Verifies in constant time.
fn verify(key: &[u8], data: &[u8], expected: &[u8]) -> Result<(), AuthError> {
    keyed(key, &[data]).verify_slice(expected).map_err(|_| AuthError)
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
