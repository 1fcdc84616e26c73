//! The devices between which a gateway forwards, and sets of them.

/// The index of a node, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    /// A node that is not known: it is in the sets of all nodes alone.
    pub const UNKNOWN: Self = Self(u32::MAX);
}

/// A device that packets come in from or leave to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The tunnel to the remote cluster.
    Tunnel,
    /// The overlay to one node of this cluster.
    Node(NodeId),
}

/// A set of devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    has_tunnel: bool,
    /// In ascending order.
    nodes: Box<[NodeId]>,
    /// Whether nodes that are not known belong to it.
    has_any_node: bool,
}

impl Devices {
    /// The tunnel, if `has_tunnel`, and the overlays to `nodes`.
    #[must_use]
    pub fn new(has_tunnel: bool, nodes: impl IntoIterator<Item = NodeId>) -> Self {
        let mut nodes: Vec<_> = nodes.into_iter().collect();
        nodes.sort_unstable();
        nodes.dedup();

        Self { has_tunnel, nodes: nodes.into(), has_any_node: false }
    }

    /// The same, and the overlays to nodes that are not known.
    #[must_use]
    pub fn with_any_node(self) -> Self {
        Self { has_any_node: true, ..self }
    }

    /// Whether `device` is one of them.
    #[must_use]
    #[inline]
    pub fn contains(&self, device: Device) -> bool {
        match device {
            Device::Tunnel => self.has_tunnel,
            Device::Node(NodeId::UNKNOWN) => self.has_any_node,
            Device::Node(node) => self.nodes.binary_search(&node).is_ok(),
        }
    }

    /// Whether no device is in the set.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        !self.has_tunnel && self.has_no_node()
    }

    /// Whether the tunnel is the only one.
    #[must_use]
    pub const fn is_tunnel(&self) -> bool {
        self.has_tunnel && self.has_no_node()
    }

    /// The node, if it is the only device.
    #[must_use]
    pub fn single_node(&self) -> Option<NodeId> {
        match &*self.nodes {
            [node] if !self.has_tunnel && !self.has_any_node => Some(*node),
            _ => None,
        }
    }

    const fn has_no_node(&self) -> bool {
        self.nodes.is_empty() && !self.has_any_node
    }
}
