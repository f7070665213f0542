//! `memfold depot`: the process that keeps a tier on the network. `memfold run` starts it; nobody else needs it.

use crate::{pages, process};
use anyhow::anyhow;
use memfold_depot::Config;
use memfold_pager::tier::choice::Choice;
use nix::sys::resource::{getrlimit, setrlimit, Resource};
use nix::sys::signal::{SigSet, Signal};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;

/// Keep the memory of programs on engines in the network: the process that `memfold run --tier redis://HOST:PORT` has beside the program. It ends when
/// its standard input does and no process of the program is left.
#[derive(clap::Args)]
pub struct Args {
    /// The directory of its socket.
    directory: PathBuf,
    /// The tier, as `memfold run --tier` takes it.
    tier: String,
    /// The directory of the run's control pages, by which its processes are known.
    run: PathBuf,
    /// Its engines are nodes of a cluster.
    #[arg(long)]
    cluster: bool,
    /// On how many of them everything is kept.
    #[arg(long)]
    copies: usize,
}

/// Serves until nobody is left.
///
/// # Errors
/// The tier makes no sense, or the socket cannot be made.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let choice = Choice::parse(&args.tier).map_err(|wrong| anyhow!("{wrong}"))?;
    let engines = choice.engines().ok_or_else(|| anyhow!("{} is not on the network", args.tier))?;
    let config = Config::new(&engines, args.cluster)?.with_copies(args.copies);
    let launcher = std::io::stdin().as_fd().try_clone_to_owned()?;
    raise_limit();
    // It ends by itself, and whoever ends all of a service or a session at once ends it before the program's memory is deleted.
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect::<SigSet>().thread_block()?;
    let others = || process::all().into_iter().any(|pid| pages::is_of(pid, &args.run));
    memfold_depot::serve(&args.directory, config, UnixStream::from(launcher), others)?;
    Ok(ExitCode::SUCCESS)
}

/// It has some descriptors for each process of the program, however few the program itself makes do with.
fn raise_limit() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}
