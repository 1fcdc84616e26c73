//! Settings, addresses and link state of the TUN device.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use futures_util::TryStreamExt as _;
use ipnet::IpNet;
use rtnetlink::packet_core::{DefaultNla, Emitable as _};
use rtnetlink::packet_route::link::{
    AfSpecInet, AfSpecInet6, AfSpecUnspec, In6AddrGenMode, LinkAttribute,
};
use rtnetlink::{LinkMessageBuilder, LinkUnspec};
use tracing::debug;

use super::{Netlink, address_of, answer};

/// `IFLA_INET_CONF` with `NLA_F_NESTED`, and two of its settings, which linux/ip.h counts from 1.
const INET_CONF: u16 = 1 | (1 << 15);
const ACCEPT_REDIRECTS: u16 = 4;
const SEND_REDIRECTS: u16 = 6;

/// In bytes. Every IPv6 link carries this much (RFC 8200 section 5); below it Linux removes IPv6 from the device.
pub const MTU_MIN_IPV6: u16 = 1280;

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its current name.
    pub name: String,
    /// The largest packet that it carries, in bytes.
    pub mtu_bytes: u32,
    /// Whether the flag `UP` is set.
    pub is_up: bool,
}

/// Why an interface has no IPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoIpv6 {
    /// `disable_ipv6` of the interface of this name is 1.
    SwitchedOff(String),
    /// The MTU of the interface, in bytes, is less than IPv6 needs.
    Mtu(u32),
    /// The kernel was built or started without IPv6.
    Kernel,
}

impl fmt::Display for NoIpv6 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SwitchedOff(name) => write!(
                f,
                "IPv6 is switched off on {name}: set net.ipv6.conf.{name}.disable_ipv6=0, or use IPv4 \
                 prefixes only"
            ),
            Self::Mtu(bytes) => write!(
                f,
                "MTU {bytes} of the device is less than the {MTU_MIN_IPV6} that IPv6 needs: raise it, or \
                 use IPv4 prefixes only"
            ),
            Self::Kernel => f.write_str("this host has no IPv6: use IPv4 prefixes only"),
        }
    }
}

/// An address that could not be added to the device.
#[derive(Debug, thiserror::Error)]
#[error("the device lacks address {address}: {cause}")]
pub struct AddressError {
    /// The missing address.
    pub address: IpNet,
    cause: String,
}

impl Netlink {
    /// Sets what the kernel's WireGuard devices have: no generated link-local address, and no ICMP redirects, which a
    /// hub would send to peers about each other. Settings that the kernel rejects stay as they are, as without IPv6
    /// or with a read-only /proc/sys.
    pub async fn prepare_tunnel(&self, index: u32) {
        let no_link_local = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
        let settings = [
            AfSpecUnspec::Inet6(vec![no_link_local]),
            AfSpecUnspec::Inet(vec![AfSpecInet::Other(without_redirects())]),
        ];
        for setting in settings {
            let change = LinkMessageBuilder::<LinkUnspec>::default()
                .index(index)
                .append_extra_attribute(LinkAttribute::AfSpecUnspec(vec![setting.clone()]))
                .build();
            if let Err(error) = answer(self.handle.link().set(change).execute()).await {
                debug!(%error, ?setting, "the device keeps the default of the kernel");
            }
        }
        // A device sends redirects if its own setting or this one is on; the other devices keep their own.
        if let Err(error) = fs::write("/proc/sys/net/ipv4/conf/all/send_redirects", "0") {
            debug!(%error, "net.ipv4.conf.all.send_redirects stays as it is");
        }
    }

    /// Brings the interface `index` up.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub async fn set_up(&self, index: u32) -> io::Result<()> {
        let up = LinkMessageBuilder::<LinkUnspec>::default().index(index).up().build();

        answer(self.handle.link().set(up).execute()).await
    }

    /// Sets the MTU of the interface `index`, in bytes.
    ///
    /// # Errors
    ///
    /// If the kernel refuses.
    pub async fn set_mtu(&self, index: u32, bytes: u16) -> io::Result<()> {
        let change = LinkMessageBuilder::<LinkUnspec>::default().index(index).mtu(bytes.into());

        answer(self.handle.link().set(change.build()).execute()).await
    }

    /// Adds the addresses of `wanted` that the interface `index` lacks, and returns the errors. The interface must be
    /// up.
    ///
    /// # Errors
    ///
    /// If the addresses cannot be listed.
    pub async fn sync_addresses(
        &self,
        index: u32,
        wanted: &[IpNet],
    ) -> io::Result<Vec<AddressError>> {
        let on_it = self.handle.address().get().set_link_index_filter(index).execute();
        let on_it: Vec<_> = answer(on_it.try_collect()).await?;
        let present: BTreeSet<_> =
            on_it.iter().filter_map(|message| address_of(&message.attributes)).collect();

        let mut errors = Vec::new();
        for address in wanted.iter().filter(|wanted| !present.contains(&wanted.addr())) {
            let add = self.handle.address().add(index, address.addr(), address.prefix_len());
            match answer(add.execute()).await {
                Ok(()) => {}
                // Another process added it first.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    let cause = match self.no_ipv6(index, *address).await {
                        Some(no_ipv6) => no_ipv6.to_string(),
                        None => error.to_string(),
                    };
                    errors.push(AddressError { address: *address, cause });
                }
            }
        }

        Ok(errors)
    }

    /// Why the interface `index` rejects `prefix` or a route to it, if the reason is missing IPv6.
    pub(super) async fn no_ipv6(&self, index: u32, prefix: IpNet) -> Option<NoIpv6> {
        let link = self.link(index).await.ok().flatten()?;
        if matches!(prefix, IpNet::V4(_)) {
            return None;
        }
        if link.mtu_bytes < u32::from(MTU_MIN_IPV6) {
            return Some(NoIpv6::Mtu(link.mtu_bytes));
        }

        let settings = Path::new("/proc/sys/net/ipv6/conf");
        match fs::read_to_string(settings.join(&link.name).join("disable_ipv6")) {
            Ok(value) => (value.trim() == "1").then_some(NoIpv6::SwitchedOff(link.name)),
            Err(_) => (!settings.exists()).then_some(NoIpv6::Kernel),
        }
    }
}

/// Built by hand, because `AfSpecInet::DevConfRequest` omits values of 0.
fn without_redirects() -> DefaultNla {
    let mut settings = Vec::new();
    for setting in [ACCEPT_REDIRECTS, SEND_REDIRECTS] {
        let off = DefaultNla::new(setting, 0_u32.to_ne_bytes().to_vec());
        let mut bytes = vec![0; off.buffer_len()];
        off.emit(&mut bytes);
        settings.extend(bytes);
    }

    DefaultNla::new(INET_CONF, settings)
}
