//! What a gateway is started with.

use super::{Workers, overlay};

/// The cluster side of a gateway.
#[derive(Clone, Debug)]
pub enum EdgeSettings {
    /// A TUN device to create, with a name of at most 15 bytes. Needs CAP_NET_ADMIN.
    Device(String),
    /// An overlay to end on UDP sockets. Needs no capability.
    Overlay(overlay::Settings),
}

/// Settings that do not change while a gateway runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The cluster side.
    pub edge: EdgeSettings,
    /// UDP port to listen on; 0 lets the kernel choose.
    pub listen_port: u16,
    /// MTU of the device, or of the cluster side, in bytes.
    pub mtu_bytes: u16,
    /// Offloads to use if the kernel supports them.
    pub offload: Offload,
    /// Number of worker threads under backlog.
    pub workers: Workers,
    /// Size of the table of masqueraded flows.
    pub max_flows: u32,
    /// Implementation of WireGuard.
    pub engine: strait_wg::Engine,
}

/// The offloads, one switch each. As a setting, `false` disables an offload. As a state, `false` means that it is
/// off: disabled, or refused by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "seven independent kill switches")]
pub struct Offload {
    /// TCP segmentation offload on the TUN device (TSO4, TSO6).
    pub tun_tso: bool,
    /// UDP segmentation offload on the TUN device (USO4, USO6; Linux 6.2).
    pub tun_uso: bool,
    /// Segmentation offload of overlays on the TUN device: VXLAN, Geneve (UDP tunnel GSO; Linux 6.17).
    pub tun_udp_tunnel: bool,
    /// `UDP_SEGMENT` on sending.
    pub udp_gso: bool,
    /// `UDP_GRO` on receiving.
    pub udp_gro: bool,
    /// Handshake messages arrive on sockets of their own (`SO_ATTACH_REUSEPORT_CBPF`).
    pub udp_steering: bool,
    /// Datagrams of one session are sealed and opened in the lanes of vectors (native engine): AVX-512 with IFMA and
    /// VBMI2, or NEON.
    pub vector_aead: bool,
}

impl Default for Offload {
    /// All offloads, but without vectors on arm64: what they gain there is not known.
    fn default() -> Self {
        Self { vector_aead: cfg!(not(target_arch = "aarch64")), ..Self::ON }
    }
}

impl Offload {
    /// All offloads.
    pub const ON: Self = Self::all(true);

    /// No offload.
    pub const OFF: Self = Self::all(false);

    const fn all(is_on: bool) -> Self {
        Self {
            tun_tso: is_on,
            tun_uso: is_on,
            tun_udp_tunnel: is_on,
            udp_gso: is_on,
            udp_gro: is_on,
            udp_steering: is_on,
            vector_aead: is_on,
        }
    }

    /// Sets the switch of this name. Returns whether there is one.
    pub fn set(&mut self, name: &str, is_on: bool) -> bool {
        let switch = match name {
            "tun_tso" => &mut self.tun_tso,
            "tun_uso" => &mut self.tun_uso,
            "tun_udp_tunnel" => &mut self.tun_udp_tunnel,
            "udp_gso" => &mut self.udp_gso,
            "udp_gro" => &mut self.udp_gro,
            "udp_steering" => &mut self.udp_steering,
            "vector_aead" => &mut self.vector_aead,
            _ => return false,
        };
        *switch = is_on;

        true
    }

    /// Each switch with its name in configuration and metrics.
    #[must_use]
    pub const fn named(self) -> [(&'static str, bool); 7] {
        let Self { tun_tso, tun_uso, tun_udp_tunnel, udp_gso, udp_gro, udp_steering, vector_aead } =
            self;

        [
            ("tun_tso", tun_tso),
            ("tun_uso", tun_uso),
            ("tun_udp_tunnel", tun_udp_tunnel),
            ("udp_gso", udp_gso),
            ("udp_gro", udp_gro),
            ("udp_steering", udp_steering),
            ("vector_aead", vector_aead),
        ]
    }
}
