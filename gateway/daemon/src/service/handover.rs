//! Both sides of a replacement: this process is replaced by its successor, or goes on after its predecessor.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use strait_io::handover::{ControlState, TakenOverDevice};
use tokio::time::timeout;
use tracing::{error, info, warn};

use super::Service;
use crate::cluster::{self, ClusterEvent};
use crate::config::Config;

/// Longest wait for the peers of a predecessor, which are known already.
const REMEMBERED_MAX: Duration = Duration::from_millis(100);

impl Service {
    /// Goes on with the MTU of the device that was taken over, which is not always the configured one.
    pub(super) fn take_over_mtu(&mut self, device: &TakenOverDevice) {
        self.grown_mtu = device.grown_mtu;
        self.mtu_bytes = device.mtu_bytes;
        self.gateway.set_device_mtu(device.mtu_bytes);
        self.source.set_device_mtu(device.mtu_bytes);
    }

    /// Starts the packet threads, if this process has taken over from another one.
    pub(super) fn start_forwarding(&mut self) -> anyhow::Result<()> {
        self.gateway.resume().context("cannot forward packets")?;
        if let Some(taken_over) = self.taken_over.take() {
            let gap = taken_over.gap();
            info!(sessions = taken_over.sessions, ?gap, "took over from the previous program");
        }

        Ok(())
    }

    /// Puts the peers and nodes of the predecessor of this process in force, if it has handed over and the API server is the
    /// source: packets cannot wait for its answer.
    pub(super) async fn take_over_peers(&mut self) {
        let Some(taken_over) = &mut self.taken_over else { return };
        if !self.source.remembers_peers() {
            return;
        }
        if let Some(nodes) = taken_over.nodes.take() {
            let mut config = Config::clone(&self.config);
            if let Some(overlay) = &mut config.overlay {
                overlay.nodes = nodes;
            }
            self.config = Arc::new(config);
        }
        if let Ok(ClusterEvent::Peers { desired, nodes, .. }) =
            timeout(REMEMBERED_MAX, self.source.next()).await
        {
            self.config = Arc::new(cluster::within(*desired, nodes, &self.config));
            self.board.set_knows_peers();
        }
    }

    /// All peers are known: from the file, or from a list of objects.
    pub(super) fn handle_peers_known(&mut self) {
        self.board.set_knows_peers();
        let forgotten = self.gateway.forget_handed_over();
        if forgotten > 0 {
            warn!(peers = forgotten, "peers that are gone or have other keys lost their sessions");
        }
    }

    /// Begins to check the program that replaces this one.
    pub(super) fn start_replacement(&mut self) {
        let program = self.replacement.successor.program.clone();
        info!(program = %program.display(), "checking the program that replaces this one");
        if let Err(error) = self.replacement.start_check() {
            error!(%error, program = %program.display(), "not replaced: this program goes on");
        }
    }

    /// Hands over to the program that was `checked`. Returns only if this program goes on.
    ///
    /// # Errors
    ///
    /// If nothing can be forwarded any more.
    pub(super) fn replace(&mut self, checked: Result<(), String>) -> anyhow::Result<()> {
        let program = self.replacement.successor.program.display().to_string();
        if let Err(reason) = checked {
            error!(program, reason, "not replaced: this program goes on");
            return Ok(());
        }

        info!(program, "handing over");
        let source_state = self.source.source_state(&self.monitor.peers_with_endpoint());
        let state = ControlState {
            source_state: &source_state,
            interface: &self.config.interface,
            mtu_bytes: self.mtu_bytes,
            grown_mtu: self.grown_mtu,
            descriptors: self.replacement.descriptors(),
        };
        let failure = self.gateway.hand_over(&state, &self.replacement.successor);
        if failure.has_ended_forwarding() {
            return Err(failure.into());
        }
        let reason = format!("{:#}", anyhow::Error::from(failure));
        error!(program, reason, "not replaced: this program goes on");

        Ok(())
    }
}
