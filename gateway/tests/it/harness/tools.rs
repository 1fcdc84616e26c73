//! Programs that a test runs in a namespace.

use std::process::Command;

use strait_lab::Namespace;
use strait_lab::process::find;

/// Runs `ip` with `arguments`, which spaces separate.
pub(crate) fn ip(namespace: &Namespace, arguments: &str) {
    let version = arguments.contains("::").then_some("-6");

    run(namespace, "ip", version.into_iter().chain(arguments.split(' ')));
}

/// Runs commands of `nft`.
pub(crate) fn nft(namespace: &Namespace, commands: &str) {
    run(namespace, "nft", [commands]);
}

fn run<'a>(
    namespace: &Namespace,
    tool: &'static str,
    arguments: impl IntoIterator<Item = &'a str>,
) {
    let mut command = Command::new(find(tool).unwrap());
    command.args(arguments);

    let status = namespace.start(command).unwrap().wait().unwrap();
    assert!(status.success(), "{tool} failed");
}
