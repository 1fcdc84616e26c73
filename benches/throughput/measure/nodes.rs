//! TCP, its cost and idle round trips behind nodes: strait with either edge, and wireguard-go, in turn.

use std::time::Duration;

use anyhow::Context as _;

use super::step::spent;
use super::{Plan, Sample};
use crate::contestant::{Contestant, Edge, Kind, Nodes, Variation};
use crate::load::{self, Direction, percentile};
use crate::record::Spread;
use crate::steal::{self, Measured};

const TURNS: usize = 3;

/// What one turn measures of a contestant.
#[derive(Clone, Copy)]
struct Turn {
    gbps: f64,
    /// CPU seconds of gateways and load per GB.
    cost: f64,
    idle_us: f64,
}

/// Measures `kind`; of strait both edges. Nothing of other implementations than wireguard-go.
pub(super) fn nodes(kind: &Kind, plan: &Plan, sample: &mut Sample) -> anyhow::Result<()> {
    let variation = Variation { nodes: Some(Nodes::Near), ..plan.variation() };
    let start = |kind: &Kind| Contestant::start(kind, plan.congestion_control, variation);
    match kind {
        Kind::WireguardGo(_) => {
            let [turns] = in_turn(&[start(kind)?], plan.duration)?;
            sample.put_rate("node_gbps".to_owned(), &rates(&turns))
        }
        Kind::Strait(program, engine, Edge::Device) => {
            let overlay = Kind::Strait(program.clone(), *engine, Edge::Overlay);
            let [overlay, device] = in_turn(&[start(&overlay)?, start(kind)?], plan.duration)?;
            sample.put_rate("node_gbps".to_owned(), &rates(&overlay))?;
            sample.put_rate("node_device_gbps".to_owned(), &rates(&device))?;
            let mut put_ratio = |id: &str, value: fn(&Turn) -> f64| {
                let pairs = overlay.iter().zip(&device);
                let ratios = pairs.map(|(one, other)| value(&one.value) / value(&other.value));
                let spread = Spread::of(ratios).with_context(|| format!("no {id}"))?;
                sample.put(id, spread.median);
                Ok(())
            };
            put_ratio("node_ratio", |turn| turn.gbps)?;
            put_ratio("node_cost_ratio", |turn| turn.cost)?;
            put_ratio("node_idle_ratio", |turn| turn.idle_us)
        }
        Kind::Plain
        | Kind::Strait(..)
        | Kind::Wireguard
        | Kind::BoringtunCli(_)
        | Kind::GotatunCli(_) => Ok(()),
    }
}

fn in_turn<const N: usize>(
    contestants: &[Contestant; N],
    duration: Duration,
) -> anyhow::Result<[Vec<Measured<Turn>>; N]> {
    let mut turns = [const { Vec::new() }; N];
    for _ in 0..TURNS {
        for (contestant, turns) in contestants.iter().zip(&mut turns) {
            turns.push(steal::during(|| measure(contestant, duration))?);
        }
    }

    Ok(turns)
}

fn measure(contestant: &Contestant, duration: Duration) -> anyhow::Result<Turn> {
    let idle = load::idle(contestant, duration / 2)?;
    let before = contestant.usage();
    let received = load::tcp(contestant, 1, Direction::Up, duration)?;
    let of_gateways = spent(&before, &contestant.usage()).sum::<f64>();

    Ok(Turn {
        gbps: received.bits_per_second / 1e9,
        cost: (of_gateways + received.cpu_seconds) / received.bytes * 1e9,
        idle_us: percentile(&idle.round_trips, 0.5).context("no ping came back")?,
    })
}

fn rates(turns: &[Measured<Turn>]) -> Vec<Measured<f64>> {
    turns.iter().map(|turn| Measured { value: turn.value.gbps, stolen: turn.stolen }).collect()
}
