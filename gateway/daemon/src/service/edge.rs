//! What the kernel holds for the cluster side of a gateway: a device with its addresses and routes, or nothing.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use anyhow::Context;
use strait_host::netlink::{Changed, DeviceRoutes, Link, Netlink, RouteError};
use tracing::{debug, error, warn};

use crate::config::Config;
use crate::device_state::{DeviceState, MissingPrefix};
use crate::routes::Routes;

/// The cluster side of a gateway, as its control loop sees it.
pub(super) enum Edge {
    /// A TUN device, whose addresses, routes and MTU are kept.
    Device(Box<Device>),
    /// An overlay: the kernel holds nothing for it.
    Overlay,
}

/// A device, and what was last installed for it.
pub(super) struct Device {
    netlink: Netlink,
    index: u32,
    routes: DeviceRoutes,
    last_routes: Routes,
}

/// What [`Edge::sync`] found and could not change.
#[derive(Default)]
pub(super) struct Synced {
    /// The link of the device, if it exists.
    pub(super) link: Option<Link>,
    /// The state to report; `None` if it cannot be read.
    pub(super) state: Option<DeviceState>,
    /// Whether it must be synced again.
    pub(super) is_due: bool,
}

impl Edge {
    /// The edge of a gateway that was started with `config`. With `has_last_resort`, routes outlive the process as
    /// unreachable ones.
    ///
    /// # Errors
    ///
    /// If the device does not exist.
    pub(super) async fn of(
        config: &Config,
        netlink: &Netlink,
        has_last_resort: bool,
    ) -> anyhow::Result<Self> {
        if config.overlay.is_some() {
            return Ok(Self::Overlay);
        }
        let index = netlink
            .interface_index(&config.interface)
            .await
            .with_context(|| format!("cannot find interface {:?}", config.interface))?;
        let routes = DeviceRoutes::new(netlink.clone(), index);
        let routes = if has_last_resort { routes.with_last_resort() } else { routes };
        let last_routes = Routes::default();

        Ok(Self::Device(Box::new(Device { netlink: netlink.clone(), index, routes, last_routes })))
    }

    /// Prepares the device and brings it up.
    ///
    /// # Errors
    ///
    /// That of the kernel.
    pub(super) async fn bring_up(&self) -> anyhow::Result<()> {
        let Self::Device(device) = self else { return Ok(()) };
        device.netlink.prepare_tunnel(device.index).await;

        device.netlink.set_up(device.index).await.context("cannot bring the device up")
    }

    /// Whether `changed` may concern what the kernel holds.
    pub(super) fn is_concerned(&self, changed: &Changed) -> bool {
        match self {
            Self::Device(device) => {
                let wanted = &device.last_routes.wanted;
                changed.is_about(device.index, |prefix| wanted.contains_key(prefix))
            }
            Self::Overlay => false,
        }
    }

    /// Restores what is missing: when a device goes down, the kernel removes its routes and its IPv6 addresses. Routes that
    /// cover one of the endpoints that were `found` are reported.
    pub(super) async fn sync(&mut self, config: &Config, found: &[IpAddr]) -> Synced {
        match self {
            Self::Device(device) => device.sync(config, found).await,
            Self::Overlay => {
                let name = config.interface.clone();
                let state = DeviceState { name, is_up: true, ..DeviceState::default() };
                Synced { state: Some(state), ..Synced::default() }
            }
        }
    }

    /// Sets the MTU of the device in bytes.
    ///
    /// # Errors
    ///
    /// That of the kernel.
    pub(super) async fn set_mtu(&self, mtu_bytes: u16) -> io::Result<()> {
        match self {
            Self::Device(device) => device.netlink.set_mtu(device.index, mtu_bytes).await,
            Self::Overlay => Ok(()),
        }
    }

    /// Removes the routes.
    pub(super) async fn clear_routes(&self) {
        if let Self::Device(device) = self {
            device.routes.clear().await;
        }
    }
}

impl Device {
    async fn sync(&mut self, config: &Config, found: &[IpAddr]) -> Synced {
        let link = match self.netlink.link(self.index).await {
            Ok(Some(link)) => link,
            // The device was removed; the packet threads end too.
            Ok(None) => return Synced { state: Some(DeviceState::default()), ..Synced::default() },
            Err(error) => {
                debug!(%error, "cannot read the state of the device");
                return Synced { is_due: true, ..Synced::default() };
            }
        };
        let mut is_due = false;
        let mut state =
            DeviceState { name: link.name.clone(), is_up: link.is_up, ..Default::default() };
        if link.is_up {
            match self.netlink.sync_addresses(self.index, &config.addresses).await {
                Ok(errors) => state.missing.extend(errors.into_iter().map(MissingPrefix::from)),
                Err(error) => {
                    error!(%error, "cannot read the addresses of the device");
                    is_due = true;
                }
            }
            let errors = self.sync_routes(config, found).await;
            state.wanted_routes = self.last_routes.wanted.len();
            for error in errors {
                match MissingPrefix::of_route(error) {
                    Ok(missing_prefix) => state.missing.push(missing_prefix),
                    Err(error) => {
                        error!("{:#}", anyhow::Error::from(error));
                        is_due = true;
                    }
                }
            }
        }

        Synced { link: Some(link), state: Some(state), is_due }
    }

    async fn sync_routes(&mut self, config: &Config, found: &[IpAddr]) -> Vec<RouteError> {
        let own = match self.netlink.addresses(Some(self.index)).await {
            Ok(addresses) => addresses,
            Err(error) => {
                warn!(%error, "cannot read the addresses of this host; routes may cover them");
                Vec::new()
            }
        };
        let routes = Routes::new(config, found, &own);
        let known: BTreeSet<_> = self.last_routes.skipped.iter().collect();
        for skipped in routes.skipped.iter().filter(|skipped| !known.contains(skipped)) {
            warn!("{skipped}");
        }
        let known: BTreeSet<_> = self.last_routes.covering.iter().collect();
        for covering in routes.covering.iter().filter(|covering| !known.contains(covering)) {
            warn!("{covering}");
        }

        let errors = self.routes.sync(&routes.prefixes()).await;
        self.last_routes = routes;

        errors
    }
}
