//! Wrong usage of the command line.

/// Why a command line cannot be carried out.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    /// Somebody asked for help or the version: here it is.
    #[error("{0}")]
    Answer(String),
    /// The command line is wrong. One line with the offending word.
    #[error("{0}")]
    Wrong(String),
}

impl UsageError {
    /// The command line, or the environment, is wrong as `error` says.
    pub fn wrong(error: impl std::fmt::Display) -> Self {
        Self::Wrong(error.to_string())
    }
}
