//! Load that is sent through a contestant, and what arrives.

mod connections;
mod round_trips;
mod tcp;
mod udp;

pub(crate) use connections::connections_per_second;
pub(crate) use round_trips::{RoundTrips, idle, percentile};
pub(crate) use tcp::{Direction, Received, tcp, tcp_to, tcp_with_ping};
pub(crate) use udp::highest_rate;
