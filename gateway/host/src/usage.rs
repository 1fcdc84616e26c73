//! Errors in the usage of the command line.

use crate::exit_status::{ExitStatus, USAGE};

/// Why a command line is not executed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    /// Help or the version was requested: the text to print.
    #[error("{0}")]
    Answer(String),
    /// The command line is wrong: one line with the offending word.
    #[error("{0}")]
    Wrong(String),
}

impl UsageError {
    /// The error `error` of the command line or the environment.
    pub fn wrong(error: impl std::fmt::Display) -> Self {
        Self::Wrong(error.to_string())
    }
}

impl ExitStatus for UsageError {
    fn exit_status(&self) -> u8 {
        USAGE
    }

    fn is_about_command_line(&self) -> bool {
        true
    }
}
