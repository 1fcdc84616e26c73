//! Results on stdout.

use std::io::{self, Write as _};

/// Writes a result to stdout, as it is. A reader that has seen enough, as `head` has, is no error.
///
/// # Errors
///
/// Whatever else stdout reports, so that a result that was lost does not look like success.
pub fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());

    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
