//! What is shipped beside the binary: the image, the base, the chart, the dashboard, the alerts, and the
//! script for kind.
//!
//! Needs root, `/dev/net/tun`, what builds an API server and Helm (Go, or `KUBEBUILDER_ASSETS`),
//! `promtool`, `setcap` and `setpriv`.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test may panic, and says why"
)]

#[expect(dead_code, reason = "shared with the tests in clusters")]
#[path = "kube/fed.rs"]
mod fed;
#[expect(dead_code, reason = "shared with the tests in clusters")]
#[path = "kube/peering.rs"]
mod peering;
#[path = "harness/require.rs"]
mod require;
#[expect(dead_code, reason = "these gateways are started otherwise")]
#[path = "harness/world.rs"]
mod world;

#[path = "deploy/capability.rs"]
mod capability;
#[path = "deploy/chart.rs"]
mod chart;
#[path = "deploy/dashboard.rs"]
mod dashboard;
#[path = "deploy/expression.rs"]
mod expression;
#[path = "deploy/image.rs"]
mod image;
#[path = "deploy/installed.rs"]
mod installed;
#[path = "deploy/kind.rs"]
mod kind;
#[path = "deploy/rules.rs"]
mod rules;
#[path = "deploy/served.rs"]
mod served;
#[path = "deploy/tools.rs"]
mod tools;
#[path = "deploy/values.rs"]
mod values;

use std::path::{Path, PathBuf};

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}
