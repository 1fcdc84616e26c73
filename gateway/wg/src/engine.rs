//! The implementation of the protocol behind the seam.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::PrivateKey;
use super::boringtun::BoringtunIdentity;
use super::native::{Environment, NativeIdentity};
use super::tunnel::Identity;

/// An implementation of WireGuard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Our own.
    #[default]
    Native,
    /// The boringtun crate.
    Boringtun,
}

impl Engine {
    /// All implementations.
    pub const ALL: [Self; 2] = [Self::Native, Self::Boringtun];

    /// Its name in configurations.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Boringtun => "boringtun",
            Self::Native => "native",
        }
    }

    /// The identity of the owner of `private_key`.
    #[must_use]
    pub fn identity(
        self,
        private_key: &PrivateKey,
        environment: &Environment,
    ) -> Arc<dyn Identity> {
        match self {
            Self::Boringtun => Arc::new(BoringtunIdentity::new(private_key)),
            Self::Native => Arc::new(NativeIdentity::new(private_key, environment.clone())),
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
#[error("unknown engine: use \"native\" or \"boringtun\"")]
pub struct UnknownEngine;

impl FromStr for Engine {
    type Err = UnknownEngine;

    fn from_str(name: &str) -> Result<Self, UnknownEngine> {
        Self::ALL.into_iter().find(|engine| engine.name() == name).ok_or(UnknownEngine)
    }
}
