//! One measurement, as it is made of every contestant.

use std::fmt;

use super::{Plan, Sample};
use crate::contestant::{Contestant, Usage};
use crate::load::{self, Direction, percentile};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Round trips without traffic and beside one TCP stream, and the cost of that stream.
    RoundTrips,
    /// TCP with this number of streams.
    Tcp(u32, Direction),
    /// UDP datagrams with this number of payload bytes.
    Udp(usize),
    /// Short connections per second.
    Connections,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RoundTrips => f.write_str("round trips, TCP 1 up"),
            Self::Tcp(streams, direction) => write!(f, "TCP {streams} {}", direction.name()),
            Self::Udp(bytes) => write!(f, "UDP {bytes} bytes"),
            Self::Connections => f.write_str("short connections"),
        }
    }
}

impl Step {
    /// Whether there is a goal for its ratio to wireguard-go.
    pub(super) const fn has_goal(self) -> bool {
        matches!(self, Self::RoundTrips | Self::Tcp(4, Direction::Up) | Self::Udp(64 | 1300))
    }

    pub(super) fn measure(self, contestant: &Contestant, plan: &Plan) -> anyhow::Result<Sample> {
        let mut sample = Sample::default();
        match self {
            Self::RoundTrips => sample.round_trips(contestant, plan)?,
            Self::Tcp(streams, direction) => {
                let received = load::tcp(contestant, streams, direction, plan.duration)?;
                let id = format!("tcp_{streams}_{}_gbps", direction.name());
                sample.put(id, received.bits_per_second / 1e9);
            }
            Self::Udp(payload_bytes) => {
                let rate = load::highest_rate(contestant, payload_bytes, plan.trial)?;
                sample.put(format!("udp_{payload_bytes}_pps"), rate.per_second);
                if payload_bytes == 64 {
                    let (id, millions) = ("cpu_seconds_per_million", rate.received / 1e6);
                    sample.put_cost(id, &rate.before, &rate.after, millions);
                }
            }
            Self::Connections => {
                let rate = load::connections_per_second(contestant, plan.duration)?;
                sample.put("connections_per_second", rate);
            }
        }

        Ok(sample)
    }
}

impl Sample {
    fn round_trips(&mut self, contestant: &Contestant, plan: &Plan) -> anyhow::Result<()> {
        let idle = load::idle(contestant, plan.duration)?;
        let before = contestant.usage();
        let (received, loaded) = load::tcp_with_ping(contestant, 1, 2 * plan.duration)?;
        let after = contestant.usage();

        self.put("tcp_1_up_gbps", received.bits_per_second / 1e9);
        let gigabytes = received.bytes / 1e9;
        self.put_cost("cpu_seconds_per_gb", &before, &after, gigabytes);
        let of_gateways = spent(&before, &after).sum::<f64>();
        self.put("all_cpu_seconds_per_gb", (of_gateways + received.cpu_seconds) / gigabytes);
        for (name, pings) in [("idle", idle), ("loaded", loaded)] {
            for (suffix, share) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)] {
                if let Some(value) = percentile(&pings.round_trips, share) {
                    self.put(format!("{name}_{suffix}_us"), value);
                }
            }
            self.put(format!("{name}_lost_percent"), pings.lost_percent);
            self.round_trips.insert(name.to_owned(), pings.round_trips);
        }

        Ok(())
    }

    /// The CPU time per `amount`: of both gateways, and of each. Nothing without gateways.
    fn put_cost(&mut self, id: &str, before: &[Usage], after: &[Usage], amount: f64) {
        let spent: Vec<f64> = spent(before, after).map(|seconds| seconds / amount).collect();
        if let [server, client] = spent.as_slice() {
            self.put(id, server + client);
            self.put(format!("{id}_server"), *server);
            self.put(format!("{id}_client"), *client);
        }
    }
}

/// CPU seconds that each gateway has used between two points in time.
pub(super) fn spent(before: &[Usage], after: &[Usage]) -> impl Iterator<Item = f64> {
    before.iter().zip(after).map(|(before, after)| after.cpu_seconds - before.cpu_seconds)
}
