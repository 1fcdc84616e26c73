//! Lines in panels side by side: throughput by streams or peers, and distributions of round trips.

use super::axis::{Axis, Panel};
use super::svg::{Anchor, LABEL, MARGIN, Point, SIZE, Svg, colour, float};
use crate::record::{Record, Spread};

#[derive(Debug)]
pub(super) struct Lines {
    /// The contestants of all panels, in the order of the record.
    names: Vec<(String, &'static str)>,
    panels: Vec<LinePanel>,
}

#[derive(Debug)]
struct LinePanel {
    heading: &'static str,
    /// The quantity of the horizontal axis.
    unit: &'static str,
    x: Axis,
    y: Axis,
    lines: Vec<Line>,
}

/// A line of one contestant, in positions on the axes.
#[derive(Debug)]
struct Line {
    contestant: usize,
    points: Vec<Point>,
    /// Positions on the horizontal axis, and the values there; empty for a distribution.
    whiskers: Vec<(f64, Spread)>,
}

impl Lines {
    /// TCP throughput by streams and by configured peers. `None` without values.
    pub(super) fn scaling(record: &Record) -> Option<Self> {
        let streams = [(1.0, "1"), (4.0, "4"), (16.0, "16")]
            .map(|(count, label)| (count, label, format!("tcp_{count}_up_gbps")));
        let peers = [(1.0, "1"), (100.0, "100"), (1000.0, "1,000")]
            .map(|(count, label)| (count, label, format!("peers_{count}_gbps")));

        Self::new(
            record,
            vec![
                growth(record, "Gb/s over parallel streams", "streams", &streams),
                growth(record, "Gb/s over configured peers", "peers", &peers),
            ],
        )
    }

    /// Cumulative distribution of round trips, including the tail. `None` without values.
    pub(super) fn latency(record: &Record) -> Option<Self> {
        let loads = ["idle", "loaded"].map(|load| round_trips(record, load));

        // The panels share their axes, so that they can be compared.
        let all = || loads.iter().flatten().map(|(_, round_trips)| round_trips);
        let least = all().filter_map(|us| us.first()).copied().fold(f64::MAX, f64::min);
        let most = all().filter_map(|us| us.last()).copied().fold(0.0, f64::max);
        let x = Axis::logarithmic(least, most);
        let y = Axis::tail(all().map(|us| float(us.len())).fold(1.0, f64::max));
        let panels = ["idle", "under load"].into_iter().zip(loads).map(|(heading, load)| {
            let lines = load.into_iter().map(|(contestant, round_trips)| Line {
                contestant,
                points: distribution(&round_trips, x.length() / 150.0, y.length() / 150.0),
                whiskers: Vec::new(),
            });
            LinePanel { heading, unit: "µs", x: x.clone(), y: y.clone(), lines: lines.collect() }
        });

        Self::new(record, panels.collect())
    }

    fn new(record: &Record, mut panels: Vec<LinePanel>) -> Option<Self> {
        panels.retain(|panel| !panel.lines.is_empty());
        let is_shown = |index| {
            panels.iter().flat_map(|panel| &panel.lines).any(|line| line.contestant == index)
        };
        let names = record.contestants.iter().enumerate().filter(|(index, _)| is_shown(*index));
        let names = names.map(|(index, results)| (results.name.clone(), colour(index))).collect();

        (!panels.is_empty()).then_some(Self { names, panels })
    }

    pub(super) fn draw(&self, svg: &mut Svg) {
        let top = svg.legend(&self.names);
        let width = (SIZE.0 - 2.0 * MARGIN) / float(self.panels.len());
        for (panel, place) in self.panels.iter().zip((0..u32::MAX).map(f64::from)) {
            panel.draw(svg, (MARGIN + place * width, top), width);
        }
    }
}

impl LinePanel {
    fn draw(&self, svg: &mut Svg, corner: Point, width: f64) {
        let (left, top) = corner;
        let panel = Panel {
            x: self.x.clone(),
            y: self.y.clone(),
            upper_left: (left + 130.0, top + 78.0),
            lower_right: (left + width - 50.0, 815.0),
        };
        let (right, bottom) = panel.lower_right;
        svg.text((left + 10.0, top + 46.0), Anchor::Start, LABEL, self.heading);
        let middle = f64::midpoint(panel.upper_left.0, right);
        svg.text((middle, bottom + 78.0), Anchor::Middle, LABEL, self.unit);
        panel.draw(svg);

        for line in &self.lines {
            let points: Vec<Point> = line.points.iter().map(|(x, y)| panel.at(*x, *y)).collect();
            let colour = colour(line.contestant);
            svg.line(&points, colour, 4.0);
            for (x, spread) in &line.whiskers {
                let [low, middle, high] =
                    [spread.least, spread.median, spread.most].map(|value| panel.at(*x, value));
                svg.whisker(low, high, 4.0, colour);
                svg.dot(middle, colour);
            }
        }
    }
}

/// Throughput at each of `steps`: a count, its label, and the metric.
fn growth(
    record: &Record,
    heading: &'static str,
    unit: &'static str,
    steps: &[(f64, &str, String)],
) -> LinePanel {
    let ticks = steps.iter().map(|(count, label, _)| (count.ln(), (*label).to_owned()));
    let x = Axis::places(ticks.collect());

    let mut lines = Vec::new();
    let mut most: f64 = 0.0;
    for (contestant, results) in record.contestants.iter().enumerate() {
        let point =
            |(count, _, metric): &(f64, &str, String)| Some((count.ln(), results.spread(metric)?));
        let whiskers: Vec<(f64, Spread)> = steps.iter().filter_map(point).collect();
        if !whiskers.is_empty() {
            most = whiskers.iter().map(|(_, spread)| spread.most).fold(most, f64::max);
            lines.push(Line { contestant, points: Vec::new(), whiskers });
        }
    }

    // Points of several contestants are side by side, so that their whiskers do not overlap.
    let middle = (float(lines.len()) - 1.0) / 2.0;
    for (line, place) in lines.iter_mut().zip((0..u32::MAX).map(f64::from)) {
        line.whiskers.iter_mut().for_each(|(x_position, _)| {
            *x_position += (place - middle) * x.length() * 0.014;
        });
        line.points = line.whiskers.iter().map(|(x, spread)| (*x, spread.median)).collect();
    }

    LinePanel { heading, unit, x, y: Axis::linear(most), lines }
}

/// The contestants with round trips under `load`, and these in µs, sorted, all above zero.
fn round_trips(record: &Record, load: &str) -> Vec<(usize, Vec<f64>)> {
    let all = record.contestants.iter().enumerate().map(|(contestant, results)| {
        let all = results.round_trips.get(load).map(Vec::as_slice).unwrap_or_default();
        let mut all: Vec<f64> =
            all.iter().copied().filter(|us| us.is_finite() && *us > 0.0).collect();
        all.sort_by(f64::total_cmp);
        (contestant, all)
    });

    all.filter(|(_, round_trips)| !round_trips.is_empty()).collect()
}

/// Positions on both axes, without those that differ from the one before by less than a step on both:
/// there may be a million, and so short a line shows only the rounding of its ends.
fn distribution(round_trips: &[f64], step_x: f64, step_y: f64) -> Vec<Point> {
    let count = float(round_trips.len());
    let mut points: Vec<Point> = Vec::new();
    for (us, before) in round_trips.iter().zip((0..u32::MAX).map(f64::from)) {
        let (x, y) = (us.ln(), -(1.0 - before / count).log10());
        let is_near = |last: &Point| x - last.0 < step_x && y - last.1 < step_y;
        if before + 1.0 == count || !points.last().is_some_and(is_near) {
            points.push((x, y));
        }
    }

    points
}
