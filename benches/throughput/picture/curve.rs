//! Throughput as something grows: streams in one panel, configured peers in the other.

use plotters::prelude::{
    Circle, Color, DrawingBackend, LineSeries, PathElement, RGBColor, ShapeStyle,
};

use super::axis::{Axis, Panel, panel};
use super::canvas::{Area, Outcome, colour, entries, legend};
use crate::record::{Record, Spread};

#[derive(Debug)]
pub(super) struct Curves {
    /// Of all panels, in the order of the record.
    names: Vec<(String, RGBColor)>,
    panels: Vec<Growth>,
}

/// One panel: what grows, and how each contestant copes.
#[derive(Debug)]
struct Growth {
    heading: &'static str,
    unit: &'static str,
    axis: Axis,
    lines: Vec<Line>,
}

#[derive(Debug)]
struct Line {
    name: String,
    colour: RGBColor,
    /// Position on the horizontal axis, and what was reached there.
    points: Vec<(f64, Spread)>,
}

impl Curves {
    /// `None` if nobody has any of the metrics.
    pub(super) fn new(record: &Record) -> Option<Self> {
        let streams = [(1.0, "1"), (4.0, "4"), (16.0, "16")]
            .map(|(count, label)| (count, label, format!("tcp_{count}_up_gbps")));
        let peers = [(1.0, "1"), (100.0, "100"), (1000.0, "1,000")]
            .map(|(count, label)| (count, label, format!("peers_{count}_gbps")));
        let panels: Vec<Growth> = [
            Growth::new(record, "Gb/s over parallel streams", "streams", &streams),
            Growth::new(record, "Gb/s over configured peers", "peers", &peers),
        ]
        .into_iter()
        .flatten()
        .collect();

        let names = entries(record, |name| {
            panels.iter().any(|panel| panel.lines.iter().any(|line| line.name == name))
        });

        (!panels.is_empty()).then_some(Self { names, panels })
    }

    pub(super) fn draw<DB: DrawingBackend>(&self, area: &Area<DB>) -> Outcome<DB> {
        let area = legend(area, &self.names)?;
        for (growth, area) in self.panels.iter().zip(area.split_evenly((1, self.panels.len()))) {
            growth.draw(&area)?;
        }

        Ok(())
    }
}

impl Growth {
    fn new(
        record: &Record,
        heading: &'static str,
        unit: &'static str,
        steps: &[(f64, &str, String)],
    ) -> Option<Self> {
        let mut lines = Vec::new();
        for (index, entrant) in record.contestants.iter().enumerate() {
            let point = |(count, _, metric): &(f64, &str, String)| {
                Some((count.ln(), record.spread(&entrant.name, metric)?))
            };
            let points: Vec<_> = steps.iter().filter_map(point).collect();
            if !points.is_empty() {
                lines.push(Line { name: entrant.name.clone(), colour: colour(index), points });
            }
        }
        let places = steps.iter().map(|(count, label, _)| (count.ln(), (*label).to_owned()));

        (!lines.is_empty()).then(|| {
            let axis = Axis::places(places.collect());
            Self { heading, unit, axis, lines }
        })
    }

    fn draw<DB: DrawingBackend>(&self, area: &Area<DB>) -> Outcome<DB> {
        let points = self.lines.iter().flat_map(|line| &line.points);
        let most = points.map(|(_, spread)| spread.most).fold(0.0, f64::max);
        let axes = (&self.axis, &Axis::linear(most));
        let mut panel = panel(area, axes, (self.heading, self.unit), 100)?;

        // Points of several contestants stand beside each other, or their whiskers could not be
        // told apart.
        let step = self.axis.length() * 0.014;
        let count = f64::from(u32::try_from(self.lines.len()).unwrap_or(u32::MAX));
        for (line, place) in self.lines.iter().zip((0..u32::MAX).map(f64::from)) {
            line.draw(&mut panel, (place - (count - 1.0) / 2.0) * step, step)?;
        }

        Ok(())
    }
}

impl Line {
    fn draw<DB: DrawingBackend>(
        &self,
        panel: &mut Panel<'_, DB>,
        shift: f64,
        step: f64,
    ) -> Outcome<DB> {
        let style: ShapeStyle = self.colour.stroke_width(4);
        let medians = self.points.iter().map(|(x, spread)| (x + shift, spread.median));
        panel.draw_series(LineSeries::new(medians, style))?;

        for (x, spread) in &self.points {
            let x = x + shift;
            let cap = step * 0.4;
            let thin = self.colour.stroke_width(3);
            for [from, to] in [
                [(x, spread.least), (x, spread.most)],
                [(x - cap, spread.least), (x + cap, spread.least)],
                [(x - cap, spread.most), (x + cap, spread.most)],
            ] {
                panel.plotting_area().draw(&PathElement::new(vec![from, to], thin))?;
            }
            panel.plotting_area().draw(&Circle::new(
                (x, spread.median),
                8,
                self.colour.filled(),
            ))?;
        }

        Ok(())
    }
}
