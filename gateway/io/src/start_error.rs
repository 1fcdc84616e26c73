//! Why a gateway could not start.

use remap::masquerade;

/// Why a gateway could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variant documentation names every field")]
pub enum StartError {
    /// `/dev/net/tun` is missing, or may not be opened.
    #[error("cannot open /dev/net/tun: load the tun module, or give the container the device")]
    NoTun {
        #[source]
        source: std::io::Error,
    },
    /// The device exists or may not be created.
    #[error(
        "cannot create TUN device {interface:?}: run with CAP_NET_ADMIN, and use a name no other interface has"
    )]
    Device {
        interface: String,
        #[source]
        source: std::io::Error,
    },
    /// The port is taken.
    #[error(
        "cannot listen on UDP port {port}: another process uses it, choose another listen_port"
    )]
    Port {
        port: u16,
        #[source]
        source: std::io::Error,
    },
    /// The port of the overlay is taken.
    #[error(
        "cannot listen on UDP port {port} for the overlay: another process or a VXLAN device of the kernel uses it, \
         choose another port"
    )]
    OverlayPort {
        port: u16,
        #[source]
        source: std::io::Error,
    },
    /// The table of flows cannot have this size.
    #[error("cannot create the table of flows: choose another max_flows")]
    Flows {
        #[from]
        source: masquerade::LimitsError,
    },
    /// Another system call failed.
    #[error("cannot {operation}")]
    System {
        operation: &'static str,
        #[source]
        source: std::io::Error,
    },
}
