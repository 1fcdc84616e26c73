//! The Secret with the keys of a gateway: the one that its spec names, an existing one, or a new one.
//!
//! Of several gateways to one remote cluster each has a Secret of its own: one that belongs to another gateway does not count.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;
use strait_api::identity::{Identity, is_of_another_gateway};
use strait_api::labels::{GATEWAY_RESOURCE, REMOTE_CLUSTER_ID};
use strait_api::public_key::{KEY_BYTES, PublicOf};
use zeroize::ZeroizeOnDrop;

use super::cache::Cache;

/// The entries of such a Secret: [`KEY_BYTES`] each, not encoded.
const ENTRIES: [&str; 2] = ["privateKey", "publicKey"];

/// A private key and its public key.
#[derive(ZeroizeOnDrop)]
pub struct KeyPair {
    /// The private key of X25519 (RFC 7748).
    pub private: [u8; KEY_BYTES],
    /// The public key computed from it.
    pub public: [u8; KEY_BYTES],
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPair").finish_non_exhaustive()
    }
}

/// Why a gateway has no keys.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// It is not defined which of them counts.
    #[error(
        "found multiple secrets associated to WireGuard gateway: {0}: keep one, or name it in spec.secretRef"
    )]
    Several(String),
    /// The Secret that the spec names does not exist.
    #[error("spec.secretRef names secret {0:?}, which is not there: make it, or name none")]
    Missing(String),
    /// The Secret has no key.
    #[error("secret {secret:?} needs {entry} with the {KEY_BYTES} raw bytes of a key, has {found}")]
    NoKey {
        /// The name of the Secret.
        secret: String,
        /// The entry.
        entry: &'static str,
        /// The content of the entry.
        found: String,
    },
    /// The gateway would have another public key than the one that is published.
    #[error(
        "in secret {secret:?} publicKey is not that of privateKey: write into data.publicKey what `strait key public` prints for its privateKey"
    )]
    NotAPair {
        /// The name of the Secret.
        secret: String,
    },
    /// It belongs to another gateway.
    #[error("secret {secret:?} has the label {label}={found}: a secret serves one gateway")]
    Taken {
        /// The name of the Secret.
        secret: String,
        /// The label.
        label: &'static str,
        /// The value of the label.
        found: String,
    },
    /// The API server failed.
    #[error(transparent)]
    Kube(#[from] kube::Error),
}

/// The gateway that the keys are for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder<'a> {
    pub(super) namespace: &'a str,
    pub(super) remote_cluster_id: &'a str,
    /// The `GatewayServer` or `GatewayClient`: the Secret is kept when its template changes.
    pub(super) owner: &'a OwnerReference,
}

/// The name of a new Secret for the gateway of `owner`, a `GatewayServer` or a `GatewayClient`.
fn default_name(owner: &str) -> String {
    format!("gw-{owner}")
}

/// The name of the Secret that [`ensure`] will use for the gateway `identity`, whose spec names none; empty where there are
/// several.
pub(super) async fn name(secrets: &Secrets, identity: &Identity) -> kube::Result<String> {
    let owner = &identity.owner();
    let Identity { namespace, remote_cluster_id, .. } = identity;
    let found = secrets.of_gateway(&Holder { namespace, remote_cluster_id, owner }).await?;

    Ok(match &found[..] {
        [] => default_name(&identity.name),
        [secret] => secret.name_any(),
        // With several, there are no keys until one is left or named.
        _ => String::new(),
    })
}

/// The Secret that was found or created.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) secret: ObjectReference,
    pub(super) is_new: bool,
}

/// The Secret of `holder`: the one that is `named`, an existing one, or a new one made with `generate`. A template may
/// name the one that is yet to be created, and so may its owner, which then gets no other.
pub(super) async fn ensure(
    secrets: &Secrets,
    holder: &Holder<'_>,
    named: Option<&str>,
    generate: impl FnOnce() -> KeyPair,
) -> Result<Keys, KeysError> {
    let api = secrets.api(holder.namespace);
    if let Some(name) = named
        && let Some(secret) = secrets.checked(name, holder).await?
    {
        let missing = missing_labels(&secret, holder)?;
        if !missing.is_empty() {
            let patch = Patch::Merge(json!({"metadata": {"labels": missing}}));
            api.patch_metadata(name, &PatchParams::default(), &patch).await?;
        }
        return Ok(Keys { secret: reference(&secret), is_new: false });
    }
    if let Some(name) = named.filter(|name| *name != default_name(&holder.owner.name)) {
        return Err(KeysError::Missing(name.to_owned()));
    }
    let is_requested = match named {
        None => false,
        Some(name) => secrets.is_named_by_owner(name, holder).await?,
    };
    if !is_requested && let Some(secret) = only_existing(secrets, holder).await? {
        return Ok(Keys { secret: reference(&secret), is_new: false });
    }

    let secret = made(holder, &generate());
    match api.create(&PostParams::default(), &secret).await {
        Ok(secret) => Ok(Keys { secret: reference(&secret.metadata), is_new: true }),
        // Another operator was faster, the cache is behind, or its labels were removed.
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            let secret = api.get(&secret.name_any()).await?;
            check(&secret, secrets.public_of)?;
            missing_labels(&secret.metadata, holder)?;
            Ok(Keys { secret: reference(&secret.metadata), is_new: false })
        }
        Err(error) => Err(error.into()),
    }
}

/// The metadata of the only Secret with keys of `holder`; `None` if there is none.
async fn only_existing(
    secrets: &Secrets,
    holder: &Holder<'_>,
) -> Result<Option<ObjectMeta>, KeysError> {
    let found = secrets.of_gateway(holder).await?;
    match &found[..] {
        [] => Ok(None),
        [secret] => secrets.checked(&secret.name_any(), holder).await,
        several => {
            let mut names: Vec<_> = several.iter().map(ResourceExt::name_any).collect();
            names.sort();
            Err(KeysError::Several(names.join(", ")))
        }
    }
}

/// All Secrets with keys; their content is read once and not kept.
pub(super) struct Secrets {
    client: Client,
    metadata: Arc<Cache>,
    public_of: PublicOf,
    sound: Mutex<Sound>,
}

/// The resource version in which each Secret was found to have valid keys. A Secret that is created again has another
/// version.
#[derive(Debug, Default)]
struct Sound(HashMap<[String; 2], String>);

impl Sound {
    fn has(&self, secret: &ObjectMeta) -> bool {
        let (key, version) = (Self::key(secret), secret.resource_version.as_ref());

        version.is_some() && self.0.get(&key) == version
    }

    /// Enters `secret`, and forgets those that are deleted.
    fn insert(&mut self, secret: &ObjectMeta, is_there: impl Fn(&[String; 2]) -> bool) {
        self.0.retain(|key, _| is_there(key));
        if let Some(version) = secret.resource_version.clone() {
            self.0.insert(Self::key(secret), version);
        }
    }

    /// Namespace and name.
    fn key(secret: &ObjectMeta) -> [String; 2] {
        [&secret.namespace, &secret.name].map(|text| text.clone().unwrap_or_default())
    }
}

impl Secrets {
    pub(super) fn new(client: &Client, metadata: Arc<Cache>, public_of: PublicOf) -> Self {
        Self { client: client.clone(), metadata, public_of, sound: Mutex::default() }
    }

    fn api(&self, namespace: &str) -> Api<Secret> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The Secrets that are labelled as keys for the remote cluster of `holder`, without those of other gateways.
    async fn of_gateway(&self, holder: &Holder<'_>) -> kube::Result<Vec<DynamicObject>> {
        let Holder { namespace, remote_cluster_id, owner } = holder;
        let mut found = self.metadata.list(namespace).await?;
        found.retain(|secret| {
            secret.labels().get(REMOTE_CLUSTER_ID).is_some_and(|id| id == remote_cluster_id)
                && !is_of_another_gateway(secret.owner_references(), &owner.kind, &owner.name)
        });

        Ok(found)
    }

    /// Whether the owner itself names the Secret `name`, rather than its template. From the API server: an outdated view would
    /// give the gateway the keys of another one.
    async fn is_named_by_owner(&self, name: &str, holder: &Holder<'_>) -> kube::Result<bool> {
        let Holder { namespace, owner, .. } = holder;
        let (group, version) = owner.api_version.split_once('/').unwrap_or_default();
        let kind = GroupVersionKind::gvk(group, version, &owner.kind);
        let kind = ApiResource::from_gvk(&kind);
        let owners: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &kind);
        // The role of the operator has the verb `list` only.
        let by_name = ListParams::default().fields(&format!("metadata.name={}", owner.name));
        let found = owners.list(&by_name).await?;
        let is_it = |owner: &DynamicObject| {
            owner.data.pointer("/spec/secretRef/name").is_some_and(|named| named == name)
        };

        Ok(found.iter().any(is_it))
    }

    /// The metadata of a Secret that has valid keys, from the cache; `None` if it does not exist.
    async fn checked(
        &self,
        name: &str,
        holder: &Holder<'_>,
    ) -> Result<Option<ObjectMeta>, KeysError> {
        let known = self.metadata.get(name, Some(holder.namespace)).await?;
        let sound = || self.sound.lock();
        if let Some(known) = known
            && sound().has(&known.metadata)
        {
            return Ok(Some(known.metadata));
        }

        let Some(secret) = self.api(holder.namespace).get_opt(name).await? else { return Ok(None) };
        check(&secret, self.public_of)?;
        sound()
            .insert(&secret.metadata, |[namespace, name]| self.metadata.may_have(namespace, name));

        Ok(Some(secret.metadata))
    }
}

fn made(holder: &Holder<'_>, keys: &KeyPair) -> Secret {
    // What is sent to the API server cannot be wiped; the pair itself is.
    let [private, public] = ENTRIES;
    let data = [(private, keys.private), (public, keys.public)]
        .map(|(entry, key)| (entry.to_owned(), ByteString(key.to_vec())));

    Secret {
        metadata: ObjectMeta {
            name: Some(default_name(&holder.owner.name)),
            namespace: Some(holder.namespace.to_owned()),
            labels: Some(labels(holder)),
            owner_references: Some(vec![OwnerReference {
                controller: None,
                block_owner_deletion: None,
                ..holder.owner.clone()
            }]),
            ..ObjectMeta::default()
        },
        type_: Some("Opaque".to_owned()),
        data: Some(data.into()),
        ..Secret::default()
    }
}

fn labels(holder: &Holder<'_>) -> BTreeMap<String, String> {
    [GATEWAY_RESOURCE, (REMOTE_CLUSTER_ID, holder.remote_cluster_id)]
        .map(|(label, value)| (label.to_owned(), value.to_owned()))
        .into()
}

/// The labels that `secret` lacks. Another value belongs to another gateway.
fn missing_labels(
    secret: &ObjectMeta,
    holder: &Holder<'_>,
) -> Result<BTreeMap<String, String>, KeysError> {
    let of = |label: &str| secret.labels.as_ref().and_then(|labels| labels.get(label));
    if let Some(found) = of(REMOTE_CLUSTER_ID)
        && found != holder.remote_cluster_id
    {
        let secret = secret.name.clone().unwrap_or_default();
        return Err(KeysError::Taken { secret, label: REMOTE_CLUSTER_ID, found: found.clone() });
    }
    let mut labels = labels(holder);
    labels.retain(|label, value| of(label) != Some(value));

    Ok(labels)
}

fn check(secret: &Secret, public_of: PublicOf) -> Result<(), KeysError> {
    let name = || secret.name_any();

    pair(secret, public_of).map_err(|unsound| match unsound {
        Unsound::NoKey { entry, found } => KeysError::NoKey { secret: name(), entry, found },
        Unsound::NotAPair => KeysError::NotAPair { secret: name() },
    })
}

/// Why the content of a Secret is no key pair. It carries no part of the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variant documentation names every field")]
pub enum Unsound {
    /// The first entry without a key, and its content.
    NoKey { entry: &'static str, found: String },
    /// The public key belongs to another private key.
    NotAPair,
}

/// What is wrong with the keys in `secret`, if anything is.
pub fn unsound(secret: &Secret, public_of: PublicOf) -> Option<Unsound> {
    pair(secret, public_of).err()
}

fn pair(secret: &Secret, public_of: PublicOf) -> Result<(), Unsound> {
    let [private, public] = ENTRIES;
    let (private, public) = (key(secret, private)?, key(secret, public)?);

    if public_of(private) == *public { Ok(()) } else { Err(Unsound::NotAPair) }
}

fn key<'a>(secret: &'a Secret, entry: &'static str) -> Result<&'a [u8; KEY_BYTES], Unsound> {
    let bytes = secret.data.as_ref().and_then(|data| data.get(entry)).map(|bytes| &*bytes.0);
    let found =
        || bytes.map_or_else(|| "none".to_owned(), |bytes| format!("{} bytes", bytes.len()));
    let key = bytes.and_then(|bytes| bytes.try_into().ok());

    key.ok_or_else(|| Unsound::NoKey { entry, found: found() })
}

fn reference(secret: &ObjectMeta) -> ObjectReference {
    ObjectReference {
        name: secret.name.clone(),
        namespace: secret.namespace.clone(),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A Secret whose entries have this byte, as often as given.
    fn secret(entries: &[(&str, u8, usize)]) -> Secret {
        let data = entries
            .iter()
            .map(|(entry, byte, bytes)| ((*entry).to_owned(), ByteString(vec![*byte; *bytes])));

        Secret {
            metadata: ObjectMeta { name: Some("own".to_owned()), ..ObjectMeta::default() },
            data: Some(data.collect()),
            ..Secret::default()
        }
    }

    /// Simpler than a curve.
    fn public_of(private: &[u8; KEY_BYTES]) -> [u8; KEY_BYTES] {
        private.map(|byte| byte + 1)
    }

    #[test]
    fn the_public_key_must_match_the_private_key() {
        let right = secret(&[("privateKey", 7, 32), ("publicKey", 8, 32)]);
        let wrong = secret(&[("privateKey", 7, 32), ("publicKey", 9, 32)]);

        assert_eq!(unsound(&right, public_of), None);
        check(&right, public_of).unwrap();
        let error = check(&wrong, public_of).unwrap_err();
        assert_eq!(
            error.to_string(),
            "in secret \"own\" publicKey is not that of privateKey: write into data.publicKey what \
             `strait key public` prints for its privateKey"
        );
    }

    #[test]
    fn entries_of_wrong_length_are_reported() {
        for (entries, wrong, says) in [
            (&[][..], "privateKey", "none"),
            (&[("privateKey", 7, 32)], "publicKey", "none"),
            (&[("privateKey", 7, 31), ("publicKey", 8, 32)], "privateKey", "31 bytes"),
            (&[("privateKey", 7, 32), ("publicKey", 8, 33)], "publicKey", "33 bytes"),
        ] {
            let found = says.to_owned();

            assert_eq!(
                unsound(&secret(entries), |_| panic!("there is no key")),
                Some(Unsound::NoKey { entry: wrong, found })
            );
        }
        assert!(unsound(&Secret::default(), public_of).is_some());
    }

    #[test]
    fn deleted_secrets_are_forgotten() {
        let secret = |name: &str, version: &str| ObjectMeta {
            namespace: Some("tenant".to_owned()),
            name: Some(name.to_owned()),
            resource_version: Some(version.to_owned()),
            ..ObjectMeta::default()
        };
        let mut sound = Sound::default();
        sound.insert(&secret("a", "1"), |_| true);
        sound.insert(&secret("b", "2"), |_| true);
        assert!(sound.has(&secret("a", "1")) && sound.has(&secret("b", "2")));
        assert!(!sound.has(&secret("a", "3")) && !sound.has(&ObjectMeta::default()));

        sound.insert(&secret("c", "4"), |[_, name]| name != "a");
        assert!(!sound.has(&secret("a", "1")));
        assert_eq!(sound.0.len(), 2);
    }
}
