//! Colours on terminals.

use std::io::{self, IsTerminal as _};

/// Foreground colours of ECMA-48.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colour {
    Red,
    Green,
    Yellow,
}

impl Colour {
    /// The parameter of SGR.
    const fn code(self) -> u8 {
        match self {
            Self::Red => 31,
            Self::Green => 32,
            Self::Yellow => 33,
        }
    }
}

/// Colours each line of `text` by `colour_of`, if stdout is a terminal and `NO_COLOR` is not set.
pub(super) fn coloured(text: &str, colour_of: impl Fn(&str) -> Option<Colour>) -> String {
    coloured_on(text, io::stdout().is_terminal(), colour_of)
}

/// The same for a stream that is a terminal or not.
pub(super) fn coloured_on(
    text: &str,
    is_terminal: bool,
    colour_of: impl Fn(&str) -> Option<Colour>,
) -> String {
    let is_wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());

    if is_wanted && is_terminal { paint(text, colour_of) } else { text.to_owned() }
}

fn paint(text: &str, colour_of: impl Fn(&str) -> Option<Colour>) -> String {
    let lines = text.lines().map(|line| match colour_of(line) {
        Some(colour) => format!("\x1b[{}m{line}\x1b[0m\n", colour.code()),
        None => format!("{line}\n"),
    });

    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_one_colour_or_none() {
        let colour_of = |line: &str| line.starts_with('+').then_some(Colour::Green);

        assert_eq!(paint("+ a\nb\n", colour_of), "\x1b[32m+ a\x1b[0m\nb\n");
        // Stdout of the tests is not a terminal.
        assert_eq!(coloured("+ a\n", colour_of), "+ a\n");
    }
}
