//! State that the control loop publishes for the admin pages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;

use super::AppliedConfig;
use crate::device_state::DeviceState;
use crate::forwarding::Publisher;

/// Written by the control loop, read by the admin thread. Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct StatusBoard(Arc<Notes>);

#[derive(Debug, Default)]
struct Notes {
    device: ArcSwapOption<DeviceState>,
    knows_peers: AtomicBool,
    is_draining: AtomicBool,
    in_force: ArcSwapOption<AppliedConfig>,
    forwarding: Publisher,
}

impl StatusBoard {
    /// Sets the observed state of the device.
    pub(crate) fn set_device(&self, device: DeviceState) {
        self.0.device.store(Some(Arc::new(device)));
    }

    /// The observed state of the device; `None` before the first observation.
    pub(crate) fn device(&self) -> Option<Arc<DeviceState>> {
        self.0.device.load_full()
    }

    /// The peers are known: from the file, or from the first list of objects.
    pub(crate) fn set_knows_peers(&self) {
        self.0.knows_peers.store(true, Ordering::Release);
    }

    /// The gateway is shutting down. From now on it says that it does not forward.
    pub(crate) fn set_draining(&self) {
        self.0.is_draining.store(true, Ordering::Release);
        self.0.forwarding.retract();
    }

    /// Whether the gateway forwards.
    pub(crate) fn forwarding(&self) -> &Publisher {
        &self.0.forwarding
    }

    /// Whether the device carries packets, as far as is known, and the gateway does not drain.
    pub(crate) fn can_forward(&self) -> bool {
        let device = self.device();
        let carries = |device: &DeviceState| device.is_up && !device.carries_nothing();

        device.as_deref().is_none_or(carries) && !self.0.is_draining.load(Ordering::Acquire)
    }

    /// Sets the configuration that was applied.
    pub(crate) fn set_applied(&self, in_force: AppliedConfig) {
        self.0.in_force.store(Some(Arc::new(in_force)));
    }

    /// The configuration that was applied last, if any.
    pub(crate) fn applied(&self) -> Option<Arc<AppliedConfig>> {
        self.0.in_force.load_full()
    }

    /// Why the gateway is not ready, one line per reason; empty if it is.
    pub(super) fn not_ready_reasons(&self) -> String {
        let is = |note: &AtomicBool| note.load(Ordering::Acquire);
        let device = self.device();
        let device = device.as_deref();
        let mut reasons = String::new();
        if is(&self.0.is_draining) {
            reasons.push_str("draining\n");
        }
        if !device.is_some_and(|device| device.is_up) {
            reasons.push_str("the device is not up\n");
        }
        if let Some(device) = device.filter(|device| device.carries_nothing()) {
            reasons.push_str(&device.missing_text());
        }
        if !is(&self.0.knows_peers) {
            reasons.push_str("the first list of objects was not seen\n");
        }

        reasons
    }

    /// What is missing although the gateway is ready, one line each.
    pub(super) fn degraded_reasons(&self) -> String {
        self.device().map_or_else(String::new, |device| device.missing_text())
    }
}
