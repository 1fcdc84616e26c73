//! The flame graph: frames as boxes, as wide as their samples, callees on top of their callers.
//!
//! An SVG that needs nothing else. Resting on a box shows its full name and share; a click on one
//! makes it as wide as the picture, and one on the lowest box shows all of them again.

use std::fmt::Write as _;

use super::stacks::{Frame, Function, Origin};

/// All in pixels.
const WIDTH: u32 = 1200;
const ROW: u32 = 17;
const TITLE: u32 = 30;

/// Boxes of less than this share of the picture would be thinner than a hair and are left out.
const HAIR_PERCENT: f64 = 0.02;

/// Neighbours differ in shade, so that they can be told apart; a name has the same shade everywhere.
const PROGRAM: [&str; 4] = ["#f6b26b", "#f9cb9c", "#f1a04f", "#fbd9b0"];
const KERNEL: [&str; 4] = ["#8fbfdf", "#a9cfe8", "#7ab1d6", "#c1deef"];
const THREAD: [&str; 4] = ["#cccccc", "#d9d9d9", "#c0c0c0", "#e3e3e3"];

/// Positions are percentages of the picture, so a zoom only has to stretch them.
const SCRIPT: &str = "
const boxes = [...document.querySelectorAll('svg svg')].map(
  node => [node, ...['x', 'width'].map(name => parseFloat(node.getAttribute(name)))]);
for (const [node, left, span] of boxes) node.onclick = () => {
  for (const [other, x, width] of boxes) {
    const start = Math.max(0, (x - left) / span * 100);
    const end = Math.min(100, (x + width - left) / span * 100);
    other.style.display = end - start < 0.02 ? 'none' : '';
    other.setAttribute('x', start + '%');
    other.setAttribute('width', Math.max(0, end - start) + '%');
  }
};
";

/// Draws all threads of one process.
pub(super) fn draw(title: &str, all: &Frame) -> String {
    let height = TITLE + ROW * all.height();
    let mut picture = Picture { svg: String::new(), samples: all.samples, height };

    let _ = writeln!(
        picture.svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"monospace\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"4\" y=\"19\" font-size=\"14\">{}</text>",
        escaped(title)
    );
    let everything = Function { name: "all threads".to_owned(), origin: Origin::Thread };
    picture.draw(&everything, all, 0, 0);
    let _ = writeln!(picture.svg, "<script><![CDATA[{SCRIPT}]]></script>\n</svg>");

    picture.svg
}

struct Picture {
    svg: String,
    samples: u32,
    height: u32,
}

impl Picture {
    /// A frame and those above it. `before` is the number of samples left of it, `depth` that of the
    /// frames below it.
    fn draw(&mut self, function: &Function, frame: &Frame, before: u32, depth: u32) {
        let width = self.percent(frame.samples);
        if width < HAIR_PERCENT {
            return;
        }
        let name = escaped(&function.name);
        let _ = writeln!(
            self.svg,
            "<svg x=\"{:.4}%\" y=\"{}\" width=\"{width:.4}%\" height=\"{}\">\
             <title>{name}: {width:.2} % ({} samples, {} of its own)</title>\
             <rect width=\"100%\" height=\"100%\" fill=\"{}\"/>\
             <text x=\"3\" y=\"12\">{name}</text></svg>",
            self.percent(before),
            self.height - ROW * (depth + 1),
            ROW - 1,
            frame.samples,
            frame.own,
            colour(function),
        );

        let mut before = before;
        for (callee, frame) in &frame.callees {
            self.draw(callee, frame, before, depth + 1);
            before += frame.samples;
        }
    }

    fn percent(&self, samples: u32) -> f64 {
        super::percent(samples, self.samples)
    }
}

fn colour(function: &Function) -> &'static str {
    let shades = match function.origin {
        Origin::Thread => THREAD,
        Origin::Program | Origin::Inlined => PROGRAM,
        Origin::Kernel => KERNEL,
    };
    let [first, ..] = shades;
    let sum = function.name.bytes().fold(0, |sum, byte| sum + usize::from(byte));

    shades.get(sum % shades.len()).copied().unwrap_or(first)
}

/// XML has no place for control characters, escaped or not.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            control if control.is_control() => escaped.push('\u{fffd}'),
            plain => escaped.push(plain),
        }
    }

    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Position, row and width of one box.
    type Place = (f64, u32, f64);

    const SCRIPT: &str = "w\n 3 c (x)\n 2 b (x)\n 1 a (x)\n\nw\n 2 b (x)\n 1 a (x)\n\n\
                          w\n 9 d<&\"> (x)\n 1 a (x)\n\nv\n 1 a (x)\n";

    #[test]
    fn a_box_is_as_wide_as_its_share() {
        let boxes = boxes(&drawn());

        assert_eq!(boxes["all threads"], (0.0, bottom(1), 100.0));
        assert_eq!(boxes["v"], (0.0, bottom(2), 25.0));
        assert_eq!(boxes["w"], (25.0, bottom(2), 75.0));
        assert_eq!(boxes["b"], (25.0, bottom(4), 50.0));
        assert_eq!(boxes["c"], (25.0, bottom(5), 25.0));
    }

    #[test]
    fn boxes_of_a_row_do_not_overlap() {
        let mut places: Vec<Place> = boxes(&drawn()).into_values().collect();
        places.sort_by(|a, b| a.1.cmp(&b.1).then(a.0.total_cmp(&b.0)));

        for pair in places.windows(2).filter(|pair| pair[0].1 == pair[1].1) {
            assert!(pair[0].0 + pair[0].2 <= pair[1].0 + 0.001, "{pair:?}");
        }
    }

    #[test]
    fn names_are_escaped() {
        let svg = drawn();

        assert!(svg.contains("<text x=\"3\" y=\"12\">d&lt;&amp;&quot;&gt;</text>"), "{svg}");
        assert_eq!(escaped("a\u{1b}b"), "a\u{fffd}b");
    }

    #[test]
    fn nothing_to_draw_is_an_empty_picture() {
        assert_eq!(boxes(&draw("nothing", &Frame::default())).len(), 0);
    }

    fn drawn() -> String {
        draw("title", &Frame::from_script(SCRIPT))
    }

    fn bottom(row: u32) -> u32 {
        TITLE + ROW * (5 - row)
    }

    /// By name; `a` is there twice, so one of both is lost.
    fn boxes(svg: &str) -> std::collections::HashMap<String, Place> {
        let attribute = |line: &str, name: &str| -> f64 {
            let (_, rest) = line.split_once(&format!(" {name}=\"")).unwrap();

            rest.split(['"', '%']).next().unwrap().parse().unwrap()
        };
        let lines = svg.lines().filter(|line| line.starts_with("<svg x="));

        lines
            .map(|line| {
                let (_, name) = line.split_once("<title>").unwrap();
                let (x, y) = (attribute(line, "x"), attribute(line, "y"));
                let row = format!("{y}").parse().unwrap();

                (name.split_once(": ").unwrap().0.to_owned(), (x, row, attribute(line, "width")))
            })
            .collect()
    }
}
