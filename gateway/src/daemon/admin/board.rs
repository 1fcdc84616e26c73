//! What the control loop tells whoever asks over HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;

use super::InForce;

/// Written by the control loop, read by the admin thread. Clones are the same board.
#[derive(Clone, Debug, Default)]
pub(crate) struct Board(Arc<Notes>);

#[derive(Debug, Default)]
struct Notes {
    is_device_up: AtomicBool,
    knows_peers: AtomicBool,
    is_draining: AtomicBool,
    in_force: ArcSwapOption<InForce>,
}

impl Board {
    /// Whether packets can go through the device.
    pub(crate) fn set_device_up(&self, is_up: bool) {
        self.0.is_device_up.store(is_up, Ordering::Release);
    }

    /// The file, or the first list of objects, has said who the peers are.
    pub(crate) fn set_knows_peers(&self) {
        self.0.knows_peers.store(true, Ordering::Release);
    }

    /// The gateway ends.
    pub(crate) fn set_draining(&self) {
        self.0.is_draining.store(true, Ordering::Release);
    }

    /// This was applied.
    pub(crate) fn set_in_force(&self, in_force: InForce) {
        self.0.in_force.store(Some(Arc::new(in_force)));
    }

    /// What was applied last, if anything.
    pub(crate) fn in_force(&self) -> Option<Arc<InForce>> {
        self.0.in_force.load_full()
    }

    /// Why the gateway is not ready, a line each; nothing if it is.
    pub(super) fn missing(&self) -> String {
        let is = |note: &AtomicBool| note.load(Ordering::Acquire);
        let reasons = [
            (is(&self.0.is_draining), "draining\n"),
            (!is(&self.0.is_device_up), "the device is not up\n"),
            (!is(&self.0.knows_peers), "the first list of objects was not seen\n"),
        ];

        reasons.into_iter().filter_map(|(holds, reason)| holds.then_some(reason)).collect()
    }
}
