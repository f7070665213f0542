//! `memfold attach`: fold a process that runs already.

use crate::attach::candidate::{self, Candidate};
use crate::attach::folding::Attaching;
use crate::attach::outcome::{is_well, summary, Kind, Outcome};
use crate::attach::rules::Rules;
use crate::complete;
use crate::options::{self, Named, PagerOptions};
use crate::run::launch;
use crate::target::Target;
use crate::{agent, exit, process, runtime, text};
use anyhow::bail;
use clap_complete::engine::ArgValueCompleter;
use memfold_attach::Error;
use memfold_pager::config::Setting;
use memfold_pager::tier::choice::BadTier;
use regex_lite::Regex;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const AFTER_HELP: &str = "\
Examples:
  sudo memfold attach 4711                   fold what process 4711 does not use
  sudo memfold attach --now redis-server     the one process of that name, within two seconds
  sudo memfold attach --dry-run postgres     whether it could be done, and why not
  sudo memfold attach --match 'postgres|node' --min 64M --exclude walwriter
  sudo memfold attach --rules FILE --dry-run --json
  sudo memfold attach --tier disk=/var/tmp redis-server   what is cold for ten minutes goes to disk
  memfold stat 4711                          what is saved; `ctl`, `top` and `why` as ever
  sudo memfold detach 4711                   bring everything back, and leave no trace

One thread of a process is stopped for a moment, a few milliseconds. Nothing is written to its
files or its standard error. docs/attach.md says what becomes of its forks, what is refused, and
what a file of rules is, which `memfold daemon --attach-rules FILE` keeps to.

Of many, those that are folded already, refused, excluded or smaller are skipped.

Exit codes: 0 done, 1 failed or refused (of many: one failed, or none is folded), 2 bad usage.";

/// Fold a process that runs already.
///
/// It is not started anew and not changed: it gets the pager as three threads of their own, and keeps its allocator.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The process, by its number, or by its name if one process has it.
    #[arg(value_name = "PID|NAME", required_unless_present_any = ["matching", "rules"],
        conflicts_with_all = ["matching", "rules"], add = ArgValueCompleter::new(complete::processes))]
    target: Option<Target>,
    /// Every process of that name.
    #[arg(long, requires = "target")]
    all: bool,
    /// All processes whose name or command line matches, but for this one and those above it.
    #[arg(long = "match", id = "matching", value_name = "REGEX", value_parser = regex)]
    matching: Option<Regex>,
    /// Of those not the ones whose name or command line matches this.
    #[arg(long, value_name = "REGEX", value_parser = regex, requires = "matching")]
    exclude: Option<Regex>,
    /// Of those only what has so much resident.
    #[arg(long, value_name = "BYTES", value_parser = options::size, requires = "matching", default_value = "0", hide_default_value = true)]
    min: u64,
    /// Of those only what this user has started, by name or number.
    #[arg(long, value_name = "NAME", requires = "matching")]
    user: Option<String>,
    /// All processes that a rule in this file names.
    #[arg(long, value_name = "FILE", conflicts_with = "matching")]
    rules: Option<PathBuf>,
    /// Say what could be attached to, and do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print what became of each process as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: PagerOptions,
    /// Fold what is not in use at once, whatever CPU that takes: --cold-age 1s --recompress-age 1s --max-cpu 100.
    #[arg(long)]
    now: bool,
    /// What is evicted: by age, or what a page daemon says to keep --resident-limit [default: age] [env: MEMFOLD_POLICY].
    #[arg(long, value_name = "NAME", value_parser = launch::known_policy, hide_short_help = true)]
    policy: Option<String>,
    /// Keep the process within its share of the budget of `memfold daemon`, while one listens at SOCKET
    /// [default: the socket of `memfold daemon`] [env: MEMFOLD_BUDGET_OF].
    #[arg(long, value_name = "SOCKET", num_args = 0..=1, require_equals = true, hide_short_help = true)]
    daemon: Option<Option<PathBuf>>,
    /// Write what has been folded for long to files without names in DIR, encrypted, and keep it there until it is touched: at most SIZE (20G)
    /// of it, after TIME (10m) [env: MEMFOLD_TIER].
    #[arg(long, value_name = "disk=DIR[,size=SIZE][,after=TIME][,seal=no]", value_parser = launch::disk_tier)]
    tier: Option<String>,
    /// Overwrite the pager's copies at once when pages come back or are given up, not within a second [env: MEMFOLD_WIPE=on].
    #[arg(long, hide_short_help = true)]
    wipe: bool,
    /// Print nothing of memfold's own.
    #[arg(long)]
    quiet: bool,
}

/// A process that is meant.
struct Meant {
    process: memfold_attach::Target,
    name: String,
    /// What is to be done to it: what the agent is told, or why nothing is.
    to_do: Result<Vec<(String, String)>, String>,
}

/// Attaches.
///
/// # Errors
/// There is no such process, or several; a pattern or a file that cannot be read.
pub fn run(mut args: Args) -> anyhow::Result<ExitCode> {
    if args.now {
        args.settings.hurry();
    }
    if args.settings.get(Setting::HeapSample).is_some() && !args.quiet {
        text::say("--heap-sample does nothing here: a process that is attached to keeps its own allocator");
    }
    let meant = all_meant(&args)?;
    speak_of_seal(&args, &meant)?;
    let image = if args.dry_run { None } else { Some(agent::find()?) };
    let mut outcomes = Vec::new();
    for Meant { process, name, to_do } in meant {
        let outcome = match &to_do {
            Err(why) => Outcome::excluded(process.pid(), &name, why),
            Ok(choices) => Outcome::of(&process, &name, &Attaching { image: image.as_ref(), choices }),
        };
        show(&args, &outcome)?;
        outcomes.push(outcome);
    }
    if args.json {
        text::print_json(&outcomes)?;
    }
    let is_one = args.target.is_some();
    if !is_one && !args.quiet && !args.json {
        text::say(if outcomes.is_empty() { "no process is meant".into() } else { summary(&outcomes) });
    }
    let done = |outcome: &Outcome| matches!(outcome.result, Kind::Attached | Kind::Possible);
    let well = if is_one { outcomes.iter().all(done) } else { is_well(&outcomes) };
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILED) })
}

/// Says what tiers that are not sealed give up, each once, and refuses one where that cannot be.
fn speak_of_seal(args: &Args, meant: &[Meant]) -> anyhow::Result<()> {
    let mut said = BTreeSet::new();
    for choices in meant.iter().filter_map(|meant| meant.to_do.as_ref().ok()) {
        let told =
            |named: Named| choices.iter().find(|(name, _)| name == named.variable).map(|(_, text)| text);
        let Some((tier, word)) =
            told(options::TIER).and_then(|tier| Some((tier, launch::word_on_seal(tier)?)))
        else {
            continue;
        };
        if told(options::WIPE).is_some_and(|text| text == "on") {
            return Err(exit::usage(format!("--tier {tier}: {}", BadTier::SealOfWiped)));
        }
        if said.insert(word.clone()) && !args.quiet {
            text::say(word);
        }
    }
    Ok(())
}

fn show(args: &Args, outcome: &Outcome) -> anyhow::Result<()> {
    match outcome.result {
        _ if args.json => {}
        Kind::Possible => text::print(&format!("{outcome}\n"))?,
        Kind::Attached if args.quiet => {}
        Kind::Attached => text::say(outcome),
        // Of one that was named it is an error, and the reason says which process.
        _ if args.target.is_some() => text::say(outcome.reason.as_deref().unwrap_or_default()),
        Kind::Failed => text::say(outcome),
        _ if args.quiet => {}
        _ => text::say(outcome),
    }
    Ok(())
}

fn all_meant(args: &Args) -> anyhow::Result<Vec<Meant>> {
    let daemon = args.daemon.as_ref().map(|given| runtime::socket(given.as_deref())).transpose()?;
    let given = Given {
        policy: args.policy.as_deref(),
        tier: args.tier.as_deref(),
        daemon: daemon.as_deref(),
        wipe: args.wipe,
    };
    let choices = given.choices(&args.settings);
    if let Some(target) = &args.target {
        let pids = meant(target, args.all)?.into_iter();
        return Ok(pids
            .map(|pid| Meant {
                process: memfold_attach::Target::new(pid),
                name: process::name(pid),
                to_do: Ok(choices.clone()),
            })
            .collect());
    }
    if let Some(user) = args.user.as_deref().filter(|user| user.parse::<u32>().is_err()) {
        if !matches!(nix::unistd::User::from_name(user), Ok(Some(_))) {
            return Err(exit::usage(format!(
                "--user {user}: there is no such user here; a name or a number is needed"
            )));
        }
    }
    let candidates = candidate::pids().into_iter().filter_map(Candidate::look);
    let meant =
        |candidate: Candidate, to_do| Meant { process: candidate.target(), name: candidate.name, to_do };
    if let Some(file) = &args.rules {
        let rules = Rules::read(file)?;
        return Ok(candidates
            .filter_map(|candidate| {
                let rule = rules.decide(&candidate)?;
                let excluded = || format!("is excluded by {}", rules.place(rule));
                let to_do = if rule.exclude { Err(excluded()) } else { Ok(rule.choices(&choices)) };
                Some(meant(candidate, to_do))
            })
            .collect());
    }
    let Some(pattern) = &args.matching else { return Ok(Vec::new()) };
    let matches = |pattern: &Regex, candidate: &Candidate| {
        pattern.is_match(&candidate.name) || pattern.is_match(&candidate.command)
    };
    let all = candidates.filter(|candidate| {
        matches(pattern, candidate)
            && candidate.resident >= args.min
            && args.user.as_ref().is_none_or(|user| candidate.is_of(user))
    });
    Ok(all
        .map(|candidate| {
            let excluded = args.exclude.as_ref().is_some_and(|pattern| matches(pattern, &candidate));
            let to_do = if excluded { Err("is excluded by --exclude".into()) } else { Ok(choices.clone()) };
            meant(candidate, to_do)
        })
        .collect())
}

fn regex(text: &str) -> Result<Regex, String> {
    Regex::new(text).map_err(|error| format!("a regular expression is needed: {error}"))
}

/// What was given beside the pager's settings.
#[derive(Default)]
pub(super) struct Given<'a> {
    pub policy: Option<&'a str>,
    pub tier: Option<&'a str>,
    pub daemon: Option<&'a Path>,
    pub wipe: bool,
}

impl Given<'_> {
    /// What the agent is told: what was given, else what the environment says, but for what is of the allocator or of a start.
    pub fn choices(&self, settings: &PagerOptions) -> Vec<(String, String)> {
        let given = |named: Named| match named {
            options::POLICY => self.policy.map(str::to_owned),
            options::TIER => self.tier.map(str::to_owned),
            options::DAEMON => self.daemon.map(|socket| socket.display().to_string()),
            options::WIPE => self.wipe.then(|| "on".to_owned()),
            _ => {
                let setting = settings.given().find(|(setting, _)| setting.variable() == named.variable);
                setting.map(|(_, text)| text.to_owned())
            }
        };
        let from_variable = |named: Named| {
            // A tier on the network is for what is started.
            let takes = |text: &String| named != options::TIER || launch::is_on_disk(text);
            std::env::var(named.variable).ok().filter(takes)
        };
        let told =
            options::settings().chain([options::POLICY, options::TIER, options::DAEMON, options::WIPE]);
        let told = told.filter_map(|named| {
            let text = given(named).or_else(|| from_variable(named))?;
            Some((named.variable.to_owned(), text))
        });
        told.collect()
    }
}

/// The processes that are meant, folded or not.
pub(super) fn meant(target: &Target, all: bool) -> anyhow::Result<Vec<u32>> {
    let name = match target {
        Target::Pid(pid) => return Ok(vec![*pid]),
        Target::Name(name) => name,
    };
    let found: Vec<u32> =
        process::all().into_iter().filter(|pid| target.matches(*pid) && *pid != std::process::id()).collect();
    match found.len() {
        0 => bail!("there is no process named '{name}'"),
        1 => Ok(found),
        _ if all => Ok(found),
        several => {
            let pids: Vec<_> = found.iter().map(u32::to_string).collect();
            bail!(
                "{several} processes are named '{name}': {}; give the number of one, or --all",
                pids.join(", ")
            )
        }
    }
}

/// Whether the error says that there is nothing to do.
pub(super) fn is_done(error: &Error) -> bool {
    matches!(error, Error::NotAttached(_))
}
