//! Runs libFuzzer on the target named by the variable `FUZZ_TARGET`. Started by `fuzz/run`.
//!
//! The arguments are those of libFuzzer: directories of initial inputs, or files to replay.

#![no_main]

use std::io::{self, Write};
use std::process::exit;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use strait_fuzz::{TARGETS, Target};

/// Exit status for wrong usage.
const USAGE: i32 = 64;

static TARGET: OnceLock<Target> = OnceLock::new();

fuzz_target!(init: { target(); }, |bytes: &[u8]| { target().1(bytes); });

fn target() -> &'static Target {
    TARGET.get_or_init(|| {
        let wanted = std::env::var("FUZZ_TARGET").unwrap_or_default();
        let known = TARGETS.into_iter().find(|(name, _)| *name == wanted);

        known.unwrap_or_else(|| {
            let names = TARGETS.map(|(name, _)| name).join(", ");
            // A closed stderr cannot be reported.
            let _ = writeln!(io::stderr(), "FUZZ_TARGET must be one of {names}, not {wanted:?}");
            exit(USAGE)
        })
    })
}
