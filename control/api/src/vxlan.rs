//! The defaults of VXLAN between nodes and gateways: those of no other CNI.

/// The UDP port.
pub const PORT: u16 = 8483;

/// The network identifier (VNI).
pub const VNI: u32 = 83;
