//! Tells the tests whether this machine can run vector code: what it cannot run is ignored by name, and counted.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(has_avx512)");
    let target = std::env::var("CARGO_CFG_TARGET_ARCH");
    if target.as_deref() == Ok(std::env::consts::ARCH) && has_avx512() {
        println!("cargo::rustc-cfg=has_avx512");
    }
}

/// As `Avx512::detect` of the cipher; a test compares the two.
#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512ifma")
        && is_x86_feature_detected!("avx512vbmi2")
}

#[cfg(not(target_arch = "x86_64"))]
const fn has_avx512() -> bool {
    false
}
