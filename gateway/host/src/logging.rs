//! Format and filter of the log, which goes to stderr.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::ValueEnum;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

/// Targets that are limited unless the filter names them.
///
/// boringtun logs normal events of a session at ERROR (its expiry, a repeated handshake); counters and status report
/// the same. The netlink crates log every message at DEBUG. The client of the API server logs each attempt; its
/// caller logs the failure once.
const QUIETED_TARGETS: [&str; 5] = [
    "boringtun=off",
    "kube_client=off",
    "kube_runtime=off",
    "netlink_proto=warn",
    "netlink_packet_route=warn",
];

/// How to log. Logs go to stderr.
#[derive(Clone, Debug, clap::Args)]
pub struct LogArgs {
    /// Form of the log lines [default: json in a cluster if stderr is no terminal, else text]
    #[arg(long, env = "STRAIT_LOG_FORMAT", value_enum, global = true)]
    pub log_format: Option<LogFormat>,
    /// What to log: error, warn, info, debug, trace, or directives such as `info,strait_daemon=debug`
    #[arg(
        long,
        env = "RUST_LOG",
        value_name = "FILTER",
        default_value = "info",
        value_parser = check_filter,
        global = true
    )]
    pub log_level: String,
    /// Whether a flag or the environment set the level.
    #[arg(skip)]
    pub is_level_given: bool,
}

/// Form of the log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people: coloured on a terminal
    Text,
    /// For machines: one JSON object a line
    Json,
}

impl LogFormat {
    /// The name on the command line.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// Starts logging to stderr. Call it once.
pub fn start(args: &LogArgs, is_in_cluster: bool) -> Log {
    let is_terminal = io::stderr().is_terminal();
    let format = format(args.log_format, is_in_cluster, is_terminal);
    let (layer, log) = Log::new(&args.log_level, format);
    let lines = fmt::layer().with_writer(io::stderr).with_ansi(is_terminal);
    let lines = match format {
        LogFormat::Text => lines.with_target(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(layer).with(lines).init();

    log
}

/// The requested format, or else the default: JSON in a cluster unless stderr is a terminal.
fn format(wish: Option<LogFormat>, is_in_cluster: bool, is_terminal: bool) -> LogFormat {
    match wish {
        Some(format) => format,
        None if is_in_cluster && !is_terminal => LogFormat::Json,
        None => LogFormat::Text,
    }
}

/// The log of this process, whose filter can be changed at run time. Clones share the filter.
#[derive(Clone, Debug)]
pub struct Log {
    format: LogFormat,
    filter: reload::Handle<EnvFilter, Registry>,
    is_changed: Arc<AtomicBool>,
}

/// The layer that holds the filter of a [`Log`].
type FilterLayer = reload::Layer<EnvFilter, Registry>;

impl Log {
    /// Creates a filter from `text` and the defaults. It has an effect only while the returned layer is installed.
    pub fn new(text: &str, format: LogFormat) -> (FilterLayer, Self) {
        let (layer, filter) = reload::Layer::new(EnvFilter::new(with_defaults(text)));

        (layer, Self { format, filter, is_changed: Arc::default() })
    }

    /// The format of the log lines.
    pub const fn format(&self) -> LogFormat {
        self.format
    }

    /// All directives in force.
    pub fn filter(&self) -> String {
        self.filter.with_current(ToString::to_string).unwrap_or_default()
    }

    /// Whether the filter was changed after the start.
    pub fn is_changed(&self) -> bool {
        self.is_changed.load(Ordering::Relaxed)
    }

    /// Replaces the filter with `text` and the defaults. An invalid text changes nothing.
    ///
    /// # Errors
    ///
    /// Why `text` is not a valid filter, with the valid forms.
    pub fn set_filter(&self, text: &str) -> Result<(), String> {
        let text = check_filter(text)?;
        let filter = EnvFilter::new(with_defaults(&text));
        self.filter.reload(filter).map_err(|error| error.to_string())?;
        self.is_changed.store(true, Ordering::Relaxed);

        Ok(())
    }
}

/// Checks that [`start`] accepts `text` as a filter, and returns it unchanged.
///
/// # Errors
///
/// The parser's message if it is not a filter.
pub(crate) fn check_filter(text: &str) -> Result<String, String> {
    const CHOICES: &str = "use off, error, warn, info, debug or trace, or TARGET=LEVEL";
    if let Some(word) = bare_words(text).find(|word| word.parse::<LevelFilter>().is_err()) {
        return Err(format!("{word:?} is not a level: {CHOICES}"));
    }

    match EnvFilter::builder().parse(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{error}: {CHOICES}")),
    }
}

/// The directives without `=`. The parser would take one that is not a level for a target with everything enabled, so
/// that a misspelt level would silence all others.
fn bare_words(text: &str) -> impl Iterator<Item = &str> {
    // Fields in brackets may contain commas.
    let words = (!text.contains('[')).then(|| text.split(','));

    words
        .into_iter()
        .flatten()
        .map(str::trim)
        .filter(|word| !word.is_empty() && !word.contains('='))
}

fn with_defaults(filter: &str) -> String {
    // An empty environment variable means the default.
    let mut directives = if filter.trim().is_empty() { "info" } else { filter }.to_owned();
    for quiet in QUIETED_TARGETS {
        let target = quiet.split('=').next().unwrap_or(quiet);
        if !filter.contains(target) {
            directives.push(',');
            directives.push_str(quiet);
        }
    }

    directives
}

#[cfg(test)]
mod tests {
    use tracing::{Level, enabled, subscriber};

    use super::*;

    #[test]
    fn boringtun_is_off_unless_named() {
        assert!(with_defaults("info").contains("boringtun=off"));
        assert!(!with_defaults("info,boringtun=debug").contains("boringtun=off"));
    }

    #[test]
    fn the_defaults_make_a_valid_filter() {
        assert!(check_filter(&with_defaults("debug")).is_ok());
    }

    #[test]
    fn invalid_filters_are_refused_with_choices() {
        for wrong in ["a=b=c", "loud", "info,loud", "strait=loud"] {
            let error = check_filter(wrong).unwrap_err();

            assert!(error.contains("error, warn, info"), "{wrong}: {error}");
        }
        for right in ["", "WARN", "off", "info,strait_daemon=debug", "a[b{c=1}]=trace", "a[b{c}]"] {
            assert_eq!(check_filter(right), Ok(right.to_owned()));
        }
    }

    #[test]
    fn a_new_filter_takes_effect_at_once() {
        let (layer, log) = Log::new("info", LogFormat::Text);
        let _guard = subscriber::set_default(tracing_subscriber::registry().with(layer));
        assert!(!enabled!(Level::DEBUG));

        log.set_filter("debug,boringtun=trace").unwrap();
        assert!(enabled!(Level::DEBUG));
        assert!(enabled!(target: "boringtun", Level::TRACE));
        assert!(!enabled!(target: "kube_client", Level::ERROR));
        let before = log.filter();
        let wrong = log.set_filter("loud");

        assert!(wrong.is_err());
        assert_eq!(log.filter(), before);
        for directive in ["debug", "boringtun=trace", "kube_client=off", "netlink_proto=warn"] {
            assert!(before.split(',').any(|word| word == directive), "{before}");
        }
    }

    #[test]
    fn json_is_the_default_in_clusters() {
        let (text, json) = (LogFormat::Text, LogFormat::Json);

        assert_eq!(format(None, true, false), json);
        assert_eq!(format(None, true, true), text);
        assert_eq!(format(None, false, false), text);
        for (is_in_cluster, is_terminal) in [(true, false), (true, true), (false, false)] {
            assert_eq!(format(Some(text), is_in_cluster, is_terminal), text);
            assert_eq!(format(Some(json), is_in_cluster, is_terminal), json);
        }
    }
}
