//! Reads lines that may contain secrets, with one buffer that never grows and is wiped at the end.

use std::io;

use strait_wg::uapi::requests::MAX_LINE_BYTES;
use tokio::io::{AsyncRead, AsyncReadExt};
use zeroize::Zeroizing;

/// Size of the buffer: several of the longest lines.
const BUFFER_BYTES: usize = 4 * (MAX_LINE_BYTES + 1);

/// The next line, or why there is none.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// A line without its end.
    Text(&'a [u8]),
    /// The line is longer than the buffer. Reading cannot continue.
    TooLong,
    /// The stream has ended. A line without an end is discarded.
    End,
}

/// Reads lines.
#[derive(Debug)]
pub(super) struct Lines<R> {
    stream: R,
    bytes: Zeroizing<Vec<u8>>,
    /// The range that was read and not yet returned.
    start: usize,
    end: usize,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(stream: R) -> Self {
        Self { stream, bytes: Zeroizing::new(vec![0; BUFFER_BYTES]), start: 0, end: 0 }
    }

    /// Reads the next line. Cancel safe.
    ///
    /// # Errors
    ///
    /// The stream's.
    pub(super) async fn next(&mut self) -> io::Result<Line<'_>> {
        loop {
            let unread = self.bytes.get(self.start..self.end).unwrap_or_default();
            if let Some(len) = unread.iter().position(|byte| *byte == b'\n') {
                let line = self.start..self.start + len;
                self.start += len + 1;
                return Ok(Line::Text(self.bytes.get(line).unwrap_or_default()));
            }
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            let room = self.bytes.get_mut(self.end..).unwrap_or_default();
            if room.is_empty() {
                return Ok(Line::TooLong);
            }
            match self.stream.read(room).await? {
                0 => return Ok(Line::End),
                len => self.end += len,
            }
        }
    }

    /// Reads and discards the rest of the stream.
    ///
    /// # Errors
    ///
    /// The stream's.
    pub(super) async fn drain(&mut self) -> io::Result<()> {
        while self.stream.read(&mut self.bytes).await? > 0 {}

        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_split_and_unfinished_ones_dropped() {
        let mut lines = Lines::new(&b"get=1\n\nrest"[..]);

        assert_eq!(lines.next().await.unwrap(), Line::Text(b"get=1"));
        assert_eq!(lines.next().await.unwrap(), Line::Text(b""));
        assert_eq!(lines.next().await.unwrap(), Line::End, "a line has an end");
    }

    #[tokio::test]
    async fn a_long_stream_fits_into_the_buffer() {
        let text = "fwmark=1\n".repeat(5000);
        let mut lines = Lines::new(text.as_bytes());

        for _ in 0..5000 {
            assert_eq!(lines.next().await.unwrap(), Line::Text(b"fwmark=1"));
        }
        assert_eq!(lines.next().await.unwrap(), Line::End);
    }

    #[tokio::test]
    async fn a_line_without_end_is_too_long() {
        let text = vec![b'x'; BUFFER_BYTES];

        assert_eq!(Lines::new(&text[..]).next().await.unwrap(), Line::TooLong);
    }
}
