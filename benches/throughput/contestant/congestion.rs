//! The congestion control of the TCP senders in the pods.

use std::fmt;

use anyhow::Context;
use clap::ValueEnum;
use socket2::{Domain, Socket, Type};

/// TCP's congestion control. It determines the size of bursts and the length of queues, so each figure
/// depends on it.
///
/// It is set on each socket: a namespace accepts only what the administrator of the machine allows to
/// all users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CongestionControl {
    /// The default of Linux (RFC 9438)
    #[default]
    Cubic,
    /// Paces packets at the bandwidth that it has measured
    Bbr,
    /// The classic one (RFC 5681)
    Reno,
}

impl CongestionControl {
    /// Checks once, before the measurements, whether the kernel supports it.
    ///
    /// # Errors
    ///
    /// If the kernel does not support it, or not for this user.
    pub(crate) fn check(self) -> anyhow::Result<()> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).context("a TCP socket")?;

        socket.set_tcp_congestion(self.name().as_bytes()).with_context(|| {
            format!("--congestion-control {self}: load the module tcp_{self}, or choose another")
        })
    }

    /// Its name in the kernel.
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
    fn argument_values_are_kernel_names() {
        for control in CongestionControl::value_variants() {
            let value = control.to_possible_value().unwrap();

            assert_eq!(value.get_name(), control.name());
        }
    }
}
