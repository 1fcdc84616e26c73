//! `strait explain`: what becomes of a packet, from a gateway that runs or from a file.

mod protocol;
mod report;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use strait_engine::Engine;
use strait_engine::explain::{
    Content, Direction, Explanation, Question, QuestionError, Situation, explain,
};
use strait_engine::translate::{Context, FlowAccess};
use strait_io::Monitor;
use strait_wg::boringtun::BoringtunIdentity;

use super::admin::Board;
use super::args::ExplainArgs;
use super::check::Host;
use super::config::{AdminSocket, Config};
use super::socket::{self, Answer, Request, SocketError};
use super::{mtu, output};

pub(crate) use protocol::{Protocol, parse_protocol};
pub(crate) use report::Report;

/// The packet would not go.
const DROPPED: u8 = 1;

/// Why there is no explanation.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExplainError {
    #[error(transparent)]
    Question(#[from] QuestionError),
    /// The same, as the gateway says it.
    #[error("{0}")]
    WrongQuestion(String),
    #[error("{protocol} has no ports here: leave --sport and --dport out")]
    NoPorts { protocol: String },
    #[error("{protocol} has no echo identifier: leave --id out")]
    NoIdentifier { protocol: String },
    #[error(transparent)]
    Socket(#[from] SocketError),
}

impl ExplainError {
    /// Whether whoever asked could have known better.
    pub(crate) const fn is_usage(&self) -> bool {
        match self {
            Self::Question(_)
            | Self::WrongQuestion(_)
            | Self::NoPorts { .. }
            | Self::NoIdentifier { .. } => true,
            Self::Socket(_) => false,
        }
    }
}

/// Runs `strait explain`. Changes nothing, here or in a gateway.
///
/// # Errors
///
/// [`ExplainError`], or [`super::config::Findings`] if the file is wrong.
pub(crate) fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
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
    output::print(&text)?;

    Ok(if report.goes() { ExitCode::SUCCESS } else { ExitCode::from(DROPPED) })
}

/// Answers what comes over the socket.
pub(crate) fn answer(monitor: &Monitor, board: &Board, request: Request) -> Answer {
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
    // What no gateway can answer needs none.
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
    let mtu_bytes = mtu::of_device(&config, Host::look(&config).underlay).bytes;

    let explanation = planned(&config, mtu_bytes, question)?;

    Ok(Report::new(question, &explanation))
}

/// What a gateway with this configuration would say, before it knows more than its file.
fn planned(config: &Config, mtu_bytes: u16, question: &Question) -> anyhow::Result<Explanation> {
    let start = now();
    let settings = strait_engine::Settings { max_flows: config.max_flows, seed: 0, start };
    let identity = Arc::new(BoringtunIdentity::new(&config.private_key));
    let Engine { mut control, flows, .. } = Engine::new(identity, settings)?;
    let clamp_mtu = config.mss_clamp.then_some(mtu_bytes);
    let peers = config
        .peers
        .iter()
        .map(|peer| peer.to_peer_config(peer.endpoint_addresses().collect(), clamp_mtu))
        .collect();
    control.set_port(config.listen_port);
    control.apply(peers, config.plan(1).table);

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

/// What was typed, as a packet.
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
