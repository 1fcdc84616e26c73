//! Reads the configuration again, and puts the difference in force.

use std::sync::Arc;

use strait_io::trim_heap;
use strait_wg::key_rotation::GRACE;
use tracing::{debug, error, info, warn};

use super::{Service, Source};
use crate::background_reader::{READ_MAX, ReadAgain, ReadOutcome};
use crate::config::{Config, Findings};
use crate::reload::Reload;

impl Service {
    /// Starts to read the file again.
    pub(super) fn reload(&mut self) {
        let Source::File(file) = &self.source else {
            info!("nothing to reload: changes come from the API server");
            return;
        };
        let path = file.clone();
        // Parsing a large file takes as much memory as the gateway has; free it.
        let load = move || {
            let loaded = Config::load(&path);
            trim_heap();
            loaded
        };
        if let Err(error) = self.reader.start(load) {
            error!(%error, file = %file.display(), "configuration not reloaded; the previous one stays in force");
        }
    }

    /// Applies the file that was read. An invalid file changes nothing.
    pub(super) async fn handle_read(&mut self, read: ReadOutcome<Result<Config, Findings>>) {
        let again = match read {
            // An outdated read is still newer than the running configuration.
            ReadOutcome::Done(Ok(wanted), again) => {
                self.reconfigure(wanted).await;
                trim_heap();
                again
            }
            ReadOutcome::Done(Err(findings), again) => {
                for finding in findings.lines() {
                    error!("{finding}");
                }
                error!("configuration not reloaded; the previous one stays in force");
                again
            }
            ReadOutcome::TimedOut => {
                return error!(
                    limit = ?READ_MAX,
                    "the configuration, or a key file that it names, cannot be read in time; the previous one stays in force"
                );
            }
            ReadOutcome::Panicked => {
                return error!(
                    "configuration not reloaded: its read panicked; the previous one stays in force"
                );
            }
        };
        if again == ReadAgain::Yes {
            self.reload();
        }
    }

    /// Applies the difference to the running configuration.
    pub(super) async fn reconfigure(&mut self, wanted: Config) {
        let reload = Reload::between(&self.config, wanted);
        for setting in &reload.needs_restart {
            warn!("{setting}");
        }
        let is_unchanged = reload.is_unchanged();
        self.config = Arc::new(reload.config);
        if is_unchanged {
            // The origins may have changed.
            self.publish();
            match &self.source {
                Source::File(_) => info!("configuration reloaded; nothing to apply"),
                // Status reports change objects too.
                Source::Cluster(_) => debug!("objects changed; nothing to apply"),
            }
            return;
        }

        if reload.has_new_key {
            let public_key = self.config.private_key.public_key();
            self.gateway.rotate_private_key(&self.config.private_key);
            info!(%public_key, grace = ?GRACE, "our key changed; the previous one stays valid for a while");
        }
        self.apply();
        self.sync_edge().await;
        let changes = reload.peers;
        info!(
            added = ?changes.added,
            removed = ?changes.removed,
            changed = ?changes.changed,
            generation = self.generation,
            "configuration reloaded"
        );
    }
}
