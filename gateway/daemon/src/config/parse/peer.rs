//! Parses the peers and checks them against each other.

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use remap::Rule;
use strait_wg::endpoints::MAX_CANDIDATES;
use strait_wg::tunnel::PeerKeys;
use strait_wg::{PrivateKey, PublicKey};
use toml::Spanned;

use super::Parser;
use crate::config::file::{PeerSection, RemapSection};
use crate::config::{Endpoint, Origins, Peer, Problem, keyfile};

/// Length of a public key as base64 text.
const PUBLIC_KEY_LEN: usize = 44;

impl Parser<'_> {
    pub(super) fn peers(
        &mut self,
        sections: &[Spanned<PeerSection>],
        own_key: Option<&PrivateKey>,
    ) -> Vec<Peer> {
        let own_key = own_key.map(PrivateKey::public_key);
        let mut peers = Vec::with_capacity(sections.len());
        let mut lines_by_name = BTreeMap::new();
        let mut names_by_key = BTreeMap::new();
        for section in sections {
            let Some((name, public_key)) = self.identity(section.get_ref()) else {
                // The rest of the peer is checked too.
                let _ = self.peer(section.get_ref(), String::new(), PublicKey::from_bytes([0; 32]));
                continue;
            };
            let line = self.line(section);
            if let Some(first_line) = lines_by_name.insert(name.clone(), line) {
                let name = name.clone();
                self.push(section, Problem::DuplicateName { name, first_line });
            }
            let key = &section.get_ref().public_key;
            if own_key == Some(public_key) {
                self.push(key, Problem::OwnKey { peer: name.clone() });
            }
            if let Some(first) = names_by_key.insert(public_key, name.clone()) {
                self.push(key, Problem::DuplicateKey { first, second: name.clone() });
            }
            peers.extend(self.peer(section.get_ref(), name, public_key));
        }

        peers
    }

    fn identity(&mut self, section: &PeerSection) -> Option<(String, PublicKey)> {
        let text = &section.public_key;
        let value = text.get_ref().clone();
        let len = value.chars().count();
        let public_key = if len == PUBLIC_KEY_LEN {
            match value.parse::<PublicKey>() {
                Ok(key) => Some(key),
                Err(cause) => self.reject(text, Problem::PublicKey { value, cause }),
            }
        } else {
            self.reject(text, Problem::PublicKeyLength { value, len })
        };
        let name = match &section.name {
            Some(name) => self.name("name", name),
            None => Some(text.get_ref().chars().take(8).collect()),
        };

        Some((name?, public_key?))
    }

    fn peer(&mut self, section: &PeerSection, name: String, public_key: PublicKey) -> Option<Peer> {
        let preshared_key = section.preshared_key_file.as_ref().and_then(|file| {
            let key = "preshared_key_file";
            match keyfile::preshared_key(&self.resolve(file)) {
                Ok(preshared_key) => Some(preshared_key),
                Err(cause) => self.reject(file, Problem::KeyFile { key, cause }),
            }
        });
        let endpoints = self.endpoints(section);
        let persistent_keepalive = section
            .persistent_keepalive
            .as_ref()
            .and_then(|seconds| {
                self.range("persistent_keepalive", seconds, 0, " seconds (0 is off)")
            })
            .and_then(NonZeroU16::new);
        if section.allowed_ips.is_empty() {
            self.push(&section.public_key, Problem::NoAllowedIps { peer: name.clone() });
        }
        let allowed_ips = section
            .allowed_ips
            .iter()
            .filter_map(|text| self.prefix("allowed_ips", text))
            .collect();
        let remaps =
            section.remap.iter().filter_map(|remap| self.rule(&name, remap.get_ref())).collect();

        Some(Peer {
            name,
            keys: PeerKeys { public_key, preshared_key },
            endpoints,
            persistent_keepalive,
            allowed_ips,
            remaps,
            origins: Origins::default(),
        })
    }

    fn endpoints(&mut self, section: &PeerSection) -> Vec<Endpoint> {
        let several = match (&section.endpoint, &section.endpoints) {
            (one, None) => return one.iter().filter_map(|text| self.endpoint(text)).collect(),
            (None, Some(several)) => several,
            (Some(_), Some(several)) => {
                self.push(several, Problem::EndpointTwice);
                several
            }
        };
        let count = several.get_ref().len();
        if count > MAX_CANDIDATES {
            self.push(several, Problem::TooManyEndpoints { count, max: MAX_CANDIDATES });
        }

        several.get_ref().iter().filter_map(|text| self.endpoint(text)).collect()
    }

    fn endpoint(&mut self, text: &Spanned<String>) -> Option<Endpoint> {
        match text.get_ref().parse() {
            Ok(endpoint) => Some(endpoint),
            Err(cause) => {
                let value = text.get_ref().clone();
                self.reject(text, Problem::Endpoint { value, cause })
            }
        }
    }

    fn rule(&mut self, peer: &str, section: &RemapSection) -> Option<Rule> {
        let remote = self.prefix("remote", &section.remote);
        let local = self.prefix("local", &section.local);
        let rule = if section.checksum_neutral { Rule::checksum_neutral } else { Rule::new };
        match rule(remote?, local?) {
            Ok(rule) => Some(rule),
            Err(cause) => {
                self.reject(&section.remote, Problem::Rule { peer: peer.to_owned(), cause })
            }
        }
    }
}
