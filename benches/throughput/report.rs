//! The tables: medians with their spread, and ratios.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use crate::host;
use crate::metric::{METRICS, Metric};
use crate::record::{Entrant, Record, Spread};

/// Whom everybody is compared with: the fastest of the others, and no tunnel at all.
const REFERENCES: [&str; 2] = ["wireguard-go", "plain"];

/// Both tables and what is to be known about them, as Markdown that reads well as it is.
pub(crate) fn render(record: &Record) -> String {
    let medians = table(record, "median [least, most]", |entrant, metric| {
        entrant.spread(metric.id).map(|spread| median(spread, metric.decimals))
    });
    let ratios = table(record, "times wireguard-go / plain", |entrant, metric| {
        let ratios = REFERENCES.map(|reference| ratio(record, entrant, reference, metric.id));

        match ratios {
            [None, None] => None,
            [first, second] => Some(format!("{} / {}", times(first), times(second))),
        }
    });

    format!("{medians}\n{ratios}\n{}", footer(record))
}

/// The same as a page of its own, with the pictures that lie beside it.
pub(crate) fn page(record: &Record, pictures: &[PathBuf]) -> String {
    let mut text = String::from(
        "# Strait beside its peers\n\nHow this is measured: `benches/throughput/README.md`.\n",
    );
    for name in pictures.iter().filter_map(|path| path.file_name()?.to_str()) {
        let _ = write!(text, "\n![]({name})\n");
    }

    format!("{text}\n{}\n", render(record))
}

/// One line a metric, one column a contestant. Metrics that nobody has are left out.
fn table(
    record: &Record,
    title: &str,
    cell: impl Fn(&Entrant, &Metric) -> Option<String>,
) -> String {
    let head = [title.to_owned()];
    let names = record.contestants.iter().map(|entrant| entrant.name.clone());
    let mut lines: Vec<Vec<String>> = vec![head.into_iter().chain(names).collect()];
    for metric in METRICS {
        let cells: Vec<_> =
            record.contestants.iter().map(|entrant| cell(entrant, metric)).collect();
        if cells.iter().any(Option::is_some) {
            let title = [metric.title.to_owned()];
            let cells = cells.into_iter().map(Option::unwrap_or_default);
            lines.push(title.into_iter().chain(cells).collect());
        }
    }

    aligned(&lines)
}

/// The first line is the head.
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

/// The median over the rounds of the ratio in each: what slows the machine down for a whole round
/// slows everybody down. Rounds in which others disturbed either of the two count only if they all
/// were.
fn ratio(record: &Record, entrant: &Entrant, reference: &str, metric: &str) -> Option<f64> {
    let reference = record.contestants.iter().find(|other| other.name == reference)?;
    let rounds = 0..entrant.samples.len();
    let quiet =
        |round: &usize| ![entrant, reference].iter().any(|e| e.is_disturbed(*round, metric));
    let value = |round: usize| {
        let [own, other] = [entrant, reference].map(|e| e.samples.get(round)?.get(metric).copied());

        Some(own? / other?)
    };

    Spread::of(rounds.clone().filter(quiet).filter_map(value))
        .or_else(|| Spread::of(rounds.filter_map(value)))
        .map(|spread| spread.median)
        // Nothing is a number of times what does not occur.
        .filter(|ratio| ratio.is_finite())
}

fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"))
}

fn footer(record: &Record) -> String {
    let mut text = format!(
        "{}; {} s for a TCP measurement, twice that for the first; at most 1 % of UDP \
         datagrams lost.\nA ratio is the median of the ratios in each round. {}\n\
         Linux {}, {} cores of {}, both gateways and the load on them; TCP {}.\n",
        rounds(record),
        record.seconds,
        disturbance(record),
        record.kernel,
        record.cores,
        record.cpu,
        record.congestion_control
    );
    for Entrant { name, version, failures, .. } in &record.contestants {
        let _ = write!(text, "\n- {name}: {version}");
        for failure in failures {
            let _ = write!(text, "\n  - NOT MEASURED in {failure}");
        }
    }

    text
}

/// How many there were, and that not everything was measured in each.
fn rounds(record: &Record) -> String {
    let least = record.contestants.iter().flat_map(|entrant| {
        let ids = entrant.samples.iter().flat_map(BTreeMap::keys).collect::<BTreeSet<_>>();
        let samples = &entrant.samples;
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
        .flat_map(|entrant| &entrant.stolen)
        .flat_map(|round| round.values().copied())
        .collect();
    let disturbed = values.iter().filter(|stolen| host::is_disturbed(**stolen)).count();

    format!(
        "Others had more than 5 % of the cores while\n{disturbed} of {} values were measured, \
         which count only where there is nothing better.",
        values.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_taken_within_a_round() {
        let record = record();

        // Half of 8, a third of 9, a quarter of 8: the machine got slower, the ratio is about a third.
        let strait = &record.contestants[1];
        assert_eq!(ratio(&record, strait, "plain", "udp_64_pps"), Some(3.0 / 9.0));
        assert_eq!(ratio(&record, strait, "wireguard-go", "udp_64_pps"), None);
    }

    #[test]
    fn nothing_is_a_number_of_times_what_does_not_occur() {
        let mut record = record();
        for (entrant, lost) in [(0, 0.0), (1, 0.2)] {
            for sample in &mut record.contestants[entrant].samples {
                sample.insert("idle_lost_percent".to_owned(), lost);
            }
        }

        for entrant in &record.contestants {
            assert_eq!(ratio(&record, entrant, "plain", "idle_lost_percent"), None);
        }
        assert!(render(&record).contains("| 0.00 [0.00, 0.00] | 0.20 [0.20, 0.20] |"));
    }

    #[test]
    fn a_disturbed_round_counts_only_if_there_is_no_other() {
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
    fn the_tables_show_what_was_measured() {
        let text = render(&record());

        assert!(text.contains("| UDP, 64 bytes, packets/s | 8 [8, 9] | 3 [2, 4] |"), "{text}");
        assert!(text.contains("| – / 1.00"), "{text}");
        assert!(!text.contains("TCP, 1 stream"), "{text}");
    }

    #[test]
    fn it_is_said_that_something_was_not_measured_in_every_round() {
        let mut record = record();
        assert!(render(&record).contains("\n3 rounds; "), "{}", render(&record));

        record.contestants[0].samples[1].insert("tcp_16_up_gbps".to_owned(), 9.0);

        assert!(render(&record).contains("\n3 rounds, some values in 1 of them; "));
    }

    fn record() -> Record {
        let entrant = |name: &str, values: [f64; 3]| Entrant {
            name: name.to_owned(),
            samples: values.map(|v| BTreeMap::from([("udp_64_pps".to_owned(), v)])).to_vec(),
            ..Entrant::default()
        };
        let contestants =
            vec![entrant("plain", [8.0, 9.0, 8.0]), entrant("strait", [4.0, 3.0, 2.0])];

        Record { rounds: 3, contestants, ..Record::default() }
    }
}
