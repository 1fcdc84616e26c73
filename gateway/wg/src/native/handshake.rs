//! The messages of a handshake: writing and reading them. Pure: time and randomness are passed in.
//!
//! Source: WireGuard whitepaper, sections 5.4.2 (initiation) and 5.4.3 (response). MACs are in
//! [`mac`](super::mac).
//!
//! ```text
//! initiation  1 0 0 0 | sender | ephemeral 32 | static 32+16 | timestamp 12+16 | mac1 16 | mac2 16
//! response    2 0 0 0 | sender | receiver | ephemeral 32 | nothing 0+16        | mac1 16 | mac2 16
//! ```

use x25519_dalek::StaticSecret;

use super::noise::{AuthError, LEN, Secret, TAG_LEN, Transcript, public, shared};
use crate::PublicKey;
use crate::message::{MAX_HANDSHAKE_BYTES, RESPONSE_BYTES};
use crate::tai64n::{TIMESTAMP_LEN, Timestamp};

/// Length of an initiation in bytes.
pub(super) const INITIATION_LEN: usize = MAX_HANDSHAKE_BYTES;

/// Length of a response in bytes.
const RESPONSE_LEN: usize = RESPONSE_BYTES;

const INITIATION: u8 = 1;
const RESPONSE: u8 = 2;

/// Our static key pair.
pub(super) struct StaticKeypair {
    /// On the heap until it is wiped: moving the rest leaves no copy.
    pub(super) private: Box<StaticSecret>,
    pub(super) public: PublicKey,
}

impl StaticKeypair {
    pub(super) fn new(private: StaticSecret) -> Self {
        Self { public: public(&private), private: Box::new(private) }
    }
}

/// The static keys of a peer, and secrets derived from them, known before any handshake. Secrets stay on the heap
/// until they are wiped, as in [`StaticKeypair`].
pub(super) struct PeerStatics {
    pub(super) peer: PublicKey,
    /// The shared secret of both static keys: the same for every handshake.
    pub(super) static_static: Box<Secret>,
    /// Zeros if there is none.
    pub(super) preshared: Box<Secret>,
}

impl PeerStatics {
    pub(super) fn new(peer: PublicKey, static_static: &[u8; LEN], preshared: &[u8; LEN]) -> Self {
        Self { peer, static_static: boxed(static_static), preshared: boxed(preshared) }
    }
}

/// Copies into the box, without another copy on the stack.
pub(super) fn boxed(bytes: &[u8; LEN]) -> Box<Secret> {
    let mut secret = Box::<Secret>::default();
    secret.copy_from_slice(bytes);

    secret
}

/// The keys of a session, and its index at each end.
pub(super) struct Session {
    pub(super) local_index: u32,
    pub(super) remote_index: u32,
    pub(super) sending: Secret,
    pub(super) receiving: Secret,
}

/// An initiation of ours that waits for a response.
pub(super) struct Pending {
    local_index: u32,
    ephemeral: StaticSecret,
    transcript: Transcript,
}

impl Pending {
    /// Whether a response with this receiver index answers it.
    pub(super) const fn is_for(&self, index: u32) -> bool {
        self.local_index == index
    }

    /// Writes an initiation with `ephemeral`, which must never be used again.
    ///
    /// # Errors
    ///
    /// [`AuthError`] if the peer's key is a point of low order.
    pub(super) fn initiate(
        own: &StaticKeypair,
        peer: &PeerStatics,
        local_index: u32,
        ephemeral: StaticSecret,
        timestamp: Timestamp,
    ) -> Result<(Self, [u8; INITIATION_LEN]), AuthError> {
        let mut transcript = Transcript::new(peer.peer);
        let mut writer = Writer::<INITIATION_LEN>::new(INITIATION);
        writer.put(&local_index.to_le_bytes());

        let point = public(&ephemeral);
        transcript.mix_ephemeral(&point);
        writer.put(point.as_bytes());
        let key = transcript.mix_shared(&shared(&ephemeral, &peer.peer)?);
        transcript.seal(&key, own.public.as_bytes(), writer.room(LEN + TAG_LEN));
        let key = transcript.mix_shared(&peer.static_static);
        transcript.seal(&key, timestamp.as_bytes(), writer.room(TIMESTAMP_LEN + TAG_LEN));

        Ok((Self { local_index, ephemeral, transcript }, writer.message))
    }

    /// Reads the `response`, and derives the session.
    ///
    /// # Errors
    ///
    /// [`AuthError`] if it does not come from the peer, or answers another initiation.
    pub(super) fn complete(
        &self,
        own: &StaticKeypair,
        peer: &PeerStatics,
        response: &[u8],
    ) -> Result<Session, AuthError> {
        let mut reader = Reader::new(response, RESPONSE_LEN)?;
        let remote_index = reader.index()?;
        if reader.index()? != self.local_index {
            return Err(AuthError);
        }
        let ephemeral = reader.key()?;
        let mut transcript = self.transcript.clone();

        transcript.mix_ephemeral(&ephemeral);
        transcript.mix_shared(&shared(&self.ephemeral, &ephemeral)?);
        transcript.mix_shared(&shared(&own.private, &ephemeral)?);
        let key = transcript.mix_preshared(&peer.preshared);
        transcript.open::<0>(&key, reader.take(TAG_LEN)?)?;
        let [sending, receiving] = transcript.split();

        Ok(Session { local_index: self.local_index, remote_index, sending, receiving })
    }
}

/// An initiation whose sender was read but not authenticated: any sender can name any public key. Only the owner of
/// the private key can seal the timestamp.
pub(super) struct IdentifiedInitiation {
    pub(super) peer: PublicKey,
    remote_index: u32,
    ephemeral: PublicKey,
    sealed_timestamp: [u8; TIMESTAMP_LEN + TAG_LEN],
    transcript: Transcript,
}

impl IdentifiedInitiation {
    /// Reads the sender of an `initiation` to us.
    ///
    /// # Errors
    ///
    /// [`AuthError`] if it is not for us.
    pub(super) fn read(own: &StaticKeypair, initiation: &[u8]) -> Result<Self, AuthError> {
        let mut reader = Reader::new(initiation, INITIATION_LEN)?;
        let remote_index = reader.index()?;
        let ephemeral = reader.key()?;
        let mut transcript = Transcript::new(own.public);

        transcript.mix_ephemeral(&ephemeral);
        let key = transcript.mix_shared(&shared(&own.private, &ephemeral)?);
        let peer = transcript.open::<LEN>(&key, reader.take(LEN + TAG_LEN)?)?;
        let sealed = reader.take(TIMESTAMP_LEN + TAG_LEN)?;
        let sealed_timestamp = sealed.try_into().map_err(|_| AuthError)?;

        Ok(Self {
            peer: PublicKey::from_bytes(peer),
            remote_index,
            ephemeral,
            sealed_timestamp,
            transcript,
        })
    }

    /// Authenticates the sender as the peer, and reads the timestamp.
    ///
    /// # Errors
    ///
    /// [`AuthError`] if another sender made it.
    pub(super) fn authenticate(
        &self,
        peer: &PeerStatics,
    ) -> Result<AuthenticInitiation, AuthError> {
        if self.peer != peer.peer {
            return Err(AuthError);
        }
        let mut transcript = self.transcript.clone();
        let key = transcript.mix_shared(&peer.static_static);
        let timestamp = transcript.open::<TIMESTAMP_LEN>(&key, &self.sealed_timestamp)?;

        Ok(AuthenticInitiation {
            timestamp: Timestamp::from_bytes(timestamp),
            remote_index: self.remote_index,
            ephemeral: self.ephemeral,
            transcript,
        })
    }
}

/// An authenticated initiation of a peer.
pub(super) struct AuthenticInitiation {
    pub(super) timestamp: Timestamp,
    remote_index: u32,
    ephemeral: PublicKey,
    transcript: Transcript,
}

impl AuthenticInitiation {
    /// Writes the response with `ephemeral`, which must never be used again. Send in the session only after the peer
    /// has sent in it.
    ///
    /// # Errors
    ///
    /// [`AuthError`] if the ephemeral key of the peer is a point of low order.
    pub(super) fn respond(
        mut self,
        peer: &PeerStatics,
        local_index: u32,
        ephemeral: &StaticSecret,
    ) -> Result<(Session, [u8; RESPONSE_LEN]), AuthError> {
        let mut writer = Writer::<RESPONSE_LEN>::new(RESPONSE);
        writer.put(&local_index.to_le_bytes());
        writer.put(&self.remote_index.to_le_bytes());

        let point = public(ephemeral);
        self.transcript.mix_ephemeral(&point);
        writer.put(point.as_bytes());
        self.transcript.mix_shared(&shared(ephemeral, &self.ephemeral)?);
        self.transcript.mix_shared(&shared(ephemeral, &peer.peer)?);
        let key = self.transcript.mix_preshared(&peer.preshared);
        self.transcript.seal(&key, &[], writer.room(TAG_LEN));
        let [receiving, sending] = self.transcript.split();
        let session = Session { local_index, remote_index: self.remote_index, sending, receiving };

        Ok((session, writer.message))
    }
}

/// Writes a message from its beginning. The rest stays zero.
struct Writer<const N: usize> {
    message: [u8; N],
    len: usize,
}

impl<const N: usize> Writer<N> {
    fn new(kind: u8) -> Self {
        let mut writer = Self { message: [0; N], len: 0 };
        writer.put(&[kind, 0, 0, 0]);

        writer
    }

    fn put(&mut self, field: &[u8]) {
        self.room(field.len()).copy_from_slice(field);
    }

    /// The next `len` bytes, to be written.
    fn room(&mut self, len: usize) -> &mut [u8] {
        let start = self.len;
        self.len += len;

        // The lengths of all fields are constants, and none reaches beyond the end.
        self.message.get_mut(start..start + len).unwrap_or_default()
    }
}

/// Reads a message from behind its type field.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn new(message: &'a [u8], len: usize) -> Result<Self, AuthError> {
        if message.len() != len {
            return Err(AuthError);
        }

        message.get(4..).map(Self).ok_or(AuthError)
    }

    fn index(&mut self) -> Result<u32, AuthError> {
        self.array().map(u32::from_le_bytes)
    }

    fn key(&mut self) -> Result<PublicKey, AuthError> {
        self.array().map(PublicKey::from_bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], AuthError> {
        self.take(N)?.try_into().map_err(|_| AuthError)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], AuthError> {
        let (field, rest) = self.0.split_at_checked(len).ok_or(AuthError)?;
        self.0 = rest;

        Ok(field)
    }
}
