//! The capability of a gateway that is not root.
//!
//! The image has this program twice: `strait`, and `strait-gateway` with the file capability NET_ADMIN. A container that
//! adds NET_ADMIN and starts `strait` as a user that is not root, as Liqo's own templates do, has no capability after
//! execve(2): capabilities(7), "Transformation of capabilities during `execve()`".

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::{env, fs};

/// The file with the capability, beside this program.
const CAPABLE: &str = "strait-gateway";

/// The bit of NET_ADMIN in `/proc/self/status`.
const NET_ADMIN: u64 = 1 << 12;

/// Replaces this process by [`CAPABLE`] with the same arguments, if that gives NET_ADMIN.
///
/// It returns in all other cases, also if the file cannot be executed: what needs the capability names it.
pub(crate) fn gain_net_admin() {
    let Ok(own) = env::current_exe() else { return };
    let capable = own.with_file_name(CAPABLE);
    let gains = fs::read_to_string("/proc/self/status").is_ok_and(|status| is_gained(&status));
    if gains && own != capable && capable.exists() {
        let _error = Command::new(capable).args(env::args_os().skip(1)).exec();
    }
}

/// Whether a file capability NET_ADMIN adds to the capabilities of a process with this `/proc/PID/status`.
fn is_gained(status: &str) -> bool {
    let field = |key: &str| {
        status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
    };
    let has = |key| {
        let set = field(key).and_then(|set| u64::from_str_radix(set, 16).ok());
        set.is_some_and(|set| set & NET_ADMIN != 0)
    };

    !has("CapEff") && has("CapBnd") && field("NoNewPrivs") == Some("0")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(effective: u64, bounding: u64, no_new_privs: u8) -> String {
        format!(
            "Name:\tstrait\nNoNewPrivs:\t{no_new_privs}\nCapEff:\t{effective:016x}\nCapBnd:\t{bounding:016x}\n"
        )
    }

    #[test]
    fn net_admin_is_gained_within_the_bounding_set() {
        assert!(is_gained(&status(0, NET_ADMIN, 0)));
        assert!(!is_gained(&status(NET_ADMIN, NET_ADMIN, 0)), "it is there");
        assert!(!is_gained(&status(0, !NET_ADMIN, 0)), "outside of the bounding set");
        assert!(!is_gained(&status(0, NET_ADMIN, 1)), "execve may add nothing");
        assert!(!is_gained(""));
    }
}
