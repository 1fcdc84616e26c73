//! Wrong usage of the command line.

/// Why a command line cannot be carried out.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UsageError {
    /// Somebody asked for help or the version: here it is.
    #[error("{0}")]
    Answer(String),
    /// The command line is wrong. One line with the offending word.
    #[error("{0}")]
    Wrong(String),
}
