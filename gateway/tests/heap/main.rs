//! Tests that count with a global allocator of their own, hence a program of their own: what the packet path
//! allocates, what a peer takes, and what an attacker can make a gateway hold.

#![expect(
    clippy::indexing_slicing,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test may panic, and says why"
)]

mod allocation;
mod footprint;
mod hostile;

use std::sync::{Mutex, MutexGuard, PoisonError};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// One test at a time: the allocator counts for the whole program.
static TURN: Mutex<()> = Mutex::new(());

/// Counts from now on, for one test.
struct Count {
    _profiler: dhat::Profiler,
    _turn: MutexGuard<'static, ()>,
}

impl Count {
    fn start() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);

        Self { _profiler: dhat::Profiler::builder().testing().build(), _turn: turn }
    }
}
