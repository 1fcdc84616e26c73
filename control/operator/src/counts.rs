//! Counts the reconciliations of gateways and addresses.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Rounds by kind: successful ones, and failed ones. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct ReconcileCounts(Arc<Mutex<BTreeMap<String, [u64; 2]>>>);

impl ReconcileCounts {
    /// Counts one round for an object of this `kind`.
    pub(super) fn count(&self, kind: &str, is_well: bool) {
        let mut rounds = self.0.lock();
        let [well, failed] = rounds.entry(kind.to_owned()).or_default();
        *(if is_well { well } else { failed }) += 1;
    }

    /// The counts by kind, successful ones first.
    #[must_use]
    pub fn rounds(&self) -> BTreeMap<String, [u64; 2]> {
        self.0.lock().clone()
    }
}
