//! `memfold daemon`: serves programs that use the library, and divides one budget among them and those of `memfold run
//! --daemon`.

use crate::governed::Programs;
use crate::{runtime, text};
use anyhow::Context;
use daemon::budget::LEAST;
use daemon::server::{self, MetricsAt, Options};
use pager::config::parse_size;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const AFTER_HELP: &str = "\
Examples:
  memfold daemon                                       serve programs of this user
  memfold daemon --budget 2G                           the programs together keep 2 GiB at most
  memfold run --daemon -- redis-server                 an unchanged program, under that budget
  memfold daemon --metrics 127.0.0.1:9273              counters for Prometheus
  MEMFOLD_DAEMON=/run/user/1000/memfold/daemon.sock ./program     a program that uses memfold.h

It may be killed and started again at any time: the programs go on, and find it again within a second.

Exit codes: 0 ended by a signal, 1 failed (another daemon listens there), 2 bad usage.";

/// Serve programs that use memfold.h, under one budget with those of `memfold run --daemon`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The socket; programs name it in MEMFOLD_DAEMON [default: daemon.sock in memfold's runtime directory].
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Memory that these programs together may keep resident, such as 512M or 2G [default: no limit].
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
    let socket = runtime::socket(args.socket.as_deref())?;
    ctrlc::set_handler(|| STOP.store(true, Relaxed))?;
    let options = Options { socket: socket.clone(), budget: args.budget, metrics: args.metrics };
    let say: fn(&str) = if args.quiet { |_| {} } else { |line| text::say(line) };
    say(&format!("serving at {}", socket.display()));
    if let Err(error) = daemon::remote::try_to_evict(sys::thread::parent_pid()) {
        say(&format!(
            "the kernel lets no process evict another's pages ({error}): each program's agent does it"
        ));
    }
    server::run(&options, Box::new(Programs::of(&socket)), &STOP, say)
        .with_context(|| format!("cannot serve at {}", socket.display()))?;
    Ok(ExitCode::SUCCESS)
}
