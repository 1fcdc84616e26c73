//! A lock whose holder lets others in between two packets, if they ask for it.
//!
//! Whoever opens or seals a batch holds it for tens of microseconds. Who waits for so long with a packet or two,
//! such as acknowledgements beside a stream, goes to sleep and has to be woken, which costs both threads
//! more than these packets. A packet takes less time than a thread spins before it goes to sleep.
//!
//! Two batches do not let each other in: they would take turns at every packet, and each would spin for as long
//! as the other works.

use std::hint;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// How often who let others in looks whether they came. They come at once or not for a while, as they sleep.
const LOOKS: u32 = 24;

/// Something that threads take turns at.
pub(super) struct Turns<T> {
    value: Mutex<T>,
    /// Threads that wait to be let in.
    waiting: AtomicU32,
}

impl<T> Turns<T> {
    pub(super) const fn new(value: T) -> Self {
        Self { value: Mutex::new(value), waiting: AtomicU32::new(0) }
    }

    /// Waits until nobody else has a turn.
    #[inline]
    pub(super) fn take(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Self::take`], and asks to be let in. To be given back soon.
    #[inline]
    pub(super) fn take_briefly(&self) -> MutexGuard<'_, T> {
        self.try_take().unwrap_or_else(|| self.ask())
    }

    /// A turn, if nobody else has one.
    #[inline]
    pub(super) fn try_take(&self) -> Option<MutexGuard<'_, T>> {
        match self.value.try_lock() {
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Between two packets: lets in who asks for it, and goes on.
    #[inline]
    pub(super) fn let_in<'a>(&'a self, turn: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return turn;
        }

        self.step_aside(turn)
    }

    #[cold]
    fn ask(&self) -> MutexGuard<'_, T> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let turn = self.take();
        self.waiting.fetch_sub(1, Ordering::Relaxed);

        turn
    }

    #[cold]
    fn step_aside<'a>(&'a self, turn: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        drop(turn);
        for _ in 0..LOOKS {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                break;
            }
            hint::spin_loop();
        }

        self.take()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn who_asks_is_let_in_before_a_batch_has_ended() {
        let turns = Turns::new(false);
        let mut turn = turns.take();

        thread::scope(|scope| {
            scope.spawn(|| *turns.take_briefly() = true);
            // Ends only if the other one comes in.
            while !*turn {
                turn = turns.let_in(turn);
            }
        });

        assert_eq!(turns.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_does_not_ask_waits_for_the_end_of_a_batch() {
        let turns = Turns::new(0);

        thread::scope(|scope| {
            let mut turn = turns.take();
            let other = scope.spawn(|| *turns.take());
            for packet in 1..=PACKETS {
                *turn = packet;
                turn = turns.let_in(turn);
            }
            drop(turn);

            assert_eq!(other.join().unwrap(), PACKETS);
        });
    }

    /// Enough for another thread to begin.
    const PACKETS: u32 = 1_000_000;
}
