//! What a check has found.

use std::time::Duration;

/// The state of the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// No answer yet, and too little time has passed to call it lost.
    #[default]
    Connecting,
    /// The other end answers.
    Connected,
    /// The other end does not answer, or no longer.
    Lost,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Whether the other end answers.
    pub state: State,
    /// The round trip of the newest probe that was answered. `None` unless connected.
    pub latency: Option<Duration>,
    /// The smoothed difference between consecutive round trips (RFC 3550 section 6.4.1).
    pub jitter: Duration,
    /// The share of the last probes of the configured interval without an answer, 0 to 1.
    pub loss: f64,
    /// How often probes without an answer have raised the suspicion that the other end has moved.
    pub suspicions: u32,
    /// How often the other end was found silent: a handshake may help.
    pub silences: u32,
    /// The time after which the other end counts as silent, while packets are sent. `None` unless it is one of ours and
    /// connected.
    pub silence_limit: Option<Duration>,
    /// Whether the other end is a gateway of Strait, which repeats nonces. `false` until it answers.
    pub is_strait: bool,
    /// The longest packet in bytes that reaches the other end, while connected. `None` until a padded PING is answered.
    pub path_mtu: Option<u16>,
    /// Whether the other end may be gone: packets or probes are sent, and nothing arrives. Any sign of life ends it.
    pub is_suspected: bool,
    /// Whether the other end, which is one of ours, says that it is draining.
    pub is_draining: bool,
    /// Datagrams that the kernel segments arrive damaged at the other end, which is one of ours: send them one by one.
    pub is_gso_harmful: bool,
}
