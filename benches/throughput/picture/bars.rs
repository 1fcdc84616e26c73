//! Grouped bars: a group for each contestant, a bar for each metric. A group that would dwarf all others is
//! cut.

use plotters::prelude::{
    Color, DrawingBackend, EmptyElement, PathElement, Polygon, RGBColor, Rectangle, Text, WHITE,
};
use plotters::style::text_anchor::{HPos, VPos};

use super::axis::{Axis, Panel, figure, panel};
use super::canvas::{Area, INK, LABEL, Outcome, SMALL, colour, text, width, wrap};
use crate::record::{Record, Spread};

/// Of a group's place, what bars may take.
const FILLED: f64 = 0.84;
/// The widest a bar becomes, in groups.
const WIDEST: f64 = 0.4;
/// A group that is so many times as high as the next one is cut, for the others to be seen.
const DWARFING: f64 = 2.5;
/// How high the scale goes then, to the highest of the others.
const ABOVE_OTHERS: f64 = 1.2;

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

    /// How to read them.
    pub(super) fn legend(&self) -> &'static str {
        if self.cut().is_some() {
            "bar: median of the rounds; whisker: least to most; a bar with a gap is cut, and goes on to its value"
        } else {
            "bar: median of the rounds; whisker: least to most"
        }
    }

    pub(super) fn draw<DB: DrawingBackend>(&self, area: &Area<DB>) -> Outcome<DB> {
        let most = || self.groups.iter().map(Group::most).fold(0.0, f64::max);
        let y = Axis::linear(self.cut().unwrap_or_else(most));
        let count = u32::try_from(self.groups.len()).unwrap_or(u32::MAX);
        let x = Axis::groups(f64::from(count));
        let mut panel = panel(area, (&x, &y), ("", ""), 140)?;

        let (pixels, _) = panel.plotting_area().dim_in_pixel();
        for (group, start) in self.groups.iter().zip((0..count).map(f64::from)) {
            let size = self.text_size(pixels / count);
            group.draw(&mut panel, (start, y.length()), pixels / count, size)?;
        }

        // Bars lie over the axis.
        let axis = PathElement::new(vec![(0.0, 0.0), (f64::from(count), 0.0)], INK.stroke_width(2));
        panel.plotting_area().draw(&axis)?;
        let unit = EmptyElement::at((0.0, 0.0))
            + Text::new(self.unit, (-14, 12), text(SMALL, HPos::Right, VPos::Top));

        panel.plotting_area().draw(&unit)
    }

    /// Where the scale ends if one group would dwarf all others.
    fn cut(&self) -> Option<f64> {
        let mut most: Vec<f64> = self.groups.iter().map(Group::most).collect();
        most.sort_by(f64::total_cmp);

        match *most.as_slice() {
            [.., next, highest] if next > 0.0 && highest > DWARFING * next => {
                Some(next * ABOVE_OTHERS)
            }
            _ => None,
        }
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

    fn most(&self) -> f64 {
        self.bars.iter().flatten().map(|(_, spread)| spread.most).fold(0.0, f64::max)
    }

    /// The place of one bar, in groups.
    fn step(&self) -> f64 {
        (FILLED / self.count()).min(WIDEST)
    }

    /// From `start` on, one wide, which is `pixels`, and up to `end`; values and labels have `size`.
    fn draw<DB: DrawingBackend>(
        &self,
        panel: &mut Panel<'_, DB>,
        (start, end): (f64, f64),
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
            draw_bar(panel, (middle, end), step, spread, &shade)?;
            if spread.median > end {
                draw_gap(panel, (middle, end), step)?;
            }

            let area = panel.plotting_area();
            let above = text(size, HPos::Center, VPos::Bottom);
            let below = text(size, HPos::Center, VPos::Top);
            let value = figure(spread.median);
            // Without the grid behind it the value is easier to read.
            let half = i32::try_from(width(&value, size) / 2).unwrap_or(0);
            let blank = Rectangle::new([(-half, -33), (half, -8)], WHITE.filled());
            let value = Text::new(value, (0, -10), above);
            area.draw(&(EmptyElement::at((middle, spread.most.min(end))) + blank + value))?;
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

/// One bar with its whisker, in a place of `step`, as far as it fits below `end`.
fn draw_bar<DB: DrawingBackend>(
    panel: &mut Panel<'_, DB>,
    (middle, end): (f64, f64),
    step: f64,
    spread: &Spread,
    shade: &impl Color,
) -> Outcome<DB> {
    let half = step * 0.46;
    let cap = step * 0.12;
    let corners = [(middle - half, 0.0), (middle + half, spread.median.min(end))];
    // A shade is translucent, and the grid must not shine through.
    panel.plotting_area().draw(&Rectangle::new(corners, WHITE.filled()))?;
    panel.plotting_area().draw(&Rectangle::new(corners, shade.filled()))?;
    if spread.median > end {
        return Ok(());
    }

    for [from, to] in [
        [(middle, spread.least), (middle, spread.most.min(end))],
        [(middle - cap, spread.least), (middle + cap, spread.least)],
        [(middle - cap, spread.most), (middle + cap, spread.most)],
    ] {
        if to.1 <= end {
            panel.plotting_area().draw(&PathElement::new(vec![from, to], INK.stroke_width(3)))?;
        }
    }

    Ok(())
}

/// What says that a bar is cut: a slanting gap near its upper end, which is at `end`, in a place of `step`.
fn draw_gap<DB: DrawingBackend>(
    panel: &mut Panel<'_, DB>,
    (middle, end): (f64, f64),
    step: f64,
) -> Outcome<DB> {
    let half = step * 0.5;
    let [lower, upper] = [0.88, 0.9].map(|height| {
        [(middle - half, end * (height - 0.015)), (middle + half, end * (height + 0.015))]
    });
    let area = panel.plotting_area();

    area.draw(&Polygon::new([lower[0], lower[1], upper[1], upper[0]], WHITE))?;
    for edge in [lower, upper] {
        area.draw(&PathElement::new(edge.to_vec(), INK.stroke_width(3)))?;
    }

    Ok(())
}
