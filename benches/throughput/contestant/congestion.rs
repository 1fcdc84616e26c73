//! How the senders in the pods find out what the way to the other pod carries.

use std::fmt;

use anyhow::Context;
use clap::ValueEnum;
use socket2::{Domain, Socket, Type};

/// TCP's congestion control. It decides how bursts are sent and how much stands in queues, so that no
/// figure means anything without it.
///
/// Each socket is told: a namespace can only be given what the machine allows everybody, which is up to its
/// administrator.
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
    /// Whether the kernel has it: said once, before everybody fails at it.
    ///
    /// # Errors
    ///
    /// If the kernel does not have it, or not for us.
    pub(crate) fn check(self) -> anyhow::Result<()> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).context("a TCP socket")?;

        socket.set_tcp_congestion(self.name().as_bytes()).with_context(|| {
            format!("--congestion-control {self}: load the module tcp_{self}, or choose another")
        })
    }

    /// As the kernel calls it.
    pub(crate) const fn name(self) -> &'static str {
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
