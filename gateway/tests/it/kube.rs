//! Two clusters, each with an API server of its own, joined by what their objects say.
//!
//! Needs root, `/dev/net/tun`, and what builds an API server: Go, or `KUBEBUILDER_ASSETS`.

mod beside;
pub(crate) mod black_hole;
pub(crate) mod fed;
mod figures;
mod life;
mod liveness;
mod observed;
mod path_mtu;
pub(crate) mod peering;
mod processes;
mod replicas;
mod rights;
mod standalone;
mod strangers;
mod tour;
mod whole;
