//! A client that does not wait for ever: not for an API server whose machine is gone, nor for one
//! that takes the call and says nothing.

use std::time::Duration;

use kube::{Client, Config};

use crate::watch::WATCH_SECONDS;

/// Until there is a connection, its keys agreed on.
const CONNECT: Duration = Duration::from_secs(10);

/// Without a byte that was waited for. No watch of ours is silent for longer in health: it has ended by
/// then.
const READ: Duration = Duration::from_secs(1).saturating_mul(WATCH_SECONDS + 10);

/// Until what is sent is taken.
const WRITE: Duration = Duration::from_secs(10);

/// A client of the API server that `config` names. Asks nothing yet. To be called within a runtime.
///
/// # Errors
///
/// If the configuration names keys or certificates that are none.
pub fn client(mut config: Config) -> kube::Result<Client> {
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(READ);
    config.write_timeout = Some(WRITE);
    // A connection that nobody uses may be as old as it likes.
    config.reset_reader_on_write = true;
    // By itself it would ask fifteen times, for minutes, and nobody would know why nothing happens.
    // Whoever asks here asks again.
    config.default_retry = false;

    Client::try_from(config)
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no configuration of a client.
    #[error("nothing says where the API server is: run in a pod, or set KUBECONFIG ({0})")]
    Missing(Box<kube::config::InferConfigError>),
    /// The configuration has keys or certificates that are none.
    #[error("what says where the API server is cannot be used: {0}")]
    Unusable(Box<kube::Error>),
}

/// A client of the API server that the pod's environment or `KUBECONFIG` names. Sends nothing. To be called within the
/// runtime.
///
/// # Errors
///
/// [`ClientError`] if neither names one, or with keys or certificates that are none.
pub async fn infer() -> Result<Client, ClientError> {
    let config = Config::infer().await.map_err(|error| ClientError::Missing(Box::new(error)))?;

    client(config).map_err(|error| ClientError::Unusable(Box::new(error)))
}
