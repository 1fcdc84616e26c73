//! Exit statuses of the program.

use std::error::Error;

/// Wrong usage or configuration: `EX_USAGE` of `sysexits.h`. Nothing was changed.
pub const USAGE: u8 = 64;

/// No process answers: `EX_UNAVAILABLE` of `sysexits.h`.
pub const UNAVAILABLE: u8 = 69;

/// Any other error.
pub const RUNTIME: u8 = 1;

/// An error that ends the program with a status of its own.
pub trait ExitStatus: Error {
    /// The exit status.
    fn exit_status(&self) -> u8;

    /// Whether the text consists of whole lines, which name the file that is wrong.
    fn has_own_lines(&self) -> bool {
        false
    }

    /// Whether the help of the command shows what is right.
    fn is_about_command_line(&self) -> bool {
        false
    }
}
