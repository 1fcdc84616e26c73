//! Matches the peers of two configurations.

use std::collections::{HashMap, HashSet};

use strait_wg::PublicKey;

/// Finds the peer of another configuration with the same public key, or else with the same name if its key is gone.
/// Lookups are constant time: there may be thousands of peers.
#[derive(Debug)]
pub struct PeerMatcher<'a, T> {
    by_key: HashMap<PublicKey, T>,
    /// Only peers whose key is gone: a name counts for them alone.
    by_name: HashMap<&'a str, T>,
}

impl<'a, T: Copy> PeerMatcher<'a, T> {
    /// Matches the peers with the public `keys` against `others`: key, name and result of each. Of several with the
    /// same key or name the first counts.
    #[must_use]
    pub fn new(
        keys: &HashSet<PublicKey>,
        others: impl IntoIterator<Item = (PublicKey, &'a str, T)>,
    ) -> Self {
        let (mut by_key, mut by_name) = (HashMap::new(), HashMap::new());
        for (key, name, other) in others {
            by_key.entry(key).or_insert(other);
            if !keys.contains(&key) {
                by_name.entry(name).or_insert(other);
            }
        }

        Self { by_key, by_name }
    }

    /// The match for the peer with this key and name.
    #[must_use]
    pub fn find(&self, key: PublicKey, name: &str) -> Option<T> {
        self.by_key.get(&key).or_else(|| self.by_name.get(name)).copied()
    }
}
