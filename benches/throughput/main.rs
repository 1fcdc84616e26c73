//! Compares Strait with other implementations in the same topology, in turn, in one run.
//!
//! Only ratios within one run count: both gateways and both pods share the machine, which may be
//! shared with others. Therefore all contestants are measured in turn, one quantity after the other,
//! round after round, and the medians of the ratios are compared.
//!
//! ```text
//!   pod ── gateway ── cable ── gateway ── pod      both pod CIDRs are 10.244.0.0/16
//! ```
//!
//! `strait` remaps by itself; for the others nftables remaps, as in Liqo. `README.md` describes the
//! source of each contestant and the meaning of each number.
#![expect(clippy::print_stdout, reason = "the report goes to standard output")]
#![expect(clippy::print_stderr, reason = "progress goes to standard error")]

mod contestant;
mod implementations;
mod load;
mod measure;
mod metric;
mod pairs;
mod picture;
mod profile;
mod progress;
mod record;
mod report;
mod steal;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Parser;
use strait_lab::privilege;
use strait_wg::Engine;

use contestant::{CongestionControl, Edge, Kind, Mtu, Nodes};
use measure::{Plan, Scope};
use pairs::Comparison;
use progress::Progress;
use record::{Record, Results};

/// Compares Strait with other userspace WireGuard implementations and with no tunnel
#[derive(Debug, Parser)]
struct Args {
    /// A part of the measurements, in less than three minutes
    #[arg(long)]
    quick: bool,
    /// Rounds; every contestant is measured in each [default: 4, quick: 3]
    #[arg(long)]
    rounds: Option<usize>,
    /// Instead of the comparison: a flame graph of each gateway of strait, or of the contestant of --only
    #[arg(long, conflicts_with_all = ["quick", "rounds"])]
    profile: bool,
    /// Instead of the comparison: so many pairs of strait with 1,000 configured peers and with 1, of
    /// --binary and --against, or of its engines
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["quick", "rounds", "profile", "only"])]
    pairs: Option<usize>,
    /// Another build of the gateway
    #[arg(long, value_name = "FILE", requires = "pairs")]
    against: Option<PathBuf>,
    /// Pairs of the engines native and boringtun
    #[arg(long, requires = "pairs", conflicts_with_all = ["against", "engine"])]
    engines: bool,
    /// Pairs of the edges overlay and device
    #[arg(long, requires_all = ["pairs", "nodes"], conflicts_with_all = ["against", "engines", "edge"])]
    edges: bool,
    /// The edge of both contestants of a pair
    #[arg(long, value_name = "NAME", value_enum, default_value_t, requires_all = ["pairs", "nodes"])]
    edge: Edge,
    /// The engine of both contestants of a pair
    #[arg(long, value_name = "NAME", default_value_t, requires = "pairs")]
    engine: Engine,
    /// TCP streams of each measurement of a pair
    #[arg(long, value_name = "NUMBER", default_value_t = 1, requires = "pairs")]
    streams: u32,
    /// Also pings beside the streams of a pair; use --seconds 4 to have enough of them
    #[arg(long, requires = "pairs")]
    pings: bool,
    /// Seconds of one TCP measurement, more than 1 [default: 1.5, quick: 1.1, profile: 5]
    #[arg(long)]
    seconds: Option<f64>,
    /// TCP's congestion control of the senders in the pods
    #[arg(long, value_name = "NAME", value_enum, default_value_t)]
    congestion_control: CongestionControl,
    /// Jumbo frames: MTU 9000 on the underlay and in the pods, 8920 in the tunnel, instead of 1500 and 1340
    #[arg(long)]
    jumbo: bool,
    /// A node between each pod and its gateway, joined with the gateway by VXLAN of the kernel
    #[arg(long, value_name = "WHERE", value_enum, num_args = 0..=1, default_missing_value = "near")]
    nodes: Option<Nodes>,
    /// Only these contestants, separated by commas; wireguard-go and plain are needed for ratios
    #[arg(long, value_delimiter = ',', value_parser = implementations::NAMES)]
    only: Vec<String>,
    /// The gateway to measure
    #[arg(long, default_value = "target/release/strait")]
    binary: PathBuf,
    /// The directory of the results: every sample as JSON, the tables as Markdown, charts
    #[arg(long, default_value = "target/bench")]
    output: PathBuf,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("throughput: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    let (plan, rounds) = parse_plan(args)?;
    privilege::acquire().context("namespaces need privileges")?;
    args.congestion_control.check()?;
    if args.profile {
        return run_profile(args, &plan);
    }
    if let Some(pairs) = args.pairs {
        return run_pairs(args, pairs, &plan);
    }

    let all = if args.nodes.is_some() {
        &implementations::WITH_NODES[..]
    } else {
        &implementations::WITHOUT_NODES
    };
    let names = if args.only.is_empty() { all.to_vec() } else { only(args) };
    let kinds = implementations::available(&args.binary, &names);
    ensure!(
        !kinds.is_empty(),
        "--only {}: none of them is available on this machine",
        args.only.join(",")
    );
    let record = run_rounds(&kinds, &plan, rounds)?;

    println!("{}", report::render(&record));
    let json = serde_json::to_string_pretty(&record)?;
    let mut files = picture::draw(&record, &args.output)?;
    let page = report::page(&record, &files);
    for (name, text) in [("throughput.json", json), ("throughput.md", page)] {
        files.push(write(&args.output, name, &text)?);
    }
    for file in files {
        println!("{}", file.display());
    }

    Ok(())
}

/// The plan and the number of rounds, from checked arguments.
fn parse_plan(args: &Args) -> anyhow::Result<(Plan, usize)> {
    let plan = if args.quick { Plan::quick } else { Plan::full };
    let mtu = if args.jumbo { Mtu::JUMBO } else { Mtu::default() };
    let mut plan = plan(args.congestion_control, mtu);
    plan.nodes = args.nodes;
    ensure!(
        args.nodes.is_some() || !only(args).contains(&implementations::OVERLAY),
        "--only {}: it needs nodes; add --nodes",
        implementations::OVERLAY
    );
    if args.profile {
        plan.duration = Duration::from_secs(5);
    }
    if let Some(seconds) = args.seconds {
        ensure!(
            (1.1..=60.0).contains(&seconds),
            "--seconds {seconds}: a measurement takes from 1.1 to 60 seconds"
        );
        plan.duration = Duration::from_secs_f64(seconds);
    }
    let rounds = args.rounds.unwrap_or(if args.quick { 3 } else { 4 });
    ensure!(rounds > 0, "--rounds 0: at least one round is needed");
    ensure!(
        args.binary.is_file(),
        "--binary {}: there is no such file; `cargo build --release --bin strait` makes it",
        args.binary.display()
    );
    if let Some(against) = &args.against {
        ensure!(against.is_file(), "--against {}: there is no such file", against.display());
    }
    if let Some(pairs) = args.pairs {
        let least = pairs::LEAST_PAIRS;
        ensure!(
            pairs >= least,
            "--pairs {pairs}: at least {least} are needed for a confidence interval"
        );
        ensure!(args.streams > 0, "--streams 0: at least one stream is needed");
    }

    Ok((plan, rounds))
}

/// The contestants of `--only`.
fn only(args: &Args) -> Vec<&str> {
    args.only.iter().map(String::as_str).collect()
}

fn run_profile(args: &Args, plan: &Plan) -> anyhow::Result<()> {
    let names = if args.only.is_empty() { vec!["strait"] } else { only(args) };
    let kinds = implementations::available(&args.binary, &names);
    let [kind] = kinds.as_slice() else {
        bail!("--only: one contestant at a time is profiled");
    };

    let (tables, files) = profile::run(kind, plan, &args.output)?;
    println!("{tables}");
    for file in files {
        println!("{}", file.display());
    }

    Ok(())
}

fn run_pairs(args: &Args, pairs: usize, plan: &Plan) -> anyhow::Result<()> {
    let comparison = match &args.against {
        Some(other) => Comparison::Build(other),
        None if args.engines => Comparison::Engines,
        None if args.edges => Comparison::Edges,
        None => Comparison::Peers,
    };
    let plan = pairs::Plan {
        pairs,
        streams: args.streams,
        pings: args.pings,
        duration: plan.duration,
        congestion_control: plan.congestion_control,
        variation: plan.variation(),
        engine: args.engine,
        edge: args.edge,
    };
    println!("{}", pairs::run(&args.binary, comparison, plan)?);

    Ok(())
}

fn run_rounds(kinds: &[Kind], plan: &Plan, rounds: usize) -> anyhow::Result<Record> {
    let mut record = Record {
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        congestion_control: plan.congestion_control.to_string(),
        mtu: plan.mtu.to_string(),
        nodes: plan.nodes.map(|nodes| nodes.to_string()).unwrap_or_default(),
        cpu: processor(),
        cores: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        rounds,
        seconds: plan.duration.as_secs_f64(),
        contestants: kinds.iter().map(results).collect(),
    };

    let mut progress = Progress::new(rounds);
    for round in 1..=rounds {
        let scope = Scope::of(round, rounds, plan);
        let samples = measure::round(kinds, plan, scope, |step| {
            progress.show(&format!("round {round}/{rounds}: {step}"));
        });
        progress.done();
        for (sample, results) in samples.into_iter().zip(&mut record.contestants) {
            for (name, round_trips) in sample.round_trips {
                results.round_trips.entry(name).or_default().extend(round_trips);
            }
            results.samples.push(sample.values);
            results.stolen.push(sample.stolen);
            results.passes.push(sample.passes);
            let failures = sample.failures.into_iter();
            results.failures.extend(failures.map(|failure| format!("round {round}: {failure}")));
        }
    }
    progress.clear();

    for round_trips in record.contestants.iter_mut().flat_map(|e| e.round_trips.values_mut()) {
        round_trips.sort_by(f64::total_cmp);
    }

    Ok(record)
}

fn results(kind: &Kind) -> Results {
    Results { name: kind.name().to_owned(), version: kind.version(), ..Results::default() }
}

fn write(folder: &Path, name: &str, text: &str) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let path = folder.join(name);
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;

    Ok(path)
}

/// The model, and whether it has AVX-512, without which there is no vector AEAD on x86.
fn processor() -> String {
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let Some((_, model)) = model else {
        return "an unknown processor".to_owned();
    };
    let has = if cpu.contains(" avx512f ") { "with" } else { "without" };

    format!("{model} {has} AVX-512")
}

/// Empty if there is no such file.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
