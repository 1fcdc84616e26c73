//! The parsed commands, for the parser of the command line that they are part of.

use std::path::Path;

use clap::{ArgMatches, Args, Command, Error, FromArgMatches, Subcommand};

use super::args::{CheckArgs, Format, PlanCommand, UserCommand};

/// One of the commands, with its flags.
#[derive(Debug)]
pub struct TypedCommand(pub(super) UserCommand);

impl TypedCommand {
    /// Whether it concerns objects of the installation, which no flag for a namespace names.
    #[must_use]
    pub fn is_about_the_installation(&self) -> bool {
        let Self(command) = self;

        matches!(command, UserCommand::Plan(plan) if matches!(**plan, PlanCommand::Network(_)))
    }
}

impl FromArgMatches for TypedCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        UserCommand::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }
}

impl Subcommand for TypedCommand {
    fn augment_subcommands(command: Command) -> Command {
        UserCommand::augment_subcommands(command)
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        UserCommand::augment_subcommands_for_update(command)
    }

    fn has_subcommand(name: &str) -> bool {
        UserCommand::has_subcommand(name)
    }
}

/// The flags of `strait check`.
#[derive(Debug)]
pub struct TypedCheck(pub(super) CheckArgs);

impl TypedCheck {
    /// The configuration file to check in place of clusters.
    #[must_use]
    pub fn config(&self) -> Option<&Path> {
        self.0.config.as_deref()
    }

    /// How the answer is written; `None` if people are to read it.
    #[must_use]
    pub fn format(&self) -> Option<crate::Format> {
        self.0.format().map(Format::into)
    }

    /// Whether another cluster is named.
    #[must_use]
    pub const fn names_remote(&self) -> bool {
        self.0.remote.is_named()
    }
}

impl FromArgMatches for TypedCheck {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        CheckArgs::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }
}

impl Args for TypedCheck {
    fn augment_args(command: Command) -> Command {
        CheckArgs::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        CheckArgs::augment_args_for_update(command)
    }
}
