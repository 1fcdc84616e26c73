//! What tests of several topics share.

pub(crate) mod compare;
pub(crate) mod devices;
pub(crate) mod follower;
pub(crate) mod kernel;
pub(crate) mod packets;
pub(crate) mod relay;
pub(crate) mod require;
pub(crate) mod tools;
pub(crate) mod world;

/// The program under test.
pub(crate) const STRAIT: &str = env!("CARGO_BIN_EXE_strait");
