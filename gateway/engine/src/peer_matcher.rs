//! Who is the same peer in two configurations.

use std::collections::{HashMap, HashSet};

use strait_wg::PublicKey;

/// Who the peers of one configuration are in another one: those with the same public key, or else those
/// with the same name, if nobody has their key any more. Found without a search: there may be thousands.
#[derive(Debug)]
pub struct Counterparts<'a, T> {
    by_key: HashMap<PublicKey, T>,
    /// Only those whose key nobody is to have: a name counts for them alone.
    by_name: HashMap<&'a str, T>,
}

impl<'a, T: Copy> Counterparts<'a, T> {
    /// Of the peers with the public `keys`, among `others`: their keys, their names, and what to find. Of
    /// several with one key or one name it is the first.
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

    /// Who the peer with this key and this name is.
    #[must_use]
    pub fn of(&self, key: PublicKey, name: &str) -> Option<T> {
        self.by_key.get(&key).or_else(|| self.by_name.get(name)).copied()
    }
}
