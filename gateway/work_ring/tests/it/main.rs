//! The work ring with real threads and, under `--cfg loom`, in all interleavings.

#[cfg(loom)]
mod model;
#[cfg(not(loom))]
mod order;
