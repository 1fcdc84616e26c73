//! What all pictures share: colours, text, the frame around the panels, the legend.

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontDesc, FontFamily, FontStyle, RGBColor, TextStyle, register_font};

use crate::record::Record;

pub(super) type Area<DB> = DrawingArea<DB, Shift>;
pub(super) type Outcome<DB, T = ()> =
    Result<T, DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>>;

/// Text and axes.
pub(super) const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
/// Text that is not needed to read the picture.
const FAINT: RGBColor = RGBColor(0x60, 0x60, 0x60);
/// Lines of the grid.
pub(super) const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);

/// Sizes of text in pixels.
const TITLE: f64 = 40.0;
pub(super) const LABEL: f64 = 31.0;
pub(super) const SMALL: f64 = 27.0;

/// The font whose metrics place the text, and what a viewer of the SVG takes if it has none such.
const FAMILY: &str = "DejaVu Sans, Verdana, sans-serif";

/// Masataka Okabe and Kei Ito, "Color Universal Design": people with any colour vision can tell
/// these apart. Yellow is last because it is faint on white, and black is grey because whiskers are
/// black.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x66, 0x66, 0x66),
    RGBColor(0xf0, 0xe4, 0x42),
];

/// The colour of the contestant at `index` of the record.
pub(super) fn colour(index: usize) -> RGBColor {
    COLOURS.iter().copied().cycle().nth(index % COLOURS.len()).unwrap_or(INK)
}

/// The names and colours of those contestants for whom `is_shown`, in the order of the record.
pub(super) fn entries(record: &Record, is_shown: impl Fn(&str) -> bool) -> Vec<(String, RGBColor)> {
    let all = record.contestants.iter().zip(0..);
    let shown = all.filter(|(entrant, _)| is_shown(&entrant.name));

    shown.map(|(entrant, index)| (entrant.name.clone(), colour(index))).collect()
}

/// Makes the fonts of this program known to the library: the machine may have none.
///
/// # Errors
///
/// If the library cannot read them.
pub(super) fn register_fonts() -> anyhow::Result<()> {
    use dejavu::sans::{bold, regular};

    for (style, font) in [(FontStyle::Normal, regular()), (FontStyle::Bold, bold())] {
        register_font(FAMILY, style, font).map_err(|_| anyhow!("font {FAMILY} is damaged"))?;
    }

    Ok(())
}

/// Text of `size` pixels around its anchor.
pub(super) fn text(size: f64, horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
    let font = FontDesc::new(FontFamily::Name(FAMILY), size, FontStyle::Normal);

    font.color(&INK).pos(Pos::new(horizontal, vertical))
}

/// How many pixels `line` takes.
pub(super) fn width(line: &str, size: f64) -> u32 {
    let style = text(size, HPos::Left, VPos::Top);

    style.font.box_size(line).map_or(0, |(width, _)| width)
}

/// Breaks `words` into lines of at most `limit` pixels, unless a single word is longer.
pub(super) fn wrap(words: &str, size: f64, limit: u32) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width(&format!("{line} {word}"), size) <= limit => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }

    lines
}

/// Draws what surrounds the panels, and returns the place for them.
pub(super) fn frame<DB: DrawingBackend>(
    area: &Area<DB>,
    title: &str,
    machine: &str,
    legend: &str,
) -> Outcome<DB, Area<DB>> {
    const MARGIN: i32 = 40;

    area.fill(&WHITE)?;
    let (_, height) = area.dim_in_pixel();
    let bottom = i32::try_from(height).unwrap_or(i32::MAX);

    let left = Pos::new(HPos::Left, VPos::Center);
    let bold = FontDesc::new(FontFamily::Name(FAMILY), TITLE, FontStyle::Bold);
    area.draw_text(title, &bold.color(&INK).pos(left), (MARGIN, 50))?;
    let faint = text(SMALL, HPos::Left, VPos::Center).color(&FAINT);
    area.draw_text(machine, &faint, (MARGIN, bottom - 66))?;
    area.draw_text(legend, &faint, (MARGIN, bottom - 30))?;

    Ok(area.margin(100, 100, MARGIN, MARGIN))
}

/// Draws the colours of `entries` with their names, in as many lines as they need, and returns the
/// place below.
pub(super) fn legend<DB: DrawingBackend>(
    area: &Area<DB>,
    entries: &[(String, RGBColor)],
) -> Outcome<DB, Area<DB>> {
    const LINE: i32 = 44;
    const SWATCH: i32 = 44;
    const GAP: i32 = 12;

    let (limit, _) = area.dim_in_pixel();
    let limit = i32::try_from(limit).unwrap_or(i32::MAX);
    let style = text(LABEL, HPos::Left, VPos::Center);
    let (mut x, mut y) = (0, LINE / 2);
    for (name, colour) in entries {
        let length = SWATCH + GAP + i32::try_from(width(name, LABEL)).unwrap_or(i32::MAX / 2);
        if x > 0 && x + length > limit {
            (x, y) = (0, y + LINE);
        }
        area.draw(&Rectangle::new([(x, y - 5), (x + SWATCH, y + 5)], colour.filled()))?;
        area.draw_text(name, &style, (x + SWATCH + GAP, y))?;
        x += length + 3 * GAP;
    }

    Ok(area.split_vertically(y + LINE).1)
}
