//! Exit codes, and how an error becomes one.
//!
//! Not used for the program that `memfold run` starts: its own exit code is returned unchanged.

use crate::text;
use std::fmt;
use std::process::ExitCode;

/// The command failed.
pub const FAILED: u8 = 1;
/// The command line, or a file named on it, cannot be used. Nothing was started or changed.
pub const USAGE: u8 = 2;
/// This machine cannot do what was asked for.
pub const UNSUPPORTED: u8 = 3;
/// `run`: the program was found but could not be executed, as with `env(1)` and `nice(1)`.
pub const NOT_EXECUTABLE: u8 = 126;
/// `run`: the program was not found.
pub const NOT_FOUND: u8 = 127;

/// The user interrupted the command: what a shell reports of a program that SIGINT ended.
const INTERRUPTED: u8 = 130;

/// The paragraph on exit codes below every help text.
pub const HELP: &str = "Exit codes: 0 done, 1 failed, 2 bad usage, 3 not supported here.";

/// An error that asks for another exit code than [`FAILED`].
#[derive(Debug)]
pub struct Exit {
    code: u8,
    message: String,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Exit {}

/// An error that ends with [`USAGE`].
pub fn usage(message: impl Into<String>) -> anyhow::Error {
    Exit { code: USAGE, message: message.into() }.into()
}

/// An error that ends with [`UNSUPPORTED`].
pub fn unsupported(message: impl Into<String>) -> anyhow::Error {
    Exit { code: UNSUPPORTED, message: message.into() }.into()
}

/// An error that says that the user interrupted the command.
pub fn interrupted() -> anyhow::Error {
    Exit { code: INTERRUPTED, message: "interrupted".into() }.into()
}

/// Prints an error with its causes and returns the exit code that it asks for.
pub fn report(error: &anyhow::Error) -> ExitCode {
    text::say(format_args!("{error:#}"));
    ExitCode::from(code_of(error))
}

fn code_of(error: &anyhow::Error) -> u8 {
    error.downcast_ref::<Exit>().map_or(FAILED, |exit| exit.code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{anyhow, Context};

    #[test]
    fn an_error_keeps_its_exit_code_when_context_is_added() {
        let error: anyhow::Result<()> = Err(usage("bad value"));
        assert_eq!(code_of(&error.context("while reading").unwrap_err()), USAGE);
        assert_eq!(code_of(&unsupported("no userfaultfd")), UNSUPPORTED);
        assert_eq!(code_of(&anyhow!("anything else")), FAILED);
    }
}
