//! A client with timeouts: a machine that is gone or a server that accepts a call and does not answer ends in an error.

use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use kube::{Client, Config};

use crate::watch::WATCH_SECONDS;

/// For the connection and its TLS handshake.
const CONNECT: Duration = Duration::from_secs(10);

/// For one byte of an answer. In health no watch of ours is silent for longer: it has ended by then.
const READ: Duration = Duration::from_secs(1).saturating_mul(WATCH_SECONDS + 10);

/// For the server to read what is sent.
const WRITE: Duration = Duration::from_secs(10);

/// A client of the API server that `config` names, for the `part` of Strait that audit logs name. Sends no request yet.
/// To be called within a runtime.
///
/// # Errors
///
/// If the keys or certificates of the configuration cannot be used.
pub fn client(mut config: Config, part: Part) -> kube::Result<Client> {
    config.headers.push((USER_AGENT, HeaderValue::from_static(part.user_agent())));
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(READ);
    config.write_timeout = Some(WRITE);
    // The read timeout does not apply to an idle connection.
    config.reset_reader_on_write = true;
    // By default a request is repeated fifteen times, for minutes, without a log line. The callers here repeat their
    // requests themselves.
    config.default_retry = false;

    Client::try_from(config)
}

/// The part of Strait that sends requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `strait gateway`.
    Gateway,
    /// `strait operator`.
    Operator,
    /// `strait node`.
    Node,
    /// The commands of users.
    Command,
}

impl Part {
    const fn user_agent(self) -> &'static str {
        match self {
            Self::Gateway => concat!("strait/", env!("CARGO_PKG_VERSION"), " (gateway)"),
            Self::Operator => concat!("strait/", env!("CARGO_PKG_VERSION"), " (operator)"),
            Self::Node => concat!("strait/", env!("CARGO_PKG_VERSION"), " (node)"),
            Self::Command => concat!("strait/", env!("CARGO_PKG_VERSION"), " (command)"),
        }
    }
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no client configuration.
    #[error("nothing says where the API server is: run in a pod, or set KUBECONFIG ({0})")]
    Missing(Box<kube::config::InferConfigError>),
    /// The keys or certificates of the configuration cannot be used.
    #[error("what says where the API server is cannot be used: {0}")]
    Unusable(Box<kube::Error>),
}

/// A client of the API server that the pod's environment or `KUBECONFIG` names. Sends no request yet. To be called
/// within the runtime.
///
/// # Errors
///
/// [`ClientError`] if neither names one, or if the keys or certificates cannot be used.
pub async fn infer(part: Part) -> Result<Client, ClientError> {
    let config = Config::infer().await.map_err(|error| ClientError::Missing(Box::new(error)))?;

    client(config, part).map_err(|error| ClientError::Unusable(Box::new(error)))
}
