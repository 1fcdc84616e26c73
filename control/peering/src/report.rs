//! What a verb says while it works, and for how long it may.

use std::fmt;

use serde::{Serialize, Serializer};
use strait_api::public_key::PublicOf;

use super::Deadline;

/// Which cluster something is said of. Displayed it is the beginning of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The only one that the verb has to do with.
    Only,
    /// Of two, the one whose gateway is the client.
    Local,
    /// Of two, the one whose gateway is the server.
    Remote,
}

impl Side {
    /// As JSON has it; empty if there is no other one.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Only => "",
            Self::Local => "local",
            Self::Remote => "remote",
        }
    }

    /// Whether there is no other one.
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

/// Who is told what happens.
pub trait Report {
    /// A step is done.
    fn done(&self, side: Side, text: &str);
    /// Something that the user had better know, and that does not stop the verb.
    fn warn(&self, side: Side, text: &str);
    /// A step takes as long as others need. Ends with whatever is said next.
    fn waiting(&self, side: Side, text: &str);
    /// Whether the user goes on in spite of `warning`.
    fn allows(&self, side: Side, warning: &str) -> bool;
}

/// Says what is wrong, and not what is done.
pub(super) struct Quiet<'a>(pub(super) &'a dyn Report);

impl Report for Quiet<'_> {
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
    /// Who is told.
    pub report: &'a dyn Report,
    /// Until when all of it must be done.
    pub deadline: Deadline,
    /// Tells whether two keys belong together.
    pub public_of: PublicOf,
}
