//! How often gateways and addresses were looked at.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Rounds by kind: those in which all was well in the end, and those in which something was in the way.
/// Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Tally(Arc<Mutex<BTreeMap<String, [u64; 2]>>>);

impl Tally {
    /// One round for an object of this `kind`.
    pub(super) fn count(&self, kind: &str, is_well: bool) {
        let mut rounds = self.0.lock();
        let [well, failed] = rounds.entry(kind.to_owned()).or_default();
        *(if is_well { well } else { failed }) += 1;
    }

    /// By kind, those that went well first.
    #[must_use]
    pub fn rounds(&self) -> BTreeMap<String, [u64; 2]> {
        self.0.lock().clone()
    }
}
