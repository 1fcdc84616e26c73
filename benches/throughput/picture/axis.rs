//! Axes with round ticks, and the panel that two of them span.

use std::ops::Range;

use super::svg::{Anchor, GRID, INK, Point, SMALL, Svg};

/// Start and end of an axis, and its labelled ticks. Positions on a logarithmic axis are logarithms.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    range: Range<f64>,
    ticks: Vec<(f64, String)>,
}

impl Axis {
    /// From zero to beyond `most`, with room for a label above it.
    pub(super) fn linear(most: f64) -> Self {
        const TICKS: f64 = 9.0;

        let end = if most > 0.0 { most * 1.08 } else { 1.0 };
        let decade = 10_f64.powf(end.log10().floor());
        let steps = [0.1, 0.2, 0.5, 1.0, 2.0].map(|step| step * decade);
        let step = steps.into_iter().find(|step| end / step <= TICKS).unwrap_or(decade);
        let end = (end / step).ceil() * step;
        let positions = (0..=10_u32).map(|tick| f64::from(tick) * step);
        let ticks = positions.take_while(|position| *position < end + step / 2.0);

        Self { range: 0.0..end, ticks: ticks.map(|tick| (tick, round(tick))).collect() }
    }

    /// From below `least` to above `most`, both above zero, with equal steps for equal ratios.
    pub(super) fn logarithmic(least: f64, most: f64) -> Self {
        const TICKS: usize = 6;

        let decades = || (-3..10).map(|exponent| 10_f64.powi(exponent));
        let fine: Vec<f64> = decades()
            .flat_map(|d| [d, 2.0 * d, 5.0 * d])
            .map(|tick| tick * (1.0 + 1e-12))
            .collect();
        let start = fine.iter().copied().rfind(|tick| *tick <= least).unwrap_or(least);
        let end = fine.iter().copied().find(|tick| *tick >= most).unwrap_or(most);
        let inside = |tick: &f64| (start * 0.999..=end * 1.001).contains(tick);
        let grids: [&[f64]; 3] = [&[1.0, 2.0, 5.0], &[1.0, 3.0], &[1.0]];
        let ticks = grids.map(|grid| {
            let all = decades().flat_map(|decade| grid.iter().map(move |step| step * decade));
            all.filter(inside).collect::<Vec<f64>>()
        });
        let fits = |ticks: &&Vec<f64>| ticks.len() <= TICKS;
        let ticks = ticks.iter().find(fits).or(ticks.last()).cloned().unwrap_or_default();

        Self {
            range: start.ln()..end.ln(),
            ticks: ticks.into_iter().map(|tick| (tick.ln(), round(tick))).collect(),
        }
    }

    /// From 0 % to all but 1 in `count`, with equal space for each further nine: position `p` is a share
    /// of `1 - 10^-p`.
    pub(super) fn tail(count: f64) -> Self {
        let nines = (2..8_u32).map(|nines| {
            let decimals = usize::try_from(nines).unwrap_or(0).saturating_sub(2);
            let share = 100.0 - 100.0 * 0.1_f64.powi(i32::try_from(nines).unwrap_or(0));
            (f64::from(nines), format!("{share:.decimals$} %"))
        });
        let low = [("0 %", 1.0), ("50 %", 0.5), ("90 %", 0.1)];
        let low = low.into_iter().map(|(label, rest)| (-f64::log10(rest), label.to_owned()));
        let end = count.log10().max(1.0) * 1.03;

        Self { range: 0.0..end, ticks: low.chain(nines).filter(|(p, _)| *p <= end).collect() }
    }

    /// An axis with these ticks, and a margin at both ends.
    pub(super) fn places(ticks: Vec<(f64, String)>) -> Self {
        let first = ticks.first().map_or(0.0, |(position, _)| *position);
        let last = ticks.last().map_or(1.0, |(position, _)| *position);
        let margin = ((last - first) * 0.08).max(0.1);

        Self { range: first - margin..last + margin, ticks }
    }

    /// `count` groups, each one wide; their labels are left to the caller.
    pub(super) fn groups(count: f64) -> Self {
        Self { range: 0.0..count, ticks: Vec::new() }
    }

    pub(super) fn length(&self) -> f64 {
        self.range.end - self.range.start
    }

    /// `position` relative to the axis: 0 at its start, 1 at its end.
    fn share(&self, position: f64) -> f64 {
        (position - self.range.start) / self.length()
    }
}

/// The area between two axes.
#[derive(Debug)]
pub(super) struct Panel {
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) upper_left: Point,
    pub(super) lower_right: Point,
}

impl Panel {
    /// The pixel of a position on both axes.
    pub(super) fn at(&self, x: f64, y: f64) -> Point {
        let (left, top) = self.upper_left;
        let (right, bottom) = self.lower_right;

        (left + self.x.share(x) * (right - left), bottom - self.y.share(y) * (bottom - top))
    }

    /// Draws the axes, their ticks and the grid.
    pub(super) fn draw(&self, svg: &mut Svg) {
        let (left, top) = self.upper_left;
        let (right, bottom) = self.lower_right;
        for (position, label) in &self.y.ticks {
            let (_, y) = self.at(0.0, *position);
            svg.line(&[(left, y), (right, y)], GRID, 2.0);
            svg.line(&[(left - 6.0, y), (left, y)], INK, 2.0);
            svg.text((left - 10.0, y + 8.0), Anchor::End, SMALL, label);
        }
        for (position, label) in &self.x.ticks {
            let (x, _) = self.at(*position, 0.0);
            svg.line(&[(x, top), (x, bottom)], GRID, 2.0);
            svg.line(&[(x, bottom), (x, bottom + 12.0)], INK, 2.0);
            svg.text((x, bottom + 40.0), Anchor::Middle, SMALL, label);
        }
        svg.line(&[(left, top), (left, bottom), (right, bottom)], INK, 2.0);
    }
}

/// A tick: as many decimals as it needs, thousands set apart.
fn round(tick: f64) -> String {
    let text = format!("{tick:.3}");

    thousands(text.trim_end_matches('0').trim_end_matches('.'))
}

/// A measured value: three digits, or all before the point.
pub(super) fn figure(value: f64) -> String {
    let decimals = match value {
        _ if value >= 99.95 => 0,
        _ if value >= 9.995 => 1,
        _ => 2,
    };

    thousands(&format!("{value:.decimals$}"))
}

fn thousands(number: &str) -> String {
    let (whole, fraction) = number.split_at(number.find('.').unwrap_or(number.len()));
    let mut text = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }

    text + fraction
}
