//! How the senders in the pods find out what the way to the other pod carries.

use std::{fmt, fs};

use anyhow::Context;
use clap::ValueEnum;
use strait_gateway::lab::Namespace;

/// The kernel's setting, one for each namespace.
const FILE: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// TCP's congestion control. It decides how bursts are sent and how much stands in queues, so that no
/// figure means anything without it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CongestionControl {
    /// What Linux has unless told otherwise (RFC 9438)
    #[default]
    Cubic,
    /// Paces what is sent, at the rate that it has found
    Bbr,
    /// The oldest (RFC 5681)
    Reno,
}

impl CongestionControl {
    /// Whether pods may have it: said once, before everybody fails at it.
    ///
    /// # Errors
    ///
    /// Those of [`Self::set`].
    pub(crate) fn check(self) -> anyhow::Result<()> {
        self.set(&Namespace::new("probe")?)
    }

    /// For every connection that begins or ends in `pod` from now on.
    ///
    /// # Errors
    ///
    /// If the kernel does not have it, or not for everybody.
    pub(crate) fn set(self, pod: &Namespace) -> anyhow::Result<()> {
        // Not by `Namespace::set`: what the kernel does not have it calls not found, which is no error there.
        pod.run(move || Ok(fs::write(FILE, self.name())))?.with_context(|| {
            format!(
                "--congestion-control {self}: load the module tcp_{self} and add {self} to \
                 net.ipv4.tcp_allowed_congestion_control, or choose another"
            )
        })
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
            Self::Reno => "reno",
        }
    }
}

impl fmt::Display for CongestionControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_is_told_is_what_the_command_line_says() {
        for control in CongestionControl::value_variants() {
            let value = control.to_possible_value().unwrap();

            assert_eq!(value.get_name(), control.name());
        }
    }
}
