//! The VXLAN device: created when it is needed, corrected when it was changed, and removed.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use futures_util::TryStreamExt as _;
use rtnetlink::packet_route::address::AddressScope;
use rtnetlink::packet_route::link::{
    AfSpecInet, AfSpecUnspec, InetDevConf, InfoData, InfoKind, InfoVxlan, LinkAttribute, LinkFlags,
    LinkInfo, LinkMessage,
};
use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkVxlan};
use strait_host::netlink::{address_of, answer};

use super::{Kernel, KernelError};
use crate::forwarding::Overlay;
use crate::state::Mac;

/// The alias of the device: one with another alias, or none, belongs to another program.
const ALIAS: &str = "made by strait node";

/// Loose reverse path filtering: a source is valid if any route leads there. Packets of pods arrive on the device, but
/// the route to the pods leads to another one, of the CNI.
const LOOSE: i32 = 2;

/// The address of the device: on an interface without an address the kernel accepts no source, even with a loose filter
/// (`__fib_validate_source`). It is link-local, so no packet has it as source, and no host route leads there; each node
/// has the same.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(169, 254, 83, 83);

/// The TTL of the datagrams, above the number of routers in any network of nodes (the default of VXLAN takes that of
/// routes).
const TTL: u8 = 64;

/// An interface that is the VXLAN device, or has its name.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// Whether this program created it.
    pub(crate) is_ours: bool,
    is_up: bool,
    has_address: bool,
    mac: Option<Mac>,
    mtu_bytes: u32,
    info: Vec<InfoVxlan>,
}

impl Device {
    /// Whether its settings are right that cannot be changed on an existing device, or not while packets pass.
    pub(crate) fn is_like(&self, wanted: &Overlay) -> bool {
        self.name == wanted.device && fixed(wanted).iter().all(|info| self.info.contains(info))
    }
}

impl Kernel {
    /// Our device, under any name, and further ones of ours; if there are none, the interface called `name`, of any
    /// program.
    pub(super) async fn devices(
        &self,
        name: &str,
    ) -> Result<(Option<Device>, Vec<Device>), KernelError> {
        let mut request = self.handle.link().get();
        // The kernel then lists no others, unless it does not know the kind.
        let kind = LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Vxlan)]);
        request.message_mut().attributes.push(kind);
        let links: Vec<_> = answer(request.execute().try_collect())
            .await
            .map_err(KernelError::of("list interfaces"))?;
        let mut ours: Vec<_> = links.iter().map(read).filter(|device| device.is_ours).collect();
        ours.sort_by_key(|device| device.name != name);
        let mut ours = ours.into_iter();
        let device = match ours.next() {
            Some(device) => {
                let has_address = self.has_address(device.index).await?;
                Some(Device { has_address, ..device })
            }
            None => self.device(name).await?,
        };

        Ok((device, ours.collect()))
    }

    /// The interface called `name`, if there is one.
    async fn device(&self, name: &str) -> Result<Option<Device>, KernelError> {
        let mut links = Box::pin(self.handle.link().get().match_name(name.to_owned()).execute());
        match answer(links.try_next()).await {
            Ok(None) => Ok(None),
            Ok(Some(link)) => {
                let device = read(&link);
                let has_address = self.has_address(device.index).await?;
                Ok(Some(Device { has_address, ..device }))
            }
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(source) => Err(KernelError { operation: format!("look for {name}"), source }),
        }
    }

    /// Creates or corrects the device as `wanted`, and returns its index.
    ///
    /// # Errors
    ///
    /// [`KernelError`], also if an interface of that name belongs to another program.
    pub(crate) async fn set_device(
        &self,
        found: Option<&Device>,
        wanted: &Overlay,
    ) -> Result<u32, KernelError> {
        let failed = || KernelError::of(format!("make {wanted}"));
        let taken = || KernelError {
            operation: format!(
                "make {wanted}: an interface of that name belongs to another program, choose another --vxlan-device"
            ),
            source: io::ErrorKind::AlreadyExists.into(),
        };
        if let Some(found) = found {
            // A device without the alias is ours if the process that created it ended at that moment.
            let is_half_made = found.is_like(wanted) && found.mac == Some(wanted.mac);
            if !found.is_ours && !is_half_made {
                return Err(taken());
            }
            if found.is_like(wanted) {
                let is_right = found.is_ours
                    && found.is_up
                    && found.has_address
                    && found.mac == Some(wanted.mac)
                    && found.mtu_bytes == wanted.mtu_bytes;
                if !is_right {
                    self.ensure_device(found.index, wanted).await?;
                }
                return Ok(found.index);
            }
            if found.name != wanted.device && self.device(&wanted.device).await?.is_some() {
                return Err(taken());
            }
            self.remove_device(found).await?;
        }

        let made = fixed(wanted)
            .into_iter()
            .fold(LinkMessageBuilder::<LinkVxlan>::new(&wanted.device), |link, info| {
                link.append_info_data(info)
            })
            .ttl(TTL)
            .address(wanted.mac.0.to_vec())
            .mtu(wanted.mtu_bytes)
            .build();
        answer(self.handle.link().add(made).execute()).await.map_err(failed())?;
        let made = self.device(&wanted.device).await?;
        let index = made.map(|made| made.index).ok_or_else(|| KernelError {
            operation: format!("find {wanted}"),
            source: io::ErrorKind::NotFound.into(),
        })?;
        self.ensure_device(index, wanted).await?;

        Ok(index)
    }

    /// Sets what can be changed while packets pass.
    async fn ensure_device(&self, index: u32, wanted: &Overlay) -> Result<(), KernelError> {
        let failed = || KernelError::of(format!("set up {wanted}"));
        answer(self.handle.link().change(settings(index, wanted)).execute())
            .await
            .map_err(failed())?;
        let mut address = self.handle.address().add(index, ADDRESS.into(), 32);
        address.message_mut().header.scope = AddressScope::Link;
        match answer(address.execute()).await.map_err(failed()) {
            Err(error) if error.source.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            outcome => outcome,
        }
    }

    async fn has_address(&self, index: u32) -> Result<bool, KernelError> {
        let own = self.handle.address().get().set_link_index_filter(index).execute();
        let own: Vec<_> =
            answer(own.try_collect()).await.map_err(KernelError::of("list addresses"))?;

        Ok(own.iter().any(|own| address_of(&own.attributes) == Some(ADDRESS.into())))
    }

    /// Removes the device, if it is ours.
    pub(crate) async fn remove_device(&self, found: &Device) -> Result<(), KernelError> {
        if !found.is_ours {
            return Ok(());
        }
        let removed = answer(self.handle.link().del(found.index).execute()).await;
        match removed.map_err(KernelError::of("remove the VXLAN device")) {
            Err(error) if super::is_absent(&error.source) => Ok(()),
            outcome => outcome,
        }
    }

    /// The MTU of an interface in bytes.
    pub(super) async fn mtu(&self, index: u32) -> Option<u32> {
        let mut links = Box::pin(self.handle.link().get().match_index(index).execute());
        let link = answer(links.try_next()).await.ok()??;

        link.attributes.iter().find_map(|attribute| {
            if let LinkAttribute::Mtu(bytes) = attribute { Some(*bytes) } else { None }
        })
    }
}

/// The settings that only another device could have.
fn fixed(wanted: &Overlay) -> Vec<InfoVxlan> {
    let local = match wanted.local {
        IpAddr::V4(address) => InfoVxlan::Local(address),
        IpAddr::V6(address) => InfoVxlan::Local6(address),
    };

    // Nothing is learned from frames: otherwise an attacker with forged frames could divert those of others.
    vec![InfoVxlan::Id(wanted.vni), InfoVxlan::Port(wanted.port), local, InfoVxlan::Learning(false)]
}

/// The settings that can be changed while packets pass, including the alias: the kernel accepts none on creation.
fn settings(index: u32, wanted: &Overlay) -> LinkMessage {
    let mut conf = InetDevConf::default();
    conf.rp_filter = LOOSE;
    let conf = AfSpecUnspec::Inet(vec![AfSpecInet::DevConfRequest(conf)]);

    LinkUnspec::new_with_index(index)
        .up()
        .address(wanted.mac.0.to_vec())
        .mtu(wanted.mtu_bytes)
        .alias(ALIAS)
        .append_extra_attribute(LinkAttribute::AfSpecUnspec(vec![conf]))
        .build()
}

fn read(link: &LinkMessage) -> Device {
    let mut device = Device {
        index: link.header.index,
        name: String::new(),
        is_ours: false,
        is_up: link.header.flags.contains(LinkFlags::Up),
        has_address: false,
        mac: None,
        mtu_bytes: 0,
        info: Vec::new(),
    };
    let (mut is_vxlan, mut has_alias) = (false, false);
    for attribute in &link.attributes {
        if let LinkAttribute::IfName(name) = attribute {
            device.name.clone_from(name);
        } else if let LinkAttribute::Address(bytes) = attribute {
            device.mac = <[u8; 6]>::try_from(bytes.as_slice()).ok().map(Mac);
        } else if let LinkAttribute::Mtu(bytes) = attribute {
            device.mtu_bytes = *bytes;
        } else if let LinkAttribute::IfAlias(alias) = attribute {
            has_alias = alias == ALIAS;
        } else if let LinkAttribute::LinkInfo(infos) = attribute {
            for info in infos {
                if let LinkInfo::Kind(kind) = info {
                    is_vxlan = *kind == InfoKind::Vxlan;
                } else if let LinkInfo::Data(InfoData::Vxlan(data)) = info {
                    device.info.clone_from(data);
                }
            }
        }
    }
    device.is_ours = is_vxlan && has_alias;

    device
}
