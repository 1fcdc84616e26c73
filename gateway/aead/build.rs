//! Sets `has_lanes` if the machine that runs the tests can run the vector code. Without it, tests of that code are
//! ignored by name and counted. Passes the result on to the build script of `strait-wg`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(has_lanes)");
    let target = std::env::var("CARGO_CFG_TARGET_ARCH");
    let has_lanes = match target.as_deref() {
        // Each of these processors has NEON, also one that qemu emulates.
        Ok("aarch64") => true,
        Ok("x86_64") => has_avx512(),
        _ => false,
    };
    if has_lanes {
        println!("cargo::rustc-cfg=has_lanes");
        println!("cargo::metadata=has_lanes=1");
    }
}

/// The same features as in `Avx512::detect`; a test compares the two.
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
