//! SVG elements, the colours, and the frame that all charts share.

use std::fmt::Write as _;

/// Pixels from the left and from the top.
pub(super) type Point = (f64, f64);

/// Width and height of a chart in pixels.
pub(super) const SIZE: Point = (1800.0, 1000.0);
/// Margin at the left and right edge.
pub(super) const MARGIN: f64 = 40.0;

/// Text and axes.
pub(super) const INK: &str = "#222222";
/// Lines of the grid.
pub(super) const GRID: &str = "#dddddd";
pub(super) const WHITE: &str = "#ffffff";

/// Sizes of text in pixels.
pub(super) const LABEL: f64 = 25.0;
pub(super) const SMALL: f64 = 22.0;

/// Masataka Okabe and Kei Ito, "Color Universal Design": people with any colour vision can tell these
/// apart. Yellow is last because it is faint on white, and black is grey because whiskers are black.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666", "#f0e442"];

/// Where text lies relative to its point, which is on its baseline.
#[derive(Clone, Copy, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A chart that is being drawn. Later elements cover earlier ones.
#[derive(Debug)]
pub(super) struct Svg(String);

impl Svg {
    /// An empty white chart with a title above and two lines of text below.
    pub(super) fn new(title: &str, machine: &str, legend: &str) -> Self {
        let (width, height) = SIZE;
        let mut svg = Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"DejaVu Sans, Verdana, sans-serif\" fill=\"{INK}\">\n"
        ));
        svg.rectangle((0.0, 0.0), SIZE, WHITE, 1.0);
        svg.add(&format!(
            "<text x=\"{MARGIN}\" y=\"62\" font-size=\"32\" font-weight=\"bold\">{}</text>",
            escaped(title)
        ));
        for (line, y) in [(machine, height - 58.0), (legend, height - 22.0)] {
            svg.add(&format!(
                "<text x=\"{MARGIN}\" y=\"{y}\" font-size=\"{SMALL}\" fill=\"#606060\">{}</text>",
                escaped(line)
            ));
        }

        svg
    }

    /// The text of the file.
    pub(super) fn finish(self) -> String {
        self.0 + "</svg>\n"
    }

    pub(super) fn rectangle(&mut self, corner: Point, opposite: Point, fill: &str, opacity: f64) {
        let (x, y) = (corner.0.min(opposite.0), corner.1.min(opposite.1));
        let (width, height) = ((corner.0 - opposite.0).abs(), (corner.1 - opposite.1).abs());
        self.add(&format!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{fill}\" \
             fill-opacity=\"{opacity:.2}\"/>"
        ));
    }

    pub(super) fn line(&mut self, points: &[Point], colour: &str, width: f64) {
        let mut places = String::new();
        for (x, y) in points {
            let _ = write!(places, "{x:.1},{y:.1} ");
        }
        self.add(&format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"/>",
            places.trim_end()
        ));
    }

    /// From `low` to `high`, with caps of `cap` pixels to both sides.
    pub(super) fn whisker(&mut self, low: Point, high: Point, cap: f64, colour: &str) {
        for line in [
            [low, high],
            [(low.0 - cap, low.1), (low.0 + cap, low.1)],
            [(high.0 - cap, high.1), (high.0 + cap, high.1)],
        ] {
            self.line(&line, colour, 3.0);
        }
    }

    pub(super) fn dot(&mut self, centre: Point, colour: &str) {
        let (x, y) = centre;
        self.add(&format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"8\" fill=\"{colour}\"/>"));
    }

    pub(super) fn text(&mut self, at: Point, anchor: Anchor, size: f64, text: &str) {
        let (x, y) = at;
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        self.add(&format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size:.1}\">{}</text>",
            escaped(text)
        ));
    }

    /// Draws the colours of `entries` with their names, in as many lines as they need, and returns
    /// where the last line ends.
    pub(super) fn legend(&mut self, entries: &[(String, &str)]) -> f64 {
        const LINE: f64 = 44.0;
        const SWATCH: f64 = 44.0;
        const GAP: f64 = 12.0;

        let (mut x, mut y) = (MARGIN, 122.0);
        for (name, colour) in entries {
            let length = SWATCH + GAP + width(name, LABEL);
            if x > MARGIN && x + length > SIZE.0 - MARGIN {
                (x, y) = (MARGIN, y + LINE);
            }
            self.rectangle((x, y - 5.0), (x + SWATCH, y + 5.0), colour, 1.0);
            self.text((x + SWATCH + GAP, y + 9.0), Anchor::Start, LABEL, name);
            x += length + 2.0 * GAP;
        }

        y + LINE / 2.0
    }

    fn add(&mut self, element: &str) {
        self.0.push_str(element);
        self.0.push('\n');
    }
}

/// The colour of the contestant at `index` of the record.
pub(super) fn colour(index: usize) -> &'static str {
    COLOURS.get(index % COLOURS.len()).copied().unwrap_or(INK)
}

/// Approximate width of `line` in pixels; the viewer chooses the font. A digit of DejaVu Sans is 0.64
/// of the size wide, and letters are narrower on average.
pub(super) fn width(line: &str, size: f64) -> f64 {
    0.62 * size * float(line.chars().count())
}

/// Breaks `words` into lines of at most `limit` pixels, unless a single word is longer.
pub(super) fn wrap(words: &str, size: f64, limit: f64) -> Vec<String> {
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

/// A count as a coordinate.
pub(super) fn float(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
