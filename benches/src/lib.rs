//! What the benchmarks share: frames as the device gives them, and two engines in memory.

#![forbid(unsafe_code)]

pub mod frame;
pub mod pair;
