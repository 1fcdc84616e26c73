//! The hand-over of a gateway to the program that replaces it in the same process.
//!
//! ```text
//!   predecessor                                         successor (the same process, another program)
//!   pause: threads end after their batch
//!   export: sessions, endpoints, counters      ┌──────▶ import, with its own configuration
//!   channel: state, sockets, device ───────────┘        resume: threads start
//!   execve(2)
//! ```
//!
//! Meanwhile packets wait in the receive buffers of the sockets and in the queues of the device, which stay open. If
//! execve(2) fails, the predecessor resumes. If the successor cannot use the state, it starts afresh with the sockets and
//! the device that it can use, and peers renew their sessions.

mod channel;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::clock::Calendar;
use super::edge::ClusterEdge;
use super::overlay::{HandedOver, Node, Overlay};
use super::tun::Tun;
use super::udp::Udp;
use super::udp::socket::RECEIVE_BUFFER_BYTES;
use super::{EdgeSettings, Foundation, Gateway, Settings, StartError, clock, open_edge, random};
use channel::Received;
use strait_engine::handover::{EngineState, KeyRotationUnderWay};
use strait_wg::handover::{HandoverError, Reader, Writer};
use strait_wg::{Epoch, PrivateKey};

pub use channel::Successor;

/// The version of a hand-over. Raised when its bytes change; a successor of another version starts afresh.
pub const VERSION: u32 = 4;

/// Receive buffer of each socket during a hand-over: 50 ms at 5 Gb/s.
const WIDE_BUFFER_BYTES: i32 = 32 << 20;

/// How long the receive buffers stay wide after a hand-over: until what has arrived meanwhile is read.
const WIDE_FOR: Duration = Duration::from_secs(1);

/// Why a gateway was not handed over. It goes on as before, unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandoverFailure {
    /// Sessions of former keys cannot be handed over.
    #[error("{0}: try again later")]
    KeyRotation(#[from] KeyRotationUnderWay),
    /// A packet thread has failed: the gateway carries nothing any more.
    #[error("the packet threads cannot be stopped")]
    Threads(#[source] StartError),
    /// The kernel refused.
    #[error("cannot {operation}")]
    System {
        /// What was refused.
        operation: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The packet threads could not be started again: the gateway carries nothing any more.
    #[error("the packet threads cannot be started again")]
    Lost(#[source] StartError),
}

impl HandoverFailure {
    /// Whether the gateway carries nothing any more.
    #[must_use]
    pub const fn has_ended_forwarding(&self) -> bool {
        match self {
            Self::Threads(_) | Self::Lost(_) => true,
            Self::KeyRotation(_) | Self::System { .. } => false,
        }
    }
}

/// What the control loop of a gateway hands over beside the gateway itself.
#[derive(Debug)]
pub struct ControlState<'a> {
    /// The name of the device at this time: the host may have changed it.
    pub interface: &'a str,
    /// The MTU of the device in bytes, likewise.
    pub mtu_bytes: u16,
    /// The MTU in bytes that the control loop gave the device, if it has changed it.
    pub grown_mtu: Option<u16>,
    /// What the source of the configuration wants its successor to know.
    pub source_state: &'a str,
    /// What it has open itself: the sockets of the admin port, and the lock file.
    pub descriptors: Vec<BorrowedFd<'a>>,
}

/// What the predecessor of this process has handed over.
#[derive(Debug)]
pub struct Handover {
    received: Received,
    /// What the control loop had open: the sockets of the admin port, and the lock file.
    pub descriptors: Vec<OwnedFd>,
    /// What the source of the configuration wanted its successor to know.
    pub source_state: String,
}

/// What was taken over with a gateway.
#[derive(Debug)]
pub struct TakenOver {
    /// How many sessions go on.
    pub sessions: usize,
    /// The device that was taken over.
    pub device: Option<TakenOverDevice>,
    /// The nodes of the overlay that was taken over, as they were in force.
    pub nodes: Option<Vec<Node>>,
    paused_at: Instant,
}

/// A device that was taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenOverDevice {
    /// Its name.
    pub interface: String,
    /// Its MTU in bytes.
    pub mtu_bytes: u16,
    /// The MTU in bytes that the predecessor gave it, if it has changed it.
    pub grown_mtu: Option<u16>,
}

impl TakenOver {
    /// How long no packet was forwarded until now.
    #[must_use]
    pub fn gap(&self) -> Duration {
        clock::now().saturating_duration_since(self.paused_at)
    }
}

impl Handover {
    /// What the predecessor of this process has handed over; `None` if it has none. To be called once, at the start.
    ///
    /// # Errors
    ///
    /// [`HandoverError`] if it cannot be read: then everything that was handed over is closed.
    pub fn receive() -> Result<Option<Self>, HandoverError> {
        let Some(mut received) = channel::receive()? else { return Ok(None) };
        let mut from = Reader::new(&received.state, received.base);
        let (count, source_state) = (usize::from(from.u8()?), from.bytes()?);
        let source_state =
            str::from_utf8(source_state).map_err(|_| HandoverError::Invalid("text"))?.to_owned();
        let count = received.descriptors.len().min(count);
        let descriptors = received.descriptors.drain(..count).collect();

        Ok(Some(Self { received, descriptors, source_state }))
    }
}

impl Gateway {
    /// Whether the gateway can be handed over now: see [`KeyRotationUnderWay`].
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.control.is_settled()
    }

    /// Replaces this process by `successor`, which takes over the gateway without losing a packet. Returns only if that
    /// fails.
    pub fn hand_over(
        &mut self,
        state: &ControlState<'_>,
        successor: &Successor,
    ) -> HandoverFailure {
        if !self.is_settled() {
            return KeyRotationUnderWay.into();
        }
        self.widen_buffers();
        let paused_at = clock::now();
        if let Err(error) = self.pause() {
            return HandoverFailure::Threads(error);
        }

        let failure = match self.send(state, paused_at) {
            Ok(channel) => {
                let source = channel::exec(successor, &channel);
                HandoverFailure::System { operation: "execute the successor", source }
            }
            Err(failure) => failure,
        };
        match self.resume() {
            Ok(()) => failure,
            Err(error) => HandoverFailure::Lost(error),
        }
    }

    fn send(
        &self,
        state: &ControlState<'_>,
        paused_at: Instant,
    ) -> Result<OwnedFd, HandoverFailure> {
        let engine = self.control.export(paused_at)?;
        let base = self.environment.epoch.base();
        let udp = self.shared.udp.load();
        let mut out = Writer::new(base);
        out.u8(u8::try_from(state.descriptors.len()).unwrap_or(u8::MAX));
        out.bytes(state.source_state.as_bytes());
        out.instant(paused_at);
        out.u64(self.flow_seed);
        let (now, since_1970) = self.shared.calendar.anchor();
        out.instant(now);
        out.duration(since_1970);
        engine.write(&mut out);
        out.u16(self.settings.listen_port);
        let mut descriptors = state.descriptors.clone();
        descriptors.extend(udp.export(&mut out));
        let interface = match &self.settings.edge {
            EdgeSettings::Device(interface) => interface,
            EdgeSettings::Overlay(_) => "",
        };
        out.bytes(interface.as_bytes());
        out.bytes(state.interface.as_bytes());
        out.u16(state.mtu_bytes);
        out.optional(state.grown_mtu, Writer::u16);
        descriptors.extend(match &self.shared.edge {
            ClusterEdge::Device(tun) => tun.export(&mut out),
            ClusterEdge::Overlay(overlay) => overlay.export(&self.nodes, &mut out),
        });

        channel::send(out.finish(), base, &descriptors, &*self.environment.randomness).map_err(
            |source| HandoverFailure::System { operation: "prepare the hand-over", source },
        )
    }

    /// Goes on with the gateway of the predecessor of this process, without peers. The threads do not run yet: apply the
    /// configuration, then call [`Self::resume`].
    ///
    /// What was handed over is used as far as `settings` allow: the sockets with the same port, the device with the same
    /// name, and the sessions with the same keys. If it cannot be read, the gateway starts afresh, and the second result
    /// is the reason.
    ///
    /// # Errors
    ///
    /// Those of [`Self::start`].
    pub fn take_over(
        handover: Handover,
        settings: &Settings,
        private_key: &PrivateKey,
    ) -> Result<(Self, Result<TakenOver, HandoverError>), StartError> {
        let parsed = Parsed::read(handover, settings);
        let (mut parsed, error) = match parsed {
            Ok(parsed) => (Some(parsed), None),
            Err(error) => (None, Some(error)),
        };
        let (udp, edge, calendar) = parsed.as_mut().map_or((None, None, None), |parsed| {
            (parsed.udp.take(), parsed.edge.take(), parsed.calendar.take())
        });
        let foundation = Foundation {
            udp: udp.map_or_else(|| Udp::bind(settings.listen_port, settings.offload), Ok)?,
            edge: edge.map_or_else(|| open_edge(settings), Ok)?,
            epoch: parsed.as_ref().map_or_else(clock::epoch, |parsed| epoch_of(parsed.base)),
            calendar: calendar.unwrap_or_else(Calendar::new),
            flow_seed: parsed.as_ref().map_or_else(random, |parsed| parsed.flow_seed),
        };
        let mut gateway = Self::on(foundation, settings, private_key)?;
        let Some(parsed) = parsed else {
            return Ok((gateway, Err(error.unwrap_or(HandoverError::Incomplete))));
        };
        let taken_over = TakenOver {
            sessions: parsed.engine.sessions(),
            device: parsed.device,
            nodes: parsed.nodes,
            paused_at: parsed.paused_at,
        };
        gateway.control.import(parsed.engine, clock::now());
        gateway.narrow_at = Some(clock::now() + WIDE_FOR);

        Ok((gateway, Ok(taken_over)))
    }

    /// Wipes what was taken over for peers that are not configured. To be called when all peers are known. Returns how
    /// many there were.
    pub fn forget_handed_over(&mut self) -> usize {
        self.control.forget_handed_over()
    }

    fn widen_buffers(&mut self) {
        self.set_receive_buffers(WIDE_BUFFER_BYTES);
        self.narrow_at = Some(clock::now() + WIDE_FOR);
    }

    /// Gives the receive buffers their usual size some time after a hand-over.
    pub(super) fn narrow_buffers(&mut self) {
        if self.narrow_at.is_some_and(|at| clock::now() >= at) {
            self.narrow_at = None;
            self.set_receive_buffers(RECEIVE_BUFFER_BYTES);
        }
    }

    fn set_receive_buffers(&self, bytes: i32) {
        self.shared.udp.load().set_receive_buffers(bytes);
        if let ClusterEdge::Overlay(overlay) = &self.shared.edge {
            overlay.set_receive_buffers(bytes);
        }
    }
}

/// A hand-over that was read completely.
struct Parsed {
    base: Instant,
    paused_at: Instant,
    flow_seed: u64,
    calendar: Option<Calendar>,
    engine: EngineState,
    udp: Option<Arc<Udp>>,
    edge: Option<ClusterEdge>,
    device: Option<TakenOverDevice>,
    nodes: Option<Vec<Node>>,
}

impl Parsed {
    fn read(handover: Handover, settings: &Settings) -> Result<Self, HandoverError> {
        let Received { state, base, descriptors } = handover.received;
        let mut descriptors = descriptors.into_iter();
        let mut from = Reader::new(&state, base);
        // What was taken before.
        from.u8()?;
        from.bytes()?;
        let (paused_at, flow_seed) = (from.instant()?, from.u64()?);
        let calendar = Calendar::continued(from.instant()?, from.duration()?);
        let engine = EngineState::read(&mut from)?;
        let listen_port = from.u16()?;
        let udp = Udp::import(&mut from, &mut descriptors, settings.offload)?;
        let (configured, interface) = (from.bytes()?, from.bytes()?);
        let interface = str::from_utf8(interface)
            .map_err(|_| HandoverError::Invalid("name of the device"))?
            .to_owned();
        let (mtu_bytes, grown_mtu) = (from.u16()?, from.optional(Reader::u16)?);
        let (mut edge, mut nodes) = (None, None);
        match &settings.edge {
            EdgeSettings::Device(name) if name.as_bytes() == configured => {
                edge = Some(ClusterEdge::Device(Tun::import(&mut from, &mut descriptors)?));
            }
            EdgeSettings::Overlay(overlay) if configured.is_empty() => {
                let handed_over = HandedOver::read(&mut from, &mut descriptors)?;
                nodes = Some(handed_over.nodes.clone());
                if handed_over.is_on(overlay.port) {
                    let (mtu, offload) = (settings.mtu_bytes, settings.offload);
                    let overlay = Overlay::import(handed_over, overlay, mtu, offload)?;
                    edge = Some(ClusterEdge::Overlay(overlay));
                }
            }
            // The predecessor's device is closed, and goes.
            EdgeSettings::Device(_) | EdgeSettings::Overlay(_) => {}
        }
        let is_device = matches!(edge, Some(ClusterEdge::Device(_)));

        Ok(Self {
            base,
            paused_at,
            flow_seed,
            calendar,
            engine,
            udp: (listen_port == settings.listen_port).then_some(udp),
            edge,
            device: is_device.then_some(TakenOverDevice { interface, mtu_bytes, grown_mtu }),
            nodes,
        })
    }
}

/// The clock of the predecessor, whose times began at `base`.
fn epoch_of(base: Instant) -> Epoch {
    let now = clock::now();
    let since_1970 = clock::epoch().at(now);

    Epoch::new(base, since_1970.saturating_sub(now.saturating_duration_since(base)))
}
