//! The bitmap, with smooth lines, and text at the height at which SVG has it.

use std::collections::BTreeMap;

use plotters::prelude::{BitMapBackend, DrawingBackend};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingErrorKind,
};

/// How much higher than SVG the library puts text onto bitmaps, in pixels. It is a ninth of the
/// size of the text: as much for all sizes that are used here.
const RAISED: i32 = 4;

/// What is not written here is drawn pixel by pixel by the provided methods of the trait.
pub(super) struct Raster<'a>(pub(super) BitMapBackend<'a>);

type Failure<'a> = DrawingErrorKind<<BitMapBackend<'a> as DrawingBackend>::ErrorType>;

impl<'a> DrawingBackend for Raster<'a> {
    type ErrorType = <BitMapBackend<'a> as DrawingBackend>::ErrorType;

    fn get_size(&self) -> (u32, u32) {
        self.0.get_size()
    }

    fn ensure_prepared(&mut self) -> Result<(), Failure<'a>> {
        self.0.ensure_prepared()
    }

    fn present(&mut self) -> Result<(), Failure<'a>> {
        self.0.present()
    }

    fn draw_pixel(&mut self, at: BackendCoord, colour: BackendColor) -> Result<(), Failure<'a>> {
        self.0.draw_pixel(at, colour)
    }

    /// The provided method draws every pixel whole or not at all: slopes become stairs.
    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        style: &S,
    ) -> Result<(), Failure<'a>> {
        let points: Vec<BackendCoord> = path.into_iter().collect();
        let width = f64::from(style.stroke_width());
        let mut shares: BTreeMap<BackendCoord, f64> = BTreeMap::new();
        for (from, to) in points.iter().zip(points.iter().skip(1)) {
            for (at, share) in covered(*from, *to, width) {
                let best = shares.entry(at).or_default();
                *best = best.max(share);
            }
        }

        let (right, bottom) = self.get_size();
        let is_inside = |(x, y): &BackendCoord| {
            u32::try_from(*x).is_ok_and(|x| x < right)
                && u32::try_from(*y).is_ok_and(|y| y < bottom)
        };
        for (at, share) in shares.into_iter().filter(|(at, _)| is_inside(at)) {
            let BackendColor { alpha, rgb } = style.color();
            self.draw_pixel(at, BackendColor { alpha: alpha * share, rgb })?;
        }

        Ok(())
    }

    fn draw_text<S: BackendTextStyle>(
        &mut self,
        text: &str,
        style: &S,
        (x, y): BackendCoord,
    ) -> Result<(), Failure<'a>> {
        self.0.draw_text(text, style, (x, y + RAISED))
    }
}

/// The pixels under a line of `width`, and which share of each it covers.
fn covered(
    from: BackendCoord,
    to: BackendCoord,
    width: f64,
) -> impl Iterator<Item = (BackendCoord, f64)> {
    // No line is wider.
    const REACH: i32 = 4;

    let columns = from.0.min(to.0) - REACH..=from.0.max(to.0) + REACH;
    let rows = from.1.min(to.1) - REACH..=from.1.max(to.1) + REACH;
    let pixels = columns.flat_map(move |x| rows.clone().map(move |y| (x, y)));

    pixels
        .map(move |at| (at, (width / 2.0 + 0.5 - distance(at, from, to)).min(1.0)))
        .filter(|(_, share)| *share > 0.0)
}

/// From a point to the nearest point of a line.
fn distance(at: BackendCoord, from: BackendCoord, to: BackendCoord) -> f64 {
    let along = (f64::from(to.0 - from.0), f64::from(to.1 - from.1));
    let offset = (f64::from(at.0 - from.0), f64::from(at.1 - from.1));
    let square = along.0 * along.0 + along.1 * along.1;
    let share = if square > 0.0 {
        ((offset.0 * along.0 + offset.1 * along.1) / square).clamp(0.0, 1.0)
    } else {
        0.0
    };

    f64::hypot(offset.0 - share * along.0, offset.1 - share * along.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_line_covers_whole_pixels() {
        let pixels: Vec<_> = covered((0, 0), (10, 0), 3.0).filter(|(at, _)| at.0 == 5).collect();

        assert_eq!(pixels, [((5, -1), 1.0), ((5, 0), 1.0), ((5, 1), 1.0)]);
    }

    #[test]
    fn a_slope_covers_some_pixels_in_part() {
        let shares: Vec<f64> = covered((0, 0), (10, 7), 4.0).map(|(_, share)| share).collect();

        assert!(shares.iter().any(|share| *share < 1.0));
        assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)));
    }
}
