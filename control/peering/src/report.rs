//! The output of a verb while it works, and its time limit.

use std::fmt;

use serde::{Serialize, Serializer};
use strait_api::public_key::PublicOf;

use super::Deadline;

/// The cluster of a line of output. Displayed it is the beginning of the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The only cluster of the verb.
    Only,
    /// Of two, the one whose gateway is the client.
    Local,
    /// Of two, the one whose gateway is the server.
    Remote,
}

impl Side {
    /// The label in JSON; empty if there is only one cluster.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Only => "",
            Self::Local => "local",
            Self::Remote => "remote",
        }
    }

    /// Whether there is only one cluster.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
    pub(super) fn is_only(&self) -> bool {
        *self == Self::Only
    }
}

impl Serialize for Side {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.label())
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Only => "",
            Self::Local => "(local) ",
            Self::Remote => "(remote) ",
        })
    }
}

/// Receives the output of a verb.
pub trait Report {
    /// A step is done.
    fn done(&self, side: Side, text: &str);
    /// A warning, which does not stop the verb.
    fn warn(&self, side: Side, text: &str);
    /// A step waits for others. The line ends with the next output.
    fn waiting(&self, side: Side, text: &str);
    /// Whether the user continues in spite of `warning`.
    fn allows(&self, side: Side, warning: &str) -> bool;
}

/// Passes warnings on, and not the steps.
pub(super) struct WarningsOnly<'a>(pub(super) &'a dyn Report);

impl Report for WarningsOnly<'_> {
    fn done(&self, _: Side, _: &str) {}

    fn warn(&self, side: Side, text: &str) {
        self.0.warn(side, text);
    }

    fn waiting(&self, side: Side, text: &str) {
        self.0.waiting(side, text);
    }

    fn allows(&self, side: Side, warning: &str) -> bool {
        self.0.allows(side, warning)
    }
}

/// One run of a verb.
#[derive(Clone, Copy)]
pub struct Session<'a> {
    /// The receiver of the output.
    pub report: &'a dyn Report,
    /// The deadline of the whole verb.
    pub deadline: Deadline,
    /// Computes the public key of a private one.
    pub public_of: PublicOf,
}
