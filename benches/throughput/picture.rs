//! Charts of one run, as SVG.
//!
//! ```text
//!   title                          what is shown, its unit, which direction is better
//!   legend                         only where colours are not named by the picture itself
//!   panel | panel                  bars or lines
//!   machine: kernel, CPU, cores    what the numbers hold for
//!   how to read bars and lines
//! ```
//!
//! A contestant has the same colour in every picture. A picture omits the contestants without a value:
//! zero would be a result.

mod axis;
mod bars;
mod lines;
mod svg;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::record::Record;
use bars::Bars;
use lines::Lines;
use svg::Svg;

/// One picture: its texts and its content.
struct Picture {
    /// The name of the file, without extension.
    name: &'static str,
    title: &'static str,
    /// The explanation below the chart.
    legend: &'static str,
    content: Content,
}

enum Content {
    Bars(Bars),
    Lines(Lines),
}

/// Draws every picture for which `record` has values, and returns the files.
///
/// # Errors
///
/// If a file in `folder` cannot be written.
pub(crate) fn draw(record: &Record, folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;

    let mut files = Vec::new();
    for picture in pictures(record) {
        let path = folder.join(picture.name).with_extension("svg");
        fs::write(&path, picture.draw(record))
            .with_context(|| format!("write {}", path.display()))?;
        files.push(path);
    }

    Ok(files)
}

/// The pictures with values.
fn pictures(record: &Record) -> Vec<Picture> {
    const STREAMS: [(&str, &str); 3] =
        [("tcp_1_up_gbps", "1"), ("tcp_4_up_gbps", "4"), ("tcp_16_up_gbps", "16")];
    const SIZES: [(&str, &str); 3] =
        [("udp_64_pps", "64"), ("udp_512_pps", "512"), ("udp_1300_pps", "1,300")];
    const COST: [(&str, &str); 1] = [("cpu_seconds_per_gb", "")];

    let tcp = Bars::new(record, &STREAMS, "streams", 1.0).map(|bars| Picture {
        name: "tcp",
        title: "TCP upload in Gb/s with 1, 4 and 16 streams (higher is better)",
        legend: bars.legend(),
        content: Content::Bars(bars),
    });
    let udp = Bars::new(record, &SIZES, "bytes", 1e-3).map(|bars| Picture {
        name: "udp",
        title: "UDP, thousand packets per second of 64, 512 and 1,300 bytes (higher is better)",
        legend: bars.legend(),
        content: Content::Bars(bars),
    });
    let cost = Bars::new(record, &COST, "", 1.0).map(|bars| Picture {
        name: "cost",
        title: "CPU seconds per GB of TCP payload, both gateways (lower is better)",
        legend: bars.legend(),
        content: Content::Bars(bars),
    });
    let latency = Lines::latency(record).map(|lines| Picture {
        name: "latency",
        title: "Share of round trips within a time in µs (further left is better)",
        legend: "all rounds together; the upper part of the vertical axis is stretched to show the tail",
        content: Content::Lines(lines),
    });
    let scaling = Lines::scaling(record).map(|lines| Picture {
        name: "scaling",
        title: "TCP upload in Gb/s by streams and by configured peers (higher is better)",
        legend: "point: median of the rounds; whisker: least to most",
        content: Content::Lines(lines),
    });

    [tcp, udp, cost, latency, scaling].into_iter().flatten().collect()
}

impl Picture {
    /// The text of the SVG file.
    fn draw(&self, record: &Record) -> String {
        let machine = format!(
            "kernel {}, {}, {} cores, {} rounds, {} s a measurement, {}",
            record.kernel,
            record.cpu,
            record.cores,
            record.rounds,
            record.seconds,
            record.congestion_control
        );
        let mut svg = Svg::new(self.title, &machine, self.legend);

        match &self.content {
            Content::Bars(bars) => bars.draw(&mut svg),
            Content::Lines(lines) => lines.draw(&mut svg),
        }

        svg.finish()
    }
}

#[cfg(test)]
mod tests;
