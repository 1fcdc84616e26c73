//! Axes with round ticks, and the empty panel that two of them span.

use std::ops::Range;

use plotters::chart::{ChartBuilder, ChartContext, LabelAreaPosition};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::{Cartesian2d, Color, DrawingBackend};
use plotters::style::text_anchor::{HPos, VPos};

use super::canvas::{Area, GRID, INK, LABEL, Outcome, SMALL, text};

pub(super) type Panel<'a, DB> = ChartContext<'a, DB, Cartesian2d<Axis, Axis>>;

/// Where an axis begins and ends, and what is written at it where. Positions of a logarithmic axis
/// are logarithms.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    range: Range<f64>,
    ticks: Vec<(f64, String)>,
}

impl Axis {
    /// From zero to beyond `most`, which leaves room for a label above it.
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

    /// From 0 % to 1 in `count`, where each further nine takes the same space: position `p` stands
    /// for a share of `1 - 10^-p`.
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

    /// A place for each of `ticks`, and a margin at both ends.
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

    /// How long it is.
    pub(super) fn length(&self) -> f64 {
        self.range.end - self.range.start
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, position: &f64, pixels: (i32, i32)) -> i32 {
        RangedCoordf64::from(self.range.clone()).map(position, pixels)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() {
            return Vec::new();
        }

        self.ticks.iter().map(|(position, _)| *position).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, position: &f64) -> String {
        let tick = self.ticks.iter().find(|(tick, _)| (tick - position).abs() < 1e-9);

        tick.map(|(_, label)| label.clone()).unwrap_or_default()
    }
}

/// Draws two axes with their grid. `below` is what the horizontal one counts; `heading`, above the
/// panel, what the panel shows; `room` the pixels below the axis.
pub(super) fn panel<'a, DB: DrawingBackend + 'a>(
    area: &Area<DB>,
    (x, y): (&Axis, &Axis),
    (heading, below): (&str, &str),
    room: u32,
) -> Outcome<DB, Panel<'a, DB>> {
    let top = if heading.is_empty() { 10 } else { 50 };
    if !heading.is_empty() {
        area.draw_text(heading, &text(LABEL, HPos::Left, VPos::Center), (10, 22))?;
    }
    let mut panel = ChartBuilder::on(area)
        .margin_top(top)
        .margin_right(50)
        .x_label_area_size(room)
        .y_label_area_size(130)
        .build_cartesian_2d(x.clone(), y.clone())?;
    panel
        .configure_mesh()
        .set_tick_mark_size(LabelAreaPosition::Bottom, 12)
        .x_desc(below)
        .axis_desc_style(text(LABEL, HPos::Center, VPos::Center))
        .x_label_style(text(SMALL, HPos::Center, VPos::Top))
        .y_label_style(text(SMALL, HPos::Right, VPos::Center))
        .bold_line_style(GRID.stroke_width(2))
        .axis_style(INK.stroke_width(2))
        .draw()?;

    Ok(panel)
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
