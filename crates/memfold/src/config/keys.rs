//! The words that a file of settings may use: the options of `memfold run` that have a variable, by their names.

use crate::options::{self, Named};
use clap::Command;
use std::error::Error;

/// The file of the machine; one of the user's is read after it.
pub const SYSTEM_FILE: &str = "/etc/memfold/memfold.toml";

/// The options, with what clap knows of each.
pub struct Keys {
    run: Command,
}

impl Keys {
    /// From the command that has them: `run`, or one above it.
    pub fn of(command: &Command) -> Keys {
        let mut run = command.find_subcommand("run").unwrap_or(command).clone();
        run.build();
        Keys { run }
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = Named> + '_ {
        options::named().filter(|key| self.run.get_arguments().any(|arg| arg.get_long() == Some(key.option)))
    }

    /// What a person is told of one.
    pub fn help(&self, key: Named) -> String {
        let arg = self.run.get_arguments().find(|arg| arg.get_long() == Some(key.option));
        let help = arg.and_then(|arg| arg.get_long_help().or(arg.get_help()));
        help.map(ToString::to_string).unwrap_or_default()
    }

    /// Reads the value of one as the option does, and gives it back as the variable is to have it.
    ///
    /// # Errors
    /// A sentence that says what is allowed.
    pub fn check(&self, key: Named, text: &str) -> Result<String, String> {
        let words = ["run".to_owned(), format!("--{}={text}", key.option), "--".into(), "true".into()];
        let matches =
            self.run.clone().try_get_matches_from(words).map_err(|error| {
                error.source().map_or_else(|| error.kind().to_string(), ToString::to_string)
            })?;
        let id = key.option.replace('-', "_");
        let read = matches.try_get_one::<String>(&id).ok().flatten();
        Ok(read.cloned().unwrap_or_else(|| text.to_owned()))
    }
}
