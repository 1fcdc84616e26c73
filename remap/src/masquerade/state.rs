//! How far a conversation has got, and how long it may be silent.
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
//! That is the machine of RFC 7857 section 2. A mapping serves every remote endpoint, but nearly
//! always only one, and only that one is tracked. If the inside speaks to a second one while the
//! first conversation is not over, the mapping is *shared*: neither FIN nor RST shortens its life
//! any more, because nobody knows whose they were. A remote endpoint that the inside never spoke to
//! changes nothing.
//!
//! An inbound packet refreshes, as RFC 4787 section 4.3 REQ-6a allows: a stream that is only received
//! must not break, and the sender is authenticated by the tunnel. A RST never lengthens an
//! established life (RFC 7857 section 7.1), nor does any packet after both sides said FIN.

use super::flow::Signal;
use super::limits::Timeouts;

/// How far the conversation of one mapping has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Not TCP, and nothing came back yet.
    Fresh,
    /// Not TCP, and something came back.
    Answered,
    /// UDP that went to port 53 and nowhere else.
    Query,
    /// TCP, and nothing came back yet.
    Opening,
    /// TCP, and both sides have spoken.
    Established,
    /// TCP, and the side that began has said FIN.
    FinFromInitiator,
    /// TCP, and the side that answered has said FIN.
    FinFromResponder,
    /// TCP, and both sides have said FIN.
    Closing,
    /// TCP, and one side has said RST.
    Reset,
    /// TCP to several remote endpoints, none of which answered yet.
    SharedOpening,
    /// TCP to several remote endpoints.
    Shared,
}

impl State {
    /// A word for people and for a label.
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

    /// Whether losing it early would hurt somebody: the other side has answered, and it is not over.
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

/// Who sent a packet: the side that began the conversation, or the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Initiator,
    Responder,
}

/// What a packet does to a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It passes and leaves no trace.
    Keep,
    /// It restarts the timeout, now that of this state.
    Refresh(State),
    /// It begins a conversation with another remote endpoint on a mapping whose own is over.
    Adopt,
}

/// A packet without a connection. `is_query` says that it goes to port 53.
pub(super) const fn datagram(state: State, side: Side, is_query: bool) -> Step {
    match (side, state) {
        (Side::Initiator, State::Query) if !is_query => Step::Refresh(State::Fresh),
        // The answer has come; there is nothing more to wait for.
        (Side::Responder, State::Query) => Step::Keep,
        (Side::Responder, State::Fresh) => Step::Refresh(State::Answered),
        (Side::Initiator | Side::Responder, state) => Step::Refresh(state),
    }
}

/// A TCP segment. `is_known` says that it belongs to the remote endpoint that is tracked.
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
            // The RST was not for this connection, or forged: it lives on.
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
        // Data counts as much as SYN: the gateway may have been started in mid-conversation.
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
