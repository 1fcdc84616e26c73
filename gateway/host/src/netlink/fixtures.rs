//! A network namespace for a test.

#![expect(clippy::unwrap_used, reason = "only tests run this")]

use nix::sched::{CloneFlags, unshare};
use rtnetlink::packet_route::link::LinkFlags;

use super::Netlink;

/// Runs `test` in a new namespace with a connection and the index of `lo`, which is up and alone. Without the right
/// to create a namespace the test is skipped, except in CI.
///
/// # Panics
///
/// If the test panics, if CI cannot create a namespace, or without a netlink socket.
pub fn in_namespace<F: Future<Output = ()>>(test: impl FnOnce(Netlink, u32) -> F) {
    if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
        let is_ci = std::env::var_os("CI").is_some();
        assert!(!is_ci, "CI must be able to make a network namespace: {error}");
        skipped(&format!("no network namespace without root ({error})"));
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();

    runtime.block_on(async {
        let netlink = Netlink::connect().unwrap();
        let lo = netlink.interface_index("lo").await.unwrap();
        set_link(&netlink, lo, LinkFlags::Up).await;
        test(netlink, lo).await;
    });
}

#[expect(clippy::print_stderr, reason = "a skipped test must be seen")]
fn skipped(why: &str) {
    eprintln!("SKIPPED: {why}");
}

pub(super) async fn set_link(netlink: &Netlink, index: u32, state: LinkFlags) {
    let link = rtnetlink::LinkMessageBuilder::<rtnetlink::LinkUnspec>::default().index(index);
    let link = if state.contains(LinkFlags::Up) { link.up() } else { link.down() };

    netlink.handle.link().set(link.build()).execute().await.unwrap();
}
