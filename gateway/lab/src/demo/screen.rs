//! Output of the demo: progress for users while it runs, and the result at its end.

use std::io::{self, IsTerminal};
use std::thread;
use std::time::Duration;

use strait_host::stdout;

use crate::Direction;
use crate::Metrics;
use crate::TwoClusters;

use super::report::Report;

/// Interval between updates of the live table.
const REFRESH: Duration = Duration::from_secs(1);

/// Interval between checks whether the traffic has ended.
const POLL: Duration = Duration::from_millis(20);

/// The output of the demo.
#[derive(Clone, Copy, Debug)]
pub(super) struct Screen {
    is_json: bool,
    is_terminal: bool,
}

impl Screen {
    /// Standard output, as text or as JSON.
    pub(super) fn new(is_json: bool) -> Self {
        Self { is_json, is_terminal: io::stdout().is_terminal() }
    }

    /// Writes a line, unless the output is JSON.
    pub(super) fn line(self, text: &str) -> io::Result<()> {
        if self.is_json { Ok(()) } else { stdout::print(&format!("{text}\n")) }
    }

    /// Writes lines, unless the output is JSON.
    pub(super) fn lines(self, lines: &[String]) -> io::Result<()> {
        lines.iter().try_for_each(|line| self.line(line))
    }

    /// Writes the title of the next step, unless the output is JSON.
    pub(super) fn title(self, text: &str) -> io::Result<()> {
        let (bold, plain) = if self.is_terminal { ("\x1b[1m", "\x1b[0m") } else { ("", "") };

        self.line(&format!("\n{bold}{text}{plain}"))
    }

    /// Writes the result.
    pub(super) fn result(self, report: &Report) -> anyhow::Result<()> {
        if self.is_json {
            stdout::print(&format!("{}\n", report.to_json()?))?;
            return Ok(());
        }
        for failure in report.failures() {
            self.line(&format!("FAILED  {failure}"))?;
        }
        self.title(if report.is_ok() {
            "Success: no ping lost, every byte intact, every packet accounted for."
        } else {
            "Not well."
        })?;

        Ok(())
    }

    /// Runs `traffic` and shows the rates of the gateways meanwhile: on a terminal one table that is
    /// updated, otherwise a line per second.
    pub(super) fn watch<T: Send>(
        self,
        clusters: &TwoClusters,
        traffic: impl FnOnce() -> T + Send,
    ) -> anyhow::Result<T> {
        thread::scope(|scope| {
            let worker = scope.spawn(traffic);
            let mut table = Table::new(clusters)?;
            let mut due = crate::now() + REFRESH;
            while !worker.is_finished() {
                thread::sleep(POLL);
                if crate::now() >= due && !self.is_json {
                    due += REFRESH;
                    self.show(&mut table, clusters)?;
                }
            }
            self.wipe(&table)?;

            worker.join().map_err(|_| anyhow::anyhow!("a traffic thread panicked"))
        })
    }

    fn show(self, table: &mut Table, clusters: &TwoClusters) -> anyhow::Result<()> {
        let rows = table.refresh(clusters)?;
        if !self.is_terminal {
            let rates: Vec<_> = rows.iter().map(Row::short).collect();
            let dropped: u64 = rows.iter().map(|row| row.dropped).sum();
            return Ok(self.line(&format!("    {}  dropped {dropped}", rates.join("  ")))?);
        }

        self.wipe(table)?;
        self.line("    gateway  direction    packets/s       Mb/s    dropped")?;
        for row in &rows {
            self.line(&row.long())?;
        }
        table.height = rows.len() + 1;

        Ok(())
    }

    /// Erases the table and moves the cursor to its start.
    fn wipe(self, table: &Table) -> io::Result<()> {
        if self.is_terminal && table.height > 0 && !self.is_json {
            stdout::print(&format!("\x1b[{}A\x1b[J", table.height))?;
        }

        Ok(())
    }
}

/// The last scrape of both gateways.
struct Table {
    at: std::time::Instant,
    metrics: Vec<(&'static str, Metrics)>,
    /// Number of lines on the terminal.
    height: usize,
}

struct Row {
    gateway: &'static str,
    direction: Direction,
    packets_per_second: f64,
    megabits_per_second: f64,
    dropped: u64,
}

impl Table {
    fn new(clusters: &TwoClusters) -> anyhow::Result<Self> {
        Ok(Self { at: crate::now(), metrics: scrape(clusters)?, height: 0 })
    }

    /// The rates since the last scrape.
    fn refresh(&mut self, clusters: &TwoClusters) -> anyhow::Result<Vec<Row>> {
        let (at, metrics) = (crate::now(), scrape(clusters)?);
        let elapsed = at - self.at;
        let mut rows = Vec::new();
        for ((gateway, before), (_, after)) in self.metrics.iter().zip(&metrics) {
            for direction in Direction::ALL {
                let labels = [("direction", direction.label())];
                let grown =
                    |name| after.sum(name, &labels).saturating_sub(before.sum(name, &labels));
                let bytes = grown("strait_bytes_forwarded_total");
                let packets = grown("strait_packets_forwarded_total");
                rows.push(Row {
                    gateway,
                    direction,
                    packets_per_second: crate::rate(packets, elapsed),
                    megabits_per_second: crate::rate(bytes, elapsed) * 8.0 / 1e6,
                    dropped: after.account(direction).dropped(),
                });
            }
        }
        (self.at, self.metrics) = (at, metrics);

        Ok(rows)
    }
}

impl Row {
    fn long(&self) -> String {
        let Self { gateway, direction, packets_per_second, megabits_per_second, dropped } = self;
        let direction = direction.label();

        format!(
            "    {gateway:<7}  {direction:<9} {packets_per_second:>12.0} {megabits_per_second:>10.1} {dropped:>10}"
        )
    }

    fn short(&self) -> String {
        let Self { gateway, direction, megabits_per_second, .. } = self;

        format!("{gateway} {} {megabits_per_second:.0} Mb/s", direction.label())
    }
}

fn scrape(clusters: &TwoClusters) -> anyhow::Result<Vec<(&'static str, Metrics)>> {
    [&clusters.rome, &clusters.milan]
        .into_iter()
        .map(|cluster| Ok((cluster.name, cluster.metrics()?)))
        .collect()
}
