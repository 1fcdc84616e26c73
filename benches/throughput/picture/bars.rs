//! Grouped bars: a group for each contestant, a bar for each metric.

use plotters::prelude::{
    Color, DrawingBackend, EmptyElement, PathElement, RGBColor, Rectangle, Text, WHITE,
};
use plotters::style::text_anchor::{HPos, VPos};

use super::axis::{Axis, Panel, figure, panel};
use super::canvas::{Area, INK, LABEL, Outcome, SMALL, colour, text, width, wrap};
use crate::record::{Record, Spread};

/// Of a group's place, what bars may take.
const FILLED: f64 = 0.84;
/// The widest a bar becomes, in groups.
const WIDEST: f64 = 0.4;

#[derive(Debug)]
pub(super) struct Bars {
    groups: Vec<Group>,
    /// What the labels below the bars count.
    unit: &'static str,
}

#[derive(Debug)]
struct Group {
    name: String,
    colour: RGBColor,
    /// Label and value; a gap where nothing was measured.
    bars: Vec<Option<(&'static str, Spread)>>,
}

impl Bars {
    /// Bars of `metrics`, an identifier and a label each; values are multiplied with `factor`.
    /// `None` if nobody has any.
    pub(super) fn new(
        record: &Record,
        metrics: &[(&str, &'static str)],
        unit: &'static str,
        factor: f64,
    ) -> Option<Self> {
        let mut groups = Vec::new();
        for (index, entrant) in record.contestants.iter().enumerate() {
            let bar = |(metric, label): &(&str, &'static str)| {
                let Spread { least, median, most } = record.spread(&entrant.name, metric)?;
                let [least, median, most] = [least, median, most].map(|value| value * factor);
                Some((*label, Spread { least, median, most }))
            };
            let bars: Vec<_> = metrics.iter().map(bar).collect();
            if bars.iter().any(Option::is_some) {
                groups.push(Group { name: entrant.name.clone(), colour: colour(index), bars });
            }
        }

        (!groups.is_empty()).then_some(Self { groups, unit })
    }

    pub(super) fn draw<DB: DrawingBackend>(&self, area: &Area<DB>) -> Outcome<DB> {
        let bars = self.groups.iter().flat_map(|group| group.bars.iter().flatten());
        let most = bars.map(|(_, spread)| spread.most).fold(0.0, f64::max);
        let count = u32::try_from(self.groups.len()).unwrap_or(u32::MAX);
        let x = Axis::groups(f64::from(count));
        let mut panel = panel(area, (&x, &Axis::linear(most)), ("", ""), 140)?;

        let (pixels, _) = panel.plotting_area().dim_in_pixel();
        for (group, start) in self.groups.iter().zip((0..count).map(f64::from)) {
            group.draw(&mut panel, start, pixels / count, self.text_size(pixels / count))?;
        }

        // Bars lie over the axis.
        let axis = PathElement::new(vec![(0.0, 0.0), (f64::from(count), 0.0)], INK.stroke_width(2));
        panel.plotting_area().draw(&axis)?;
        let unit = EmptyElement::at((0.0, 0.0))
            + Text::new(self.unit, (-14, 12), text(SMALL, HPos::Right, VPos::Top));

        panel.plotting_area().draw(&unit)
    }

    /// The size at which every value and label fits its bar, where a group has `pixels`.
    fn text_size(&self, pixels: u32) -> f64 {
        let bars = self.groups.iter().flat_map(|group| group.bars.iter().flatten());
        let texts = bars.flat_map(|(label, spread)| [(*label).to_owned(), figure(spread.median)]);
        let widest = f64::from(texts.map(|text| width(&text, SMALL)).max().unwrap_or(0));
        let step = self.groups.iter().map(Group::step).fold(WIDEST, f64::min);
        // Some room between neighbours.
        let place = step * f64::from(pixels) - 4.0;

        if widest > place { SMALL * place / widest } else { SMALL }
    }
}

impl Group {
    fn count(&self) -> f64 {
        f64::from(u32::try_from(self.bars.len()).unwrap_or(u32::MAX))
    }

    /// The place of one bar, in groups.
    fn step(&self) -> f64 {
        (FILLED / self.count()).min(WIDEST)
    }

    /// From `start` on, one wide, which is `pixels`; values and labels have `size`.
    fn draw<DB: DrawingBackend>(
        &self,
        panel: &mut Panel<'_, DB>,
        start: f64,
        pixels: u32,
        size: f64,
    ) -> Outcome<DB> {
        let (count, step) = (self.count(), self.step());
        let first = start + 0.5 - step * count / 2.0;
        for (bar, place) in self.bars.iter().zip((0..8_u32).map(f64::from)) {
            let Some((label, spread)) = bar else { continue };
            let middle = first + step * (place + 0.5);
            // Later bars of a group are darker.
            let shade = self.colour.mix(1.0 - 0.28 * (count - 1.0 - place));
            draw_bar(panel, middle, step, spread, &shade)?;

            let area = panel.plotting_area();
            let above = text(size, HPos::Center, VPos::Bottom);
            let below = text(size, HPos::Center, VPos::Top);
            let value = figure(spread.median);
            // Without the grid behind it the value is easier to read.
            let half = i32::try_from(width(&value, size) / 2).unwrap_or(0);
            let blank = Rectangle::new([(-half, -33), (half, -8)], WHITE.filled());
            let value = Text::new(value, (0, -10), above);
            area.draw(&(EmptyElement::at((middle, spread.most)) + blank + value))?;
            area.draw(&(EmptyElement::at((middle, 0.0)) + Text::new(*label, (0, 12), below)))?;
        }

        let labelled = self.bars.iter().flatten().any(|(label, _)| !label.is_empty());
        let mut line_top = if labelled { 54 } else { 18 };
        for line in wrap(&self.name, LABEL, pixels.saturating_sub(16)) {
            let style = text(LABEL, HPos::Center, VPos::Top);
            let name = EmptyElement::at((start + 0.5, 0.0)) + Text::new(line, (0, line_top), style);
            panel.plotting_area().draw(&name)?;
            line_top += 38;
        }

        Ok(())
    }
}

/// One bar with its whisker, in a place of `step`.
fn draw_bar<DB: DrawingBackend>(
    panel: &mut Panel<'_, DB>,
    middle: f64,
    step: f64,
    spread: &Spread,
    shade: &impl Color,
) -> Outcome<DB> {
    let half = step * 0.46;
    let cap = step * 0.12;
    let corners = [(middle - half, 0.0), (middle + half, spread.median)];
    // A shade is translucent, and the grid must not shine through.
    panel.plotting_area().draw(&Rectangle::new(corners, WHITE.filled()))?;
    panel.plotting_area().draw(&Rectangle::new(corners, shade.filled()))?;

    for [from, to] in [
        [(middle, spread.least), (middle, spread.most)],
        [(middle - cap, spread.least), (middle + cap, spread.least)],
        [(middle - cap, spread.most), (middle + cap, spread.most)],
    ] {
        panel.plotting_area().draw(&PathElement::new(vec![from, to], INK.stroke_width(3)))?;
    }

    Ok(())
}
