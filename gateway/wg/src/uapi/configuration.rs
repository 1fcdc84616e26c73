//! What a device is to be, and what becomes of it by a set.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use remap::Prefix;

use super::change::{AllowedIp, Changes, PeerChange};
use crate::PresharedKey;
use crate::PrivateKey;
use crate::PublicKey;

/// The whole of it.
///
/// No two peers have one key or one allowed IP, and no peer has our own key.
#[derive(Clone, Debug, Default)]
pub struct Configuration {
    /// Our identity. Without one there is nobody to talk to.
    pub private_key: Option<PrivateKey>,
    /// UDP; 0 is any.
    pub listen_port: u16,
    /// On what is sent; 0 is none.
    pub fwmark: u32,
    /// The first to be named comes first.
    pub peers: Vec<Peer>,
}

/// One peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Who it is.
    pub public_key: PublicKey,
    /// Mixed into the handshake if present.
    pub preshared_key: Option<PresharedKey>,
    /// Where it was last said to be. Where it is by now is learned.
    pub endpoint: Option<SocketAddr>,
    /// In seconds; `None` is off.
    pub persistent_keepalive: Option<NonZeroU16>,
    /// The last to be named comes last.
    pub allowed_ips: Arc<[Prefix]>,
}

impl Configuration {
    /// What holds after `changes`. Who is to be sought elsewhere from now on says [`Self::moved`].
    #[must_use]
    pub fn with(&self, changes: &Changes) -> Self {
        let private_key = match &changes.private_key {
            Some(key) => key.clone(),
            None => self.private_key.clone(),
        };
        let own = private_key.as_ref().map(PrivateKey::public_key);
        let mut draft = Draft::default();
        if !changes.replaces_peers {
            for peer in self.peers.iter().filter(|peer| Some(peer.public_key) != own) {
                draft.insert(peer);
            }
        }
        // Nobody is a peer of themselves; whoever shares one file among all hosts counts on that.
        for change in changes.peers.iter().filter(|change| Some(change.public_key) != own) {
            draft.apply(change);
        }

        Self {
            private_key,
            listen_port: changes.listen_port.unwrap_or(self.listen_port),
            fwmark: changes.fwmark.unwrap_or(self.fwmark),
            peers: draft.finish(),
        }
    }

    /// Which peers are somewhere else after `changes`: the last word on each since it was removed, if it
    /// was. What is said of a peer only if there is one counts only then.
    #[must_use]
    pub fn moved(&self, changes: &Changes) -> BTreeMap<PublicKey, SocketAddr> {
        let mut there: HashSet<_> = self.peers.iter().map(|peer| peer.public_key).collect();
        let mut moved = BTreeMap::new();
        for change in &changes.peers {
            let key = change.public_key;
            if change.is_removed {
                there.remove(&key);
                moved.remove(&key);
            } else if !change.is_update_only || there.contains(&key) {
                there.insert(key);
                moved.extend(change.endpoint.map(|endpoint| (key, endpoint)));
            }
        }

        moved
    }

    /// Who is a peer after `changes`, which led here, but was removed on the way. Nothing that was learned
    /// of them may stay.
    #[must_use]
    pub fn renewed(&self, changes: &Changes) -> HashSet<PublicKey> {
        let removed = changes.peers.iter().filter(|change| change.is_removed);
        let removed: HashSet<_> = removed.map(|change| change.public_key).collect();
        let peers = self.peers.iter().map(|peer| peer.public_key);

        peers.filter(|key| removed.contains(key)).collect()
    }

    /// Whether a peer has this key.
    #[must_use]
    pub fn has(&self, key: PublicKey) -> bool {
        self.peers.iter().any(|peer| peer.public_key == key)
    }
}

/// Peers on their way to a configuration. An allowed IP changes hands in logarithmic time, however
/// many there are.
#[derive(Debug, Default)]
struct Draft {
    entries: Vec<Entry>,
    /// Of the entries that are peers.
    places: HashMap<PublicKey, usize>,
    /// The list that each allowed IP is on, and when it came there. Lists may be nobody's any more.
    owners: BTreeMap<Prefix, (u64, u64)>,
    next: u64,
}

#[derive(Debug)]
struct Entry {
    /// Its allowed IPs are those on its list.
    peer: Peer,
    list: u64,
}

impl Draft {
    fn insert(&mut self, peer: &Peer) {
        let list = self.add(Peer { allowed_ips: Arc::default(), ..peer.clone() });
        for prefix in &*peer.allowed_ips {
            self.allow(*prefix, list);
        }
    }

    fn apply(&mut self, change: &PeerChange) {
        let key = change.public_key;
        if change.is_removed {
            self.places.remove(&key);
            return;
        }
        let place = self.places.get(&key).copied();
        if place.is_none() && change.is_update_only {
            return;
        }
        if place.is_none() {
            self.add(Peer {
                public_key: key,
                preshared_key: None,
                endpoint: None,
                persistent_keepalive: None,
                allowed_ips: Arc::default(),
            });
        }
        let new_list = self.tick();
        let Some(entry) = self.places.get(&key).and_then(|place| self.entries.get_mut(*place))
        else {
            return;
        };

        if let Some(preshared_key) = &change.preshared_key {
            entry.peer.preshared_key.clone_from(preshared_key);
        }
        entry.peer.endpoint = change.endpoint.or(entry.peer.endpoint);
        if let Some(seconds) = change.persistent_keepalive {
            entry.peer.persistent_keepalive = NonZeroU16::new(seconds);
        }
        if change.replaces_allowed_ips {
            entry.list = new_list;
        }
        let list = entry.list;
        for allowed_ip in &change.allowed_ips {
            match allowed_ip {
                AllowedIp::Add(prefix) => self.allow(*prefix, list),
                AllowedIp::Remove(prefix) => {
                    if self.owners.get(prefix).is_some_and(|(owner, _)| *owner == list) {
                        self.owners.remove(prefix);
                    }
                }
            }
        }
    }

    fn add(&mut self, peer: Peer) -> u64 {
        let list = self.tick();
        self.places.insert(peer.public_key, self.entries.len());
        self.entries.push(Entry { peer, list });

        list
    }

    /// Whoever had `prefix` before has it no more.
    fn allow(&mut self, prefix: Prefix, list: u64) {
        let order = self.tick();
        let entry = self.owners.entry(prefix).or_insert((list, order));
        if entry.0 != list {
            *entry = (list, order);
        }
    }

    fn tick(&mut self) -> u64 {
        self.next += 1;

        self.next
    }

    fn finish(self) -> Vec<Peer> {
        let Self { entries, places, owners, .. } = self;
        let mut lists: BTreeMap<u64, Vec<(u64, Prefix)>> = BTreeMap::new();
        for (prefix, (list, order)) in owners {
            lists.entry(list).or_default().push((order, prefix));
        }

        let peers = entries.into_iter().enumerate().filter(|(place, entry)| {
            // One that was removed and named again is another entry.
            places.get(&entry.peer.public_key) == Some(place)
        });
        peers
            .map(|(_, Entry { peer, list })| {
                let mut allowed_ips = lists.remove(&list).unwrap_or_default();
                allowed_ips.sort_unstable();
                let allowed_ips = allowed_ips.into_iter().map(|(_, prefix)| prefix).collect();
                Peer { allowed_ips, ..peer }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn peers_are_added_changed_and_removed() {
        let one = after(&Configuration::default(), &["public_key=1", "allowed_ip=10.1.0.0/16"]);
        let two = after(&one, &["public_key=2", "persistent_keepalive_interval=25"]);
        let changed = after(&two, &["public_key=1", "allowed_ip=10.2.0.0/16"]);
        let removed = after(&changed, &["public_key=1", "remove=true"]);

        assert_eq!(shown(&two), "1 10.1.0.0/16; 2 25s");
        assert_eq!(shown(&changed), "1 10.1.0.0/16 10.2.0.0/16; 2 25s");
        assert_eq!(shown(&removed), "2 25s");
    }

    #[test]
    fn an_allowed_ip_moves_to_whoever_names_it_last() {
        let before = after(
            &Configuration::default(),
            &["public_key=1", "allowed_ip=10.1.0.0/16", "allowed_ip=10.2.0.0/16", "public_key=2"],
        );

        let moved = after(&before, &["public_key=2", "allowed_ip=10.1.0.0/16"]);
        let not_its_own = after(&moved, &["public_key=1", "allowed_ip=-10.1.0.0/16"]);
        let its_own = after(&moved, &["public_key=2", "allowed_ip=-10.1.0.0/16"]);

        assert_eq!(shown(&moved), "1 10.2.0.0/16; 2 10.1.0.0/16");
        assert_eq!(shown(&not_its_own), shown(&moved));
        assert_eq!(shown(&its_own), "1 10.2.0.0/16; 2");
    }

    #[test]
    fn replacing_takes_what_was_there_and_nothing_else() {
        let before = after(
            &Configuration::default(),
            &["public_key=1", "allowed_ip=10.1.0.0/16", "public_key=2", "allowed_ip=10.2.0.0/16"],
        );

        let allowed_ips =
            after(&before, &["public_key=1", "replace_allowed_ips=true", "allowed_ip=10.3.0.0/16"]);
        let peers = after(&before, &["replace_peers=true", "public_key=3"]);
        let nobody = after(&before, &["replace_peers=true"]);

        assert_eq!(shown(&allowed_ips), "1 10.3.0.0/16; 2 10.2.0.0/16");
        assert_eq!(shown(&peers), "3");
        assert_eq!(shown(&nobody), "");
    }

    #[test]
    fn update_only_creates_nobody() {
        let before = after(&Configuration::default(), &["public_key=1"]);

        let changed = after(
            &before,
            &[
                "public_key=1",
                "update_only=true",
                "allowed_ip=10.1.0.0/16",
                "public_key=2",
                "update_only=true",
                "allowed_ip=10.1.0.0/16",
            ],
        );

        assert_eq!(shown(&changed), "1 10.1.0.0/16");
    }

    #[test]
    fn who_is_removed_and_named_again_begins_anew() {
        let before = after(
            &Configuration::default(),
            &["public_key=1", "allowed_ip=10.1.0.0/16", "public_key=2"],
        );

        let anew = read(&[
            "public_key=1",
            "endpoint=192.0.2.1:1",
            "public_key=1",
            "remove=true",
            "public_key=1",
            "public_key=2",
            "endpoint=192.0.2.2:2",
            "public_key=3",
            "remove=true",
        ]);
        let again = before.with(&anew);

        let key = |number: u8| PublicKey::from_bytes([number; 32]);
        assert_eq!(shown(&again), "2; 1");
        assert_eq!(again.renewed(&anew), HashSet::from([key(1)]));
        let moved: Vec<_> = before.moved(&anew).into_keys().collect();
        assert_eq!(moved, [key(2)], "what was said before the removal is forgotten");
    }

    #[test]
    fn nobody_is_a_peer_of_themselves() {
        let key = PrivateKey::from_bytes(&[7; 32]).unwrap();
        let mut own = PeerChange::new(key.public_key());
        own.allowed_ips = vec![AllowedIp::Add("10.0.0.0/8".parse().unwrap())];
        let stranger = Configuration::default()
            .with(&Changes { peers: vec![own.clone()], ..Changes::default() });

        let known = stranger.with(&Changes { private_key: Some(Some(key)), ..Changes::default() });
        let named = known.with(&Changes { peers: vec![own], ..Changes::default() });

        assert_eq!((stranger.peers.len(), known.peers.len(), named.peers.len()), (1, 0, 0));
    }

    #[test]
    fn what_is_not_named_stays() {
        let key = PrivateKey::generate();
        let changes = Changes {
            private_key: Some(Some(key.clone())),
            listen_port: Some(7),
            fwmark: Some(9),
            ..Changes::default()
        };
        let before = Configuration::default().with(&changes);

        let same = before.with(&Changes::default());
        let without = before.with(&Changes { private_key: Some(None), ..Changes::default() });

        assert_eq!(same.private_key.map(|key| key.public_key()), Some(key.public_key()));
        assert_eq!((same.listen_port, same.fwmark), (7, 9));
        assert!(without.private_key.is_none());
    }

    #[test]
    fn the_last_word_says_where_a_peer_is() {
        let changes = read(&[
            "public_key=1",
            "endpoint=192.0.2.1:1",
            "public_key=2",
            "endpoint=192.0.2.2:2",
            "remove=true",
            "public_key=1",
            "endpoint=192.0.2.3:3",
            "public_key=3",
        ]);

        let moved: Vec<_> = Configuration::default().moved(&changes).into_values().collect();

        assert_eq!(moved, ["192.0.2.3:3".parse().unwrap()]);
    }

    #[test]
    fn who_is_only_to_be_updated_does_not_move_before_it_is_there() {
        let there = after(&Configuration::default(), &["public_key=2"]);
        let changes = read(&[
            "public_key=1",
            "update_only=true",
            "endpoint=192.0.2.1:1",
            "public_key=2",
            "update_only=true",
            "endpoint=192.0.2.2:2",
            "public_key=1",
        ]);

        let moved: Vec<_> = there.moved(&changes).into_values().collect();

        assert_eq!(moved, ["192.0.2.2:2".parse().unwrap()]);
    }

    proptest! {
        /// The slow definition: a list of pairs, looked through from end to end.
        #[test]
        fn allowed_ips_are_whose_they_were_last_said_to_be(
            steps in prop::collection::vec((0u8..4, 0u8..5, 0u8..6), 0..60),
        ) {
            let mut fast = Configuration::default();
            let mut slow: Vec<(u8, Prefix)> = Vec::new();
            let mut peers: Vec<u8> = Vec::new();

            for (kind, peer, number) in steps {
                let prefix: Prefix = format!("10.{number}.0.0/16").parse().unwrap();
                let mut change = PeerChange::new(PublicKey::from_bytes([peer + 1; 32]));
                if !peers.contains(&peer) {
                    peers.push(peer);
                }
                let owned = |slow: &[(u8, Prefix)]| slow.contains(&(peer, prefix));
                match kind {
                    0 => {
                        change.allowed_ips = vec![AllowedIp::Add(prefix)];
                        if !owned(&slow) {
                            slow.retain(|(_, other)| *other != prefix);
                            slow.push((peer, prefix));
                        }
                    }
                    1 => {
                        change.allowed_ips = vec![AllowedIp::Remove(prefix)];
                        slow.retain(|pair| *pair != (peer, prefix));
                    }
                    2 => {
                        change.replaces_allowed_ips = true;
                        change.allowed_ips = vec![AllowedIp::Add(prefix)];
                        slow.retain(|(owner, other)| *owner != peer && *other != prefix);
                        slow.push((peer, prefix));
                    }
                    _ => {
                        change.is_removed = true;
                        slow.retain(|(owner, _)| *owner != peer);
                        peers.retain(|other| *other != peer);
                    }
                }
                fast = fast.with(&Changes { peers: vec![change], ..Changes::default() });

                let expected: Vec<_> = peers
                    .iter()
                    .map(|peer| {
                        let own = slow.iter().filter(|(owner, _)| owner == peer);
                        (PublicKey::from_bytes([peer + 1; 32]), own.map(|(_, p)| *p).collect())
                    })
                    .collect();
                let found: Vec<(_, Vec<_>)> =
                    fast.peers.iter().map(|p| (p.public_key, p.allowed_ips.to_vec())).collect();
                prop_assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn ten_thousand_allowed_ips_change_hands_at_once() {
        let addresses = |peer: u8| {
            let mut change = PeerChange::new(PublicKey::from_bytes([peer; 32]));
            let prefixes = (0..10_000_u32)
                .map(|number| Prefix::of_host(std::net::IpAddr::from(number.to_be_bytes())));
            change.allowed_ips = prefixes.map(AllowedIp::Add).collect();
            change
        };
        let changes = Changes { peers: (1..=10).map(addresses).collect(), ..Changes::default() };

        let after = Configuration::default().with(&changes);

        let counts: Vec<_> = after.peers.iter().map(|peer| peer.allowed_ips.len()).collect();
        assert_eq!(counts, [0, 0, 0, 0, 0, 0, 0, 0, 0, 10_000]);
        let unique: HashSet<_> = after.peers[9].allowed_ips.iter().collect();
        assert_eq!(unique.len(), 10_000);
    }

    /// Lines of a set in which `public_key=N` stands for a key of the byte N.
    fn read(lines: &[&str]) -> Changes {
        let mut changes = Changes::default();
        for line in lines {
            let line = match line.strip_prefix("public_key=") {
                Some(number) => format!("public_key={}", format!("0{number}").repeat(32)),
                None => (*line).to_owned(),
            };
            changes.take(&line).unwrap();
        }

        changes
    }

    fn after(before: &Configuration, lines: &[&str]) -> Configuration {
        before.with(&read(lines))
    }

    fn shown(configuration: &Configuration) -> String {
        let peers = configuration.peers.iter().map(|peer| {
            let mut words = vec![peer.public_key.as_bytes()[0].to_string()];
            words.extend(peer.persistent_keepalive.map(|seconds| format!("{seconds}s")));
            words.extend(peer.allowed_ips.iter().map(ToString::to_string));
            words.join(" ")
        });

        peers.collect::<Vec<_>>().join("; ")
    }
}
