//! The keys of a gateway: which Secret has them, and the public one.

use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use kube::ResourceExt as _;
use strait_api::labels::GATEWAY_RESOURCE;
use strait_api::public_key::KEY_BYTES;

use super::wait::is_stale;
use super::{CommandError, Side};

/// The public entry of a Secret.
const PUBLIC_KEY: &str = "publicKey";

/// Selects the Secrets of the gateways to one cluster.
pub(super) fn selector(of_peering: &str) -> String {
    let (label, value) = GATEWAY_RESOURCE;

    format!("{of_peering},{label}={value}")
}

/// The one of `secrets`, all with the labels of a gateway, that `reference` in the status of `gateway` names, or the
/// only one; `None` if there is none yet. Those of a former gateway with another `uid` do not count.
pub(super) fn of_gateway<'a>(
    side: Side,
    gateway: &str,
    uid: Option<&String>,
    secrets: &[&'a Secret],
    reference: Option<&ObjectReference>,
) -> Result<Option<&'a Secret>, CommandError> {
    let secrets: Vec<_> =
        secrets.iter().copied().filter(|secret| !is_stale(*secret, uid)).collect();
    let named = reference.and_then(|reference| reference.name.as_deref());
    if let Some(named) = named {
        return Ok(secrets.into_iter().find(|secret| secret.name_any() == named));
    }

    match secrets.as_slice() {
        [] => Ok(None),
        [secret] => Ok(Some(secret)),
        [_, _, ..] => {
            let names: Vec<_> = secrets.iter().map(|secret| secret.name_any()).collect();
            let (gateway, names) = (gateway.to_owned(), names.join(", "));
            Err(CommandError::SeveralSecrets { side, gateway, names })
        }
    }
}

/// The public key in `secret`, raw as Liqo stores it.
pub(super) fn public(side: Side, secret: &Secret) -> Result<[u8; KEY_BYTES], CommandError> {
    let bytes = secret.data.as_ref().and_then(|data| data.get(PUBLIC_KEY));

    bytes
        .and_then(|bytes| bytes.0.as_slice().try_into().ok())
        .ok_or_else(|| CommandError::NoKey { side, secret: secret.name_any() })
}
