//! What `wg` says to a device in user space, and what it hears: text in, values out, and back.
//!
//! ```text
//!              Conversation          Changes               Configuration
//!   lines ──▶ get=1 or set=1 ──▶ what a set wants ──▶ what holds from then on
//!   lines ◀──────────────────── Report ◀─────────────  and what was learned
//! ```
//!
//! # Invariants
//!
//! - A set is all or nothing: a wrong line anywhere in it, or no blank line at its end, changes nothing.
//!   wireguard-go keeps what stood before the wrong line.
//! - Nothing that a client sends takes more memory than [`conversation::MAX_REQUEST_BYTES`] allows for.
//! - No secret is in an error, in a log or in memory that is not wiped.
//!
//! # Not here
//!
//! The socket, the device, and what becomes of sessions (see `strait_engine`).
//!
//! # Source
//!
//! The "Cross-platform Userspace Implementation" page of the WireGuard project. Where it leaves
//! something open, wireguard-go: its `device/uapi.go` answers, and `ipc-uapi.h` of wireguard-tools asks.

pub mod change;
pub mod configuration;
pub mod conversation;
pub mod report;

mod read;
#[cfg(test)]
mod round_trip;
mod value;

pub use change::{AllowedIp, Changes, PeerChange};
pub use configuration::{Configuration, Peer};
pub use conversation::{Conversation, Operation, Step};
pub use read::ReadError;
pub use report::{DeviceReport, Drops, PeerReport, Report, Told};

/// The number of an error of the operating system, as Linux has it on x86, ARM and RISC-V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// `EPERM`: not here.
    pub const NOT_PERMITTED: Self = Self(1);
    /// `EIO`: the device cannot.
    pub const IO: Self = Self(5);
    /// `E2BIG`: more than is taken.
    pub const TOO_BIG: Self = Self(7);
    /// `EINVAL`: a key or a value that is none.
    pub const INVALID: Self = Self(22);
    /// `EPROTO`: not a line of the protocol.
    pub const PROTOCOL: Self = Self(71);
}

/// Why a request was refused: a number for the client, a text for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// What the client is told.
    pub errno: Errno,
    /// The offending key and value with the remedy. Never a secret.
    pub text: String,
}

impl Refusal {
    /// A refusal.
    #[must_use]
    pub fn new(errno: Errno, text: impl Into<String>) -> Self {
        Self { errno, text: text.into() }
    }
}

/// The end of every answer. An error is a negative number, as wireguard-go writes it: `wg set` takes
/// the number for a result of the kernel.
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
    fn an_error_is_negative_and_an_answer_ends_with_a_blank_line() {
        assert_eq!(ending(Ok(())), "errno=0\n\n");
        assert_eq!(ending(Err(Errno::INVALID)), "errno=-22\n\n");
        assert_eq!(ending(Err(Errno(-98))), "errno=-98\n\n");
    }
}
