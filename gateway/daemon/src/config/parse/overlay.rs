//! Parses `[overlay]`.

use std::collections::HashSet;
use std::net::IpAddr;

use remap::Prefix;
use strait_api::vxlan;
use strait_io::overlay::{Node, Settings};
use strait_packet::overlay::ethernet::Mac;
use strait_packet::overlay::{Encapsulation, Vni};
use toml::Spanned;

use super::Parser;
use crate::config::Problem;
use crate::config::file::{NodeSection, OverlaySection};

/// The port of Liqo's fabric.
const GENEVE_PORT: u16 = 6091;

/// What the nodes of a file have already.
#[derive(Default)]
struct Taken {
    addresses: HashSet<IpAddr>,
    pods: HashSet<Prefix>,
}

impl Parser<'_> {
    /// `None` if a value is wrong.
    pub(super) fn overlay(
        &mut self,
        section: &OverlaySection,
        listen_port: Option<u16>,
    ) -> Option<Settings> {
        let OverlaySection { encapsulation, port, vni, mac, node } = section;
        let encapsulation = match encapsulation {
            Some(text) => self.encapsulation(text),
            None => Some(Encapsulation::Vxlan),
        };
        let number = match port {
            Some(port) => self.range("port", port, 1, ""),
            None if encapsulation == Some(Encapsulation::Geneve) => Some(GENEVE_PORT),
            None => Some(vxlan::PORT),
        };
        if let (Some(place), Some(port)) = (port, number.filter(|port| Some(*port) == listen_port))
        {
            self.push(place, Problem::OverlayPortTaken { port });
        }
        let vni = match vni {
            Some(vni) => self.vni(vni),
            None => Vni::new(vxlan::VNI),
        };
        let mac = mac.as_ref().and_then(|mac| self.mac(mac));
        let mut taken = Taken::default();
        let nodes =
            node.iter().filter_map(|node| self.node(node.get_ref(), vni, &mut taken)).collect();

        Some(Settings { encapsulation: encapsulation?, port: number?, mac, nodes, host: None })
    }

    fn node(&mut self, section: &NodeSection, vni: Option<Vni>, taken: &mut Taken) -> Option<Node> {
        let NodeSection { address, vni: own_vni, mac, pods } = section;
        let outer = self.node_address(address, taken);
        let vni = match own_vni {
            Some(vni) => self.vni(vni),
            None => vni,
        };
        let mac = mac.as_ref().and_then(|mac| self.mac(mac));
        let pods = pods.iter().filter_map(|text| self.pods(text, taken)).collect();

        Some(Node { mac, pods, ..Node::new(outer?, vni?) })
    }

    fn node_address(&mut self, text: &Spanned<String>, taken: &mut Taken) -> Option<IpAddr> {
        let Ok(address) = text.get_ref().parse::<IpAddr>() else {
            let (key, value) = ("address", text.get_ref().clone());
            return self.reject(text, Problem::HostAddress { key, value });
        };
        if !taken.addresses.insert(address) {
            return self.reject(text, Problem::DuplicateNode { address });
        }

        self.routable("address", text, address.into()).map(|_| address)
    }

    fn pods(&mut self, text: &Spanned<String>, taken: &mut Taken) -> Option<Prefix> {
        let prefix = self.prefix("pods", text)?;
        if !taken.pods.insert(prefix) {
            return self.reject(text, Problem::DuplicatePods { prefix });
        }

        Some(prefix)
    }

    fn encapsulation(&mut self, text: &Spanned<String>) -> Option<Encapsulation> {
        match text.get_ref().as_str() {
            "vxlan" => Some(Encapsulation::Vxlan),
            "geneve" => Some(Encapsulation::Geneve),
            value => self.reject(text, Problem::Encapsulation { value: value.to_owned() }),
        }
    }

    fn vni(&mut self, number: &Spanned<i64>) -> Option<Vni> {
        let value = *number.get_ref();
        match u32::try_from(value).ok().and_then(Vni::new) {
            Some(vni) => Some(vni),
            None => self.reject(number, Problem::Vni { value }),
        }
    }

    fn mac(&mut self, text: &Spanned<String>) -> Option<Mac> {
        match parse_mac(text.get_ref()).filter(|mac| mac.is_station()) {
            Some(mac) => Some(mac),
            None => self.reject(text, Problem::Mac { value: text.get_ref().clone() }),
        }
    }
}

/// Six bytes in hexadecimal, two digits each, with colons.
fn parse_mac(text: &str) -> Option<Mac> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let digits = parts.next()?;
        let is_byte = digits.len() == 2 && digits.chars().all(|digit| digit.is_ascii_hexdigit());
        *byte = u8::from_str_radix(digits, 16).ok().filter(|_| is_byte)?;
    }

    parts.next().is_none().then_some(Mac(bytes))
}
