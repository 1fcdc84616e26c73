//! Values of the flags of a command, and whether they come from the command line, the environment or a default.

use std::any::Any;
use std::collections::BTreeMap;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use serde::Serialize;
use serde_json::Value;

use crate::config::Origin;

/// Flags of a gateway that work together with a configuration file.
const ALLOWED_WITH_FILE: [&str; 4] = ["config", "dns_check_interval", "log_format", "log_level"];

/// Whether a flag, by its name in the code, works together with a configuration file, which sets everything else.
pub fn is_allowed_with_file(name: &str) -> bool {
    ALLOWED_WITH_FILE.contains(&name)
}

/// A value and its origin. Its JSON form is public interface.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// `null` if unset.
    pub value: Value,
    /// The origin of the value.
    pub origin: Origin,
}

/// The flags of one command, by their name in the code. No flag holds a secret.
#[derive(Clone, Debug, Default)]
pub struct FlagValues(BTreeMap<String, Setting>);

impl FlagValues {
    /// Reads the values of the flags of `command`.
    pub fn new(command: &Command, matches: &ArgMatches) -> Self {
        // Help and version have no environment variable.
        let flags = command.get_arguments().filter(|flag| flag.get_env().is_some());
        let setting =
            |flag: &Arg| Setting { value: value(flag, matches), origin: origin(flag, matches) };

        Self(flags.map(|flag| (flag.get_id().to_string(), setting(flag))).collect())
    }

    /// The origin of a flag's value.
    pub(crate) fn origin(&self, flag: &str) -> Origin {
        self.0.get(flag).map(|setting| setting.origin.clone()).unwrap_or_default()
    }

    /// The first flag or variable that conflicts with a configuration file, as it was written.
    pub fn conflict_with_file(&self) -> Option<&str> {
        let mut others = self.settings().filter(|(name, _)| !is_allowed_with_file(name));

        others.find_map(|(_, setting)| match &setting.origin {
            Origin::Flag { flag } => Some(flag.as_str()),
            Origin::Environment { variable } => Some(variable.as_str()),
            Origin::Default | Origin::File { .. } | Origin::Object { .. } | Origin::Request => None,
        })
    }

    /// The flags on the command line, each with its name in the code.
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

    /// All flags, ordered by name.
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

/// The value of a flag: numbers and booleans as such, everything else as text.
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

/// The values of a flag of type `T`; `None` if it has another type.
fn typed<T>(id: &str, matches: &ArgMatches) -> Option<Vec<Value>>
where
    T: Any + Clone + Send + Sync + Into<Value>,
{
    let values = matches.try_get_many::<T>(id).ok()?;

    Some(values.into_iter().flatten().cloned().map(Into::into).collect())
}
