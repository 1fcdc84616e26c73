//! Pictures of one run: each as SVG for a page, and as PNG for where SVG is not shown.
//!
//! ```text
//!   title                          what is shown, its unit, which direction is better
//!   legend                         only where colours are not named by the picture itself
//!   panel | panel                  bars, distribution or curve
//!   machine: kernel, CPU, cores    what the numbers hold for
//!   how to read bars and lines
//! ```
//!
//! A contestant has the same colour in every picture, and is left out of those for which nothing of
//! it was measured: zero would be a result.

mod axis;
mod bars;
mod canvas;
mod curve;
mod distribution;
mod raster;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use plotters::prelude::{BitMapBackend, DrawingBackend, IntoDrawingArea, SVGBackend};

use crate::record::Record;
use bars::Bars;
use canvas::{Area, Outcome};
use curve::Curves;
use distribution::Distribution;
use raster::Raster;

/// Width and height in pixels: twice what a page shows, so that PNGs are sharp on fine screens.
const SIZE: (u32, u32) = (1800, 1000);

/// One picture: its text, and what is drawn between.
struct Picture {
    /// Of the file, without extension.
    name: &'static str,
    title: &'static str,
    /// How to read it.
    legend: &'static str,
    content: Content,
}

enum Content {
    Bars(Bars),
    Curves(Curves),
    Distribution(Distribution),
}

/// Draws every picture of `record` for which there are numbers, and returns the files.
///
/// # Errors
///
/// If a file in `folder` cannot be written.
pub(crate) fn draw(record: &Record, folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    canvas::register_fonts()?;

    let mut files = Vec::new();
    for picture in pictures(record) {
        let svg = folder.join(picture.name).with_extension("svg");
        picture
            .draw(record, &SVGBackend::new(&svg, SIZE).into_drawing_area())
            .with_context(|| format!("draw {}", svg.display()))?;
        let png = folder.join(picture.name).with_extension("png");
        picture
            .draw(record, &Raster(BitMapBackend::new(&png, SIZE)).into_drawing_area())
            .with_context(|| format!("draw {}", png.display()))?;
        files.extend([svg, png]);
    }

    Ok(files)
}

/// Those with anything to show.
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
    let latency = Distribution::new(record).map(|distribution| Picture {
        name: "latency",
        title: "Share of round trips that take at most so many µs (further left is better)",
        legend: "all rounds together; the upper part of the vertical axis is stretched to show the tail",
        content: Content::Distribution(distribution),
    });
    let scaling = Curves::new(record).map(|curves| Picture {
        name: "scaling",
        title: "TCP upload in Gb/s by streams and by configured peers (higher is better)",
        legend: "point: median of the rounds; whisker: least to most",
        content: Content::Curves(curves),
    });

    [tcp, udp, cost, latency, scaling].into_iter().flatten().collect()
}

impl Picture {
    fn draw<DB: DrawingBackend>(&self, record: &Record, area: &Area<DB>) -> Outcome<DB> {
        let machine = format!(
            "kernel {}, {}, {} cores, {} rounds, {} s a measurement, {}",
            record.kernel,
            record.cpu,
            record.cores,
            record.rounds,
            record.seconds,
            record.congestion_control
        );
        let inner = canvas::frame(area, self.title, &machine, self.legend)?;

        match &self.content {
            Content::Bars(bars) => bars.draw(&inner)?,
            Content::Curves(curves) => curves.draw(&inner)?,
            Content::Distribution(distribution) => distribution.draw(&inner)?,
        }

        area.present()
    }
}

#[cfg(test)]
mod tests;
