//! Allows flags before, between and after the subcommands, as with `kubectl` and `liqoctl`.

use std::ffi::OsString;

use clap::{Arg, Command};

/// Reorders `words` so that all subcommands come before the flags. The first word is the name of the program.
///
/// A flag before a subcommand belongs to it or to one below it. After a word that is neither a subcommand nor such a
/// flag nothing is moved.
pub(super) fn verbs_first(command: &Command, words: Vec<OsString>) -> Vec<OsString> {
    let mut command = command;
    let mut words = words.into_iter().peekable();
    let mut verbs: Vec<_> = words.next().into_iter().collect();
    let mut flags = Vec::new();
    while command.has_subcommands() {
        let Some(text) = words.peek().map(|word| word.to_string_lossy().into_owned()) else {
            break;
        };
        if let Some(verb) = command.find_subcommand(&text) {
            command = verb;
            verbs.extend(words.next());
        } else if let Some(flag) = find(command, &text) {
            flags.extend(words.next());
            if is_followed_by_value(flag, &text) {
                flags.extend(words.next());
            }
        } else {
            break;
        }
    }

    if command.has_subcommands() {
        // The rest is wrong or asks for help, and must be parsed before the flags.
        verbs.into_iter().chain(words).chain(flags).collect()
    } else {
        verbs.into_iter().chain(flags).chain(words).collect()
    }
}

/// The subcommands at the beginning of `words`, separated by spaces, after the name of the program.
pub(super) fn path(command: &Command, words: &[OsString]) -> String {
    let mut command = command;
    let mut path = command.get_name().to_owned();
    for word in words.iter().skip(1) {
        let Some(verb) = command.find_subcommand(word) else { break };
        path = format!("{path} {}", verb.get_name());
        command = verb;
    }

    path
}

/// The flag that `word` begins with, of `command` or of a subcommand below it; `None` if several have that flag and
/// disagree on whether it takes a value.
fn find<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let is_match = |flag: &&Arg| match word.strip_prefix("--") {
        Some(long) => {
            let name = long.split('=').next().unwrap_or_default();
            flag.get_long() == Some(name)
                || flag.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
        }
        None => {
            let mut letters = word.chars();
            letters.next() == Some('-')
                && letters.next().is_some_and(|letter| flag.get_short() == Some(letter))
        }
    };
    if let Some(flag) = command.get_arguments().find(is_match) {
        return Some(flag);
    }
    let mut of_verbs = command.get_subcommands().filter_map(|verb| find(verb, word));
    let first = of_verbs.next()?;

    of_verbs.all(|other| takes_next_word(other) == takes_next_word(first)).then_some(first)
}

/// Whether `flag` takes a value that may be a separate word.
fn takes_next_word(flag: &Arg) -> bool {
    flag.get_action().takes_values() && !flag.is_require_equals_set()
}

/// Whether the value of `flag`, typed as `word`, is the next word.
fn is_followed_by_value(flag: &Arg, word: &str) -> bool {
    let is_attached =
        if word.starts_with("--") { word.contains('=') } else { word.chars().count() > 2 };

    takes_next_word(flag) && !is_attached
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::command;
    use super::*;

    fn normalized(words: &str) -> String {
        let words = words.split(' ').map(OsString::from).collect();
        let words = verbs_first(&command(), words);

        words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn verbs_come_before_flags() {
        for (typed, expected) in [
            (
                "strait --kubeconfig a generate configuration",
                "strait generate configuration --kubeconfig a",
            ),
            (
                "strait -n a network --remote-context=b connect --wait",
                "strait network connect -n a --remote-context=b --wait",
            ),
            ("strait --context generate -v info", "strait info --context generate -v"),
            ("strait info --get a peer milan", "strait info peer --get a milan"),
            ("strait -na create --yes publickey b", "strait create publickey -na --yes b"),
            ("strait --node-port 1 network connect", "strait network connect --node-port 1"),
            ("strait --log-level debug check -o json", "strait check --log-level debug -o json"),
            // A name that equals a subcommand is a name where no subcommand can stand.
            (
                "strait delete publickey --wait publickey",
                "strait delete publickey --wait publickey",
            ),
            ("strait --context a --help", "strait --help --context a"),
            ("strait --context a ferry", "strait ferry --context a"),
            ("strait --speed a generate", "strait --speed a generate"),
            // `-f` takes a file in one subcommand and no value in another.
            ("strait -f a plan", "strait -f a plan"),
        ] {
            assert_eq!(normalized(typed), expected, "{typed}");
        }
    }

    #[test]
    fn verbs_are_named_in_order() {
        for (typed, expected) in [
            ("strait network connect --mtu 1", "strait network connect"),
            ("strait network ferry", "strait network"),
            ("strait", "strait"),
        ] {
            let words: Vec<_> = typed.split(' ').map(OsString::from).collect();

            assert_eq!(path(&command(), &words), expected);
        }
    }

    proptest! {
        /// The position of flags of `network connect` does not change their meaning.
        #[test]
        fn place_of_flags_does_not_matter(
            places in prop::collection::vec(0..=2_usize, 6),
        ) {
            let flags: [&[&str]; 6] = [
                &["--kubeconfig", "a"], &["--remote-context=network"], &["-n", "connect"],
                &["--cluster-id", "rome"], &["--wait"], &["--liqo-namespace", "b"],
            ];
            let at = |place| {
                let here = places.iter().zip(flags).filter(move |(at, _)| **at == place);
                here.flat_map(|(_, words)| words.iter().copied())
            };
            let words = ["strait"].into_iter().chain(at(0)).chain(["network"]).chain(at(1));
            let words = words.chain(["connect"]).chain(at(2));

            let found = super::super::parse(words).map_err(|error| error.to_string());
            let expected = ["strait", "network", "connect"].into_iter()
                .chain(flags.iter().flat_map(|words| words.iter().copied()));
            let expected = super::super::parse(expected).map_err(|error| error.to_string());
            prop_assert!(found.is_ok());
            prop_assert_eq!(format!("{found:?}"), format!("{expected:?}"));
        }
    }
}
