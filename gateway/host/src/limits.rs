//! Limits of the process: file descriptors and core dumps.

use nix::sys::prctl::set_dumpable;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use tracing::warn;

/// Descriptors for 640 client connections with two admin ports, and for 1024 that follow whether a gateway forwards; the
/// rest is for packet threads, the API server and DNS lookups.
const DESCRIPTORS_MIN: rlim_t = 2048;

/// The limit of open files is too low.
#[derive(Debug, thiserror::Error)]
#[error(
    "RLIMIT_NOFILE is {allowed}, which is less than the {min} file descriptors that may be needed: raise it with \
     `ulimit -n`, LimitNOFILE= of systemd, or the limits of the container runtime",
    min = DESCRIPTORS_MIN
)]
pub struct TooFewDescriptors {
    allowed: rlim_t,
}

/// Keeps keys out of core dumps: disables dumps, and lets only privileged processes read this one's memory.
///
/// Source: `PR_SET_DUMPABLE` in prctl(2), which also holds where a program takes the dumps
/// (`kernel.core_pattern`), and `RLIMIT_CORE` in getrlimit(2).
pub fn forbid_core_dumps() {
    let limited = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    if let Err(error) = set_dumpable(false).and(limited) {
        // The gateway works without it.
        warn!(%error, "a core dump of this process may hold keys");
    }
}

/// Raises the limit of open files to what the daemon may need.
///
/// # Errors
///
/// [`TooFewDescriptors`] if that is not allowed.
pub fn check_descriptors() -> Result<(), TooFewDescriptors> {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return Ok(()) };
    if soft >= DESCRIPTORS_MIN {
        return Ok(());
    }
    let wanted = DESCRIPTORS_MIN.min(hard);
    let raised = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard);

    match raised {
        Ok(()) if wanted >= DESCRIPTORS_MIN => Ok(()),
        _ => Err(TooFewDescriptors { allowed: soft.max(if raised.is_ok() { wanted } else { 0 }) }),
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::prctl::get_dumpable;

    use super::*;

    #[test]
    fn the_process_leaves_no_core_dump() {
        forbid_core_dumps();

        assert_eq!(getrlimit(Resource::RLIMIT_CORE), Ok((0, 0)));
        assert_eq!(get_dumpable(), Ok(false));
    }
}
