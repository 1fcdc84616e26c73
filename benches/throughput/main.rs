//! Strait beside its peers: the same topology, in turn, in one run.
//!
//! Only ratios within one run count: both gateways and both pods share the machine, and the machine
//! is shared with others. So every contestant is measured once a round, round after round, and the
//! medians are compared.
//!
//! ```text
//!   pod ── gateway ── cable ── gateway ── pod      both pod CIDRs are 10.244.0.0/16
//! ```
//!
//! `strait` remaps by itself; the others get their remapping from nftables, as Liqo does it.
#![expect(clippy::print_stdout, reason = "the report is what this program is for")]
#![expect(clippy::print_stderr, reason = "progress goes beside the report")]

mod contestant;
mod measure;
mod peers;
mod report;

use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use strait_gateway::lab::privilege;

use contestant::Contestant;
use report::Report;

/// Compares the throughput of Strait with that of other userspace WireGuard implementations.
#[derive(Debug, Parser)]
struct Args {
    /// Three rounds of three seconds instead of seven of five
    #[arg(long)]
    quick: bool,
    /// Rounds; every contestant is measured once in each
    #[arg(long)]
    rounds: Option<usize>,
    /// Seconds of one TCP measurement
    #[arg(long)]
    seconds: Option<u32>,
    /// The gateway to measure
    #[arg(long, default_value = "target/release/strait")]
    binary: PathBuf,
    /// Where the results go, with every sample
    #[arg(long, default_value = "target/bench/throughput.json")]
    output: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    privilege::acquire().context("namespaces need privileges")?;
    let rounds = args.rounds.unwrap_or(if args.quick { 3 } else { 7 });
    let seconds = args.seconds.unwrap_or(if args.quick { 3 } else { 5 });

    let kinds = peers::available(&args.binary);
    let mut report = Report::new(&kinds, rounds, seconds);
    for round in 1..=rounds {
        for kind in &kinds {
            eprint!("\rround {round}/{rounds}: {:<16}", kind.name());
            let sample = Contestant::start(kind)
                .and_then(|contestant| measure::all(&contestant, seconds))
                .with_context(|| format!("{} in round {round}", kind.name()))?;
            report.add(kind, sample);
        }
    }
    eprintln!("\r{:40}\r", "");

    println!("{}", report.table());
    report.write(&args.output)?;
    println!("every sample: {}", args.output.display());

    Ok(())
}
