//! The state machine of a mapping's connection, and the idle timeout of each state.
//!
//! ```text
//!            first packet        answer            FIN from one, from the other
//!   (none) ──────────────▶ Opening ──▶ Established ──▶ FinFrom… ──▶ Closing
//!                             ▲             │  ▲           │            │ SYN
//!                             │         RST ▼  │ not RST   │ RST        │
//!                             ├────────── Reset ◀──────────┘            │
//!                             └─────────────────────────────────────────┘
//! ```
//!
//! This is the state machine of RFC 7857 section 2. A mapping may have many remote endpoints, but nearly
//! always has one, and only one is tracked. If the internal host sends to a second one while the
//! first connection is open, the mapping is *shared*: FIN and RST no longer shorten its timeout,
//! because they cannot be assigned to a connection. Packets from a remote endpoint to which the internal
//! host never sent change nothing.
//!
//! An inbound packet refreshes, as RFC 4787 section 4.3 REQ-6a allows: a stream that is only received
//! must not break, and the tunnel authenticates the sender. A RST never extends an
//! established connection (RFC 7857 section 7.1), nor does any packet after both sides sent FIN.

use super::flow::Signal;
use super::limits::Timeouts;

/// The state of a mapping's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Not TCP, no reply yet.
    Fresh,
    /// Not TCP, with a reply.
    Answered,
    /// UDP to port 53 only.
    Query,
    /// TCP, no reply yet.
    Opening,
    /// TCP, both sides have sent.
    Established,
    /// TCP, the initiator has sent FIN.
    FinFromInitiator,
    /// TCP, the responder has sent FIN.
    FinFromResponder,
    /// TCP, both sides have sent FIN.
    Closing,
    /// TCP, one side has sent RST.
    Reset,
    /// TCP to several remote endpoints, none of which has replied yet.
    SharedOpening,
    /// TCP to several remote endpoints.
    Shared,
}

impl State {
    /// The name for output and labels.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Answered => "answered",
            Self::Query => "query",
            Self::Opening => "opening",
            Self::Established => "established",
            Self::FinFromInitiator => "fin_from_initiator",
            Self::FinFromResponder => "fin_from_responder",
            Self::Closing => "closing",
            Self::Reset => "reset",
            Self::SharedOpening => "shared_opening",
            Self::Shared => "shared",
        }
    }

    /// Whether the other side has replied and the connection is open, so that eviction would break it.
    pub(super) const fn is_confirmed(self) -> bool {
        match self {
            Self::Answered
            | Self::Established
            | Self::FinFromInitiator
            | Self::FinFromResponder
            | Self::Shared => true,
            Self::Fresh
            | Self::Query
            | Self::Opening
            | Self::Closing
            | Self::Reset
            | Self::SharedOpening => false,
        }
    }

    pub(super) const fn timeout(self, timeouts: &Timeouts, is_echo: bool) -> u32 {
        match self {
            Self::Fresh | Self::Answered if is_echo => timeouts.echo,
            Self::Fresh | Self::Answered => timeouts.udp,
            Self::Query => timeouts.dns,
            Self::Opening | Self::SharedOpening => timeouts.tcp_opening,
            Self::Closing | Self::Reset => timeouts.tcp_closing,
            Self::Established | Self::FinFromInitiator | Self::FinFromResponder | Self::Shared => {
                timeouts.tcp_established
            }
        }
    }
}

/// The sender of a packet: the side that opened the connection, or the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Initiator,
    Responder,
}

/// The effect of a packet on a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// None.
    Keep,
    /// Enters this state and restarts its timeout.
    Refresh(State),
    /// Opens a connection to another remote endpoint on a mapping whose own is closed.
    Adopt,
}

/// The effect of a packet that is not TCP. `is_query`: the remote port is 53.
pub(super) const fn datagram(state: State, side: Side, is_query: bool) -> Step {
    match (side, state) {
        (Side::Initiator, State::Query) if !is_query => Step::Refresh(State::Fresh),
        // The answer needs no refresh: no other packet is expected.
        (Side::Responder, State::Query) => Step::Keep,
        (Side::Responder, State::Fresh) => Step::Refresh(State::Answered),
        (Side::Initiator | Side::Responder, state) => Step::Refresh(state),
    }
}

/// The effect of a TCP segment. `is_known`: its remote endpoint is the one that is tracked.
pub(super) const fn segment(state: State, side: Side, signal: Signal, is_known: bool) -> Step {
    match state {
        State::Shared | State::SharedOpening => shared(state, side, signal),
        State::Closing | State::Reset if !is_known => match (side, signal) {
            (Side::Initiator, Signal::Data | Signal::Syn | Signal::Fin) => Step::Adopt,
            (Side::Initiator, Signal::Reset) | (Side::Responder, _) => Step::Keep,
        },
        _ if !is_known => match (side, signal) {
            (Side::Initiator, Signal::Reset) | (Side::Responder, _) => Step::Keep,
            (Side::Initiator, _) if state.is_confirmed() => Step::Refresh(State::Shared),
            (Side::Initiator, _) => Step::Refresh(State::SharedOpening),
        },
        State::Opening => opening(side, signal),
        State::Closing => match (side, signal) {
            (Side::Initiator, Signal::Syn) => Step::Refresh(State::Opening),
            (Side::Initiator | Side::Responder, _) => Step::Keep,
        },
        State::Reset => match (side, signal) {
            (Side::Initiator, Signal::Syn) => Step::Refresh(State::Opening),
            (Side::Responder, Signal::Syn) | (_, Signal::Reset) => Step::Keep,
            // The RST was forged, or not for this connection, which goes on.
            (_, Signal::Data | Signal::Fin) => Step::Refresh(State::Established),
        },
        State::Established | State::FinFromInitiator | State::FinFromResponder => {
            established(state, side, signal)
        }
        // Not of TCP.
        State::Fresh | State::Answered | State::Query => Step::Refresh(state),
    }
}

const fn shared(state: State, side: Side, signal: Signal) -> Step {
    match (side, signal) {
        (_, Signal::Reset) => Step::Keep,
        (Side::Responder, _) => Step::Refresh(State::Shared),
        (Side::Initiator, _) => Step::Refresh(state),
    }
}

const fn opening(side: Side, signal: Signal) -> Step {
    match (side, signal) {
        // RFC 7857 section 7.1: an outbound RST does not refresh. An inbound one starts the four
        // minutes of section 2.2.
        (Side::Initiator, Signal::Reset) => Step::Keep,
        (Side::Initiator, _) | (Side::Responder, Signal::Reset) => Step::Refresh(State::Opening),
        (Side::Responder, Signal::Fin) => Step::Refresh(State::FinFromResponder),
        // Data counts like SYN: the gateway may have been started during the connection.
        (Side::Responder, Signal::Data | Signal::Syn) => Step::Refresh(State::Established),
    }
}

const fn established(state: State, side: Side, signal: Signal) -> Step {
    match (signal, side, state) {
        (Signal::Reset, _, _) => Step::Refresh(State::Reset),
        (Signal::Fin, Side::Initiator, State::FinFromResponder)
        | (Signal::Fin, Side::Responder, State::FinFromInitiator) => Step::Refresh(State::Closing),
        (Signal::Fin, Side::Initiator, _) => Step::Refresh(State::FinFromInitiator),
        (Signal::Fin, Side::Responder, _) => Step::Refresh(State::FinFromResponder),
        (Signal::Data | Signal::Syn, _, _) => Step::Refresh(state),
    }
}
