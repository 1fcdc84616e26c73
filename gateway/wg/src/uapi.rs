//! The configuration protocol between `wg` and a device in user space: parsing requests, and formatting answers.
//!
//! ```text
//!             RequestParser          Changes             Configuration
//!   lines ──▶ get=1 or set=1 ──▶ content of a set ──▶ the device from now on
//!   lines ◀──────────────────── Report ◀──────────── and learned values
//! ```
//!
//! # Invariants
//!
//! - A set is atomic: with an invalid line, or without a blank line at its end, it changes nothing. wireguard-go
//!   applies the lines before an invalid one.
//! - The memory for a request is bounded by [`requests::MAX_REQUEST_BYTES`].
//! - No secret is in an error, in a log or in memory that is not wiped.
//!
//! # Not here
//!
//! The socket, the device, and sessions (see `strait-engine`).
//!
//! # Source
//!
//! The "Cross-platform Userspace Implementation" page of the WireGuard project. Where it is incomplete:
//! `device/uapi.go` of wireguard-go for the device, and `ipc-uapi.h` of wireguard-tools for the client.

pub mod change;
pub mod configuration;
pub mod report;
pub mod requests;

mod read;
#[cfg(test)]
mod round_trip;
mod value;

pub use change::{AllowedIp, Changes, PeerChange};
pub use configuration::{Configuration, Peer};
pub use read::ReadError;
pub use report::{DeviceReport, Drops, PeerReport, Report, Reported};
pub use requests::{Operation, RequestParser, Step};

/// An error number of Linux on x86, ARM and RISC-V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// `EPERM`: not permitted.
    pub const NOT_PERMITTED: Self = Self(1);
    /// `EIO`: the device failed.
    pub const IO: Self = Self(5);
    /// `E2BIG`: the request is too long.
    pub const TOO_BIG: Self = Self(7);
    /// `EINVAL`: an unknown key or an invalid value.
    pub const INVALID: Self = Self(22);
    /// `EPROTO`: not a line of the protocol.
    pub const PROTOCOL: Self = Self(71);
}

/// Why a request was refused: a number for the client, a text for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// For the client.
    pub errno: Errno,
    /// For the log: the offending key and value with the remedy. Never a secret.
    pub text: String,
}

impl Refusal {
    /// A refusal with this number and text.
    #[must_use]
    pub fn new(errno: Errno, text: impl Into<String>) -> Self {
        Self { errno, text: text.into() }
    }
}

/// The end of every answer. An error is a negative number, as in wireguard-go: `wg set` handles it as a return value
/// of the kernel.
#[must_use]
pub fn ending(result: Result<(), Errno>) -> String {
    let number = match result {
        Ok(()) => 0,
        Err(Errno(number)) => -number.abs(),
    };

    format!("errno={number}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_with_a_negative_error_number() {
        assert_eq!(ending(Ok(())), "errno=0\n\n");
        assert_eq!(ending(Err(Errno::INVALID)), "errno=-22\n\n");
        assert_eq!(ending(Err(Errno(-98))), "errno=-98\n\n");
    }
}
