//! `memfold ctl`: change how a running program is folded.

use crate::cmd::ctl_tier;
use crate::complete;
use crate::directory::open_or_make;
use crate::options;
use crate::pages::Found;
use crate::process;
use crate::reasons;
use crate::run::launch;
use crate::target::Target;
use crate::text;
use anyhow::{bail, Context};
use clap::Subcommand;
use clap_complete::engine::ArgValueCompleter;
use memfold_inspect::{Mailbox, Snapshot};
use memfold_pager::config::{Setting, BY_GROUP};
use memfold_pager::control::{Command, Mode};
use nix::unistd::geteuid;
use serde_json::json;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long the process may take to have asked another source.
const SOURCE_SEEN: Duration = Duration::from_secs(8);

const AFTER_HELP: &str = "\
Examples:
  memfold ctl 4711 set cold_age 5m
  memfold ctl redis-server evict        the one folded process of that name
  memfold ctl 4711 set resident_limit 60%    of what its control group may use
  memfold ctl 4711 set source writes    what was not written is cold, whoever reads it
  memfold ctl 4711 set tier disk=/var/tmp    what is cold for ten minutes goes to disk from now on
  memfold ctl 4711 set tier after=1m,size=50G    of the tier that it has
  memfold ctl 4711 pause                stop folding; what is folded comes back on touch
  memfold ctl 4711 resume               fold again
  memfold ctl 4711 evict                fold everything now, whatever its age
  memfold ctl 4711 sleep                the same, down to the disk of `run --tier`; a touch wakes it
  memfold ctl 4711 restore              bring everything back now, as far as a limit leaves room
  memfold ctl 4711 policy bonchance     evict by another policy
  memfold ctl 4711 log on --file passes.csv
  memfold ctl 4711 get --json
  memfold ctl 4711 why                  how much is resident and not folded, and for which reasons
  memfold ctl name:why pause            a program that is called like one of these actions, or like a number

Keys of `set`: cold_age, recompress_age, max_stall and max_cpu (per cent),
resident_limit, start_at, sleep_after, source, foresight, heap_sample, tier.

Exit codes: 0 done, 1 failed (no such process, not folded, no answer), 2 bad usage.";

const WHY_HELP: &str = "\
Example:
  $ memfold ctl redis-server why
  cold, waiting for CPU (--max-cpu)                  112 MiB   55.1 %
  written since the last look                       64.3 MiB   31.6 %
  memfold's own: compressed pages, tables, buffers  20.1 MiB   9.88 %
  not managed: files, programs and libraries        6.91 MiB    3.4 %
  sum                                                203 MiB  100.0 %
  resident, as the kernel counts it                  203 MiB
  folded                                             310 MiB

Each page has one reason; docs/usage.md says what each means, and in which order they are tried.

Exit codes: 0 done, 1 failed (no such process, not folded, no answer), 2 bad usage.";

/// Change how a running program is folded.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The process, by its number, or by its name if one folded process has it.
    ///
    /// `memfold stat` lists them.
    #[arg(value_name = "PID|NAME", add = ArgValueCompleter::new(complete::processes))]
    target: Target,
    /// How long to wait for the answer.
    #[arg(
        long, global = true, value_name = "TIME", default_value = "30s",
        value_parser = options::time_in(Duration::from_nanos(1)..=Duration::MAX,
            "a time above 0 is needed, such as 500ms or 30s")
    )]
    timeout: Duration,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Stop folding; what is folded stays so and comes back on touch.
    Pause,
    /// Fold again after a pause.
    Resume,
    /// Bring everything back and go on folding what stays cold; a resident limit is kept to.
    Restore,
    /// Fold everything that can be folded now, whatever its age.
    Evict,
    /// Fold everything and send it to the lowest tier; it stays there until the program wants much of it.
    Sleep,
    /// End a sleep; what the program wanted when it last woke comes back ahead of its touches.
    Wake,
    /// Bring everything back and go on without the pager.
    Stop,
    /// Change a setting.
    Set {
        /// Which: cold_age, recompress_age, max_stall, max_cpu, resident_limit, start_at, sleep_after, foresight, heap_sample, source or tier.
        #[arg(value_parser = key)]
        key: Key,
        /// Its value, such as 10s, 256M or 0.5. A resident limit also takes `auto` and `group`, `60%` of what the control group may
        /// use, and `none`. A tier is `disk=DIR` with `,size=` and `,after=`, and of one that there is those alone.
        #[arg(allow_hyphen_values = true)]
        value: String,
    },
    /// Print the settings.
    Get {
        /// Print JSON: times in nanoseconds, sizes in bytes (null for no limit), max_stall and max_cpu in millionths.
        #[arg(long)]
        json: bool,
    },
    /// Count what is resident and not folded, by reason; the sum is what the kernel says is resident.
    #[command(after_help = WHY_HELP)]
    Why {
        /// Print JSON: bytes by reason, all of them.
        #[arg(long)]
        json: bool,
    },
    /// Evict by another policy from now on; what is resident stays so.
    Policy {
        /// age, or a page daemon with its parameters, such as freebsd or s3fifo:small=0.1.
        #[arg(value_name = "NAME", value_parser = launch::known_policy)]
        name: String,
    },
    /// Log every pass of the page daemon, or no longer.
    Log {
        /// Whether to log.
        switch: Switch,
        /// The file: CSV, or JSON where it ends in .jsonl [default: memfold-PID.csv].
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Switch {
    On,
    Off,
}

/// What helps who has named a program that is called like an action, where the words were not understood.
pub fn advice(words: impl IntoIterator<Item = OsString>) -> Option<String> {
    let words: Vec<_> =
        words.into_iter().skip(1).take(3).map(|word| word.to_string_lossy().into_owned()).collect();
    match &words[..] {
        [ctl, name, _] if ctl == "ctl" && Action::has_subcommand(name) => {
            Some(format!("a program that is called '{name}' is named `memfold ctl name:{name}`"))
        }
        _ => None,
    }
}

/// Sends the command to the process.
///
/// # Errors
/// A bad value (exit code 2); no such process, not folded, another user's, or no answer.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let found = match &args.action {
        // What makes no sense is told before anything is looked for.
        Action::Set { key: Key::Setting(key), value } => {
            value_of(std::process::id(), *key, value).and_then(|_| args.target.one())
        }
        Action::Set { key: Key::Tier, value } => ctl_tier::check(value).and_then(|()| args.target.one()),
        _ => args.target.one(),
    }?;
    let pid = found.pid;
    let mut text = String::new();
    let (command, argument, value) = match &args.action {
        Action::Get { json } => return get(&found, *json),
        Action::Pause => (Command::Pause, 0, 0),
        Action::Resume => (Command::Resume, 0, 0),
        Action::Restore => (Command::Restore, 0, 0),
        Action::Evict => (Command::Evict, 0, 0),
        Action::Sleep => (Command::Sleep, 0, 0),
        Action::Wake => (Command::Wake, 0, 0),
        Action::Stop => (Command::Stop, 0, 0),
        Action::Why { .. } => (Command::Inventory, 0, 0),
        Action::Policy { name } => {
            text = name.clone();
            (Command::Policy, 0, 0)
        }
        Action::Log { switch, file } => {
            if *switch == Switch::On {
                text = log_file(pid, file.as_deref())?;
            }
            (Command::Log, 0, 0)
        }
        Action::Set { key: Key::Setting(key), value } => {
            (Command::Set, *key as u64, value_of(pid, *key, value)?)
        }
        Action::Set { key: Key::Tier, value } => {
            text = ctl_tier::whole(pid, &found.page.tier, value)?;
            (Command::Tier, 0, 0)
        }
    };
    match found.page.mode {
        Mode::Off => bail!("process {} is not folded: {}", pid, found.page.reason),
        Mode::Idle => bail!(
            "process {} is not folded yet: it manages {} and folding begins at {}",
            pid,
            crate::text::bytes(found.page.sizes.managed_bytes),
            crate::text::bytes(found.page.settings[Setting::StartAt as usize])
        ),
        Mode::Embedded => {}
    }
    if matches!(&args.action, Action::Policy { name } if name != "age")
        && found.page.settings[Setting::ResidentLimit as usize] >= BY_GROUP
    {
        bail!("a policy evicts down to a limit, and process {} has none; `memfold ctl {0} set resident_limit 256M` sets one", pid);
    }
    let file = found.file.open().with_context(|| format!("cannot open {}", found.file.path().display()))?;
    let mailbox = Mailbox::open(file, pid)?;
    let asked = mailbox.ask(command, argument, value, &text, args.timeout);
    if command == Command::Tier {
        asked.map_err(|error| ctl_tier::explain(pid, &found.page.tier, &text, error))?;
        if let Some(said) = launch::word_on_seal(&text).filter(|_| found.page.tier.is_empty()) {
            crate::text::say(said);
        }
    } else {
        asked?;
    }
    match args.action {
        Action::Stop => mailbox.await_off(args.timeout).map(|()| ExitCode::SUCCESS),
        Action::Why { json } => why(pid, &mailbox.snapshot()?, json),
        Action::Set { key: Key::Setting(Setting::Source), .. } => {
            tell_source(&mailbox)?;
            Ok(ExitCode::SUCCESS)
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Says why the source is not asked that was chosen, if it is not. Who observes the process from outside looks at it once a second.
fn tell_source(mailbox: &Mailbox) -> anyhow::Result<()> {
    let until = Instant::now() + SOURCE_SEEN;
    let mut source = mailbox.snapshot()?.source;
    while source.is_on_its_way() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
        source = mailbox.snapshot()?.source;
    }
    if !source.is_as_asked() {
        crate::text::say(format_args!("source {}", source.words()));
    }
    Ok(())
}

fn why(pid: u32, page: &Snapshot, json: bool) -> anyhow::Result<ExitCode> {
    let inventory = page.inventory.as_ref().context("the process answered and counted nothing")?;
    if json {
        let mut object = serde_json::to_value(inventory)?;
        object["pid"] = json!(pid);
        object["name"] = json!(process::name(pid));
        object["folded_bytes"] = json!(page.sizes.evicted_bytes);
        text::print_json(&object)?;
    } else {
        let share = text::percent(inventory.sum_bytes, inventory.resident_bytes);
        let mut rows = reasons::rows(inventory);
        rows.push(vec!["sum".into(), text::bytes(inventory.sum_bytes), format!("{share:.1} %")]);
        rows.push(vec!["resident, as the kernel counts it".into(), text::bytes(inventory.resident_bytes)]);
        rows.push(vec!["folded".into(), text::bytes(page.sizes.evicted_bytes)]);
        text::print(&text::list(&rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn get(found: &Found, json: bool) -> anyhow::Result<ExitCode> {
    let settings = Setting::ALL.map(|s| (s, found.page.settings[s as usize]));
    if json {
        let mut object = serde_json::Map::new();
        object.insert("pid".into(), json!(found.pid));
        object.insert("paused".into(), json!(found.page.paused));
        object.insert("policy".into(), json!(found.page.policy));
        object.insert("log".into(), json!(found.page.log));
        object.insert("source_in_use".into(), json!(found.page.source));
        object.insert("tier".into(), json!((!found.page.tier.is_empty()).then_some(&found.page.tier)));
        object.extend(settings.map(|(s, value)| (s.name().to_owned(), options::json(s, value))));
        text::print_json(&object)?;
    } else {
        let mut rows: Vec<_> =
            settings.map(|(s, value)| vec![s.name().to_owned(), options::show(s, value)]).into();
        if !found.page.source.is_as_asked() {
            rows.push(vec!["source in use".into(), found.page.source.words()]);
        }
        rows.push(vec!["policy".into(), found.page.policy.clone()]);
        if !found.page.tier.is_empty() {
            rows.push(vec!["tier".into(), found.page.tier.clone()]);
        }
        if !found.page.log.is_empty() {
            rows.push(vec!["log".into(), found.page.log.clone()]);
        }
        text::print(&text::table(&rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What `set` changes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Key {
    Setting(Setting),
    Tier,
}

fn key(text: &str) -> Result<Key, String> {
    let known = || format!("{}, tier", Setting::ALL.map(Setting::name).join(", "));
    // Options have a dash where keys have an underscore; both are understood.
    let name = text.replace('-', "_");
    if name == options::TIER.option {
        return Ok(Key::Tier);
    }
    let setting = Setting::ALL.into_iter().find(|s| s.name() == name);
    setting.map(Key::Setting).ok_or_else(|| format!("one of {} is needed", known()))
}

/// The whole path of the log.
fn log_file(pid: u32, file: Option<&Path>) -> anyhow::Result<String> {
    let path = std::path::absolute(file.map_or_else(|| format!("memfold-{pid}.csv").into(), Path::to_owned))?;
    let text = path.to_str().filter(|text| text.len() <= memfold_pager::SharedText::<64>::MOST);
    let text = text
        .ok_or_else(|| crate::exit::usage(format!("--file {}: a shorter path is needed", path.display())))?;
    // The process writes it: what keeps us from writing keeps it too.
    let refused = |error| crate::exit::usage(format!("cannot write {}: {error}", path.display()));
    if std::fs::symlink_metadata(&path).is_ok_and(|meta| !meta.is_file()) {
        return Err(refused(std::io::Error::other("it is no regular file")));
    }
    let (file, made) = open_or_make(&path).map_err(refused)?;
    // Root may ask it of another user's process. What lies there already is not given away, whoever put it there.
    if made && geteuid().is_root() {
        let user = process::users(pid).get(1).copied();
        std::os::unix::fs::fchown(&file, user, None).map_err(refused)?;
    }
    Ok(text.to_owned())
}

fn value_of(pid: u32, key: Setting, value: &str) -> anyhow::Result<u64> {
    options::parse_for(pid, key, value).map_err(|allowed| {
        crate::exit::usage(format!("invalid value '{value}' for {}: {allowed}", key.name()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_understood_with_dashes_and_underscores() {
        assert_eq!(key("cold_age").unwrap(), Key::Setting(Setting::ColdAge));
        assert_eq!(key("resident-limit").unwrap(), Key::Setting(Setting::ResidentLimit));
        assert_eq!(key("tier").unwrap(), Key::Tier);
        assert!(key("colour").unwrap_err().contains("cold_age"));
    }

    #[test]
    fn a_bad_value_is_named_with_its_key() {
        assert_eq!(value_of(1, Setting::ResidentLimit, "none").unwrap(), u64::MAX);
        let error = value_of(1, Setting::ColdAge, "soon").unwrap_err().to_string();
        assert!(error.contains("'soon'") && error.contains("cold_age"), "{error}");
    }
}
