//! Throughput with several numbers of configured peers, with jumbo frames, inside an overlay, behind nodes, and with each kill switch.
//!
//! The variations of one contestant are ready at the same time and measured in turn, because their
//! ratio matters.

use std::fmt::Display;
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use strait_io::Offload;

use super::nodes::nodes;
use super::{Plan, Sample};
use crate::contestant::{Contestant, Kind, Mtu, Variation};
use crate::load::{self, Direction};
use crate::record::Spread;
use crate::steal::{self, Measured};

const PEERS: [u32; 3] = [1, 100, 1_000];

/// Measurements of each variation; more of strait, whose ratio has a goal of a few percent.
const TURNS: usize = 1;
const STRAIT_TURNS: usize = 5;
const JUMBO_TURNS: usize = 3;
const OVERLAY_TURNS: usize = 3;

pub(super) fn all(
    kind: &Kind,
    plan: &Plan,
    sample: &mut Sample,
    show: &mut impl FnMut(&dyn Display),
) {
    if !kind.is_a_tunnel() {
        return;
    }
    show(&format!("{}, 1 to 1,000 peers", kind.name()));
    let measured = peers(kind, plan, sample);
    sample.keep("peers", measured);
    show(&format!("{}, jumbo frames", kind.name()));
    let measured = jumbo(kind, plan, sample);
    sample.keep("jumbo frames", measured);
    if plan.nodes.is_none() {
        show(&format!("{}, behind nodes", kind.name()));
        let measured = nodes(kind, plan, sample);
        sample.keep("behind nodes", measured);
    }
    if matches!(kind, Kind::Strait(..)) {
        show(&format!("{}, overlay", kind.name()));
        let measured = overlay(kind, plan, sample);
        sample.keep("overlay", measured);
        show(&format!("{}, kill switches", kind.name()));
        let measured = switches(kind, plan, sample);
        sample.keep("kill switches", measured);
    }
}

fn peers(kind: &Kind, plan: &Plan, sample: &mut Sample) -> anyhow::Result<()> {
    let turns = if matches!(kind, Kind::Strait(..)) { STRAIT_TURNS } else { TURNS };
    let contestants = PEERS
        .map(|peers| Variation { idle_peers: peers.saturating_sub(1), ..plan.variation() })
        .map(|variation| Contestant::start(kind, plan.congestion_control, variation));
    let contestants: Vec<_> = contestants.into_iter().collect::<Result<_, _>>()?;

    let before: Vec<f64> = contestants.iter().map(Contestant::cpu_seconds).collect();
    thread::sleep(plan.duration);
    for ((contestant, before), peers) in contestants.iter().zip(before).zip(PEERS) {
        let percent = 100.0 * (contestant.cpu_seconds() - before) / plan.duration.as_secs_f64();
        sample.put(format!("peers_{peers}_idle_cpu_percent"), percent);
    }

    let rates = in_turn(&contestants, turns, plan.duration)?;
    for ((contestant, rates), peers) in contestants.iter().zip(&rates).zip(PEERS) {
        sample.put_rate(format!("peers_{peers}_gbps"), rates)?;
        sample.put_peak(format!("peers_{peers}_mib"), Some(contestant));
    }
    if let [one, _, thousand] = rates.as_slice() {
        let pairs = thousand.iter().zip(one);
        let quiet = pairs.filter(|(thousand, one)| {
            !steal::is_disturbed(thousand.stolen) && !steal::is_disturbed(one.stolen)
        });
        let ratios = quiet.map(|(thousand, one)| thousand.value / one.value);
        // Disturbed pairs cannot show a difference of a few percent.
        if let Some(spread) = Spread::of(ratios) {
            sample.put("peers_ratio", spread.median);
        }
    }

    Ok(())
}

fn jumbo(kind: &Kind, plan: &Plan, sample: &mut Sample) -> anyhow::Result<()> {
    let contestants = [Mtu::JUMBO, Mtu::default()]
        .map(|mtu| Variation { mtu, ..plan.variation() })
        .map(|variation| Contestant::start(kind, plan.congestion_control, variation));
    let contestants: Vec<_> = contestants.into_iter().collect::<Result<_, _>>()?;

    let rates = in_turn(&contestants, JUMBO_TURNS, plan.duration)?;
    if let [jumbo, ethernet] = rates.as_slice() {
        sample.put_rate("jumbo_gbps".to_owned(), jumbo)?;
        sample.put_ratio("jumbo_ratio", jumbo, ethernet);
    }

    Ok(())
}

/// TCP inside VXLAN between the pods, and without it.
fn overlay(kind: &Kind, plan: &Plan, sample: &mut Sample) -> anyhow::Result<()> {
    let contestant = Contestant::start(kind, plan.congestion_control, plan.variation())?;
    let targets = [contestant.add_vxlan(plan.mtu.tunnel())?, contestant.target()?];

    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..OVERLAY_TURNS {
        for (target, rates) in targets.into_iter().zip(&mut rates) {
            rates.push(steal::during(|| gbps(&contestant, target, plan.duration))?);
        }
    }
    let [inside, outside] = rates;
    sample.put_rate("overlay_gbps".to_owned(), &inside)?;
    sample.put_ratio("overlay_ratio", &inside, &outside);

    Ok(())
}

fn switches(kind: &Kind, plan: &Plan, sample: &mut Sample) -> anyhow::Result<()> {
    let (on, off) = (Offload::ON, Offload::OFF);
    let settings = [
        ("all_on", on),
        ("no_tun_tso", Offload { tun_tso: false, ..on }),
        ("no_tun_uso", Offload { tun_uso: false, ..on }),
        ("no_udp_gso", Offload { udp_gso: false, ..on }),
        ("no_udp_gro", Offload { udp_gro: false, ..on }),
        ("no_vector_aead", Offload { vector_aead: false, ..on }),
        ("all_off", off),
    ];
    let contestants = settings
        .map(|(_, offload)| Variation { offload, ..plan.variation() })
        .map(|variation| Contestant::start(kind, plan.congestion_control, variation));
    let contestants: Vec<_> = contestants.into_iter().collect::<Result<_, _>>()?;

    let rates = in_turn(&contestants, TURNS, plan.duration)?;
    for ((name, _), rates) in settings.iter().zip(&rates) {
        sample.put_rate(format!("{name}_gbps"), rates)?;
    }

    Ok(())
}

/// Gb/s of one stream, `turns` times of each contestant in turn.
fn in_turn(
    contestants: &[Contestant],
    turns: usize,
    duration: Duration,
) -> anyhow::Result<Vec<Vec<Measured<f64>>>> {
    let mut rates = vec![Vec::new(); contestants.len()];
    for _ in 0..turns {
        for (contestant, rates) in contestants.iter().zip(&mut rates) {
            rates.push(steal::during(|| gbps(contestant, contestant.target()?, duration))?);
        }
    }

    Ok(rates)
}

/// Gb/s of one stream to `target`.
fn gbps(contestant: &Contestant, target: IpAddr, duration: Duration) -> anyhow::Result<f64> {
    let received = load::tcp_to(contestant, target, 1, Direction::Up, duration)?;

    Ok(received.bits_per_second / 1e9)
}

impl Sample {
    /// Puts the median of the ratios of rates that were measured one after the other.
    fn put_ratio(&mut self, id: &str, rates: &[Measured<f64>], others: &[Measured<f64>]) {
        let ratios = rates.iter().zip(others).map(|(rate, other)| rate.value / other.value);
        if let Some(spread) = Spread::of(ratios) {
            self.put(id, spread.median);
        }
    }

    /// Puts the median of the rates, and the median of their stolen shares.
    pub(super) fn put_rate(&mut self, id: String, rates: &[Measured<f64>]) -> anyhow::Result<()> {
        let rate = Spread::of(rates.iter().map(|rate| rate.value)).context("no rate")?;
        let stolen = Spread::of(rates.iter().map(|rate| rate.stolen)).context("no rate")?;
        self.stolen.insert(id.clone(), stolen.median);
        self.put(id, rate.median);

        Ok(())
    }
}
