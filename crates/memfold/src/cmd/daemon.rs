//! `memfold daemon`: serves programs that use the library, and divides one budget among all folded programs of the user.

use crate::control::Mailbox;
use crate::exit;
use crate::runtime;
use anyhow::Context;
use daemon::budget::{Load, LEAST};
use daemon::server::{self, Fleet, MetricsAt, Options};
use pager::config::{parse_size, Setting};
use pager::control::{Command, Mode};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const AFTER_HELP: &str = "\
Examples:
  memfold daemon                                       serve programs of this user
  memfold daemon --budget 2G                           all folded programs together keep 2 GiB at most
  memfold daemon --metrics 127.0.0.1:9273              counters for Prometheus
  MEMFOLD_DAEMON=/run/user/1000/memfold/daemon.sock ./program     a program that uses memfold.h

It may be killed and started again at any time: the programs go on, and find it again within a second.

Exit codes: 0 ended by a signal, 1 failed (another daemon listens there), 2 bad usage.";

/// How long a folded program may take to answer when its limit is set.
const PATIENCE: Duration = Duration::from_millis(200);

/// Serve programs that use memfold.h, under one budget with all other folded programs of yours.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The socket; programs name it in MEMFOLD_DAEMON [default: daemon.sock in memfold's runtime directory].
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Memory that all folded programs together may keep resident, such as 512M or 2G [default: no limit].
    #[arg(long, value_name = "BYTES", value_parser = budget)]
    budget: Option<u64>,
    /// Answer requests for the counters, in the text format of Prometheus, on a Unix socket or a loopback port.
    #[arg(long, value_name = "PATH|ADDRESS:PORT")]
    metrics: Option<MetricsAt>,
    /// Say nothing of programs that come and go.
    #[arg(long)]
    quiet: bool,
}

fn budget(text: &str) -> Result<u64, String> {
    match parse_size(text) {
        Some(bytes) if bytes >= LEAST => Ok(bytes),
        _ => Err("a size of 4M or more is needed, such as 512M or 2G".into()),
    }
}

static STOP: AtomicBool = AtomicBool::new(false);

/// Runs until SIGINT or SIGTERM.
///
/// # Errors
/// The socket cannot be made, or another daemon listens there.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let socket = match args.socket {
        Some(path) if path.as_os_str().len() > 107 => {
            return Err(exit::usage(format!(
                "{}: the path of a socket has 107 bytes at most",
                path.display()
            )))
        }
        Some(path) => path,
        None => runtime::usable_base()?.join("daemon.sock"),
    };
    ctrlc::set_handler(|| STOP.store(true, Relaxed))?;
    let options = Options { socket: socket.clone(), budget: args.budget, metrics: args.metrics };
    let say: fn(&str) = if args.quiet { |_| {} } else { |line| eprintln!("memfold: {line}") };
    say(&format!("serving at {}", socket.display()));
    if let Err(error) = daemon::remote::try_to_evict(sys::thread::parent_pid()) {
        say(&format!(
            "the kernel lets no process evict another's pages ({error}): each program's agent does it"
        ));
    }
    server::run(&options, Box::new(Folded), &STOP, say)
        .with_context(|| format!("cannot serve at {}", socket.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// The programs of this user that fold themselves, by their control pages.
struct Folded;

impl Fleet for Folded {
    fn loads(&mut self) -> Vec<(u32, Load)> {
        let folds_itself = |found: &runtime::Found| found.page.mode == Mode::Embedded;
        let load = |found: runtime::Found| {
            let page = found.page;
            let load = Load {
                resident_bytes: page.sizes.resident_bytes + page.sizes.overhead_bytes,
                evicted_bytes: page.sizes.evicted_bytes,
                waited_ns: page.costs.stall_ns,
                limit: page.settings[Setting::ResidentLimit as usize],
            };
            (page.pid, load)
        };
        runtime::running().into_iter().filter(folds_itself).map(load).collect()
    }

    fn limit(&mut self, pid: u32, bytes: u64) {
        let found = runtime::running().into_iter().find(|found| found.page.pid == pid);
        if let Some(found) = found {
            // A program that does not answer now is asked again.
            let _ = Mailbox::open(&found.path, pid).and_then(|mailbox| {
                mailbox.ask(Command::Set, Setting::ResidentLimit as u64, bytes, "", PATIENCE)
            });
        }
    }
}
