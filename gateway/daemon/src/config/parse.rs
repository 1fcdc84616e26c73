//! Converts the parsed file into a [`Config`] and collects all errors.

mod cluster;
mod overlay;
mod peer;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use remap::{Prefix, Table, special};
use strait_host::interface::is_interface_name;
use strait_host::netlink::MTU_MIN_IPV6;
use strait_io::Workers;
use strait_plan::Plan;
use strait_wg::PrivateKey;
use toml::Spanned;

use super::file::{self, GatewaySection};
use super::{AdminSocket, Config, Engine, Finding, Origins, Problem, keyfile};
use crate::resolver::CHECK_INTERVAL;

/// Longest name in characters, as long as a DNS label: names become label values in metrics.
const NAME_MAX_LEN: usize = 63;

/// Longest path in bytes. The kernel accepts 107; the rest is for the temporary name of a new socket.
const SOCKET_PATH_MAX_LEN: usize = 100;

/// In bytes. Every IPv4 host accepts a datagram of this size (RFC 791 section 3.1).
pub(crate) const MTU_MIN: u16 = 576;

/// Default number of masqueraded flows: each takes about a hundred bytes.
pub(crate) const DEFAULT_MAX_FLOWS: u32 = 1 << 18;
const MIN_MAX_FLOWS: u32 = 1 << 10;
const MAX_MAX_FLOWS: u32 = 1 << 22;

/// Default name of the TUN device.
pub const DEFAULT_INTERFACE: &str = "strait0";
const DEFAULT_LISTEN_PORT: u16 = 51840;

/// Parses `text`, the content of the file at `path`. `host_name` is the default name.
///
/// # Errors
///
/// All errors, in no particular order. Never empty.
pub(super) fn config(text: &str, path: &Path, host_name: &str) -> Result<Config, Vec<Finding>> {
    let (file, key_origins) = file::parse(text, path).map_err(|error| {
        let line = error.offset.map(|offset| Lines::new(text).number(offset));
        vec![Finding { line, problem: Problem::Syntax { message: error.message } }]
    })?;

    let dir = path.parent().unwrap_or(Path::new(""));
    let mut parser = Parser { lines: Lines::new(text), dir, findings: Vec::new() };
    let config = parser.config(file, host_name);

    match config {
        Some(mut config) if parser.findings.is_empty() => {
            key_origins.fill(&mut config);
            Ok(config)
        }
        _ => Err(parser.findings),
    }
}

struct Parser<'a> {
    lines: Lines,
    dir: &'a Path,
    findings: Vec<Finding>,
}

impl Parser<'_> {
    /// Every value is checked before the first `?`, so that one run finds all errors.
    fn config(&mut self, file: file::File, host_name: &str) -> Option<Config> {
        let GatewaySection {
            name,
            interface,
            addresses,
            listen_port,
            mtu,
            private_key_file,
            metrics_address,
            admin_socket,
            engine,
            routes,
            mss_clamp,
            workers,
            offload,
        } = file.gateway;

        let name = match name {
            Some(name) => self.name("name", &name),
            None => Some(host_name.to_owned()),
        };
        let interface = self.interface(interface.as_ref());
        let file_addresses = addresses;
        let addresses = self.addresses(&file_addresses);
        let listen_port = match listen_port {
            Some(port) => self.range("listen_port", &port, 0, " (0 lets the kernel choose)"),
            None => Some(DEFAULT_LISTEN_PORT),
        };
        let mtu_line = mtu.as_ref().map(|mtu| self.line(mtu));
        let mtu_bytes = mtu.and_then(|mtu| self.range("mtu", &mtu, MTU_MIN, " bytes"));
        let private_key = self.private_key(&private_key_file);
        let metrics_address = metrics_address.and_then(|text| self.metrics_address(&text));
        let admin_socket = match admin_socket {
            Some(text) => self.admin_socket(&text),
            None => Some(AdminSocket::default()),
        };
        let engine = match engine {
            Some(engine) => self.engine(&engine),
            None => Some(Engine::default()),
        };
        let workers = match workers {
            Some(workers) => self.workers(&workers),
            None => Some(Workers::default()),
        };
        let overlay = file.overlay.as_ref().map(|section| self.overlay(section, listen_port));
        if let (Some(_), Some(first)) = (&overlay, file_addresses.first()) {
            self.push(first, Problem::AddressesWithOverlay);
        }
        let cluster = self.cluster(&file.cluster);
        let max_flows = match &file.cluster.max_flows {
            Some(flows) => self.max_flows(flows),
            None => Some(DEFAULT_MAX_FLOWS),
        };
        let peers = self.peers(&file.peer, private_key.as_ref());

        let mut config = Config {
            name: name?,
            interface: interface?,
            overlay: overlay.flatten(),
            addresses,
            listen_port: listen_port?,
            mtu_bytes,
            private_key: private_key?,
            metrics_address,
            admin_socket: admin_socket?,
            engine: engine?,
            routes: routes.unwrap_or(true),
            mss_clamp: mss_clamp.unwrap_or(true),
            max_flows: max_flows?,
            workers: workers?,
            offload: offload.into(),
            dns_check_interval: CHECK_INTERVAL,
            cluster,
            peers,
            table: Table::default(),
            origins: Origins::default(),
        };
        self.check_mtu(&config, mtu_line);
        // The plan of an incomplete configuration would report follow-up errors.
        if self.findings.is_empty() {
            self.plan(&mut config);
        }

        Some(config)
    }

    fn name(&mut self, key: &'static str, name: &Spanned<String>) -> Option<String> {
        let value = name.get_ref();
        let is_name = (1..=NAME_MAX_LEN).contains(&value.chars().count())
            && !value.chars().any(|c| c.is_whitespace() || c.is_control());
        if !is_name {
            return self.reject(name, Problem::Name { key, value: value.clone() });
        }

        Some(value.clone())
    }

    fn interface(&mut self, interface: Option<&Spanned<String>>) -> Option<String> {
        let Some(interface) = interface else {
            return Some(DEFAULT_INTERFACE.to_owned());
        };
        let value = interface.get_ref();
        if !is_interface_name(value) {
            return self.reject(interface, Problem::Interface { value: value.clone() });
        }

        Some(value.clone())
    }

    fn addresses(&mut self, texts: &[Spanned<String>]) -> Vec<IpNet> {
        let mut addresses = Vec::with_capacity(texts.len());
        for text in texts {
            let Ok(address) = text.get_ref().parse::<IpNet>() else {
                let value = text.get_ref().clone();
                self.push(text, Problem::Address { value });
                continue;
            };
            if !is_host(address.addr()) || special::block(address.addr().into(), false).is_some() {
                self.push(text, Problem::UnusableAddress { address });
            } else if addresses.contains(&address) {
                self.push(text, Problem::DuplicateAddress { address });
            } else {
                addresses.push(address);
            }
        }

        addresses
    }

    /// A number from `min` to 65535.
    fn range(
        &mut self,
        key: &'static str,
        number: &Spanned<i64>,
        min: u16,
        hint: &'static str,
    ) -> Option<u16> {
        let value = *number.get_ref();
        match u16::try_from(value) {
            Ok(number) if number >= min => Some(number),
            _ => self.reject(number, Problem::Range { key, value, min, max: u16::MAX, hint }),
        }
    }

    fn max_flows(&mut self, number: &Spanned<i64>) -> Option<u32> {
        let value = *number.get_ref();
        match u32::try_from(value) {
            Ok(flows) if (MIN_MAX_FLOWS..=MAX_MAX_FLOWS).contains(&flows) => Some(flows),
            _ => self.reject(
                number,
                Problem::MaxFlows { value, min: MIN_MAX_FLOWS, max: MAX_MAX_FLOWS },
            ),
        }
    }

    fn prefix(&mut self, key: &'static str, text: &Spanned<String>) -> Option<Prefix> {
        let value = text.get_ref();
        let prefix: Prefix = match value.parse() {
            Ok(prefix) => prefix,
            Err(cause) => {
                return self.reject(text, Problem::Prefix { key, value: value.clone(), cause });
            }
        };

        self.routable(key, text, prefix.to_net()).map(|_| prefix)
    }

    /// Returns `net`, unless packets through the tunnel can never have an address in it.
    fn routable(&mut self, key: &'static str, text: &Spanned<String>, net: IpNet) -> Option<IpNet> {
        match special::block(net, key != "allowed_ips") {
            None => Some(net),
            Some(block) => self.reject(text, Problem::NeverRouted { key, net, block }),
        }
    }

    fn private_key(&mut self, file: &Spanned<String>) -> Option<PrivateKey> {
        let key = "private_key_file";
        match keyfile::private_key(&self.resolve(file)) {
            Ok(private_key) => Some(private_key),
            Err(cause) => self.reject(file, Problem::KeyFile { key, cause }),
        }
    }

    fn metrics_address(&mut self, text: &Spanned<String>) -> Option<SocketAddr> {
        match text.get_ref().parse() {
            Ok(address) => Some(address),
            Err(_) => self.reject(text, Problem::MetricsAddress { value: text.get_ref().clone() }),
        }
    }

    /// Parses an absolute path, or an empty text for no socket.
    fn admin_socket(&mut self, text: &Spanned<String>) -> Option<AdminSocket> {
        let value = text.get_ref();
        if value.is_empty() {
            return Some(AdminSocket::Off);
        }
        let is_path = value.starts_with('/')
            && !value.ends_with('/')
            && value.len() <= SOCKET_PATH_MAX_LEN
            && !value.contains('\0');
        if !is_path {
            let problem = Problem::AdminSocket { value: value.clone(), max: SOCKET_PATH_MAX_LEN };
            return self.reject(text, problem);
        }

        Some(AdminSocket::At(PathBuf::from(value)))
    }

    fn engine(&mut self, text: &Spanned<String>) -> Option<Engine> {
        match text.get_ref().parse() {
            Ok(engine) => Some(engine),
            Err(_) => self.reject(text, Problem::Engine { value: text.get_ref().clone() }),
        }
    }

    fn workers(&mut self, value: &Spanned<toml::Value>) -> Option<Workers> {
        let (max, wanted) = (Workers::MAX, value.get_ref());
        if wanted.as_str() == Some("auto") {
            return Some(Workers::Auto);
        }
        let count = wanted.as_integer().and_then(|count| u8::try_from(count).ok());
        match count.filter(|count| *count <= max) {
            Some(count) => Some(Workers::Exactly(count)),
            None => self.reject(value, Problem::Workers { value: wanted.to_string(), max }),
        }
    }

    fn check_mtu(&mut self, config: &Config, line: Option<usize>) {
        if let Some(mtu) = config.mtu_bytes.filter(|mtu| *mtu < MTU_MIN_IPV6)
            && let Some(because) = config.first_ipv6()
        {
            let problem = Problem::MtuTooSmallForIpv6 { mtu, because };
            self.findings.push(Finding { line, problem });
        }
    }

    /// The single values are valid; the plan checks that they agree.
    fn plan(&mut self, config: &mut Config) {
        let Plan { table, rejected } = strait_plan::plan(&config.cluster, &config.peers);
        config.table = table;
        for rejection in rejected {
            self.findings.push(Finding { line: None, problem: Problem::Rejected(rejection) });
        }
    }

    /// File names are relative to the configuration file.
    fn resolve(&self, file: &Spanned<String>) -> PathBuf {
        self.dir.join(file.get_ref())
    }

    fn reject<S, T>(&mut self, place: &Spanned<S>, problem: Problem) -> Option<T> {
        self.push(place, problem);

        None
    }

    fn push<S>(&mut self, place: &Spanned<S>, problem: Problem) {
        let line = Some(self.line(place));
        self.findings.push(Finding { line, problem });
    }

    fn line<S>(&self, place: &Spanned<S>) -> usize {
        self.lines.number(place.span().start)
    }
}

/// The positions of the line ends of a text.
pub(super) struct Lines(Vec<usize>);

impl Lines {
    pub(super) fn new(text: &str) -> Self {
        Self(text.match_indices('\n').map(|(end, _)| end).collect())
    }

    /// The line of the byte at `offset`, counted from 1.
    pub(super) fn number(&self, offset: usize) -> usize {
        1 + self.0.partition_point(|end| *end < offset)
    }
}

fn is_host(address: IpAddr) -> bool {
    let is_broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);

    !address.is_unspecified() && !address.is_multicast() && !is_broadcast
}
