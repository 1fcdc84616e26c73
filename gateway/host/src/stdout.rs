//! Results on stdout.

use std::io::{self, Write as _};

/// Writes `text` to stdout. A closed pipe, as `head` leaves it, is not an error.
///
/// # Errors
///
/// Any other error of stdout, so that lost output does not look like success.
pub fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());

    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
