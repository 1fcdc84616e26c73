//! Primitives of the ring: those of the standard library, or those of the model checker.

#[cfg(not(loom))]
pub(crate) use std::{
    sync::Mutex,
    sync::atomic::{AtomicBool, AtomicU64},
    thread,
};

#[cfg(loom)]
pub(crate) use loom::{
    sync::Mutex,
    sync::atomic::{AtomicBool, AtomicU64},
    thread,
};
