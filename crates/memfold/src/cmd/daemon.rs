//! `memfold daemon`: divides one budget among programs that fold themselves, those of `memfold run --daemon` and those that use `memfold.h`.

use super::attach;
use crate::attach::rules::Rules;
use crate::attach::watching::Watch;
use crate::cmd::web::{options_for, token_in, what_for};
use crate::governed::Programs;
use crate::listening::{self, place};
use crate::run::launch;
use crate::{agent, beside, daemon_observing, exit, options, runtime, text, web};
use anyhow::Context;
use memfold_daemon::budget::LEAST;
use memfold_daemon::scrape::Scraper;
use memfold_daemon::server::{self, Metrics, MetricsAt, Options};
use memfold_pager::config::{parse_size, Setting};
use memfold_pager::source::Kind;
use memfold_pager::tier::choice::Choice;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{sigaction, SaFlags, SigAction, SigHandler, SigSet, Signal};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

const AFTER_HELP: &str = "\
Examples:
  memfold daemon --budget 2G                           the programs of this user together keep 2 GiB at most
  memfold run --daemon -- redis-server                 an unchanged program, under that budget
  sudo memfold daemon --source damon-paddr             what is cold of theirs is told by DAMON
  memfold daemon --metrics 9273 --metrics-token FILE   counters for Prometheus, at 127.0.0.1, for who has the token
  sudo memfold daemon --attach-rules FILE              attach to the programs that its rules name (docs/attach.md)
  memfold daemon --tier disk=/var/tmp,size=50G         what is cold for ten minutes goes to disk; they share 50 GiB
  memfold daemon --http 9275                           the page of `memfold web`, at http://127.0.0.1:9275/
  MEMFOLD_DAEMON=/run/user/1000/memfold/daemon.sock ./program     a program that uses memfold.h

It may be killed and started again at any time: it has nothing of the programs' in hand. They go by their own settings meanwhile.

Exit codes: 0 ended by a signal, 1 failed (another daemon listens there), 2 bad usage.";

/// Divide one budget among many programs.
///
/// Those of `memfold run --daemon`, and those that use memfold.h.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The socket; programs name it in MEMFOLD_DAEMON [default: daemon.sock in memfold's runtime directory].
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Memory that these programs together may keep resident, such as 512M or 2G [default: no limit].
    #[arg(long, value_name = "BYTES", value_parser = budget)]
    budget: Option<u64>,
    /// Give each of these programs a tier below memory, and a part of its SIZE by what it has cold, where it has none of its own.
    #[arg(long, value_name = "disk=DIR[,size=SIZE][,after=TIME]", value_parser = tier)]
    tier: Option<String>,
    /// Answer requests for the counters, in the text format of Prometheus, on a Unix socket or a loopback port.
    #[arg(long, value_name = "PATH|[ADDRESS:]PORT")]
    metrics: Option<MetricsAt>,
    /// Answer who sends `Authorization: Bearer TOKEN`, with the token in this file, which must be closed to others (0600).
    #[arg(long, value_name = "FILE", requires = "metrics", conflicts_with = "metrics_open")]
    metrics_token: Option<PathBuf>,
    /// Answer whoever can connect to the port: every user of this machine.
    #[arg(long, requires = "metrics")]
    metrics_open: bool,
    /// What tells which memory of the programs is cold, where they have not chosen it themselves: writes, probe, or as root
    /// damon-vaddr, damon-paddr or idle [default: auto].
    #[arg(long, value_name = "SOURCE", value_parser = source)]
    source: Option<Kind>,
    /// Attach to the programs that a rule in this file names, those that run and those that come; as root to everybody's.
    #[arg(long, value_name = "FILE")]
    attach_rules: Option<PathBuf>,
    /// Say nothing of programs that come and go.
    #[arg(long)]
    quiet: bool,
    /// Serve the page of `memfold web` at a loopback port.
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = place)]
    http: Option<SocketAddr>,
    /// Let whoever knows the token in this file change settings by the page, as with `memfold web --token-file`.
    #[arg(long, value_name = "FILE", requires = "http")]
    http_token: Option<PathBuf>,
    /// Let every user of this machine look at the page.
    #[arg(long, requires = "http")]
    http_open: bool,
}

fn budget(text: &str) -> Result<u64, String> {
    match parse_size(text) {
        Some(bytes) if bytes >= LEAST => Ok(bytes),
        _ => Err("a size of 4M or more is needed, such as 512M or 2G".into()),
    }
}

fn tier(text: &str) -> Result<String, String> {
    let whole = launch::known_tier(text)?;
    match Choice::parse(&whole) {
        Ok(choice) if choice.engines().is_some() => Err(
            "programs share a disk: disk=DIR is needed; `memfold run --tier redis://HOST:PORT` is for one"
                .into(),
        ),
        Ok(choice) if !choice.sealed => Err(
            "what programs share is sealed: leave seal=no out; `memfold run --tier disk=DIR,seal=no` is for one".into(),
        ),
        _ => Ok(whole),
    }
}

fn source(text: &str) -> Result<Kind, String> {
    options::parse(Setting::Source, text).map(Kind::from_number)
}

/// The time between two looks at the programs for the page.
const LOOK: Duration = Duration::from_secs(1);
/// How soon it is seen that the daemon has ended.
const OVER: Duration = Duration::from_millis(250);

/// Set by the signals that end a command which serves.
pub(super) static STOP: AtomicBool = AtomicBool::new(false);

/// Runs until SIGINT, SIGTERM or SIGHUP.
///
/// # Errors
/// The socket cannot be made, another daemon listens there, or the token's file is not to be trusted.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let socket = runtime::socket(args.socket.as_deref())?;
    let metrics = match &args.metrics {
        Some(at) => Some(metrics_for(at.clone(), args.metrics_token.as_deref(), args.metrics_open)?),
        None => None,
    };
    let watch = args.attach_rules.as_deref().map(|file| watch_by(file, &socket)).transpose()?;
    let page = match args.http {
        Some(at) => {
            let options = options_for(LOOK, args.http_token.as_deref(), args.http_open)?;
            Some((listening::at(at, "--http")?, options))
        }
        None => None,
    };
    stop_on_signals()?;
    let say: fn(&str) = if args.quiet { |_| {} } else { say };
    if args.budget.is_none() {
        say("without --budget, each program keeps what it likes");
    }
    if let Some(kind) = args.source.filter(|kind| *kind != Kind::Auto) {
        daemon_observing::start(&socket, kind, &STOP, say)
            .context("cannot start the process that observes")?;
    }
    if let Some(watch) = watch {
        beside::start(&STOP, |is_over| watch.run(say, is_over))
            .context("cannot start the process that attaches")?;
    }
    if let Some((listener, options)) = page {
        beside::start(&STOP, |is_over| serve(listener, options, say, is_over))
            .context("cannot start the process that serves the page")?;
    }
    // Before the socket, so that who finds the daemon there can also ask for its counters.
    let answering = metrics.as_ref().map(|metrics| scraper(metrics, "--metrics")).transpose()?;
    let tier = args.tier.as_deref();
    let size = tier.and_then(|text| Some(Choice::parse(text).ok()?.size));
    let options = Options { socket: socket.clone(), budget: args.budget, tier: size };
    let ended = server::run(&options, answering, Box::new(Programs::of(&socket).with_tier(tier)), &STOP, say)
        .with_context(|| format!("cannot listen at {}", socket.display()));
    if let Some(MetricsAt::Path(path)) = args.metrics {
        let _ = std::fs::remove_file(path);
    }
    ended.map(|()| ExitCode::SUCCESS)
}

/// The page, until it is over.
fn serve(listener: TcpListener, options: web::Options, say: fn(&str), is_over: &dyn Fn() -> bool) {
    // The port is free for the next daemon at once, however this one ended.
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    let steered = what_for(&options);
    let stop = async {
        while !is_over() {
            tokio::time::sleep(OVER).await;
        }
    };
    if let Err(error) =
        web::serve(listener, options, |at| say(&format!("the page is at http://{at}/, {steered}")), stop)
    {
        text::say(format_args!("the page is not served: {error:#}"));
    }
}

/// Who answers those who ask for the counters at the place that `option` named.
pub(super) fn scraper(metrics: &Metrics, option: &str) -> anyhow::Result<Scraper> {
    server::scraper(metrics).map_err(|error| match &metrics.at {
        MetricsAt::Port(address) => listening::refused(*address, option, &error),
        MetricsAt::Path(path) => {
            anyhow::Error::new(error).context(format!("cannot listen at {}", path.display()))
        }
    })
}

/// What is attached to by the rules in a file, under the budget of the daemon at `socket`.
fn watch_by(file: &Path, socket: &Path) -> anyhow::Result<Arc<Watch>> {
    let usual = attach::Given { daemon: Some(socket), ..attach::Given::default() }
        .choices(&options::PagerOptions::default());
    Ok(Arc::new(Watch { rules: Rules::read(file)?, image: agent::find()?, usual }))
}

/// Who may read the counters: over TCP nobody that is not meant to, as every user of the machine can connect.
pub(super) fn metrics_for(at: MetricsAt, token: Option<&Path>, open: bool) -> anyhow::Result<Metrics> {
    if matches!(at, MetricsAt::Port(_)) && token.is_none() && !open {
        return Err(exit::usage(
            "every user of this machine can connect to the port: name a file with a token (--metrics-token FILE), or say that \
             whoever asks may know (--metrics-open), or give the path of a socket",
        ));
    }
    Ok(Metrics { at, token: token.map(token_in).transpose()? })
}

/// Without a thread for it: those that run before the daemon is confined are not.
pub(super) fn stop_on_signals() -> anyhow::Result<()> {
    extern "C" fn stop(_: i32) {
        STOP.store(true, Relaxed);
    }
    let action = SigAction::new(SigHandler::Handler(stop), SaFlags::empty(), SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler stores a word and nothing more.
        unsafe { sigaction(signal, &action) }.with_context(|| format!("cannot watch for {signal}"))?;
    }
    Ok(())
}

/// A line that nobody makes room for is lost: who does not read what the daemon says must not keep it from dividing the budget, nor from ending.
fn say(line: &str) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock();
    let stderr = std::io::stderr();
    let mut room = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    // Where a pipe has any, it has enough for a line (pipe(7)).
    if poll(&mut room, PollTimeout::ZERO).is_ok_and(|ready| ready > 0) {
        text::say(line);
    }
}
