//! Where log lines go and which ones are written.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

use super::args::{LogArgs, LogFormat};

/// What is kept quiet unless the filter names it.
///
/// boringtun logs at ERROR what is normal life of a session (its expiry, a handshake that must be
/// repeated); the counters and the status tell the same in our words. The netlink crates log every
/// message at DEBUG. The client of the API server reports each attempt; whoever asked it says so once.
const QUIET: [&str; 5] = [
    "boringtun=off",
    "kube_client=off",
    "kube_runtime=off",
    "netlink_proto=warn",
    "netlink_packet_route=warn",
];

/// Starts logging to stderr. To be called once.
pub(crate) fn start(args: &LogArgs) {
    let filter = EnvFilter::new(with_defaults(&args.log_level));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());

    match args.log_format {
        LogFormat::Text => builder.with_target(false).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
}

/// A filter that [`start`] will understand, as it was written.
///
/// # Errors
///
/// The text of the parser if it is not a filter.
pub(crate) fn check_filter(text: &str) -> Result<String, String> {
    match EnvFilter::builder().parse(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{error}: use error, warn, info, debug or trace")),
    }
}

fn with_defaults(filter: &str) -> String {
    // An empty variable in the environment is no wish for silence.
    let mut directives = if filter.trim().is_empty() { "info" } else { filter }.to_owned();
    for quiet in QUIET {
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
    fn a_filter_that_cannot_be_parsed_is_refused_with_the_choices() {
        let error = check_filter("a=b=c").unwrap_err();

        assert!(error.contains("error, warn, info"), "{error}");
    }
}
