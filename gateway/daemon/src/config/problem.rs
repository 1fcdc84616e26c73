//! The errors of a configuration, each with the value and the remedy.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use remap::{HostMapError, Prefix, PrefixError, RuleError};
use strait_host::exit_status::{ExitStatus, USAGE};
use strait_plan::Rejection;
use strait_wg::KeyError;
use strait_wg::redact::without_keys;

use super::EndpointError;
use super::keyfile::KeyFileError;

/// One error. The message fits on one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Problem {
    #[error("cannot read the configuration: {cause}; name a TOML file with --config")]
    Unreadable { cause: io::Error },
    #[error("{message}")]
    Syntax { message: String },
    #[error("{key} {value:?} is not a name: use 1 to 63 characters without white space")]
    Name { key: &'static str, value: String },
    #[error(
        "peer name {name:?} is taken by the peer in line {first_line}: give each peer its own name"
    )]
    DuplicateName { name: String, first_line: usize },
    #[error(
        "interface {value:?} is not a name for a device: use 1 to 15 bytes without '/', ':', '%' \
         and white space"
    )]
    Interface { value: String },
    #[error("address {value:?} is not an address: write address/length, as in 169.254.18.1/30")]
    Address { value: String },
    #[error("address {address} cannot be given to a device: use the address of one host")]
    UnusableAddress { address: IpNet },
    #[error("address {address} is listed twice: remove one of them")]
    DuplicateAddress { address: IpNet },
    #[error("{key} {value} is out of range: use {min} to {max}{hint}")]
    Range { key: &'static str, value: i64, min: u16, max: u16, hint: &'static str },
    #[error(
        "mtu {mtu} is below 1280, at which Linux removes IPv6 from the device: use 1280 or more, \
         or remove IPv6 prefix {because}"
    )]
    MtuTooSmallForIpv6 { mtu: u16, because: String },
    #[error(
        "metrics_address {value:?} is not an address: write address:port, as in 127.0.0.1:9090"
    )]
    MetricsAddress { value: String },
    #[error(
        "admin_socket {value:?} is not a path for a socket: use an absolute one of at most {max} \
         bytes, or \"\" for none"
    )]
    AdminSocket { value: String, max: usize },
    #[error("engine {value:?} is not known: use \"native\" or \"boringtun\"")]
    Engine { value: String },
    #[error("public_key {value:?}: {cause}; use what `strait key public` prints at the peer")]
    PublicKey { value: String, cause: KeyError },
    #[error(
        "public_key {value:?} has {len} characters: use the 44 that `strait key public` prints at \
         the peer"
    )]
    PublicKeyLength { value: String, len: usize },
    #[error(
        "peer {peer:?} has our own public key: use what `strait key public` prints at the peer"
    )]
    OwnKey { peer: String },
    #[error(
        "peers {first:?} and {second:?} have the same public_key: give each gateway its own key"
    )]
    DuplicateKey { first: String, second: String },
    #[error("{key}: {cause}")]
    KeyFile { key: &'static str, cause: KeyFileError },
    #[error("endpoint {value:?} {cause}")]
    Endpoint { value: String, cause: EndpointError },
    #[error(
        "endpoint and endpoints are both set: list all of them under endpoints, the best first"
    )]
    EndpointTwice,
    #[error("endpoints lists {count} addresses: use the best {max}")]
    TooManyEndpoints { count: usize, max: usize },
    #[error("peer {peer:?} has no allowed_ips: list the prefixes behind it")]
    NoAllowedIps { peer: String },
    #[error("{key}: {cause}")]
    Prefix { key: &'static str, value: String, cause: PrefixError },
    #[error(
        "{key}: {net} lies in {block}, which is routed nowhere (RFC 6890): use addresses of hosts that \
         packets reach"
    )]
    NeverRouted { key: &'static str, net: IpNet, block: IpNet },
    #[error("peer {peer:?}: {cause}")]
    Rule { peer: String, cause: RuleError },
    #[error("{key} {value:?} is not an address: write one host, as in 192.0.2.9")]
    HostAddress { key: &'static str, value: String },
    #[error("host map: {cause}")]
    HostMap { cause: HostMapError },
    #[error(
        "external address {external} lies in pod_cidrs {pods}: a pod may have it; take it from external_cidrs"
    )]
    ExternalIsPod { external: Prefix, pods: Prefix },
    #[error("masquerade needs pod_cidrs: without them the pods would be masqueraded too")]
    MasqueradeWithoutPods,
    #[error("masquerade {prefix} holds more than {max} addresses: list fewer")]
    PoolTooLarge { prefix: Prefix, max: usize },
    #[error("max_flows {value} is out of range: use {min} to {max}")]
    MaxFlows { value: i64, min: u32, max: u32 },
    #[error("workers {value} is neither \"auto\" nor a number from 0 to {max}")]
    Workers { value: String, max: u8 },
    #[error("encapsulation {value:?} is not known: use \"vxlan\" or \"geneve\"")]
    Encapsulation { value: String },
    #[error("vni {value} is out of range: use 0 to 16777215")]
    Vni { value: i64 },
    #[error("mac {value:?} is not the address of one station: write one as in 0e:53:ac:12:03:01")]
    Mac { value: String },
    #[error("address {address} is that of two nodes: give each node its own")]
    DuplicateNode { address: IpAddr },
    #[error("pods: {prefix} is listed twice: remove one of them")]
    DuplicatePods { prefix: Prefix },
    #[error("addresses are for a device, and a gateway with an overlay has none: remove them")]
    AddressesWithOverlay,
    #[error("port {port} is listen_port too: give the overlay another one")]
    OverlayPortTaken { port: u16 },
    #[error("{0}")]
    Rejected(Rejection),
}

/// An error and its line in the file, if it has one.
#[derive(Debug)]
pub(crate) struct Finding {
    /// Counted from 1.
    pub(crate) line: Option<usize>,
    /// The error.
    pub(crate) problem: Problem,
}

/// All errors of one file, ordered by line. Never empty.
#[derive(Debug, thiserror::Error)]
pub struct Findings {
    file: PathBuf,
    findings: Vec<Finding>,
}

impl ExitStatus for Findings {
    fn exit_status(&self) -> u8 {
        USAGE
    }

    fn has_own_lines(&self) -> bool {
        true
    }
}

impl Findings {
    /// Sorts `findings` by line; those without a line come first.
    pub(super) fn new(file: PathBuf, mut findings: Vec<Finding>) -> Self {
        findings.sort_by_key(|finding| finding.line);

        Self { file, findings }
    }

    /// One line of text for each finding: `FILE:LINE: error and remedy`. Possible keys are not repeated.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        self.findings.iter().map(|Finding { line, problem }| {
            let problem = problem.to_string();
            let problem = without_keys(&problem);
            match line {
                Some(line) => format!("{}:{line}: {problem}", self.file.display()),
                None => format!("{}: {problem}", self.file.display()),
            }
        })
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, line) in self.lines().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{line}")?;
        }

        Ok(())
    }
}
