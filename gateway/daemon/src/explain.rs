//! `strait explain`: how a packet is handled, by a running gateway or by the gateway of a configuration file.

mod protocol;
pub(crate) mod report;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use strait_engine::Engine;
use strait_engine::explain::{
    Content, Direction, Explanation, Question, QuestionError, Situation, explain,
};
use strait_engine::flows::FlowAccess;
use strait_engine::translate::Context;
use strait_host::exit_status::{ExitStatus, UNAVAILABLE, USAGE};
use strait_host::interface::interface_flag;
use strait_host::stdout;
use strait_io::Monitor;
use strait_wg::boringtun::BoringtunIdentity;

use super::admin::StatusBoard;
use super::check::Host;
use super::config::{AdminSocket, Config, DEFAULT_INTERFACE, peer_config};

use super::socket::{self, Answer, Request, SocketError};

pub(crate) use protocol::{Protocol, parse_protocol};
pub use report::Report;

/// `strait explain`
#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    /// Source address
    #[arg(env = "STRAIT_EXPLAIN_SOURCE", value_name = "SRC")]
    pub(crate) source: IpAddr,
    /// Destination address
    #[arg(env = "STRAIT_EXPLAIN_DESTINATION", value_name = "DST")]
    pub(crate) destination: IpAddr,
    /// tcp, udp, icmp, sctp, esp, another name or a number [default: tcp if a port is set, else icmp]
    #[arg(
        long = "proto",
        env = "STRAIT_EXPLAIN_PROTO",
        value_name = "PROTOCOL",
        value_parser = parse_protocol
    )]
    pub(crate) protocol: Option<Protocol>,
    /// Source port [default: 40000]
    #[arg(long = "sport", env = "STRAIT_EXPLAIN_SPORT", value_name = "PORT")]
    pub(crate) source_port: Option<u16>,
    /// Destination port [default: 443]
    #[arg(long = "dport", env = "STRAIT_EXPLAIN_DPORT", value_name = "PORT")]
    pub(crate) destination_port: Option<u16>,
    /// Identifier of an ICMP echo [default: 1]
    #[arg(long = "id", env = "STRAIT_EXPLAIN_ID", value_name = "NUMBER")]
    pub(crate) identifier: Option<u16>,
    /// Length of the packet in bytes, including the IP header; the packet must not be fragmented
    #[arg(long, env = "STRAIT_EXPLAIN_SIZE", value_name = "BYTES")]
    pub(crate) size: Option<u16>,
    /// Explain a packet from the tunnel to the cluster, instead of from the cluster to the tunnel
    #[arg(long, env = "STRAIT_EXPLAIN_INBOUND")]
    pub(crate) inbound: bool,
    /// Inbound: the peer that sends the packet [default: the only one that may]
    #[arg(long, env = "STRAIT_EXPLAIN_PEER", value_name = "NAME", requires = "inbound")]
    pub(crate) peer: Option<String>,
    /// Ask the gateway with this device
    #[arg(
        long,
        env = "STRAIT_EXPLAIN_INTERFACE",
        value_name = "NAME",
        default_value = DEFAULT_INTERFACE,
        value_parser = interface_flag
    )]
    pub(crate) interface: String,
    /// Ask the gateway with this admin socket
    #[arg(long, env = "STRAIT_EXPLAIN_SOCKET", value_name = "PATH", conflicts_with = "interface")]
    pub(crate) socket: Option<PathBuf>,
    /// Use this configuration file (TOML) instead of a running gateway
    #[arg(
        long,
        env = "STRAIT_EXPLAIN_CONFIG",
        value_name = "FILE",
        conflicts_with_all = ["interface", "socket"]
    )]
    pub(crate) config: Option<PathBuf>,
    /// Print JSON
    #[arg(long, env = "STRAIT_JSON")]
    pub(crate) json: bool,
}

/// The packet would not be forwarded.
const DROPPED: u8 = 1;

/// Why the packet cannot be explained.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each variant is")]
pub enum ExplainError {
    #[error(transparent)]
    Question(#[from] QuestionError),
    /// The same, as reported by the gateway.
    #[error("{0}")]
    WrongQuestion(String),
    #[error("{protocol} has no ports here: leave --sport and --dport out")]
    NoPorts { protocol: String },
    #[error("{protocol} has no echo identifier: leave --id out")]
    NoIdentifier { protocol: String },
    #[error(transparent)]
    Socket(#[from] SocketError),
}

impl ExitStatus for ExplainError {
    fn exit_status(&self) -> u8 {
        match self {
            Self::Question(_)
            | Self::WrongQuestion(_)
            | Self::NoPorts { .. }
            | Self::NoIdentifier { .. } => USAGE,
            Self::Socket(_) => UNAVAILABLE,
        }
    }
}

/// Runs `strait explain`. Changes nothing, here or in a gateway.
///
/// # Errors
///
/// [`ExplainError`], or [`super::config::Findings`] if the file is wrong.
pub fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let question = question(args)?;
    let report = match &args.config {
        Some(file) => from_file(file, &question)?,
        None => from_gateway(args, question)?,
    };

    let text = if args.json {
        let mut json = serde_json::to_string_pretty(&report)?;
        json.push('\n');
        json
    } else {
        report.to_string()
    };
    stdout::print(&text)?;

    Ok(if report.is_forwarded() { ExitCode::SUCCESS } else { ExitCode::from(DROPPED) })
}

/// Answers a request of the admin socket.
pub fn answer(monitor: &Monitor, board: &StatusBoard, request: Request) -> Answer {
    let Request::Explain(question) = request;

    match monitor.explain(&question) {
        Ok(explanation) => {
            let obstacle = board.device().and_then(|device| match question.direction {
                Direction::Outbound => device.obstacle(question.destination),
                Direction::Inbound => device.is_down(),
            });
            let report = Report::new(&question, &explanation).blocked_by(obstacle);
            Answer::Explanation(Box::new(report))
        }
        Err(error) => Answer::WrongQuestion(error.to_string()),
    }
}

fn from_gateway(args: &ExplainArgs, question: Question) -> Result<Report, ExplainError> {
    // An invalid question fails before a gateway is asked.
    question.packet()?;
    let default = || AdminSocket::default_path(&args.interface);
    let path = args.socket.clone().unwrap_or_else(default);

    match socket::ask(&path, Request::Explain(question))? {
        Answer::Explanation(report) => Ok(*report),
        Answer::WrongQuestion(text) | Answer::Refused(text) => {
            Err(ExplainError::WrongQuestion(text))
        }
    }
}

fn from_file(file: &Path, question: &Question) -> anyhow::Result<Report> {
    let config = Config::load(file)?;
    let mtu_bytes = Host::look(&config).mtu(&config).bytes;

    let explanation = explain_config(&config, mtu_bytes, question)?;

    Ok(Report::new(question, &explanation))
}

/// The explanation of a gateway that has just started with this configuration.
fn explain_config(
    config: &Config,
    mtu_bytes: u16,
    question: &Question,
) -> anyhow::Result<Explanation> {
    let start = now();
    let settings =
        strait_engine::Settings { max_flows: config.max_flows, seed: 0, index_seed: 0, start };
    let identity = Arc::new(BoringtunIdentity::new(&config.private_key));
    let Engine { mut control, flows, .. } = Engine::new(identity, settings)?;
    let clamp_mtu = config.mss_clamp.then_some(mtu_bytes);
    let peers = config
        .peers
        .iter()
        .map(|peer| peer_config(peer, peer.endpoint_addresses().collect(), clamp_mtu))
        .collect();
    control.set_port(config.listen_port);
    control.apply(peers, config.table.clone().with_generation(1));

    let forwarding = control.current();
    let context = Context {
        forwarding: &forwarding,
        flows: &flows,
        flow_access: FlowAccess::ReadOnly,
        now: flows.tick(start),
    };

    let situation = Situation { mtu_bytes, is_running: false };
    Ok(explain(&context, situation, question).map_err(ExplainError::from)?)
}

/// Converts the flags into a question about a packet.
fn question(args: &ExplainArgs) -> Result<Question, ExplainError> {
    let has_ports = args.source_port.is_some() || args.destination_port.is_some();
    let protocol = match args.protocol {
        Some(protocol) => protocol,
        None if has_ports => Protocol::TCP,
        None => Protocol::Icmp,
    };
    let source_port = args.source_port.unwrap_or(protocol::SOURCE_PORT);
    let destination_port = args.destination_port.unwrap_or(protocol::DESTINATION_PORT);
    let content = match protocol.number(args.source.is_ipv6()) {
        protocol::TCP => Content::Tcp { source_port, destination_port },
        protocol::UDP => Content::Udp { source_port, destination_port },
        protocol::UDP_LITE => Content::UdpLite { source_port, destination_port },
        number if number == Protocol::Icmp.number(args.source.is_ipv6()) => {
            Content::Echo { identifier: args.identifier.unwrap_or(protocol::IDENTIFIER) }
        }
        protocol => Content::Other { protocol },
    };

    let name = || protocol.to_string();
    let is_echo = matches!(content, Content::Echo { .. });
    let knows_ports = !is_echo && content.source_port().is_some();
    if has_ports && !knows_ports {
        return Err(ExplainError::NoPorts { protocol: name() });
    }
    if args.identifier.is_some() && !is_echo {
        return Err(ExplainError::NoIdentifier { protocol: name() });
    }

    Ok(Question {
        direction: if args.inbound { Direction::Inbound } else { Direction::Outbound },
        source: args.source,
        destination: args.destination,
        content,
        size: args.size,
        peer: args.peer.clone(),
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "an engine without a gateway needs a time to start at"
)]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests;
