//! Bytes of a hand-over: integers in network byte order, lists with their length in front.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

use zeroize::Zeroizing;

use strait_packet::path::{Local, LocalPort, Path};

/// Bytes that a writer has room for at first: a gateway with one peer needs about 6 KiB.
const FIRST_CAPACITY: usize = 16 << 10;

/// The longest duration in seconds, 35,000 years: sums of a few do not overflow.
const SECONDS_MAX: u64 = 1 << 40;

/// Why a hand-over cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandoverError {
    /// It ends too early.
    #[error("the hand-over is incomplete")]
    Incomplete,
    /// A field has a value that it cannot have.
    #[error("the hand-over has an invalid {0}")]
    Invalid(&'static str),
    /// It is of another version.
    #[error("the hand-over has version {found}, and this program reads version {known}")]
    Version {
        /// That of the hand-over.
        found: u32,
        /// That of this program.
        known: u32,
    },
    /// It was changed, or was sealed with another key.
    #[error("the hand-over is not authentic")]
    NotAuthentic,
}

/// Writes a hand-over. What is written is wiped when dropped, also where it was before it grew.
#[derive(Debug)]
pub struct Writer {
    bytes: Zeroizing<Vec<u8>>,
    base: Instant,
}

impl Writer {
    /// Without content. Instants are written as durations since `base`, which no instant precedes; the reader must have
    /// the same base.
    #[must_use]
    pub fn new(base: Instant) -> Self {
        Self { bytes: Zeroizing::new(Vec::with_capacity(FIRST_CAPACITY)), base }
    }

    /// Appends bytes.
    pub fn put(&mut self, bytes: &[u8]) {
        let wanted = self.bytes.len() + bytes.len();
        if wanted > self.bytes.capacity() {
            // Growing in place would leave a copy behind.
            let mut larger = Zeroizing::new(Vec::with_capacity(wanted.next_power_of_two()));
            larger.extend_from_slice(&self.bytes);
            self.bytes = larger;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends one byte.
    pub fn u8(&mut self, value: u8) {
        self.put(&[value]);
    }

    /// Appends an integer.
    pub fn u16(&mut self, value: u16) {
        self.put(&value.to_be_bytes());
    }

    /// Appends an integer.
    pub fn u32(&mut self, value: u32) {
        self.put(&value.to_be_bytes());
    }

    /// Appends an integer.
    pub fn u64(&mut self, value: u64) {
        self.put(&value.to_be_bytes());
    }

    /// Appends a flag.
    pub fn flag(&mut self, value: bool) {
        self.u8(value.into());
    }

    /// Appends bytes with their number in front.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.put(bytes);
    }

    /// Appends whether there is a value, and `write`s it.
    pub fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    /// Appends the number of `items`, and `write`s each.
    pub fn list<T>(
        &mut self,
        items: impl ExactSizeIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T),
    ) {
        self.u32(u32::try_from(items.len()).unwrap_or(u32::MAX));
        for item in items {
            write(self, item);
        }
    }

    /// Appends a duration.
    pub fn duration(&mut self, value: Duration) {
        self.u64(value.as_secs());
        self.u32(value.subsec_nanos());
    }

    /// Appends an instant.
    pub fn instant(&mut self, value: Instant) {
        self.duration(value.saturating_duration_since(self.base));
    }

    /// Appends an address.
    pub fn address(&mut self, value: IpAddr) {
        match value {
            IpAddr::V4(address) => {
                self.u8(4);
                self.put(&address.octets());
            }
            IpAddr::V6(address) => {
                self.u8(6);
                self.put(&address.octets());
            }
        }
    }

    /// Appends an address with a port.
    pub fn socket_address(&mut self, value: SocketAddr) {
        self.address(value.ip());
        self.u16(value.port());
        if let SocketAddr::V6(address) = value {
            self.u32(address.scope_id());
        }
    }

    /// Appends a path.
    pub fn path(&mut self, value: Path) {
        self.socket_address(value.remote);
        self.flag(value.port == LocalPort::Spare);
        self.optional(value.local, |out, local| {
            out.address(local.address());
            out.u32(local.interface());
        });
    }

    /// What was written.
    #[must_use]
    pub fn finish(self) -> Zeroizing<Vec<u8>> {
        self.bytes
    }
}

/// Reads what a [`Writer`] wrote.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    base: Instant,
}

impl<'a> Reader<'a> {
    /// Reads `bytes`, with instants since `base`.
    #[must_use]
    pub const fn new(bytes: &'a [u8], base: Instant) -> Self {
        Self { rest: bytes, base }
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    ///
    /// [`HandoverError::Incomplete`], as for all other methods, if there are not as many.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], HandoverError> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(HandoverError::Incomplete)?;
        self.rest = rest;

        Ok(taken)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    ///
    /// See [`Self::take`].
    pub fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], HandoverError> {
        self.take(N)?.first_chunk().ok_or(HandoverError::Incomplete)
    }

    /// The next byte.
    ///
    /// # Errors
    ///
    /// See [`Self::take`].
    pub fn u8(&mut self) -> Result<u8, HandoverError> {
        self.array().map(|[byte]| *byte)
    }

    /// The next integer.
    ///
    /// # Errors
    ///
    /// See [`Self::take`].
    pub fn u16(&mut self) -> Result<u16, HandoverError> {
        self.array().map(|bytes| u16::from_be_bytes(*bytes))
    }

    /// The next integer.
    ///
    /// # Errors
    ///
    /// See [`Self::take`].
    pub fn u32(&mut self) -> Result<u32, HandoverError> {
        self.array().map(|bytes| u32::from_be_bytes(*bytes))
    }

    /// The next integer.
    ///
    /// # Errors
    ///
    /// See [`Self::take`].
    pub fn u64(&mut self) -> Result<u64, HandoverError> {
        self.array().map(|bytes| u64::from_be_bytes(*bytes))
    }

    /// The next flag.
    ///
    /// # Errors
    ///
    /// [`HandoverError::Invalid`] if it is neither 0 nor 1. See also [`Self::take`].
    pub fn flag(&mut self) -> Result<bool, HandoverError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(HandoverError::Invalid("flag")),
        }
    }

    /// The next bytes, with their number in front.
    ///
    /// # Errors
    ///
    /// See [`Self::take`].
    pub fn bytes(&mut self) -> Result<&'a [u8], HandoverError> {
        let count = self.u32()?;

        self.take(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// The next value, which `read` reads, if there is one.
    ///
    /// # Errors
    ///
    /// Those of `read` and of [`Self::flag`].
    pub fn optional<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, HandoverError>,
    ) -> Result<Option<T>, HandoverError> {
        if self.flag()? { read(self).map(Some) } else { Ok(None) }
    }

    /// The next list, of which `read` reads each item.
    ///
    /// # Errors
    ///
    /// Those of `read`. See also [`Self::take`].
    pub fn list<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, HandoverError>,
    ) -> Result<Vec<T>, HandoverError> {
        let count = self.u32()?;

        // No item is empty, so a number that is too large ends with the bytes. Nothing is allocated for it before.
        (0..count).map(|_| read(self)).collect()
    }

    /// The next duration.
    ///
    /// # Errors
    ///
    /// [`HandoverError::Invalid`] if it has too many seconds or nanoseconds. See also [`Self::take`].
    pub fn duration(&mut self) -> Result<Duration, HandoverError> {
        let (seconds, nanos) = (self.u64()?, self.u32()?);
        if seconds > SECONDS_MAX || nanos >= 1_000_000_000 {
            return Err(HandoverError::Invalid("duration"));
        }

        Ok(Duration::new(seconds, nanos))
    }

    /// The next instant.
    ///
    /// # Errors
    ///
    /// [`HandoverError::Invalid`] if this machine cannot have it. See also [`Self::take`].
    pub fn instant(&mut self) -> Result<Instant, HandoverError> {
        let since = self.duration()?;

        self.base.checked_add(since).ok_or(HandoverError::Invalid("instant"))
    }

    /// The next address.
    ///
    /// # Errors
    ///
    /// [`HandoverError::Invalid`] if it is of no known version of IP. See also [`Self::take`].
    pub fn address(&mut self) -> Result<IpAddr, HandoverError> {
        match self.u8()? {
            4 => self.array::<4>().map(|octets| IpAddr::from(*octets)),
            6 => self.array::<16>().map(|octets| IpAddr::from(*octets)),
            _ => Err(HandoverError::Invalid("address")),
        }
    }

    /// The next address with a port.
    ///
    /// # Errors
    ///
    /// See [`Self::address`].
    pub fn socket_address(&mut self) -> Result<SocketAddr, HandoverError> {
        let (address, port) = (self.address()?, self.u16()?);

        match address {
            IpAddr::V4(_) => Ok(SocketAddr::new(address, port)),
            IpAddr::V6(address) => Ok(SocketAddrV6::new(address, port, 0, self.u32()?).into()),
        }
    }

    /// The next path.
    ///
    /// # Errors
    ///
    /// [`HandoverError::Invalid`] if its local address is not that of one host. See also [`Self::address`].
    pub fn path(&mut self) -> Result<Path, HandoverError> {
        let remote = self.socket_address()?;
        let port = if self.flag()? { LocalPort::Spare } else { LocalPort::Listen };
        let local = self.optional(|from| {
            let (address, interface) = (from.address()?, from.u32()?);
            Local::new(address, interface).ok_or(HandoverError::Invalid("local address"))
        })?;

        Ok(Path { remote, local, port })
    }

    /// Whether everything was read.
    ///
    /// # Errors
    ///
    /// [`HandoverError::Invalid`] if there is more.
    pub const fn finish(&self) -> Result<(), HandoverError> {
        if self.rest.is_empty() { Ok(()) } else { Err(HandoverError::Invalid("end")) }
    }
}
