//! `memfold config`: whether the files of settings can be read, and which line decided what.

use crate::complete;
use crate::config::decide::{self, Start};
use crate::config::file::File;
use crate::config::keys::Keys;
use crate::config::origin::{self, Origin, Origins};
use crate::config::reading::Fault;
use crate::options;
use crate::run::program;
use crate::target::Target;
use crate::{exit, text};
use anyhow::bail;
use clap::Subcommand;
use clap_complete::engine::ArgValueCompleter;
use memfold_inspect::plain;
use memfold_pager::config::Setting;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

const AFTER_HELP: &str = "\
Examples:
  memfold config check                        is every line of the files understood?
  memfold config show 4711                    which line decided what for this process
  memfold config show -- redis-server         what a start of this program would get

The files are /etc/memfold/memfold.toml, then ~/.config/memfold/memfold.toml; memfold.toml(5) says what stands in them:

  [defaults]
  cold-age = \"30s\"

  [[rule]]
  program = \"redis-server\"
  cold-age = \"2s\"

Options override variables, and variables override the files.

Exit codes: 0 done, 1 failed or no such folded process, 2 a file cannot be read as it stands, or bad usage.";

/// Check the files of settings, and show which line decided what.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Say whether the files can be read, and each fault with its line and column.
    Check {
        /// This file instead.
        #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
        file: Option<PathBuf>,
    },
    /// Show who decided each setting of a folded process, or of a program that is not started yet.
    Show {
        /// The process, by its number, or by its name if one folded process has it.
        #[arg(value_name = "PID|NAME", required_unless_present = "command", add = ArgValueCompleter::new(complete::processes))]
        target: Option<Target>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// The program that would be started.
        #[arg(last = true, value_name = "COMMAND", conflicts_with = "target", add = ArgValueCompleter::new(complete::Programs))]
        command: Vec<OsString>,
    },
}

/// Does what was asked for. `run` is the command whose options the files set.
///
/// # Errors
/// A file cannot be read (exit code 2); there is no such process or program.
pub fn run(args: Args, run: &clap::Command) -> anyhow::Result<ExitCode> {
    let keys = Keys::of(run);
    match args.what {
        What::Check { file } => check(file, &keys),
        What::Show { target, json, command } => {
            let origins = match target {
                Some(target) => of_process(&target)?,
                None => of_program(&command[0], &keys)?,
            };
            if json {
                text::print_json(&origins)?;
            } else {
                text::print(&table(&origins, &keys))?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn check(file: Option<PathBuf>, keys: &Keys) -> anyhow::Result<ExitCode> {
    let (files, refused) = match file {
        None => decide::files(),
        Some(path) => match decide::read(&path) {
            Ok(Some(text)) => (vec![File::parse(path, &text)], Vec::new()),
            Ok(None) => return Err(exit::usage(format!("there is no file {}", path.display()))),
            Err(why) => (Vec::new(), vec![format!("{} is not read: {why}", path.display())]),
        },
    };
    let mut bad = refused.len();
    refused.iter().for_each(text::say);
    for file in &files {
        let values = file.rules.iter().flat_map(|rule| &rule.entries).filter_map(|entry| {
            let value = entry.value.as_ref().filter(|_| entry.key.flag.is_none())?;
            let why = keys.check(entry.key, value).err()?;
            Some(Fault { place: entry.place, message: format!("{} = \"{value}\": {why}", entry.key.option) })
        });
        let mut faults: Vec<Fault> = file.faults.iter().cloned().chain(values).collect();
        faults.sort_by_key(|fault| (fault.place.line, fault.place.column));
        bad += faults.len();
        for fault in &faults {
            text::note(&format!("{}:{fault}\n", file.path.display()));
        }
        if faults.is_empty() {
            let entries: usize = file.rules.iter().map(|rule| rule.entries.len()).sum();
            text::print(&format!("{}: {entries} settings, every line is understood\n", file.path.display()))?;
        }
    }
    if files.is_empty() && bad == 0 {
        let places: Vec<_> = decide::places().iter().map(|path| path.display().to_string()).collect();
        let where_ = match places.is_empty() {
            true => "none is looked for".to_owned(),
            false => format!("looked for {}", places.join(" and ")),
        };
        text::print(&format!("there is no file of settings; {where_}\n"))?;
    }
    Ok(if bad == 0 { ExitCode::SUCCESS } else { ExitCode::from(exit::USAGE) })
}

/// As it was written down when the process was started.
fn of_process(target: &Target) -> anyhow::Result<Origins> {
    let found = target.one()?;
    match origin::kept(&found.file.run) {
        Some(origins) => Ok(origins),
        None => bail!(
            "nothing was written down of the settings of process {}: it was not started by this version of `memfold run`",
            found.pid
        ),
    }
}

/// As a start from here would have it.
fn of_program(name: &OsString, keys: &Keys) -> anyhow::Result<Origins> {
    let file = program::find(name, std::env::var_os("PATH").as_deref());
    let Ok(file) = file else { bail!("{}: no such program", name.to_string_lossy()) };
    let (decided, said) = decide::known(&Start::here(&file), keys);
    said.iter().for_each(text::say);
    let mut origins = Origins::new();
    for named in options::named() {
        if let Some(value) = std::env::var(named.variable).ok().filter(|value| !value.is_empty()) {
            origins
                .insert(named.option.into(), Origin { value, from: format!("variable {}", named.variable) });
        } else if let Some(decision) = decided.iter().find(|decision| decision.key == named) {
            origins.insert(named.option.into(), decision.origin());
        }
    }
    Ok(origins)
}

/// What holds where nobody says anything.
fn default_of(option: &str) -> &'static str {
    let setting = Setting::ALL.into_iter().find(|setting| setting.name().replace('_', "-") == option);
    setting.map(Setting::default_text).unwrap_or(match option {
        "policy" => "age",
        "profile" => "balanced",
        _ => "-",
    })
}

fn table(origins: &Origins, keys: &Keys) -> String {
    let mut rows = String::new();
    let width = keys.all().map(|key| key.option.len()).max().unwrap_or(0);
    for key in keys.all() {
        let (value, from) = match origins.get(key.option) {
            // A file of the run's says so, which may be another user's.
            Some(origin) => (plain(&origin.value), plain(&origin.from)),
            None => (default_of(key.option).to_owned(), "default".to_owned()),
        };
        rows.push_str(&format!("{:width$}  {value:20}  {from}\n", key.option));
    }
    rows
}
