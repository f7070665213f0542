//! `memfold run`: start a program and fold its cold memory.

use super::attach;
use crate::complete::Programs;
use crate::config::decide::{self, Start};
use crate::config::keys::Keys;
use crate::config::origin::{self, Origin, Origins};
use crate::directory::{open_named, Directory};
use crate::exit::{self, NOT_EXECUTABLE, NOT_FOUND};
use crate::observing::{Observing, Subject};
use crate::options::{self, variable, Named, PagerOptions};
use crate::pages::PageFile;
use crate::run::attaching::Attaching;
use crate::run::depot::Depot;
use crate::run::destination::Destination;
use crate::run::filter;
use crate::run::group_limit;
use crate::run::launch::{self, Choices, Launch};
use crate::run::live::Line;
use crate::run::program::{self, Absent};
use crate::run::summary::{Beyond, Summary};
use crate::run::supervise::{self, End, Ended};
use crate::run::tally::{Tally, Total};
use crate::run_dir::RunDir;
use crate::{agent, library, pages, process, runtime, text};
use anyhow::Context;
use clap_complete::engine::ArgValueCompleter;
use memfold_daemon::observe::Places;
use memfold_pager::config::{is_quiet, Setting};
use memfold_pager::source::Kind;
use memfold_pager::tier::choice::BadTier;
use std::ffi::OsString;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often the control pages are read while the program runs.
const SAMPLE_EVERY: Duration = Duration::from_millis(200);

const AFTER_HELP: &str = "\
Examples:
  memfold run -- redis-server --port 6400
  memfold run --progress -- ./server               with a line on the terminal: saved so far
  memfold run --now -- python3 train.py            fold what is not in use within two seconds
  memfold run --cold-age 2s --summary out.json -- python3 train.py
  memfold run --profile lean -- node server.js     free memory goes back early
  memfold run --policy freebsd --resident-limit 256M --policy-log passes.csv -- redis-server
  memfold run --daemon -- node server.js           under the budget of `memfold daemon --budget 2G`
  memfold run --tier disk=/var/tmp -- ./server     what is cold for ten minutes goes to disk
  memfold run --tier redis://cache:6379 -- ./server  the same, to Redis or Valkey
  sudo memfold run --source damon-paddr -- ./server   what is cold is told by DAMON
  memfold run --no-pager -- g++ -O2 big.cpp        the allocator alone

Exit codes: that of the program; 128 and the signal's number if a signal ended it;
126 found but not executable, 127 not found; 2 bad usage, and nothing was started.

A program that is statically linked or not for glibc gets the agent of `memfold attach`, as root or after `memfold setup`.
One that cannot be folded (set-user-ID, no userfaultfd here) runs plainly, and one line on
standard error says why. `memfold doctor` says more.";

/// Start a program and fold its cold memory.
///
/// The program is not changed: it gets a fast allocator and a pager that compresses the pages it does not
/// use. Settings have environment variables; an option overrides its variable, and a variable the files of memfold.toml(5).
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    #[command(flatten)]
    settings: PagerOptions,
    /// Fold what is not in use at once, whatever CPU that takes: --cold-age 1s --recompress-age 1s --max-cpu 100.
    #[arg(long)]
    now: bool,
    /// What is evicted: by age, or what a page daemon says to keep --resident-limit, such as freebsd, bonchance or
    /// s3fifo:small=0.1 [default: age] [env: MEMFOLD_POLICY].
    #[arg(long, value_name = "NAME", value_parser = launch::known_policy, hide_short_help = true)]
    policy: Option<String>,
    /// The allocator's profile: speed, balanced, lean or secure [default: balanced] [env: MEMFOLD_PROFILE].
    #[arg(long, value_name = "NAME", value_parser = launch::known_profile, hide_short_help = true)]
    profile: Option<String>,
    /// Log every pass of the page daemon to this file, as CSV, or as JSON where it ends in .jsonl
    /// [env: MEMFOLD_POLICY_LOG].
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    policy_log: Option<PathBuf>,
    /// Keep the program within its share of the budget of `memfold daemon`, while one listens at SOCKET
    /// [default: the socket of `memfold daemon`] [env: MEMFOLD_BUDGET_OF].
    #[arg(long, value_name = "SOCKET", num_args = 0..=1, require_equals = true, hide_short_help = true)]
    daemon: Option<Option<PathBuf>>,
    /// Write what has been folded for long to files without names in DIR, encrypted, and keep it there until it is touched: at most SIZE (20G)
    /// of it, after TIME (10m). Or keep it on Redis or Valkey, redis://HOST:PORT with the same; docs/tiers.md has the rest [env: MEMFOLD_TIER].
    #[arg(long, value_name = "disk=DIR[,size=SIZE][,after=TIME][,seal=no]", value_parser = launch::known_tier)]
    tier: Option<String>,
    /// The allocator only, nothing is folded [env: MEMFOLD_PAGER=off].
    #[arg(long)]
    no_pager: bool,
    /// Overwrite the pager's copies at once when pages come back or are given up, not within a second; --profile secure
    /// does so too [env: MEMFOLD_WIPE=on].
    #[arg(long, hide_short_help = true)]
    wipe: bool,
    /// Programs that the program starts run plainly [env: MEMFOLD_FOLLOW=off].
    #[arg(long, hide_short_help = true)]
    no_follow: bool,
    /// Write a summary as JSON to this file when the program has ended [env: MEMFOLD_SUMMARY].
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// Show on the terminal what is saved so far.
    #[arg(long, conflicts_with = "quiet")]
    progress: bool,
    /// Print nothing of memfold's own [env: MEMFOLD_QUIET].
    #[arg(long)]
    quiet: bool,
    /// Where a signal ended the program, end by the same signal, as who manages services wants to see it.
    #[arg(long, hide_short_help = true)]
    same_end: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND", add = ArgValueCompleter::new(Programs))]
    command: Vec<OsString>,
}

/// Runs the program. Returns its exit code.
///
/// # Errors
/// Before the program starts: the library or the summary file cannot be had (exit code 2).
pub fn run(mut args: Args) -> anyhow::Result<ExitCode> {
    if args.now {
        args.settings.hurry();
    }
    let found = program::find(&args.command[0], std::env::var_os("PATH").as_deref());
    let origins = found.as_deref().map_or_else(|_| Origins::new(), |file| settle(&args, file));
    let has_limit = args.settings.get(Setting::ResidentLimit).is_some()
        || variable(Setting::ResidentLimit.variable()).is_some();
    check_policy(args.policy.as_deref(), has_limit)?;
    if let Some(log) = &args.policy_log {
        let named = || variable(options::POLICY.variable)?.into_string().ok();
        let policy = args.policy.clone().or_else(named);
        if policy.is_none_or(|policy| matches!(policy.as_str(), "" | "age")) {
            return Err(exit::usage(
                "--policy-log has the passes of a page daemon: give --policy too, such as freebsd",
            ));
        }
        open_named(log).map_err(|error| exit::usage(format!("--policy-log {}: {error}", log.display())))?;
    }
    let quiet = args.quiet
        || variable(options::QUIET.variable).is_some_and(|text| text.to_str().is_none_or(is_quiet));
    if !quiet {
        launch::complain();
    }
    let destination = destination(&args, &origins, quiet)?;
    let daemon = daemon(&args, &origins, quiet)?;
    if let Some(socket) = daemon.as_deref().filter(|_| !quiet) {
        warn_without_daemon(socket, args.no_pager);
    }
    let (ended, summary) = match found {
        Ok(file) => {
            let (ended, summary) = start(&args, daemon, &file, &origins, quiet)?;
            if !quiet {
                text::note(&summary.lines());
            }
            (ended, summary)
        }
        Err(absent) => not_started(&args, absent),
    };
    if let Some(destination) = destination {
        if let Err(error) = summary.json().and_then(|json| destination.write(&json)) {
            text::say(format_args!("{error:#}"));
        }
    }
    if let (End::Killed(signal @ (libc::SIGINT | libc::SIGQUIT)), true) = (ended.end, ended.interrupted) {
        supervise::die_of(signal);
    }
    if let (End::Killed(signal), true) = (ended.end, args.same_end) {
        supervise::die_of(signal);
    }
    Ok(ExitCode::from(ended.end.code()))
}

/// Whether a policy has what it needs.
///
/// # Errors
/// It has no limit to evict down to (exit code 2).
pub(super) fn check_policy(policy: Option<&str>, has_limit: bool) -> anyhow::Result<()> {
    match policy.is_none_or(|policy| policy == "age") || has_limit {
        true => Ok(()),
        false => Err(exit::usage("--policy evicts down to a limit: give --resident-limit too, such as 256M")),
    }
}

impl Args {
    /// What an option was given, as text; `None` where it was not.
    pub(super) fn given(&self, named: Named) -> Option<String> {
        let path = |path: &PathBuf| path.display().to_string();
        let flag = |on: bool| on.then(|| "true".to_owned());
        match named {
            options::POLICY => self.policy.clone(),
            options::PROFILE => self.profile.clone(),
            options::TIER => self.tier.clone(),
            options::DAEMON => {
                self.daemon.as_ref().map(|socket| socket.as_ref().map(path).unwrap_or_default())
            }
            options::POLICY_LOG => self.policy_log.as_ref().map(path),
            options::SUMMARY => self.summary.as_ref().map(path),
            options::NO_PAGER => flag(self.no_pager),
            options::WIPE => flag(self.wipe),
            options::NO_FOLLOW => flag(self.no_follow),
            options::QUIET => flag(self.quiet),
            _ => {
                let setting = Setting::ALL.into_iter().find(|setting| setting.option() == named.option);
                setting.and_then(|setting| self.settings.get(setting)).map(str::to_owned)
            }
        }
    }
}

/// Has the files of settings decide what neither an option nor a variable does, by setting those variables: from here on they are as if
/// a person had set them. Gives back who decided what.
fn settle(args: &Args, program: &Path) -> Origins {
    let keys = Keys::of(&<Args as clap::Args>::augment_args(clap::Command::new("run")));
    let (decided, said) = decide::known(&Start::here(program), &keys);
    let mut origins = Origins::new();
    for named in options::named() {
        let origin = if let Some(value) = args.given(named) {
            Origin { value, from: format!("option --{}", named.option) }
        } else if let Some(value) = variable(named.variable) {
            Origin {
                value: value.to_string_lossy().into_owned(),
                from: format!("variable {}", named.variable),
            }
        } else if let Some(decision) = decided.iter().find(|decision| decision.key == named) {
            if let Some(value) = &decision.value {
                // No other thread runs yet.
                std::env::set_var(named.variable, value);
            }
            decision.origin()
        } else {
            continue;
        };
        origins.insert(named.option.into(), origin);
    }
    if !args.quiet && variable(options::QUIET.variable).is_none() {
        said.iter().for_each(text::say);
    }
    origins
}

/// Starts the program, folded if it can be, and waits for it.
fn start(
    args: &Args,
    daemon: Option<PathBuf>,
    file: &Path,
    origins: &Origins,
    quiet: bool,
) -> anyhow::Result<(Ended, Summary)> {
    speak_of_seal(args, quiet)?;
    let mut command = Command::new(file);
    std::os::unix::process::CommandExt::arg0(&mut command, &args.command[0]);
    command.args(&args.command[1..]);

    let library = library::find()?;
    let daemon_governs = daemon.is_some();
    let daemon_socket = daemon.clone();
    let filtered = filter::hindrance(tier(args).as_deref());
    let is_filtered = filtered.is_some();
    let mut launch = match filtered.or_else(|| program::obstacle(file, &library)) {
        Some(why) => Err(why),
        None => prepare(args, daemon, &library, quiet)?,
    };
    let mut depot = match &mut launch {
        Ok(launch) if !launch::pager_off(args.no_pager) => depot(args, origins, launch, quiet)?,
        _ => None,
    };
    let begun = Instant::now();
    let mut attached = None;
    let (ended, total) = match &launch {
        Err(why) => {
            launch::strip(&mut command);
            // The agent makes the same calls as the library.
            let attaching = match is_filtered {
                true => None,
                false => attaching(args, daemon_socket.as_deref(), file, quiet),
            };
            match attaching {
                Some((run_dir, mut attaching)) => {
                    let mut tally = Tally::new(run_dir.path().to_owned());
                    let ended = supervise(args, command, |pid| {
                        attaching.look(pid);
                        tally.sample();
                    });
                    attached = Some(attaching.finish().map(|then| format!("{why}, and {then}")));
                    (ended, tally.finish())
                }
                None => {
                    if !quiet {
                        let file = file.display();
                        text::say(format_args!("{file} cannot be folded and runs plainly: {why}"));
                    }
                    (supervise(args, command, |_| {}), Total::default())
                }
            }
        }
        Ok(launch) => {
            if !quiet && !launch::pager_off(args.no_pager) {
                group_limit::tell(&args.settings);
            }
            if let Ok(run) = Directory::hold(launch.control_dir()) {
                origin::keep(&run, origins);
            }
            launch.apply(&mut command);
            let mut tally = Tally::new(launch.control_dir().to_owned());
            let mut observing = observing(args, daemon_governs, launch.control_dir(), quiet);
            let mut next = Instant::now() + SAMPLE_EVERY;
            let mut line = Line::new(args.progress && !quiet);
            let ended = supervise(args, command, |_| {
                if let Some(depot) = &mut depot {
                    depot.look_after();
                }
                if Instant::now() >= next {
                    tally.sample();
                    line.show(tally.live());
                    if let Some((observing, run)) = &mut observing {
                        observe(observing, run, &tally);
                    }
                    next = Instant::now() + SAMPLE_EVERY;
                }
            });
            line.clear();
            let total = tally.finish();
            if let Some(depot) = depot {
                depot.part();
            }
            (ended, total)
        }
    };
    let wall = begun.elapsed();
    let beyond = launch.as_ref().map_or(Beyond::default(), |launch| Beyond {
        not_followed: launch::follows_nobody(args.no_follow),
        left: if total.some_left { left_behind(launch.control_dir()) } else { 0 },
    });
    let turned_off = launch::pager_off(args.no_pager).then(|| "the pager was turned off".to_owned());
    let why = attached.unwrap_or_else(|| launch.err()).or(turned_off);
    let summary = Summary::new(&args.command, ended.end, wall, total, why, beyond);
    Ok((ended, summary))
}

/// What to do where something that was asked for cannot be had: who asked by an option is told, and nothing is started; what a variable or a file
/// of settings asks for keeps no program from starting, and is left out, for what the program starts too.
fn cannot_be_had(
    args: &Args,
    origins: &Origins,
    quiet: bool,
    named: Named,
    why: &anyhow::Error,
) -> anyhow::Result<()> {
    if args.given(named).is_some() {
        return Err(exit::usage(format!("--{}: {why:#}; nothing was started", named.option)));
    }
    if !quiet {
        let from = origins.get(named.option).map_or(named.variable, |origin| &origin.from);
        text::say(format_args!("left out: {} ({from}): {why:#}", named.option));
    }
    // No other thread runs yet.
    std::env::remove_var(named.variable);
    Ok(())
}

/// Starts the process that keeps the program's tier, if that is on the network.
fn depot(args: &Args, origins: &Origins, launch: &mut Launch, quiet: bool) -> anyhow::Result<Option<Depot>> {
    let Some(tier) = tier(args) else { return Ok(None) };
    match Depot::start(&tier, launch.control_dir(), quiet) {
        Ok(Some(depot)) => {
            launch.have_depot(depot.directory());
            Ok(Some(depot))
        }
        Ok(None) => Ok(None),
        Err(why) => cannot_be_had(args, origins, quiet, options::TIER, &why).map(|()| None),
    }
}

/// The tier that was asked for.
fn tier(args: &Args) -> Option<String> {
    let from_variable = || variable(options::TIER.variable).and_then(|text| text.into_string().ok());
    args.tier.clone().or_else(from_variable)
}

/// Says what a tier that is not sealed gives up, and refuses it where that cannot be.
fn speak_of_seal(args: &Args, quiet: bool) -> anyhow::Result<()> {
    let Some(tier) = tier(args).filter(|_| !launch::pager_off(args.no_pager)) else { return Ok(()) };
    let Some(said) = launch::word_on_seal(&tier) else { return Ok(()) };
    if wipes(args) {
        // That of a variable the program's library leaves out, and says so.
        return match args.tier {
            Some(_) => Err(exit::usage(format!("--tier {tier}: {}", BadTier::SealOfWiped))),
            None => Ok(()),
        };
    }
    if !quiet {
        text::say(said);
    }
    Ok(())
}

/// Whether what the program erased is to be nowhere at once.
fn wipes(args: &Args) -> bool {
    let profile = args.profile.as_ref().map(OsString::from).or_else(|| variable(options::PROFILE.variable));
    let said = variable(options::WIPE.variable).and_then(|text| options::switch(&text));
    args.wipe || said.unwrap_or_else(|| profile.is_some_and(|name| name == "secure"))
}

/// What puts the agent into the program once it runs, if it can be, and the directory of its control page.
fn attaching(args: &Args, daemon: Option<&Path>, file: &Path, quiet: bool) -> Option<(RunDir, Attaching)> {
    if launch::pager_off(args.no_pager) || !program::takes_agent(file) {
        return None;
    }
    let (image, run_dir) = (agent::find().ok()?, RunDir::create().ok()?);
    let tier = tier(args);
    let on_disk = tier.as_deref().filter(|tier| launch::is_on_disk(tier));
    let given = attach::Given { policy: args.policy.as_deref(), tier: on_disk, daemon, wipe: args.wipe };
    let mut choices = given.choices(&args.settings);
    choices.push((pages::VARIABLE.into(), run_dir.path().to_str()?.to_owned()));
    let unused = [
        ("--profile", args.profile.is_some()),
        ("--heap-sample", args.settings.get(Setting::HeapSample).is_some()),
        ("--tier on the network", tier.is_some() && on_disk.is_none()),
        ("--no-follow", args.no_follow),
    ];
    for (option, _) in unused.iter().filter(|(_, given)| *given && !quiet) {
        let file = file.display();
        text::say(format_args!(
            "{option} does nothing here: {file} keeps its own allocator, and what it starts runs plainly"
        ));
    }
    Some((run_dir, Attaching::new(file.to_owned(), quiet, image, choices)))
}

/// Who observes the program's processes, where its access source is told from outside, and the directory of their pages. Under the budget
/// of a daemon that is the daemon.
fn observing(args: &Args, daemon: bool, dir: &Path, quiet: bool) -> Option<(Observing, Arc<Directory>)> {
    if daemon || launch::pager_off(args.no_pager) {
        return None;
    }
    let run = Arc::new(Directory::hold(dir).ok()?);
    let mut observing =
        Observing::new(Places::default(), if quiet { |_| {} } else { |line| text::say(line) });
    let chosen = |setting: Setting| {
        let text = args.settings.get(setting).map(str::to_owned);
        let text = text.or_else(|| variable(setting.variable())?.into_string().ok());
        text.and_then(|text| setting.parse(&text).ok()).unwrap_or(setting.default_value())
    };
    let cold_age = Duration::from_nanos(chosen(Setting::ColdAge));
    observing.expect(Kind::from_number(chosen(Setting::Source)), cold_age);
    Some((observing, run))
}

/// Observes the processes that want to be.
fn observe(observing: &mut Observing, run: &Arc<Directory>, tally: &Tally) {
    if Instant::now() < observing.next() {
        return;
    }
    let subject = |(name, pid, page)| Subject { file: PageFile { run: run.clone(), name }, page, pid };
    let subjects: Vec<Subject<'_>> = tally.live_here().map(subject).collect();
    observing.step(&subjects);
}

/// How many processes of a run go on after its program has ended.
fn left_behind(dir: &Path) -> usize {
    // As the kernel names what a process has mapped.
    let dir = dir.canonicalize().unwrap_or(dir.to_owned());
    let is_left = |pid: &u32| {
        process::is_running(*pid)
            && process::has_mapped(*pid, library::FILE_NAME)
            && pages::told(*pid).is_some_and(|told| told == dir)
    };
    process::all().iter().filter(|pid| is_left(pid)).count()
}

/// The socket of the daemon that was asked for.
fn daemon(args: &Args, origins: &Origins, quiet: bool) -> anyhow::Result<Option<PathBuf>> {
    let from_variable = || variable(options::DAEMON.variable).map(|path| Some(path.into()));
    let asked = args.daemon.clone().or_else(from_variable);
    let Some(path) = asked else { return Ok(None) };
    runtime::socket(path.as_deref())
        .map(Some)
        .or_else(|why| cannot_be_had(args, origins, quiet, options::DAEMON, &why).map(|()| None))
}

/// Says why the budget does not hold from the start, where it does not.
fn warn_without_daemon(socket: &Path, no_pager: bool) {
    if launch::pager_off(no_pager) {
        text::say("--daemon does nothing here: the pager is turned off");
    } else if let Err(error) = UnixStream::connect(socket) {
        text::say(format_args!(
            "no daemon listens at {} ({error}): the program keeps to its own settings until \
             `memfold daemon --budget 2G` is started there",
            socket.display()
        ));
    }
}

/// Prepares a folded start; the inner error says why the program must run plainly.
fn prepare(
    args: &Args,
    daemon: Option<PathBuf>,
    library: &Path,
    quiet: bool,
) -> anyhow::Result<Result<Launch, String>> {
    let mut settings = args.settings.clone();
    group_limit::settle(&mut settings);
    let choices = Choices {
        settings,
        policy: args.policy.clone(),
        profile: args.profile.clone(),
        policy_log: args.policy_log.as_deref().map(std::path::absolute).transpose()?,
        daemon,
        tier: args.tier.clone(),
        no_pager: args.no_pager,
        wipe: args.wipe,
        no_follow: args.no_follow,
        quiet,
    };
    match Launch::prepare(library, &choices) {
        Ok(launch) => Ok(Ok(launch)),
        // A directory that the user named is the user's to put right.
        Err(error) if variable(runtime::VARIABLE).is_some() => Err(exit::usage(format!("{error:#}"))),
        Err(error) => Ok(Err(format!("no directory for control pages: {error:#}"))),
    }
}

/// Waits for the command. One that cannot be executed after all ends with 126 or 127.
fn supervise(args: &Args, command: Command, tick: impl FnMut(u32)) -> Ended {
    supervise::supervise(command, SAMPLE_EVERY, tick).unwrap_or_else(|error| {
        let missing =
            error.downcast_ref::<std::io::Error>().map(|e| e.kind() == std::io::ErrorKind::NotFound);
        text::say(format_args!("cannot start {}: {error:#}", args.command[0].to_string_lossy()));
        let code = if missing == Some(true) { NOT_FOUND } else { NOT_EXECUTABLE };
        Ended { end: End::Exited(code), interrupted: false }
    })
}

/// The end of a program that is not there.
fn not_started(args: &Args, absent: Absent) -> (Ended, Summary) {
    let name = args.command[0].to_string_lossy();
    let (code, why) = match absent {
        Absent::NotFound => (NOT_FOUND, "no such program".to_owned()),
        Absent::NotExecutable(why) => (NOT_EXECUTABLE, format!("cannot be executed: {why}")),
    };
    text::say(format_args!("{name}: {why}"));
    let ended = Ended { end: End::Exited(code), interrupted: false };
    (
        ended,
        Summary::new(
            &args.command,
            ended.end,
            Duration::ZERO,
            Total::default(),
            Some(why),
            Beyond::default(),
        ),
    )
}

/// Where the summary goes.
fn destination(args: &Args, origins: &Origins, quiet: bool) -> anyhow::Result<Option<Destination>> {
    let from_variable = || variable(options::SUMMARY.variable).map(PathBuf::from);
    let Some(path) = args.summary.clone().or_else(from_variable) else { return Ok(None) };
    let opened = Destination::open(&path).with_context(|| format!("cannot write {}", path.display()));
    opened.map(Some).or_else(|why| cannot_be_had(args, origins, quiet, options::SUMMARY, &why).map(|()| None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches;

    fn run_command() -> clap::Command {
        <Args as clap::Args>::augment_args(clap::Command::new("run"))
    }

    #[test]
    fn every_option_with_a_variable_is_there_says_so_and_knows_what_it_was_given() {
        let keys = Keys::of(&run_command());
        for named in options::named() {
            let arg = run_command().get_arguments().find(|arg| arg.get_long() == Some(named.option)).cloned();
            let arg = arg.unwrap_or_else(|| panic!("{} is no option", named.option));
            let help = arg.get_long_help().or(arg.get_help()).unwrap().to_string();
            let shown = match named.flag {
                Some(flag) if named != options::QUIET => format!("[env: {}={flag}]", named.variable),
                _ => format!("[env: {}]", named.variable),
            };
            assert!(help.replace('\n', " ").contains(&shown), "{}: {help}", named.option);
            let setting = Setting::ALL.into_iter().find(|setting| setting.option() == named.option);
            let value = match named {
                options::POLICY => "lru",
                options::PROFILE => "lean",
                options::TIER => "disk=/var/tmp",
                _ => setting.map_or("/tmp/x", Setting::default_text),
            };
            let word = match named.flag {
                Some(_) => format!("--{}", named.option),
                None => format!("--{}={value}", named.option),
            };
            let matches = run_command().get_matches_from(["run", &word, "--", "true"]);
            let args = Args::from_arg_matches(&matches).unwrap();
            let wanted = if named.flag.is_some() { "true" } else { value };
            assert_eq!(args.given(named).as_deref(), Some(wanted), "{}", named.option);
            if named.flag.is_none() {
                assert_eq!(keys.check(named, value).as_deref(), Ok(value), "{}", named.option);
            }
        }
        let matches = run_command().get_matches_from(["run", "true"]);
        let args = Args::from_arg_matches(&matches).unwrap();
        assert!(options::named().all(|named| args.given(named).is_none()));
    }

    #[test]
    fn a_bad_value_of_a_key_is_answered_as_that_of_its_option() {
        let keys = Keys::of(&run_command());
        let cold_age = options::named().next().unwrap();
        assert_eq!(keys.check(cold_age, "soon").unwrap_err(), "a time such as 500ms, 10s or 5m is needed");
        assert!(keys.check(options::PROFILE, "fat").unwrap_err().starts_with("one of speed,"));
    }
}
