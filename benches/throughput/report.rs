//! The tables: medians with their spread, and ratios.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use crate::metric::{METRICS, Metric};
use crate::record::{Record, Results, Spread};
use crate::steal;

/// References of the ratios: the fastest of the other implementations, and no tunnel.
const REFERENCES: [&str; 2] = ["wireguard-go", "plain"];

/// Both tables and notes about them, as Markdown that is also readable as plain text.
pub(crate) fn render(record: &Record) -> String {
    let medians = table(record, "median [least, most]", |results, metric| {
        results.spread(metric.id).map(|spread| median(spread, metric.decimals))
    });
    let ratios = table(record, "times wireguard-go / plain", |results, metric| {
        let ratios = REFERENCES.map(|reference| ratio(record, results, reference, metric.id));

        match ratios {
            [None, None] => None,
            [first, second] => Some(format!("{} / {}", times(first), times(second))),
        }
    });

    format!("{medians}\n{ratios}\n{}", footer(record))
}

/// The same as a page, with the pictures in the same folder.
pub(crate) fn page(record: &Record, pictures: &[PathBuf]) -> String {
    let mut text = String::from(
        "# Strait and other implementations\n\nHow this is measured: `benches/throughput/README.md`.\n",
    );
    for name in pictures.iter().filter_map(|path| path.file_name()?.to_str()) {
        let _ = write!(text, "\n![]({name})\n");
    }

    format!("{text}\n{}\n", render(record))
}

/// A line for each metric, a column for each contestant. Metrics without values are left out.
fn table(
    record: &Record,
    title: &str,
    cell: impl Fn(&Results, &Metric) -> Option<String>,
) -> String {
    let head = [title.to_owned()];
    let names = record.contestants.iter().map(|results| results.name.clone());
    let mut lines: Vec<Vec<String>> = vec![head.into_iter().chain(names).collect()];
    for metric in METRICS {
        let cells: Vec<_> =
            record.contestants.iter().map(|results| cell(results, metric)).collect();
        if cells.iter().any(Option::is_some) {
            let title = [metric.title.to_owned()];
            let cells = cells.into_iter().map(Option::unwrap_or_default);
            lines.push(title.into_iter().chain(cells).collect());
        }
    }

    aligned(&lines)
}

/// A Markdown table with aligned columns; the first line is the head.
fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();

    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        for (cell, width) in line.iter().zip(&widths) {
            let _ = write!(text, "| {cell:<width$} ");
        }
        text.push_str("|\n");
        if number == 0 {
            for width in &widths {
                let _ = write!(text, "|{}", "-".repeat(width + 2));
            }
            text.push_str("|\n");
        }
    }

    text
}

fn median(spread: Spread, decimals: usize) -> String {
    let Spread { least, median, most } = spread;

    format!("{median:.decimals$} [{least:.decimals$}, {most:.decimals$}]")
}

/// The median of the ratios in each round, because other load during a round slows all contestants
/// down. Rounds in which one of the two was disturbed count only if there is no other round.
fn ratio(record: &Record, results: &Results, reference: &str, metric: &str) -> Option<f64> {
    let reference = record.contestants.iter().find(|other| other.name == reference)?;
    let rounds = 0..results.samples.len();
    let quiet =
        |round: &usize| ![results, reference].iter().any(|e| e.is_disturbed(*round, metric));
    let value = |round: usize| {
        let [own, other] = [results, reference].map(|e| e.samples.get(round)?.get(metric).copied());

        Some(own? / other?)
    };

    Spread::of(rounds.clone().filter(quiet).filter_map(value))
        .or_else(|| Spread::of(rounds.filter_map(value)))
        .map(|spread| spread.median)
        // There is no ratio to zero.
        .filter(|ratio| ratio.is_finite())
}

fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"))
}

fn footer(record: &Record) -> String {
    let mut text = format!(
        "{}; {} s for a TCP measurement, twice that for the first; at most 1 % of UDP \
         datagrams lost.\nA ratio is the median of the ratios in each round. {}\n\
         Linux {}, {} cores of {}, both gateways and the load on them; TCP {}; {}{}.\n",
        rounds(record),
        record.seconds,
        disturbance(record),
        record.kernel,
        record.cores,
        record.cpu,
        record.congestion_control,
        record.mtu,
        nodes(record),
    );
    for Results { name, version, failures, .. } in &record.contestants {
        let _ = write!(text, "\n- {name}: {version}");
        for failure in failures {
            let _ = write!(text, "\n  - NOT MEASURED in {failure}");
        }
    }

    text
}

fn nodes(record: &Record) -> String {
    match record.nodes.as_str() {
        "" => String::new(),
        nodes => format!("; {nodes} nodes between pods and gateways, joined by VXLAN"),
    }
}

/// The number of rounds, and the lowest number of rounds in which a value was measured.
fn rounds(record: &Record) -> String {
    let least = record.contestants.iter().flat_map(|results| {
        let ids = results.samples.iter().flat_map(BTreeMap::keys).collect::<BTreeSet<_>>();
        let samples = &results.samples;
        ids.into_iter().map(|id| samples.iter().filter(|round| round.contains_key(id)).count())
    });
    match least.min() {
        Some(least) if least < record.rounds => {
            format!("{} rounds, some values in {least} of them", record.rounds)
        }
        _ => format!("{} rounds", record.rounds),
    }
}

fn disturbance(record: &Record) -> String {
    let values: Vec<f64> = record
        .contestants
        .iter()
        .flat_map(|results| &results.stolen)
        .flat_map(|round| round.values().copied())
        .collect();
    let disturbed = values.iter().filter(|stolen| steal::is_disturbed(**stolen)).count();

    format!(
        "More than 5 % of the CPU time was stolen\nwhile {disturbed} of {} values were measured, \
        which count only if there is no other.",
        values.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_taken_within_a_round() {
        let record = record();

        // Half of 8, a third of 9, a quarter of 8: the median ratio is a third.
        let strait = &record.contestants[1];
        assert_eq!(ratio(&record, strait, "plain", "udp_64_pps"), Some(3.0 / 9.0));
        assert_eq!(ratio(&record, strait, "wireguard-go", "udp_64_pps"), None);
    }

    #[test]
    fn there_is_no_ratio_to_zero() {
        let mut record = record();
        for (results, lost) in [(0, 0.0), (1, 0.2)] {
            for sample in &mut record.contestants[results].samples {
                sample.insert("idle_lost_percent".to_owned(), lost);
            }
        }

        for results in &record.contestants {
            assert_eq!(ratio(&record, results, "plain", "idle_lost_percent"), None);
        }
        assert!(render(&record).contains("| 0.00 [0.00, 0.00] | 0.20 [0.20, 0.20] |"));
    }

    #[test]
    fn disturbed_rounds_count_only_without_undisturbed_ones() {
        let mut record = record();
        let disturbed = BTreeMap::from([("udp_64_pps".to_owned(), 0.5)]);
        record.contestants[1].stolen = vec![BTreeMap::new(), disturbed.clone(), disturbed.clone()];

        let one_left = ratio(&record, &record.contestants[1], "plain", "udp_64_pps");
        record.contestants[0].stolen = vec![disturbed; 3];
        let none_left = ratio(&record, &record.contestants[1], "plain", "udp_64_pps");

        assert_eq!(one_left, Some(4.0 / 8.0));
        assert_eq!(none_left, Some(3.0 / 9.0));
        assert_eq!(record.spread("strait", "udp_64_pps").unwrap().most, 4.0);
    }

    #[test]
    fn the_tables_show_measured_values() {
        let text = render(&record());

        assert!(text.contains("| UDP, 64 bytes, packets/s | 8 [8, 9] | 3 [2, 4] |"), "{text}");
        assert!(text.contains("| – / 1.00"), "{text}");
        assert!(!text.contains("TCP, 1 stream"), "{text}");
    }

    #[test]
    fn missing_rounds_of_values_are_reported() {
        let mut record = record();
        assert!(render(&record).contains("\n3 rounds; "), "{}", render(&record));

        record.contestants[0].samples[1].insert("tcp_16_up_gbps".to_owned(), 9.0);

        assert!(render(&record).contains("\n3 rounds, some values in 1 of them; "));
    }

    fn record() -> Record {
        let results = |name: &str, values: [f64; 3]| Results {
            name: name.to_owned(),
            samples: values.map(|v| BTreeMap::from([("udp_64_pps".to_owned(), v)])).to_vec(),
            ..Results::default()
        };
        let contestants =
            vec![results("plain", [8.0, 9.0, 8.0]), results("strait", [4.0, 3.0, 2.0])];

        Record { rounds: 3, contestants, ..Record::default() }
    }
}
