//! Grouped bars: a group for each contestant, a bar for each metric. A group that is much higher than all others is cut
//! off.

use super::axis::{Axis, Panel, figure};
use super::svg::{Anchor, INK, LABEL, MARGIN, SIZE, SMALL, Svg, WHITE, colour, float, width, wrap};
use crate::record::{Record, Spread};

/// Share of a group's width that bars fill.
const FILLED: f64 = 0.84;
/// Maximum width of a bar, in groups.
const WIDEST: f64 = 0.4;
/// A group this many times as high as the next one is cut off, so that the others are readable.
const DWARFING: f64 = 2.5;
/// End of the scale in that case, relative to the highest of the others.
const ABOVE_OTHERS: f64 = 1.2;

#[derive(Debug)]
pub(super) struct Bars {
    groups: Vec<Group>,
    /// The quantity of the labels below the bars.
    unit: &'static str,
}

#[derive(Debug)]
struct Group {
    name: String,
    colour: &'static str,
    /// Label and value; a gap where nothing was measured.
    bars: Vec<Option<(&'static str, Spread)>>,
}

impl Bars {
    /// Bars of `metrics`, an identifier and a label each; values are multiplied with `factor`.
    /// `None` without values.
    pub(super) fn new(
        record: &Record,
        metrics: &[(&str, &'static str)],
        unit: &'static str,
        factor: f64,
    ) -> Option<Self> {
        let mut groups = Vec::new();
        for (index, results) in record.contestants.iter().enumerate() {
            let bar = |(metric, label): &(&str, &'static str)| {
                let Spread { least, median, most } = record.spread(&results.name, metric)?;
                let [least, median, most] = [least, median, most].map(|value| value * factor);
                Some((*label, Spread { least, median, most }))
            };
            let bars: Vec<_> = metrics.iter().map(bar).collect();
            if bars.iter().any(Option::is_some) {
                groups.push(Group { name: results.name.clone(), colour: colour(index), bars });
            }
        }

        (!groups.is_empty()).then_some(Self { groups, unit })
    }

    /// The explanation below the chart.
    pub(super) fn legend(&self) -> &'static str {
        if self.cut().is_some() {
            "bar: median of the rounds; whisker: least to most; a bar with a gap is cut off, and its value is above it"
        } else {
            "bar: median of the rounds; whisker: least to most"
        }
    }

    pub(super) fn draw(&self, svg: &mut Svg) {
        let most = || self.groups.iter().map(Group::most).fold(0.0, f64::max);
        let panel = Panel {
            x: Axis::groups(float(self.groups.len())),
            y: Axis::linear(self.cut().unwrap_or_else(most)),
            upper_left: (MARGIN + 130.0, 120.0),
            lower_right: (SIZE.0 - MARGIN - 50.0, 770.0),
        };
        panel.draw(svg);

        let (left, bottom) = panel.at(0.0, 0.0);
        let place = panel.at(1.0, 0.0).0 - left;
        for (group, start) in self.groups.iter().zip((0..u32::MAX).map(f64::from)) {
            group.draw(svg, &panel, start, self.text_size(place));
            let mut baseline = bottom + if self.unit.is_empty() { 42.0 } else { 76.0 };
            for line in wrap(&group.name, LABEL, place - 16.0) {
                let (middle, _) = panel.at(start + 0.5, 0.0);
                svg.text((middle, baseline), Anchor::Middle, LABEL, &line);
                baseline += 32.0;
            }
        }
        // The axis lies over the bars.
        svg.line(&[(left, bottom), (panel.lower_right.0, bottom)], INK, 2.0);
        svg.text((left - 14.0, bottom + 32.0), Anchor::End, SMALL, self.unit);
    }

    /// The end of the scale if one group is cut off.
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

    /// The text size at which every value and label fits its bar, with groups of `pixels` pixels.
    fn text_size(&self, pixels: f64) -> f64 {
        let bars = self.groups.iter().flat_map(|group| group.bars.iter().flatten());
        let texts = bars.flat_map(|(label, spread)| [(*label).to_owned(), figure(spread.median)]);
        let widest = texts.map(|text| width(&text, SMALL)).fold(0.0, f64::max);
        let step = self.groups.iter().map(Group::step).fold(WIDEST, f64::min);
        // Some room between neighbours.
        let place = step * pixels - 4.0;

        if widest > place { SMALL * place / widest } else { SMALL }
    }
}

impl Group {
    fn most(&self) -> f64 {
        self.bars.iter().flatten().map(|(_, spread)| spread.most).fold(0.0, f64::max)
    }

    /// The width of one bar, in groups.
    fn step(&self) -> f64 {
        (FILLED / float(self.bars.len())).min(WIDEST)
    }

    /// Draws the bars from `start` on; values and labels have `size`.
    fn draw(&self, svg: &mut Svg, panel: &Panel, start: f64, size: f64) {
        let (count, step) = (float(self.bars.len()), self.step());
        let first = start + 0.5 - step * count / 2.0;
        for (bar, place) in self.bars.iter().zip((0..8_u32).map(f64::from)) {
            let Some((label, spread)) = bar else { continue };
            let middle = first + step * (place + 0.5);
            // Later bars of a group are darker.
            let opacity = 1.0 - 0.28 * (count - 1.0 - place);
            draw_bar(svg, panel, middle, step * 0.46, spread, (self.colour, opacity));

            let value = figure(spread.median);
            let (x, y) = panel.at(middle, spread.most.min(panel.y.length()));
            // Without the grid behind it the value is easier to read.
            let half = width(&value, size) / 2.0;
            svg.rectangle((x - half, y - 12.0 - size), (x + half, y - 8.0), WHITE, 1.0);
            svg.text((x, y - 12.0), Anchor::Middle, size, &value);
            let (_, bottom) = panel.at(middle, 0.0);
            svg.text((x, bottom + 32.0), Anchor::Middle, size, label);
        }
    }
}

/// One bar with its whisker, `half` wide to both sides of `middle`; with a gap if its value is beyond the
/// axis.
fn draw_bar(
    svg: &mut Svg,
    panel: &Panel,
    middle: f64,
    half: f64,
    spread: &Spread,
    shade: (&str, f64),
) {
    let end = panel.y.length();
    let lower = panel.at(middle - half, 0.0);
    let upper = panel.at(middle + half, spread.median.min(end));
    // The fill is translucent; white below it hides the grid.
    svg.rectangle(lower, upper, WHITE, 1.0);
    svg.rectangle(lower, upper, shade.0, shade.1);

    if spread.median > end {
        let gap = [(-1.0, 0.875), (1.0, 0.905)];
        let gap = gap.map(|(side, height)| panel.at(middle + side * half, end * height));
        svg.line(&gap, INK, 20.0);
        svg.line(&gap, WHITE, 14.0);
    } else {
        let low = panel.at(middle, spread.least);
        let high = panel.at(middle, spread.most.min(end));
        svg.whisker(low, high, 0.26 * (upper.0 - lower.0) / 2.0, INK);
    }
}
