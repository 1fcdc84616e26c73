//! Shared by the benchmarks: frames as read from the device, and two engines in memory.

#![forbid(unsafe_code)]

pub mod frame;
pub mod pair;
