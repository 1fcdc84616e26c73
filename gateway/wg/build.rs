//! Sets `has_lanes` as in `strait-aead`: without it, tests of vector code are ignored by name and counted.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(has_lanes)");
    if std::env::var_os("DEP_STRAIT_AEAD_HAS_LANES").is_some() {
        println!("cargo::rustc-cfg=has_lanes");
    }
}
