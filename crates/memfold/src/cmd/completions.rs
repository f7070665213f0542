//! `memfold completions`: what a shell needs to complete memfold's command lines.

use crate::{exit, text};
use clap_complete::env::Shells;
use std::process::ExitCode;

/// The variable by which a shell asks for completions, instead of running a command.
pub const VARIABLE: &str = "MEMFOLD_COMPLETE";

const AFTER_HELP: &str = "\
Examples:
  source <(memfold completions bash)                                    in ~/.bashrc
  source <(memfold completions zsh)                                     in ~/.zshrc, after compinit
  memfold completions fish > ~/.config/fish/completions/memfold.fish

The packages and `make install` bring them. Commands, options, the numbers and names of folded programs, and programs to start are
completed, by asking memfold each time.

Exit codes: 0 done, 2 bad usage.";

/// Print what bash, zsh or fish needs to complete memfold's command lines.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The shell.
    #[arg(value_name = "SHELL", value_parser = ["bash", "zsh", "fish"])]
    shell: String,
}

/// Prints the script.
///
/// # Errors
/// The shell is not known.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let shells = Shells::builtins();
    let shell = shells.completer(&args.shell).ok_or_else(|| exit::usage("no such shell"))?;
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, "memfold", "memfold", "memfold", &mut script)?;
    text::print(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}
