//! The flags of `strait node`.

use clap::ValueEnum;
use strait_api::vxlan;
use strait_host::flags::{Bind, bind_address};
use strait_host::interface::interface_flag;
use strait_host::usage::UsageError;

/// Tables of the kernel itself: default, main and local. Their routes belong to others.
const TABLES_OF_OTHERS: [u32; 3] = [253, 254, 255];

/// `strait node`
#[derive(Debug, clap::Args)]
pub struct NodeArgs {
    /// Name of the Node that this host is
    #[arg(long, env = "STRAIT_NODE_NAME", value_name = "NAME")]
    pub(super) node_name: Option<String>,
    /// When to carry packets to the node of a gateway inside VXLAN
    #[arg(long, env = "STRAIT_VXLAN", value_enum, default_value_t = Vxlan::Auto)]
    pub(super) vxlan: Vxlan,
    /// The VXLAN device, made when it is needed
    #[arg(
        long,
        env = "STRAIT_VXLAN_DEVICE",
        value_name = "NAME",
        default_value = "strait-vxlan",
        value_parser = interface_flag
    )]
    pub(super) vxlan_device: String,
    /// Network identifier of VXLAN; the same on all nodes
    #[arg(
        long,
        env = "STRAIT_VXLAN_VNI",
        value_name = "NUMBER",
        default_value_t = vxlan::VNI,
        value_parser = clap::value_parser!(u32).range(1..1 << 24)
    )]
    pub(super) vxlan_vni: u32,
    /// UDP port of VXLAN; the same on all nodes, and no other VXLAN's
    #[arg(
        long,
        env = "STRAIT_VXLAN_PORT",
        value_name = "PORT",
        default_value_t = vxlan::PORT,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub(super) vxlan_port: u16,
    /// MTU of the VXLAN device, in bytes [default: that of the interface below, less what VXLAN adds]
    #[arg(
        long,
        env = "STRAIT_VXLAN_MTU",
        value_name = "BYTES",
        value_parser = clap::value_parser!(u16).range(1280..)
    )]
    pub(super) vxlan_mtu: Option<u16>,
    /// Keep the CNI from masquerading packets of pods to remote clusters, by an nftables table of our own
    #[arg(
        long,
        env = "STRAIT_MASQUERADE_BYPASS",
        value_name = "BOOL",
        default_value_t = true,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        action = clap::ArgAction::Set
    )]
    pub(super) masquerade_bypass: bool,
    /// Routing table for our routes alone
    #[arg(long, env = "STRAIT_TABLE", value_name = "NUMBER", default_value_t = 8483)]
    pub(super) table: u32,
    /// Priority of the rule that leads to the table; before the main table, which has 32766
    #[arg(
        long,
        env = "STRAIT_RULE_PRIORITY",
        value_name = "NUMBER",
        default_value_t = 500,
        value_parser = clap::value_parser!(u32).range(1..32766)
    )]
    pub(super) rule_priority: u32,
    /// Remove all routes, rules, devices and tables of ours from this host, and end
    #[arg(long, env = "STRAIT_CLEAN_UP")]
    pub(super) clean_up: bool,
    /// Where to serve /metrics; 0 is off
    #[arg(
        long,
        env = "STRAIT_METRICS_ADDRESS",
        value_name = "ADDRESS",
        default_value = "0",
        value_parser = bind_address
    )]
    pub(super) metrics_address: Bind,
    /// Where to serve /healthz and /readyz; 0 is off
    #[arg(
        long,
        env = "STRAIT_HEALTH_PROBE_BIND_ADDRESS",
        value_name = "ADDRESS",
        default_value = "0",
        value_parser = bind_address
    )]
    pub(super) health_probe_bind_address: Bind,
}

/// `--vxlan`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Vxlan {
    /// Where a router is between the two nodes
    Auto,
    /// Always: where something between nodes drops packets from or to addresses that are no node's
    Always,
    /// Never: then nodes behind a router cannot reach gateways
    Never,
}

/// The settings of an agent.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// The name of the Node.
    pub(super) node: String,
    pub(super) vxlan: Vxlan,
    pub(super) overlay: OverlaySettings,
    pub(super) masquerade_bypass: bool,
    pub(super) place: Place,
}

/// The flags of the VXLAN device.
#[derive(Clone, Debug)]
pub(super) struct OverlaySettings {
    pub(super) device: String,
    pub(super) vni: u32,
    pub(super) port: u16,
    pub(super) mtu_bytes: Option<u16>,
}

/// The table and the rule of our routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) table: u32,
    pub(super) priority: u32,
}

impl NodeArgs {
    /// # Errors
    ///
    /// [`UsageError`] with the flag to correct.
    pub(super) fn place(&self) -> Result<Place, UsageError> {
        let Self { table, rule_priority: priority, .. } = *self;
        if table == 0 || TABLES_OF_OTHERS.contains(&table) {
            return Err(UsageError::Wrong(format!(
                "--table {table} is the kernel's own: choose another number"
            )));
        }

        Ok(Place { table, priority })
    }

    /// # Errors
    ///
    /// [`UsageError`] with the flag to correct.
    pub(super) fn settings(&self) -> Result<Settings, UsageError> {
        let node = self.node_name.clone().filter(|name| !name.is_empty());

        Ok(Settings {
            node: node.ok_or_else(|| {
                UsageError::Wrong(
                    "--node-name is missing: in a pod it is the field spec.nodeName".to_owned(),
                )
            })?,
            vxlan: self.vxlan,
            overlay: OverlaySettings {
                device: self.vxlan_device.clone(),
                vni: self.vxlan_vni,
                port: self.vxlan_port,
                mtu_bytes: self.vxlan_mtu,
            },
            masquerade_bypass: self.masquerade_bypass,
            place: self.place()?,
        })
    }
}
