//! Completion scripts for shells.

use clap_complete::{Shell, generate};

use super::super::args::command;

/// The script for `shell`.
pub(super) fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    generate(shell, &mut command(), "strait", &mut script);

    String::from_utf8_lossy(&script).into_owned()
}
