//! What was typed, and what stood in the environment in its place.

use std::any::Any;
use std::collections::BTreeMap;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use serde::Serialize;
use serde_json::Value;

use crate::config::Origin;

/// Flags of a gateway that mean something beside a file.
const ALLOWED_WITH_FILE: [&str; 4] = ["config", "dns_check_interval", "log_format", "log_level"];

/// Whether a flag, by its name in the code, means something beside a file, which says all the rest.
pub fn is_allowed_with_file(name: &str) -> bool {
    ALLOWED_WITH_FILE.contains(&name)
}

/// A value and whose word it is. Its JSON form is public interface.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// `null` if there is none.
    pub value: Value,
    /// Whose word it is.
    pub origin: Origin,
}

/// Every flag of one command, under its name in the code. No flag holds a secret.
#[derive(Clone, Debug, Default)]
pub struct FlagValues(BTreeMap<String, Setting>);

impl FlagValues {
    /// Of `command` and what was matched for it.
    pub fn new(command: &Command, matches: &ArgMatches) -> Self {
        // Help and version are no settings.
        let flags = command.get_arguments().filter(|flag| flag.get_env().is_some());
        let setting =
            |flag: &Arg| Setting { value: value(flag, matches), origin: origin(flag, matches) };

        Self(flags.map(|flag| (flag.get_id().to_string(), setting(flag))).collect())
    }

    /// Whose word the value of a flag is.
    pub(crate) fn origin(&self, flag: &str) -> Origin {
        self.0.get(flag).map(|setting| setting.origin.clone()).unwrap_or_default()
    }

    /// The first that stands beside a file and means nothing there, as it was given.
    pub fn conflict_with_file(&self) -> Option<&str> {
        let mut others = self.settings().filter(|(name, _)| !is_allowed_with_file(name));

        others.find_map(|(_, setting)| match &setting.origin {
            Origin::Flag { flag } => Some(flag.as_str()),
            Origin::Environment { variable } => Some(variable.as_str()),
            Origin::Default | Origin::File { .. } | Origin::Object { .. } | Origin::Request => None,
        })
    }

    /// Those that were typed, each with its name in the code.
    pub fn typed(&self) -> impl Iterator<Item = (&str, &str)> {
        self.settings().filter_map(|(name, setting)| match &setting.origin {
            Origin::Flag { flag } => Some((name, flag.as_str())),
            Origin::Environment { .. }
            | Origin::Default
            | Origin::File { .. }
            | Origin::Object { .. }
            | Origin::Request => None,
        })
    }

    /// All of them, in the order of their names.
    pub fn settings(&self) -> impl Iterator<Item = (&str, &Setting)> {
        self.0.iter().map(|(name, setting)| (name.as_str(), setting))
    }
}

fn origin(flag: &Arg, matches: &ArgMatches) -> Origin {
    let source = matches.value_source(flag.get_id().as_str());
    if source == Some(ValueSource::CommandLine) {
        let name = flag.get_long().unwrap_or(flag.get_id().as_str());
        return Origin::Flag { flag: format!("--{name}") };
    }
    match flag.get_env().filter(|_| source == Some(ValueSource::EnvVariable)) {
        Some(variable) => Origin::Environment { variable: variable.to_string_lossy().into_owned() },
        None => Origin::Default,
    }
}

/// Numbers and truth values as such, everything else as it was written.
fn value(flag: &Arg, matches: &ArgMatches) -> Value {
    let id = flag.get_id().as_str();
    let values = typed::<bool>(id, matches)
        .or_else(|| typed::<u16>(id, matches))
        .or_else(|| typed::<u32>(id, matches))
        .unwrap_or_else(|| {
            let words = matches.get_raw(id).into_iter().flatten();
            words.map(|word| word.to_string_lossy().into()).collect()
        });

    if flag.get_value_delimiter().is_some() {
        Value::Array(values)
    } else {
        values.into_iter().next().unwrap_or_default()
    }
}

/// `None` if the flag is of another type.
fn typed<T>(id: &str, matches: &ArgMatches) -> Option<Vec<Value>>
where
    T: Any + Clone + Send + Sync + Into<Value>,
{
    let values = matches.try_get_many::<T>(id).ok()?;

    Some(values.into_iter().flatten().cloned().map(Into::into).collect())
}
