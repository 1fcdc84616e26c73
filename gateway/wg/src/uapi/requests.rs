//! Parses the requests of one connection, line by line.
//!
//! ```text
//!          get=1             blank line
//!   Idle ─────────▶ Get ────────────────────▶ Operation::Get, Idle
//!    │ │   set=1             blank line
//!    │ └──────────▶ Set ────────────────────▶ Operation::Set, Idle
//!    │               │ invalid line blank line
//!    │               └─▶ Refused ───────────▶ the refusal, Idle
//!    └─ anything else: the end of the connection, as in wireguard-go
//! ```

use super::change::Changes;
use super::{Errno, Refusal};

/// The longest line, in bytes without its end. The longest valid line has 100.
pub const MAX_LINE_BYTES: usize = 1024;

/// The longest request, in bytes: three times the length of a `wg setconf` with 65,536 peers.
pub const MAX_REQUEST_BYTES: usize = 64 << 20;

/// A request.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Report the device.
    Get,
    /// Change the device.
    Set(Changes),
}

/// The result of a line.
#[derive(Debug)]
#[must_use]
pub enum Step {
    /// The request is not complete.
    More,
    /// A request is complete or refused; the next may follow.
    Answer(Result<Operation, Refusal>),
    /// The request is too long: answer, and close the connection.
    Last(Refusal),
    /// Not a request: close the connection.
    Close,
}

/// The parser of a connection. Pass lines to [`Self::take`].
#[derive(Debug, Default)]
pub struct RequestParser {
    state: State,
    request_bytes: usize,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    Get,
    Set(Box<Changes>),
    Refused(Refusal),
}

impl RequestParser {
    /// Takes one line, without its end.
    pub fn take(&mut self, line: &[u8]) -> Step {
        self.request_bytes += line.len() + 1;
        if line.len() > MAX_LINE_BYTES || self.request_bytes > MAX_REQUEST_BYTES {
            return Step::Last(Self::too_big());
        }

        let step = self.step(line);
        if let Step::Answer(_) = step {
            self.request_bytes = 0;
        }

        step
    }

    /// The refusal of a line or a request that is too long.
    #[must_use]
    pub fn too_big() -> Refusal {
        let text = format!(
            "a request of more than {MAX_REQUEST_BYTES} bytes, or a line of more than \
             {MAX_LINE_BYTES}: split it up"
        );

        Refusal::new(Errno::TOO_BIG, text)
    }

    fn step(&mut self, line: &[u8]) -> Step {
        if line.is_empty() {
            return match std::mem::take(&mut self.state) {
                State::Idle => Step::Close,
                State::Get => Step::Answer(Ok(Operation::Get)),
                State::Set(changes) => Step::Answer(Ok(Operation::Set(*changes))),
                State::Refused(refusal) => Step::Answer(Err(refusal)),
            };
        }

        let result = match &mut self.state {
            State::Idle => {
                self.state = match line {
                    b"get=1" => State::Get,
                    b"set=1" => State::Set(Box::default()),
                    _ => return Step::Close,
                };
                Ok(())
            }
            State::Get => {
                let text = "lines after get=1: send a blank line only";
                Err(Refusal::new(Errno::INVALID, text))
            }
            State::Set(changes) => match str::from_utf8(line) {
                Ok(line) => changes.take(line),
                Err(_) => {
                    let text = "a line that is not UTF-8: write KEY=VALUE";
                    Err(Refusal::new(Errno::PROTOCOL, text))
                }
            },
            // Lines after an invalid one are ignored.
            State::Refused(_) => Ok(()),
        };
        if let Err(refusal) = result {
            self.state = State::Refused(refusal);
        }

        Step::More
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_follow_each_other() {
        let mut parser = RequestParser::default();

        let answers = talk(&mut parser, "get=1\n\nset=1\nlisten_port=7\n\nset=1\n\nget=1\n\n");

        let [
            Ok(Operation::Get),
            Ok(Operation::Set(port)),
            Ok(Operation::Set(_)),
            Ok(Operation::Get),
        ] = &answers[..]
        else {
            panic!("{answers:?}")
        };
        assert_eq!(port.listen_port, Some(7));
    }

    #[test]
    fn an_invalid_line_refuses_only_its_request() {
        let mut parser = RequestParser::default();

        let answers = talk(
            &mut parser,
            "set=1\nlisten_port=7\nwrong\nget=1\nlisten_port=x\n\nset=1\nfwmark=1\n\nget=1\nx\n\n",
        );

        let [Err(first), Ok(Operation::Set(changes)), Err(last)] = &answers[..] else {
            panic!("{answers:?}")
        };
        assert_eq!(first.errno, Errno::PROTOCOL, "of the first invalid line");
        assert_eq!((changes.listen_port, changes.fwmark), (None, Some(1)));
        assert_eq!(last.errno, Errno::INVALID);
    }

    #[test]
    fn an_unknown_request_closes_the_connection() {
        for line in ["", "get=2", "get", "set=1 ", "GET / HTTP/1.1", "listen_port=1"] {
            let step = RequestParser::default().take(line.as_bytes());

            assert!(matches!(step, Step::Close), "{line:?}: {step:?}");
        }
    }

    #[test]
    fn lines_must_be_utf_8() {
        let mut parser = RequestParser::default();
        let _ = parser.take(b"set=1");

        let _ = parser.take(b"listen_port=\xff");
        let Step::Answer(Err(refusal)) = parser.take(b"") else { panic!("an answer") };

        assert_eq!(refusal.errno, Errno::PROTOCOL);
    }

    #[test]
    fn lines_and_requests_are_bounded() {
        let mut line = RequestParser::default();
        let _ = line.take(b"set=1");
        let mut request = RequestParser::default();
        let _ = request.take(b"set=1");

        let of_line = line.take(&[b'x'; MAX_LINE_BYTES + 1]);
        let taken = (0..=MAX_REQUEST_BYTES / 2)
            .take_while(|_| matches!(request.take(b"fwmark=1"), Step::More))
            .count();

        assert!(matches!(of_line, Step::Last(Refusal { errno: Errno::TOO_BIG, .. })));
        assert_eq!(taken, (MAX_REQUEST_BYTES - 6) / 9);
    }

    /// As `wg setconf` sends it, for as many peers as the kernel allows an interface.
    #[test]
    fn one_request_sets_65_536_peers() {
        let mut parser = RequestParser::default();
        let key = "70d8e1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f708192a";
        let mut text = "set=1\nlisten_port=51820\nreplace_peers=true\n".to_owned();
        for number in 0..65_536_u32 {
            text += &format!(
                "public_key={key}{number:08x}\npreshared_key={key}{number:08x}\n\
                 endpoint=[2001:db8:ffff:ffff:ffff:ffff:{:x}:{:x}]:51820\n\
                 persistent_keepalive_interval=25\nreplace_allowed_ips=true\nallowed_ip=fd00:ffff:ffff:ffff::{:x}:{:x}/128\n",
                number >> 8,
                number & 255,
                number >> 8,
                number & 255,
            );
        }
        text.push('\n');

        let answers = talk(&mut parser, &text);

        let [Ok(Operation::Set(changes))] = answers.as_slice() else { panic!("no set") };
        assert_eq!(changes.peers.len(), 65_536);
    }

    fn talk(parser: &mut RequestParser, text: &str) -> Vec<Result<Operation, Refusal>> {
        let mut answers = Vec::new();
        for line in text.split_terminator('\n') {
            match parser.take(line.as_bytes()) {
                Step::More => {}
                Step::Answer(answer) => answers.push(answer),
                step @ (Step::Last(_) | Step::Close) => panic!("{line:?}: {step:?}"),
            }
        }

        answers
    }
}
