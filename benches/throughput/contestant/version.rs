//! The version of a program.

use std::path::Path;
use std::process::Command;

use strait_lab::process;

pub(super) fn of(program: &Path, arguments: &[&str]) -> String {
    output(Command::new(program).args(arguments))
}

/// The module version that is stored in a Go program.
pub(super) fn of_go(program: &Path) -> String {
    let Some(go) = process::find("go") else {
        return of(program, &["--version"]);
    };
    let module = output(Command::new(go).args(["version", "-m"]).arg(program));

    module
        .lines()
        .find_map(|line| line.trim().strip_prefix("mod\t"))
        .map(|line| line.split('\t').take(2).collect::<Vec<_>>().join(" "))
        .unwrap_or_default()
}

fn output(command: &mut Command) -> String {
    let output = command.output().map(|output| output.stdout).unwrap_or_default();

    String::from_utf8_lossy(&output).trim().to_owned()
}
