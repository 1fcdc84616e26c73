//! Where log lines go, in which form, and which ones are written.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::ValueEnum;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

/// What is kept quiet unless the filter names it.
///
/// boringtun logs at ERROR what is normal life of a session (its expiry, a handshake that must be
/// repeated); the counters and the status tell the same in our words. The netlink crates log every
/// message at DEBUG. The client of the API server reports each attempt; whoever asked it says so once.
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
    /// Whether somebody said so.
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
    /// As it is typed.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// Starts logging to stderr. To be called once.
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

/// The wish, or else what whoever reads the log of such a process expects.
fn format(wish: Option<LogFormat>, is_in_cluster: bool, is_terminal: bool) -> LogFormat {
    match wish {
        Some(format) => format,
        None if is_in_cluster && !is_terminal => LogFormat::Json,
        None => LogFormat::Text,
    }
}

/// The log of this process. Its filter can be changed while it logs. Clones are the same log.
#[derive(Clone, Debug)]
pub struct Log {
    format: LogFormat,
    filter: reload::Handle<EnvFilter, Registry>,
    is_changed: Arc<AtomicBool>,
}

/// The layer that holds the filter of a [`Log`].
type FilterLayer = reload::Layer<EnvFilter, Registry>;

impl Log {
    /// Filters by `text` with the defaults. Without the layer to log through the filter is dead.
    pub fn new(text: &str, format: LogFormat) -> (FilterLayer, Self) {
        let (layer, filter) = reload::Layer::new(EnvFilter::new(with_defaults(text)));

        (layer, Self { format, filter, is_changed: Arc::default() })
    }

    /// The form of its lines.
    pub const fn format(&self) -> LogFormat {
        self.format
    }

    /// All directives in force.
    pub fn filter(&self) -> String {
        self.filter.with_current(ToString::to_string).unwrap_or_default()
    }

    /// Whether the filter is another one than at the start.
    pub fn is_changed(&self) -> bool {
        self.is_changed.load(Ordering::Relaxed)
    }

    /// Puts `text` in force as filter, with the defaults. What is wrong changes nothing.
    ///
    /// # Errors
    ///
    /// Why it is no filter, with the choices.
    pub fn set_filter(&self, text: &str) -> Result<(), String> {
        let text = check_filter(text)?;
        let filter = EnvFilter::new(with_defaults(&text));
        self.filter.reload(filter).map_err(|error| error.to_string())?;
        self.is_changed.store(true, Ordering::Relaxed);

        Ok(())
    }
}

/// A filter that [`start`] will understand, as it was written.
///
/// # Errors
///
/// The text of the parser if it is not a filter.
pub(crate) fn check_filter(text: &str) -> Result<String, String> {
    const CHOICES: &str = "use off, error, warn, info, debug or trace, or TARGET=LEVEL";
    if let Some(word) = bare_words(text).find(|word| word.parse::<LevelFilter>().is_err()) {
        return Err(format!("{word:?} is no level: {CHOICES}"));
    }

    match EnvFilter::builder().parse(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{error}: {CHOICES}")),
    }
}

/// The directives without a target. The parser takes one that is no level for a target of which
/// everything is wanted, so that a misspelt level would silence all others.
fn bare_words(text: &str) -> impl Iterator<Item = &str> {
    // Fields in brackets have commas of their own.
    let words = (!text.contains('[')).then(|| text.split(','));

    words
        .into_iter()
        .flatten()
        .map(str::trim)
        .filter(|word| !word.is_empty() && !word.contains('='))
}

fn with_defaults(filter: &str) -> String {
    // An empty variable in the environment is no wish for silence.
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
    fn boringtun_is_quiet_unless_somebody_asks() {
        assert!(with_defaults("info").contains("boringtun=off"));
        assert!(!with_defaults("info,boringtun=debug").contains("boringtun=off"));
    }

    #[test]
    fn the_defaults_make_a_valid_filter() {
        assert!(check_filter(&with_defaults("debug")).is_ok());
    }

    #[test]
    fn what_is_no_filter_is_refused_with_the_choices() {
        for wrong in ["a=b=c", "loud", "info,loud", "strait=loud"] {
            let error = check_filter(wrong).unwrap_err();

            assert!(error.contains("error, warn, info"), "{wrong}: {error}");
        }
        for right in ["", "WARN", "off", "info,strait_daemon=debug", "a[b{c=1}]=trace", "a[b{c}]"] {
            assert_eq!(check_filter(right), Ok(right.to_owned()));
        }
    }

    #[test]
    fn a_new_filter_decides_at_once_and_a_wrong_one_changes_nothing() {
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
    fn json_is_for_clusters_and_no_terminal_unless_somebody_asks() {
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
