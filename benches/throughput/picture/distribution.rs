//! Distributions of round trips: how large a share takes at most so long, down to the tail.

use plotters::prelude::{Color, DrawingBackend, LineSeries, RGBColor};

use super::axis::{Axis, panel};
use super::canvas::{Area, Outcome, colour, entries, legend};
use crate::record::Record;

#[derive(Debug)]
pub(super) struct Distribution {
    /// Of all panels, in the order of the record.
    names: Vec<(String, RGBColor)>,
    panels: Vec<Load>,
}

/// One panel: round trips under one load.
#[derive(Debug)]
struct Load {
    heading: &'static str,
    lines: Vec<Line>,
}

#[derive(Debug)]
struct Line {
    name: String,
    colour: RGBColor,
    /// In µs, rising, all above zero.
    round_trips: Vec<f64>,
}

impl Distribution {
    /// `None` if there are no round trips.
    pub(super) fn new(record: &Record) -> Option<Self> {
        let panels: Vec<Load> =
            [Load::new(record, "idle", "idle"), Load::new(record, "loaded", "under load")]
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

        // The panels share their axes, so that they can be compared.
        let lines = || self.panels.iter().flat_map(|panel| &panel.lines);
        let least = lines().filter_map(|line| line.round_trips.first()).copied();
        let most = lines().filter_map(|line| line.round_trips.last()).copied();
        let count = lines().map(|line| line.count()).fold(1.0, f64::max);
        let x = Axis::logarithmic(least.fold(f64::MAX, f64::min), most.fold(0.0, f64::max));
        let y = Axis::tail(count);
        for (load, area) in self.panels.iter().zip(area.split_evenly((1, self.panels.len()))) {
            load.draw(&area, &x, &y)?;
        }

        Ok(())
    }
}

impl Load {
    fn new(record: &Record, load: &str, heading: &'static str) -> Option<Self> {
        let mut lines = Vec::new();
        for (index, entrant) in record.contestants.iter().enumerate() {
            let all = entrant.round_trips.get(load).map(Vec::as_slice).unwrap_or_default();
            let mut round_trips: Vec<f64> =
                all.iter().copied().filter(|us| us.is_finite() && *us > 0.0).collect();
            round_trips.sort_by(f64::total_cmp);
            if !round_trips.is_empty() {
                lines.push(Line { name: entrant.name.clone(), colour: colour(index), round_trips });
            }
        }

        (!lines.is_empty()).then_some(Self { heading, lines })
    }

    fn draw<DB: DrawingBackend>(&self, area: &Area<DB>, x: &Axis, y: &Axis) -> Outcome<DB> {
        let mut panel = panel(area, (x, y), (self.heading, "µs"), 100)?;
        for line in &self.lines {
            let points = line.points(x.length() / 150.0, y.length() / 150.0);
            panel.draw_series(LineSeries::new(points, line.colour.stroke_width(4)))?;
        }

        Ok(())
    }
}

impl Line {
    fn count(&self) -> f64 {
        f64::from(u32::try_from(self.round_trips.len()).unwrap_or(u32::MAX))
    }

    /// Positions on both axes, without those that differ from the one before by less than a step on
    /// both: there may be a million, and so short a line shows nothing but the rounding of its ends.
    fn points(&self, step_x: f64, step_y: f64) -> Vec<(f64, f64)> {
        let count = self.count();
        let all = self.round_trips.iter().zip((0..u32::MAX).map(f64::from));
        let mut points: Vec<(f64, f64)> = Vec::new();
        for (us, before) in all {
            let (x, y) = (us.ln(), -(1.0 - before / count).log10());
            let is_near = |last: &(f64, f64)| x - last.0 < step_x && y - last.1 < step_y;
            if before + 1.0 == count || !points.last().is_some_and(is_near) {
                points.push((x, y));
            }
        }

        points
    }
}
