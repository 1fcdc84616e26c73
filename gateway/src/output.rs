//! Error messages on stderr and exit statuses.

use std::io::{self, Write};
use std::process::ExitCode;

use strait_daemon::config::{Findings, KeyFileError};
use strait_daemon::explain::ExplainError;
use strait_daemon::show::ShowError;
use strait_host::exit_status::{ExitStatus, RUNTIME};
use strait_host::usage::UsageError;

use super::key::KeyCommandError;

/// Returns the error if it is of one type.
type Cast = fn(&anyhow::Error) -> Option<&dyn ExitStatus>;

/// Every error that has an exit status of its own.
const WITH_STATUS: [Cast; 6] = [
    cast::<ExplainError>,
    cast::<Findings>,
    cast::<KeyCommandError>,
    cast::<KeyFileError>,
    cast::<ShowError>,
    cast::<UsageError>,
];

/// Reports the error that ends the program, and returns the exit status. `help` is the command that shows the usage.
pub(crate) fn failure(error: &anyhow::Error, help: &str) -> ExitCode {
    // A closed stderr cannot be reported.
    let _ = io::stderr().lock().write_all(describe(error, help).as_bytes());

    ExitCode::from(exit_status(error))
}

fn with_status(error: &anyhow::Error) -> Option<&dyn ExitStatus> {
    WITH_STATUS.iter().find_map(|cast| cast(error))
}

fn cast<E: ExitStatus + Send + Sync + 'static>(error: &anyhow::Error) -> Option<&dyn ExitStatus> {
    let error: &dyn ExitStatus = error.downcast_ref::<E>()?;

    Some(error)
}

/// The lines of the error, or one line for the whole chain of causes.
fn describe(error: &anyhow::Error, help: &str) -> String {
    let known = with_status(error);
    if let Some(known) = known.filter(|known| known.has_own_lines()) {
        return format!("{known}\n");
    }
    let text = format!("{error:#}").replace('\n', " ");

    if known.is_some_and(|known| known.is_about_command_line()) {
        format!("strait: {text}; see `{help}`\n")
    } else {
        format!("strait: {text}\n")
    }
}

fn exit_status(error: &anyhow::Error) -> u8 {
    with_status(error).map_or(RUNTIME, ExitStatus::exit_status)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::path::PathBuf;

    use strait_daemon::config::Config;
    use strait_daemon::socket::SocketError;
    use strait_io::StartError;

    use super::*;

    #[test]
    fn wrong_configuration_exits_64() {
        let findings = Config::load(&PathBuf::from("/nonexistent/strait.toml")).unwrap_err();

        assert_eq!(exit_status(&findings.into()), 64);
    }

    #[test]
    fn wrong_usage_exits_64() {
        let error = UsageError::Wrong("unexpected argument '--speed'".to_owned()).into();

        assert_eq!(exit_status(&error), 64);
        assert_eq!(
            describe(&error, "strait check --help"),
            "strait: unexpected argument '--speed'; see `strait check --help`\n"
        );
    }

    #[test]
    fn an_exposed_key_file_exits_64() {
        let error = KeyFileError::Exposed { path: PathBuf::from("k"), mode: 0o644 };

        assert_eq!(exit_status(&error.into()), 64);
    }

    #[test]
    fn a_gateway_that_does_not_answer_exits_69() {
        let source = io::Error::from(io::ErrorKind::NotFound);
        let error = ExplainError::from(SocketError::NoGateway { path: "/s".into(), source });

        assert_eq!(exit_status(&error.into()), 69);
    }

    #[test]
    fn a_failed_start_exits_1_in_one_line() {
        let address: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let source = io::Error::from(io::ErrorKind::AddrInUse);
        let error = anyhow::Error::from(StartError::Port { port: address.port(), source });

        let text = describe(&error, "strait gateway --help");

        assert_eq!(exit_status(&error), 1);
        assert_eq!(text.lines().count(), 1);
        assert!(text.starts_with("strait: cannot listen on UDP port 1: "), "{text}");
        assert!(text.contains("address in use"), "{text}");
    }
}
