//! What is shipped beside the binary: the image, the base, the chart, the dashboard, the alerts, and the
//! script for kind.
//!
//! Needs root, `/dev/net/tun`, what builds an API server and Helm (Go, or `KUBEBUILDER_ASSETS`),
//! `promtool`, `setcap` and `setpriv`.

mod capability;
mod chart;
mod containers;
mod dashboard;
mod expression;
mod image;
mod installed;
mod kind;
mod rules;
mod served;
mod tools;
mod values;

use std::path::{Path, PathBuf};

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}
