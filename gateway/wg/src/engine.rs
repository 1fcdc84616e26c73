//! Which implementation of the protocol stands behind the seam.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::PrivateKey;
use super::boringtun::BoringtunIdentity;
use super::native::{NativeIdentity, Surroundings};
use super::tunnel::Identity;

/// The implementations of WireGuard to choose from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Our own.
    #[default]
    Native,
    /// The boringtun crate.
    Boringtun,
}

impl Engine {
    /// Every one of them.
    pub const ALL: [Self; 2] = [Self::Native, Self::Boringtun];

    /// How it is called in configurations.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Boringtun => "boringtun",
            Self::Native => "native",
        }
    }

    /// The identity that `private_key` is.
    #[must_use]
    pub fn identity(
        self,
        private_key: &PrivateKey,
        surroundings: &Surroundings,
    ) -> Arc<dyn Identity> {
        match self {
            Self::Boringtun => Arc::new(BoringtunIdentity::new(private_key)),
            Self::Native => Arc::new(NativeIdentity::new(private_key, surroundings.clone())),
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// There is no engine of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no engine is called so: use \"native\" or \"boringtun\"")]
pub struct UnknownEngine;

impl FromStr for Engine {
    type Err = UnknownEngine;

    fn from_str(name: &str) -> Result<Self, UnknownEngine> {
        Self::ALL.into_iter().find(|engine| engine.name() == name).ok_or(UnknownEngine)
    }
}
