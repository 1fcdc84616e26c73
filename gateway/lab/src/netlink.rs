//! Links, addresses and routes of a [`Namespace`], through rtnetlink.

use std::net::IpAddr;

use futures_util::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::{Handle, LinkBridge, LinkUnspec, LinkVeth, RouteMessageBuilder};

use super::LabError;
use super::Namespace;

/// The next hop of a route.
#[derive(Clone, Copy, Debug)]
pub enum Via {
    /// Destinations are neighbours on the link.
    Link,
    /// A router on the link, whose address need not be in a prefix of the link.
    Router(IpAddr),
}

/// Connects two namespaces by a veth pair and brings both ends up. Each end is a namespace and the name of its link.
///
/// # Errors
///
/// [`LabError::Netlink`], for instance if a namespace has a link of that name.
pub fn connect(
    one: (&Namespace, &str),
    other: (&Namespace, &str),
    mtu_bytes: u32,
) -> Result<(), LabError> {
    let ((one, one_link), (other, other_link)) = (one, other);
    let operation = format!("connect {} and {}", one.name(), other.name());
    let target = other.raw_fd();
    let names = (one_link.to_owned(), other_link.to_owned());

    // The other end is created under a name that is free here, and renamed when it is moved.
    one.netlink(operation, async move |handle| {
        let (one_link, other_link) = names;
        let initial_name = format!("{one_link}-peer");
        let pair = LinkVeth::new(&one_link, &initial_name).mtu(mtu_bytes).build();
        handle.link().add(pair).execute().await?;
        let moved = LinkUnspec::new_with_index(index(&handle, &initial_name).await?)
            .name(other_link)
            .setns_by_fd(target)
            .build();
        handle.link().change(moved).execute().await
    })?;
    one.set_up_link(one_link)?;
    other.set_mtu(other_link, mtu_bytes)?;

    other.set_up_link(other_link)
}

impl Namespace {
    /// Creates a bridge, adds links of the namespace to it and brings it up.
    ///
    /// # Errors
    ///
    /// [`LabError::Netlink`], for instance if there is a link called `bridge`.
    pub fn bridge(&self, bridge: &str, links: &[&str]) -> Result<(), LabError> {
        let name = bridge.to_owned();
        let links: Vec<String> = links.iter().map(|&link| link.to_owned()).collect();

        self.netlink(format!("bridge {links:?}"), async move |handle| {
            handle.link().add(LinkBridge::new(&name).up().build()).execute().await?;
            let bridge = index(&handle, &name).await?;
            for link in links {
                let port = LinkUnspec::new_with_index(index(&handle, &link).await?);
                handle.link().change(port.controller(bridge).build()).execute().await?;
            }
            Ok(())
        })
    }

    /// Removes a link; the other end of a veth pair is removed too.
    ///
    /// # Errors
    ///
    /// [`LabError::Netlink`] if there is no such link.
    pub fn remove_link(&self, link: &str) -> Result<(), LabError> {
        let name = link.to_owned();

        self.netlink(format!("remove {link}"), async move |handle| {
            handle.link().del(index(&handle, &name).await?).execute().await
        })
    }

    /// Brings a link up.
    ///
    /// # Errors
    ///
    /// [`LabError::Netlink`] if there is no such link.
    pub fn set_up_link(&self, link: &str) -> Result<(), LabError> {
        let name = link.to_owned();

        self.netlink(format!("bring {link} up"), async move |handle| {
            let up = LinkUnspec::new_with_index(index(&handle, &name).await?).up().build();
            handle.link().change(up).execute().await
        })
    }

    /// Changes the MTU of a link.
    ///
    /// # Errors
    ///
    /// [`LabError::Netlink`] if the link does not support it.
    pub fn set_mtu(&self, link: &str, mtu_bytes: u32) -> Result<(), LabError> {
        let name = link.to_owned();

        self.netlink(format!("set the MTU of {link} to {mtu_bytes}"), async move |handle| {
            let mtu =
                LinkUnspec::new_with_index(index(&handle, &name).await?).mtu(mtu_bytes).build();
            handle.link().change(mtu).execute().await
        })
    }

    /// Adds an address to a link.
    ///
    /// # Errors
    ///
    /// [`LabError::Netlink`], for instance if the link already has it.
    pub fn add_address(&self, link: &str, address: IpNet) -> Result<(), LabError> {
        let name = link.to_owned();

        self.netlink(format!("add {address} to {link}"), async move |handle| {
            let index = index(&handle, &name).await?;
            handle.address().add(index, address.addr(), address.prefix_len()).execute().await
        })
    }

    /// Adds a route through a link.
    ///
    /// # Errors
    ///
    /// [`LabError::Netlink`], for instance if the route exists.
    pub fn add_route(&self, destination: IpNet, link: &str, via: Via) -> Result<(), LabError> {
        self.route(destination, link, via, false)
    }

    /// Adds a route through a link, or atomically replaces the existing route.
    ///
    /// # Errors
    ///
    /// [`LabError::Netlink`] if there is no such link.
    pub fn replace_route(&self, destination: IpNet, link: &str, via: Via) -> Result<(), LabError> {
        self.route(destination, link, via, true)
    }

    fn route(
        &self,
        destination: IpNet,
        link: &str,
        via: Via,
        replaces: bool,
    ) -> Result<(), LabError> {
        let operation = format!("add a route to {destination} through {link}");
        let name = link.to_owned();

        self.netlink(operation, async move |handle| {
            let (address, len) = (destination.network(), destination.prefix_len());
            let invalid = |_| rtnetlink::Error::RequestFailed;
            let mut route = RouteMessageBuilder::<IpAddr>::new()
                .destination_prefix(address, len)
                .map_err(invalid)?
                .output_interface(index(&handle, &name).await?);
            if let Via::Router(router) = via {
                route = route.gateway(router).map_err(invalid)?.onlink();
            }
            let request = handle.route().add(route.build());
            let request = if replaces { request.replace() } else { request };
            request.execute().await
        })
    }

    /// Whether the namespace has a link of that name.
    ///
    /// # Errors
    ///
    /// [`LabError::Io`] if netlink is not available.
    pub fn has_link(&self, link: &str) -> Result<bool, LabError> {
        let name = link.to_owned();

        match self.netlink("look for a link", async move |handle| index(&handle, &name).await) {
            Ok(_) => Ok(true),
            Err(LabError::Netlink { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn netlink<T: Send + 'static>(
        &self,
        operation: impl Into<String>,
        request: impl AsyncFnOnce(Handle) -> Result<T, rtnetlink::Error> + Send + 'static,
    ) -> Result<T, LabError> {
        let operation = format!("{} in namespace {}", operation.into(), self.name());

        self.run(move || {
            let io = || LabError::io(operation.clone());
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(io())?;

            runtime.block_on(async {
                let (connection, handle, _) = rtnetlink::new_connection().map_err(io())?;
                tokio::spawn(connection);
                request(handle).await.map_err(LabError::netlink(operation.clone()))
            })
        })
    }
}

async fn index(handle: &Handle, link: &str) -> Result<u32, rtnetlink::Error> {
    let mut found = handle.link().get().match_name(link.to_owned()).execute();
    let message = found.try_next().await?.ok_or(rtnetlink::Error::RequestFailed)?;

    Ok(message.header.index)
}
