//! `memfold service`: fold a service of systemd from its next start on.

use crate::config::decide::{self, Decision, Start};
use crate::config::keys::SYSTEM_FILE;
use crate::options::{self, Named};
use crate::service::dropin::{self, Host};
use crate::service::unit::{self, Unit};
use crate::setup::{machine, DEVICE, GROUP};
use crate::{exit, library, text};
use anyhow::{bail, Context};
use nix::unistd::User;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

const AFTER_HELP: &str = "\
Examples:
  memfold service redis-server --dry-run             what would be written, and where
  sudo memfold service redis-server                  fold it from its next start on
  sudo memfold service redis-server -- --cold-age 1m --tier disk=/var/tmp
  sudo memfold service redis-server --undo

It writes one file, /etc/systemd/system/NAME.d/90-memfold.conf, and leaves all others as they are. Start the service again when it
suits you: systemctl restart NAME. Settings may also stand in /etc/memfold/memfold.toml.

Exit codes: 0 done, 1 failed (not root, no such service, one that cannot be folded this way), 2 bad usage.";

/// Fold a service of systemd, by a drop-in (as root).
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The service, such as redis-server or postgresql@15-main.service.
    #[arg(value_name = "SERVICE")]
    name: String,
    /// Remove the drop-in.
    #[arg(long)]
    undo: bool,
    /// Print what would be written, and write nothing. Needs no root.
    #[arg(long)]
    dry_run: bool,
    /// Read and write below this directory instead, for images of systems.
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Options of `memfold run` for it.
    #[arg(last = true, value_name = "OPTIONS", conflicts_with = "undo")]
    options: Vec<String>,
}

/// Writes the drop-in, removes it, or prints it. `run` is the command whose options the service may get.
///
/// # Errors
/// There is no such service, it cannot be folded this way, or the file cannot be written; bad options of `run` (exit code 2).
pub fn run(args: Args, run: &clap::Command) -> anyhow::Result<ExitCode> {
    let unit = Unit::read(&args.root, &args.name, dropin::NAME)?;
    let told = Told::of(&args, &unit, run)?;
    let path = unit::dropins(&args.root, &unit.name).join(dropin::NAME);
    if !args.dry_run && args.root == Path::new("/") && !nix::unistd::geteuid().is_root() {
        bail!("service changes the system and needs root: sudo memfold service {} (or see what it would do: --dry-run)", args.name);
    }
    if args.undo {
        return undo(&args, &unit.name, &path);
    }
    let memfold = std::env::current_exe()?;
    let memfold = memfold.to_str().filter(|path| !path.contains(char::is_whitespace));
    let memfold = memfold.context(
        "systemd cannot be told the path of this executable; install it where the path has no spaces",
    )?;
    let library = library::find()?;
    let host = Host {
        memfold,
        library_dir: library
            .parent()
            .and_then(Path::to_str)
            .context("the path of the library must be UTF-8")?,
        options: &args.options,
        tier: told.tier.as_deref(),
        daemon: told.daemon,
        has_group: has_group(&args.root),
        is_open: fs::metadata(DEVICE).is_ok_and(|meta| meta.mode() & 0o006 == 0o006),
    };
    let dropin = match dropin::compose(&unit, &host) {
        Ok(dropin) => dropin,
        Err(why) => bail!("{} cannot be folded by a drop-in: {why}", unit.name),
    };
    if args.dry_run {
        text::print(&format!("would write {}:\n\n{}\n", path.display(), dropin.text))?;
    } else {
        refuse_foreign(&path)?;
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
        machine::write_whole(&path, &dropin.text)?;
        text::print(&format!("written: {}\n\n{}\n", path.display(), dropin.text))?;
    }
    for note in &dropin.notes {
        text::print(&format!("note: {note}\n"))?;
    }
    finish(&args, &unit.name, "folded")?;
    Ok(ExitCode::SUCCESS)
}

fn undo(args: &Args, name: &str, path: &Path) -> anyhow::Result<ExitCode> {
    if !path.exists() {
        text::print(&format!("nothing to undo: there is no {}\n", path.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    refuse_foreign(path)?;
    if args.dry_run {
        text::print(&format!("would remove {}\n", path.display()))?;
    } else {
        fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
        // It stays where others have drop-ins of theirs in it.
        let _ = path.parent().map(fs::remove_dir);
        text::print(&format!("removed: {}\n", path.display()))?;
    }
    finish(args, name, "as before")?;
    Ok(ExitCode::SUCCESS)
}

/// Has systemd read its files again, and says what is left to do.
fn finish(args: &Args, name: &str, how: &str) -> anyhow::Result<()> {
    if args.dry_run {
        return Ok(());
    }
    if args.root == Path::new("/") && Path::new("/run/systemd/system").is_dir() {
        let reloaded = Command::new("systemctl").arg("daemon-reload").stdin(Stdio::null()).status();
        if !reloaded.is_ok_and(|status| status.success()) {
            text::say("systemd did not read its files again: systemctl daemon-reload");
        }
    }
    text::print(&format!("{name} is {how} from its next start on: systemctl restart {name}\n"))
}

/// A file of this name that somebody else wrote is left alone.
fn refuse_foreign(path: &Path) -> anyhow::Result<()> {
    match fs::read_to_string(path) {
        Ok(text) if !text.starts_with(dropin::HEADER) => {
            bail!("{} is not memfold's and is left as it is", path.display())
        }
        _ => Ok(()),
    }
}

fn has_group(root: &Path) -> bool {
    let groups = fs::read_to_string(root.join("etc/group")).unwrap_or_default();
    groups.lines().any(|line| line.split(':').next() == Some(GROUP))
        || root == Path::new("/") && nix::unistd::Group::from_name(GROUP).ok().flatten().is_some()
}

/// What a service is to have that it needs further rights for.
struct Told {
    tier: Option<String>,
    daemon: bool,
}

impl Told {
    /// Of the options behind `--`, or where they say nothing of the machine's file of settings.
    ///
    /// # Errors
    /// `memfold run` would not take these options.
    fn of(args: &Args, unit: &Unit, command: &clap::Command) -> anyhow::Result<Told> {
        let run = command.find_subcommand("run").unwrap_or(command).clone().no_binary_name(true);
        let words = args.options.iter().map(String::as_str).chain(["--", "true"]);
        let given = match run.try_get_matches_from(words) {
            Ok(matches) if matches.get_raw("command").is_some_and(|words| words.len() == 1) => matches,
            Ok(_) => {
                return Err(exit::usage("options of `memfold run` are expected behind --, and no command"))
            }
            Err(error) => {
                return Err(exit::usage(error.render().to_string().trim_start_matches("error: ").trim_end()))
            }
        };
        let decided = settings(args, unit);
        let in_file = |key: Named| decided.iter().find(|decision| decision.key == key)?.value.clone();
        Ok(Told {
            tier: given.get_one::<String>("tier").cloned().or_else(|| in_file(options::TIER)),
            daemon: given.contains_id("daemon") || in_file(options::DAEMON).is_some(),
        })
    }
}

/// What the machine's file of settings says of the service's program.
fn settings(args: &Args, unit: &Unit) -> Vec<Decision> {
    let command = unit.last("ExecStart").and_then(|line| line.split_whitespace().next());
    let Some(program) = command.filter(|_| args.root == Path::new("/")) else { return Vec::new() };
    let user = unit.last("User").unwrap_or("root").to_owned();
    let start = Start {
        program: program.trim_start_matches(|c| "-:+!@|".contains(c)).into(),
        uid: User::from_name(&user).ok().flatten().map_or(0, |user| user.uid.as_raw()),
        user,
        cgroup: format!("/{}/{}", unit.last("Slice").unwrap_or("system.slice"), unit.name),
    };
    let (mut files, _) = decide::files();
    files.retain(|file| file.path == Path::new(SYSTEM_FILE));
    decide::decide(&files, &start)
}
