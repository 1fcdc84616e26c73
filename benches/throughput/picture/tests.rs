use std::collections::BTreeMap;

use super::*;
use crate::record::Results;

const NAMES: [&str; 6] =
    ["strait", "strait, no UDP GSO", "wireguard-go", "boringtun", "gotatun", "kernel WireGuard"];

#[test]
fn every_picture_names_every_contestant() {
    let folder = tempfile::tempdir().unwrap();

    let files = draw(&record(), folder.path()).unwrap();

    for name in ["tcp", "udp", "cost", "latency", "scaling"] {
        let svg = folder.path().join(name).with_extension("svg");
        let text = fs::read_to_string(&svg).unwrap();
        assert!(text.starts_with("<svg "), "{name}");
        let shown = content(&text);
        for contestant in NAMES {
            assert!(shown.contains(contestant), "{name} lacks {contestant}");
        }
        assert!(files.contains(&svg), "{name}");
    }
    assert_eq!(files.len(), 5);
}

#[test]
fn dwarfing_group_is_cut_and_keeps_its_value() {
    let folder = tempfile::tempdir().unwrap();
    let mut record = record();
    let highest = record.contestants.first_mut().unwrap();
    highest.samples = vec![BTreeMap::from([("tcp_1_up_gbps".to_owned(), 54.2)])];

    draw(&record, folder.path()).unwrap();

    let [tcp, udp] = ["tcp.svg", "udp.svg"]
        .map(|name| content(&fs::read_to_string(folder.path().join(name)).unwrap()));
    assert!(tcp.contains("54.2") && tcp.contains("is cut"), "{tcp}");
    assert!(!tcp.contains(" 30 "), "a scale for the others: {tcp}");
    assert!(!udp.contains("is cut"), "{udp}");
}

#[test]
fn a_picture_without_numbers_is_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let samples = vec![BTreeMap::from([("udp_64_pps".to_owned(), 5e5)])];
    let strait = Results { name: "strait".to_owned(), samples, ..Results::default() };
    let other = Results { name: "wireguard-go".to_owned(), ..Results::default() };
    let record = Record { contestants: vec![strait, other], ..Record::default() };

    let files = draw(&record, folder.path()).unwrap();

    assert_eq!(files, [folder.path().join("udp.svg")]);
    let text = fs::read_to_string(folder.path().join("udp.svg")).unwrap();
    assert!(!text.contains("wireguard-go"), "a contestant without numbers is left out");
}

#[test]
fn bar_heights_are_proportional_to_values() {
    let folder = tempfile::tempdir().unwrap();
    let values = [("udp_64_pps", 1e5), ("udp_512_pps", 2e5), ("udp_1300_pps", 4e5)];
    let samples = BTreeMap::from(values.map(|(name, value)| (name.to_owned(), value)));
    let strait = Results { samples: vec![samples], ..Results::default() };
    let record = Record { contestants: vec![strait], ..Record::default() };

    draw(&record, folder.path()).unwrap();

    let svg = fs::read_to_string(folder.path().join("udp.svg")).unwrap();
    let bars = svg.lines().filter(|line| line.starts_with("<rect ") && line.contains("#0072b2"));
    let heights: Vec<f64> = bars
        .map(|bar| bar.split("height=\"").nth(1).unwrap().split('"').next().unwrap())
        .map(|height| height.parse().unwrap())
        .collect();
    let [low, middle, high] = heights[..] else { panic!("{heights:?}") };
    assert!(low > 100.0, "{heights:?}");
    assert!((middle - 2.0 * low).abs() < 0.3 && (high - 4.0 * low).abs() < 0.3, "{heights:?}");
}

#[test]
fn text_is_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let record = Record { cpu: "<A> & B".to_owned(), ..record() };

    draw(&record, folder.path()).unwrap();

    let svg = fs::read_to_string(folder.path().join("tcp.svg")).unwrap();
    assert!(svg.contains("&lt;A&gt; &amp; B"), "{svg}");
}

/// The text of `svg`, with one space between words: lines of a name are elements of their own.
fn content(svg: &str) -> String {
    let texts = svg.split('<').filter_map(|element| element.split_once('>'));
    let words = texts.flat_map(|(_, text)| text.split_whitespace());

    words.collect::<Vec<_>>().join(" ")
}

/// Invented values of every metric for six contestants in seven rounds.
fn record() -> Record {
    let contestants = NAMES.iter().zip(1_u32..).map(|(name, place)| {
        let factor = 1.3 - 0.15 * f64::from(place);
        let mut samples: Vec<_> = (0..7).map(|round| sample(factor, f64::from(round))).collect();
        if *name == "gotatun" {
            samples.iter_mut().for_each(|sample| {
                sample.remove("tcp_16_up_gbps");
            });
        }
        let round_trips = [("idle", 180.0, 0.15), ("loaded", 900.0, 0.3)]
            .map(|(load, us, width)| (load.to_owned(), round_trips(us / factor, width)));
        Results {
            name: (*name).to_owned(),
            version: "1.0".to_owned(),
            samples,
            round_trips: round_trips.into(),
            ..Results::default()
        }
    });

    Record {
        kernel: "6.12.48-cloud-amd64".to_owned(),
        congestion_control: "cubic".to_owned(),
        mtu: String::new(),
        nodes: String::new(),
        cpu: "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz".to_owned(),
        cores: 4,
        rounds: 7,
        seconds: 5.0,
        contestants: contestants.collect(),
    }
}

fn sample(factor: f64, round: f64) -> BTreeMap<String, f64> {
    let noise = 1.0 + 0.03 * (round * 2.4).sin();
    let metrics = [
        ("tcp_1_up_gbps", 9.4),
        ("tcp_4_up_gbps", 12.1),
        ("tcp_16_up_gbps", 11.2),
        ("udp_64_pps", 1.21e6),
        ("udp_512_pps", 9.8e5),
        ("udp_1300_pps", 6.4e5),
        ("peers_1_gbps", 9.3),
        ("peers_100_gbps", 9.1),
        ("peers_1000_gbps", 8.2),
    ];
    let cost = ("cpu_seconds_per_gb".to_owned(), 1.4 / factor * noise);

    metrics
        .map(|(name, value)| (name.to_owned(), value * factor * noise))
        .into_iter()
        .chain([cost])
        .collect()
}

/// Sorted round trips of about `us`, with a tail that grows with `width`.
fn round_trips(us: f64, width: f64) -> Vec<f64> {
    const COUNT: u32 = 20_000;

    let rest = |rank: u32| 1.0 - f64::from(rank) / f64::from(COUNT);

    (0..COUNT).map(|rank| us * rest(rank).powf(-width) * (1.0 + 0.1 * (1.0 - rest(rank)))).collect()
}
