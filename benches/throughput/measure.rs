//! What is measured of one contestant in one round.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use strait_gateway::io::Offload;

use crate::contestant::{Contestant, Kind, Usage, Variation};
use crate::load::{self, Direction, RoundTrips, percentile};

/// One contestant in one round: values by the identifiers of [`crate::metric`], and round trips by
/// the name of their circumstances.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) values: BTreeMap<String, f64>,
    pub(crate) round_trips: BTreeMap<String, RoundTrips>,
}

/// How much is measured, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Of one TCP measurement. The first one takes twice as long: its figures matter most.
    pub(crate) duration: Duration,
    /// Of one rate in a search.
    pub(crate) trial: Duration,
    pub(crate) streams: &'static [u32],
    pub(crate) directions: &'static [Direction],
    pub(crate) payload_bytes: &'static [usize],
    /// Also short connections, many peers and the kill switches.
    pub(crate) is_full: bool,
}

impl Plan {
    pub(crate) const QUICK: Self = Self {
        duration: Duration::from_millis(1_200),
        trial: Duration::from_millis(150),
        streams: &[1, 4],
        directions: &[Direction::Up],
        payload_bytes: &[64, 1300],
        is_full: false,
    };
    pub(crate) const FULL: Self = Self {
        duration: Duration::from_millis(1_500),
        trial: Duration::from_millis(250),
        streams: &[1, 4, 16],
        directions: &Direction::ALL,
        payload_bytes: &[64, 512, 1300],
        is_full: true,
    };
    const PEERS: [u32; 3] = [1, 100, 1_000];
}

/// Everything of the plan. Whatever fails names its metric.
pub(crate) fn all(kind: &Kind, plan: &Plan) -> anyhow::Result<Sample> {
    let mut sample = Sample::default();
    let contestant = Contestant::start(kind, Variation::default())?;
    sample.latency_and_cost(&contestant, plan)?;
    for streams in plan.streams {
        for direction in plan.directions {
            // The first was measured with pings beside it.
            if (*streams, *direction) != (1, Direction::Up) {
                sample.tcp(&contestant, *streams, *direction, plan)?;
            }
        }
    }
    for payload_bytes in plan.payload_bytes {
        sample.udp(&contestant, *payload_bytes, plan)?;
    }
    if plan.is_full {
        let rate = load::connections_per_second(&contestant, plan.duration)
            .context("connections_per_second")?;
        sample.put("connections_per_second", rate);
    }
    let peaks = contestant.usage().into_iter().map(|usage| usage.peak_mib);
    if let Some(peak) = peaks.max_by(f64::total_cmp) {
        sample.put("peak_mib", peak);
    }
    drop(contestant);

    if plan.is_full && !matches!(kind, Kind::Plain) {
        for peers in Plan::PEERS {
            sample.peers(kind, peers, plan).with_context(|| format!("{peers} peers"))?;
        }
    }
    if plan.is_full && matches!(kind, Kind::Strait(_)) {
        for (name, offload) in switches() {
            sample.switched(kind, name, offload, plan).context(name)?;
        }
    }

    Ok(sample)
}

impl Sample {
    fn put(&mut self, id: impl Into<String>, value: f64) {
        self.values.insert(id.into(), value);
    }

    /// Round trips without traffic and beside one stream, and what that stream costs.
    fn latency_and_cost(&mut self, contestant: &Contestant, plan: &Plan) -> anyhow::Result<()> {
        let idle = load::idle(contestant, plan.duration).context("idle round trips")?;
        let before = contestant.usage();
        let (received, loaded) =
            load::tcp_with_ping(contestant, 2 * plan.duration).context("tcp_1_up_gbps")?;
        let after = contestant.usage();

        self.put("tcp_1_up_gbps", received.bits_per_second / 1e9);
        self.put_cost("cpu_seconds_per_gb", &before, &after, received.bytes / 1e9);
        for (name, round_trips) in [("idle", idle), ("loaded", loaded)] {
            for (suffix, share) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)] {
                if let Some(value) = percentile(&round_trips, share) {
                    self.put(format!("{name}_{suffix}_us"), value);
                }
            }
            self.round_trips.insert(name.to_owned(), round_trips);
        }

        Ok(())
    }

    fn tcp(
        &mut self,
        contestant: &Contestant,
        streams: u32,
        direction: Direction,
        plan: &Plan,
    ) -> anyhow::Result<()> {
        let id = format!("tcp_{streams}_{}_gbps", direction.name());
        let received =
            load::tcp(contestant, streams, direction, plan.duration).with_context(|| id.clone())?;
        self.put(id, received.bits_per_second / 1e9);

        Ok(())
    }

    fn udp(
        &mut self,
        contestant: &Contestant,
        payload_bytes: usize,
        plan: &Plan,
    ) -> anyhow::Result<()> {
        let id = format!("udp_{payload_bytes}_pps");
        let rate = load::highest_rate(contestant, payload_bytes, plan.trial)
            .with_context(|| id.clone())?;
        self.put(id, rate.per_second);
        if payload_bytes == 64 {
            self.put_cost(
                "cpu_seconds_per_million",
                &rate.before,
                &rate.after,
                rate.received / 1e6,
            );
        }

        Ok(())
    }

    /// The cost of an amount: together, and of each gateway. Nothing if there are none.
    fn put_cost(&mut self, id: &str, before: &[Usage], after: &[Usage], amount: f64) {
        let spent: Vec<f64> = before
            .iter()
            .zip(after)
            .map(|(before, after)| (after.cpu_seconds - before.cpu_seconds) / amount)
            .collect();
        if let [server, client] = spent.as_slice() {
            self.put(id, server + client);
            self.put(format!("{id}_server"), *server);
            self.put(format!("{id}_client"), *client);
        }
    }

    fn peers(&mut self, kind: &Kind, peers: u32, plan: &Plan) -> anyhow::Result<()> {
        let idle_peers = peers.saturating_sub(1);
        let contestant = Contestant::start(kind, Variation { idle_peers, ..Variation::default() })?;
        let before = contestant.cpu_seconds();
        thread::sleep(plan.duration);
        let idle = contestant.cpu_seconds() - before;
        let received = load::tcp(&contestant, 1, Direction::Up, plan.duration)?;
        let peaks = contestant.usage().into_iter().map(|usage| usage.peak_mib);

        let percent = 100.0 * idle / plan.duration.as_secs_f64();
        self.put(format!("peers_{peers}_idle_cpu_percent"), percent);
        self.put(format!("peers_{peers}_gbps"), received.bits_per_second / 1e9);
        if let Some(peak) = peaks.max_by(f64::total_cmp) {
            self.put(format!("peers_{peers}_mib"), peak);
        }

        Ok(())
    }

    fn switched(
        &mut self,
        kind: &Kind,
        name: &str,
        offload: Offload,
        plan: &Plan,
    ) -> anyhow::Result<()> {
        let contestant = Contestant::start(kind, Variation { offload, ..Variation::default() })?;
        let received = load::tcp(&contestant, 1, Direction::Up, plan.duration)?;
        self.put(format!("{name}_gbps"), received.bits_per_second / 1e9);

        Ok(())
    }
}

/// The kill switches, one at a time and all together.
fn switches() -> [(&'static str, Offload); 6] {
    let on = Offload::default();
    let off = Offload { tun_tso: false, tun_uso: false, udp_gso: false, udp_gro: false };

    [
        ("all_on", on),
        ("no_tun_tso", Offload { tun_tso: false, ..on }),
        ("no_tun_uso", Offload { tun_uso: false, ..on }),
        ("no_udp_gso", Offload { udp_gso: false, ..on }),
        ("no_udp_gro", Offload { udp_gro: false, ..on }),
        ("all_off", off),
    ]
}
