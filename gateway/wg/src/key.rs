//! Public, private and preshared keys, and their text forms.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use x25519_dalek::StaticSecret;
use zeroize::Zeroizing;

/// Length of every key in bytes.
pub const KEY_LEN: usize = 32;

/// Identity of a peer: a Curve25519 point. Shown as base64, as `wg` does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey([u8; KEY_LEN]);

impl PublicKey {
    /// Wraps 32 raw bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; KEY_LEN]) -> Self {
        Self(bytes)
    }

    /// The raw bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let key = decode(text.trim().as_bytes(), text.len())?;

        not_zero(key).map(|bytes| Self(*bytes))
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A secret on the heap until it is wiped: moving a key, or growing a list of keys, moves a pointer and leaves no
/// copy.
type Secret = Box<Zeroizing<[u8; KEY_LEN]>>;

/// Our own identity. Wiped from memory when dropped; never shown.
#[derive(Clone)]
pub struct PrivateKey {
    secret: Secret,
    /// Cached: it is needed at each change of the configuration, and costs a multiplication on the curve.
    public: PublicKey,
}

impl PrivateKey {
    /// A new key from the operating system's random number generator, clamped as that of `wg genkey`.
    #[must_use]
    pub fn generate() -> Self {
        let mut bytes = Zeroizing::new(StaticSecret::random().to_bytes());
        clamp(&mut bytes);

        Self::new(&bytes)
    }

    /// Wraps 32 raw bytes.
    ///
    /// # Errors
    ///
    /// [`KeyError::Zero`] if all of them are zero.
    pub fn from_bytes(bytes: &[u8; KEY_LEN]) -> Result<Self, KeyError> {
        not_zero(Zeroizing::new(*bytes)).map(|bytes| Self::new(&bytes))
    }

    /// Reads a key file: 32 raw bytes, or base64 text with white space around it.
    ///
    /// # Errors
    ///
    /// [`KeyError`] if it is neither. The error never contains the key.
    pub fn from_file_content(content: &[u8]) -> Result<Self, KeyError> {
        parse(content).map(|bytes| Self::new(&bytes))
    }

    fn new(secret: &[u8; KEY_LEN]) -> Self {
        let secret = boxed(secret);
        let public = x25519_dalek::PublicKey::from(&StaticSecret::from(**secret));

        Self { secret, public: PublicKey(public.to_bytes()) }
    }

    /// The public key that belongs to it.
    #[must_use]
    pub const fn public_key(&self) -> PublicKey {
        self.public
    }

    /// The raw bytes, as stored in a Kubernetes Secret. Wiped when dropped.
    #[must_use]
    pub fn to_bytes(&self) -> Zeroizing<[u8; KEY_LEN]> {
        (*self.secret).clone()
    }

    /// The key after clamping (RFC 7748, section 5). Wiped when dropped.
    #[must_use]
    pub fn to_clamped_bytes(&self) -> Zeroizing<[u8; KEY_LEN]> {
        let mut bytes = self.to_bytes();
        clamp(&mut bytes);

        bytes
    }

    /// Base64 text as `wg genkey` prints it. Wiped when dropped.
    #[must_use]
    pub fn to_base64(&self) -> Zeroizing<String> {
        Zeroizing::new(STANDARD.encode(**self.secret))
    }

    pub(crate) fn to_secret(&self) -> StaticSecret {
        StaticSecret::from(**self.secret)
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(..)")
    }
}

/// A secret shared with one peer, mixed into the handshake. Wiped when dropped; never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct PresharedKey(Secret);

impl PresharedKey {
    /// Wraps 32 raw bytes.
    ///
    /// # Errors
    ///
    /// [`KeyError::Zero`] if all of them are zero.
    pub fn from_bytes(bytes: &[u8; KEY_LEN]) -> Result<Self, KeyError> {
        not_zero(Zeroizing::new(*bytes)).map(|bytes| Self(boxed(&bytes)))
    }

    /// Reads a key file: 32 raw bytes, or base64 text with white space around it.
    ///
    /// # Errors
    ///
    /// [`KeyError`] if it is neither. The error never contains the key.
    pub fn from_file_content(content: &[u8]) -> Result<Self, KeyError> {
        parse(content).map(|bytes| Self(boxed(&bytes)))
    }

    pub(crate) fn as_bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }
}

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresharedKey(..)")
    }
}

/// Why something is not a key. Says how long it was, never what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Neither 32 raw bytes nor base64 text.
    #[error("{len} bytes that are neither 32 raw bytes nor base64 text of 32 bytes")]
    NotAKey {
        /// Length of the input in bytes.
        len: usize,
    },
    /// Base64 text of another length.
    #[error("base64 text of {len} bytes, expected 32")]
    WrongLength {
        /// Decoded length in bytes.
        len: usize,
    },
    /// All bytes are zero: an unset key.
    #[error("all 32 bytes are zero: the key was never set")]
    Zero,
}

fn parse(content: &[u8]) -> Result<Zeroizing<[u8; KEY_LEN]>, KeyError> {
    match <[u8; KEY_LEN]>::try_from(content) {
        Ok(raw) => not_zero(Zeroizing::new(raw)),
        Err(_) => not_zero(decode(content.trim_ascii(), content.len())?),
    }
}

/// Copies into the box, without another copy on the stack.
fn boxed(bytes: &[u8; KEY_LEN]) -> Secret {
    let mut secret = Secret::default();
    secret.copy_from_slice(bytes);

    secret
}

/// RFC 7748, section 5.
const fn clamp(key: &mut [u8; KEY_LEN]) {
    let [first, .., last] = key;
    *first &= 0b1111_1000;
    *last = (*last & 0b0111_1111) | 0b0100_0000;
}

fn not_zero(key: Zeroizing<[u8; KEY_LEN]>) -> Result<Zeroizing<[u8; KEY_LEN]>, KeyError> {
    if key.iter().all(|byte| *byte == 0) {
        return Err(KeyError::Zero);
    }

    Ok(key)
}

fn decode(text: &[u8], len: usize) -> Result<Zeroizing<[u8; KEY_LEN]>, KeyError> {
    let decoded = Zeroizing::new(STANDARD.decode(text).map_err(|_| KeyError::NotAKey { len })?);
    let key = <[u8; KEY_LEN]>::try_from(decoded.as_slice())
        .map_err(|_| KeyError::WrongLength { len: decoded.len() })?;

    Ok(Zeroizing::new(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_key_is_read_back_as_written() {
        let key = PrivateKey::generate();

        let raw = PrivateKey::from_file_content(&*key.to_bytes()).unwrap();
        let text = PrivateKey::from_file_content(format!("{}\n", *key.to_base64()).as_bytes());

        assert_eq!(raw.public_key(), key.public_key());
        assert_eq!(text.unwrap().public_key(), key.public_key());
    }

    #[test]
    fn a_clamped_key_is_the_same_identity() {
        let key = PrivateKey::from_bytes(&[0xff; 32]).unwrap();

        let clamped = key.to_clamped_bytes();

        assert_eq!((clamped[0], clamped[1], clamped[31]), (0xf8, 0xff, 0x7f));
        let clamped = PrivateKey::from_bytes(&clamped).unwrap();
        assert_eq!(clamped.public_key(), key.public_key());
        assert_eq!(clamped.to_clamped_bytes(), clamped.to_bytes());
        let new = PrivateKey::generate();
        assert_eq!(new.to_clamped_bytes(), new.to_bytes());
    }

    #[test]
    fn an_error_shows_the_length_only() {
        let error = |content: &[u8]| PrivateKey::from_file_content(content).unwrap_err();

        assert_eq!(error(&[7; 31]), KeyError::NotAKey { len: 31 });
        assert_eq!(error(b"c2VjcmV0"), KeyError::WrongLength { len: 6 });
        assert_eq!(error(&[0; 32]), KeyError::Zero);
    }

    #[test]
    fn debug_output_hides_the_private_key() {
        let key = PrivateKey::generate();

        assert_eq!(format!("{key:?}"), "PrivateKey(..)");
    }

    #[test]
    fn growing_a_list_copies_no_secret() {
        let secret = |keys: &[PresharedKey]| keys[0].as_bytes().as_ptr();
        let own = |keys: &[PrivateKey]| keys[0].secret.as_ptr();
        let mut preshared = vec![PresharedKey::from_bytes(&[7; 32]).unwrap()];
        let mut private = vec![PrivateKey::generate()];
        let before = (secret(&preshared), own(&private));

        preshared.reserve_exact(1000);
        private.reserve_exact(1000);

        assert_eq!((secret(&preshared), own(&private)), before);
    }

    /// RFC 7748 section 6.1, the keys of Alice.
    #[test]
    fn the_public_key_matches_the_rfc() {
        let private = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=";
        let public = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";

        let key = PrivateKey::from_file_content(private.as_bytes()).unwrap();

        assert_eq!(key.public_key().to_string(), public);
    }
}
