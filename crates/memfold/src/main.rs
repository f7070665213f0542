//! The command line of memfold: it reads arguments, calls what does the work and prints what came of it.
//!
//! What it is not: the pager or the allocator. Those run inside the program, in `libmemfold.so`; this
//! executable starts programs with that library and reads the control page of each.
//!
//! Invariants: exit codes are those of [`exit`]; results go to standard output, everything else to
//! standard error; colours and progress bars appear on terminals only. Neither of them ends the command when it cannot be
//! written, nor does a limit on the length of files.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod absence;
mod agent;
mod answer;
mod attach;
mod bar;
mod beside;
mod calls;
mod cmd;
mod complete;
mod config;
mod core_dump;
mod daemon_observing;
mod demo;
mod directory;
mod doctor;
mod embedded;
mod exit;
mod governed;
mod help;
mod library;
mod listening;
mod manual;
mod metrics;
mod observing;
mod options;
mod pages;
mod process;
mod reasons;
mod run;
mod run_dir;
mod runtime;
mod service;
mod setup;
mod survey;
mod target;
mod text;
mod top;
mod trace_file;
mod view;
mod watch;
mod web;
mod words;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::CompleteEnv;
use nix::sys::signal::{sigaction, SaFlags, SigAction, SigHandler, SigSet, Signal};
use std::process::ExitCode;

/// Makes a Linux program need less memory without changing it.
///
/// The memory that a program does not use is folded: compressed in place, and back before the program
/// notices more than some microseconds.
#[derive(Parser)]
#[command(name = "memfold", version, long_version = env!("MEMFOLD_VERSION"), max_term_width = 100, after_help = exit::HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(cmd::run::Args),
    Stat(cmd::stat::Args),
    Survey(cmd::survey::Args),
    Top(cmd::top::Args),
    Web(cmd::web::Args),
    Metrics(cmd::metrics::Args),
    Heap(cmd::heap::Args),
    Ctl(cmd::ctl::Args),
    Attach(cmd::attach::Args),
    Detach(cmd::detach::Args),
    Daemon(cmd::daemon::Args),
    Doctor(cmd::doctor::Args),
    Core(cmd::core_dump::Args),
    Setup(cmd::setup::Args),
    Demo(cmd::demo::Args),
    Bench(cmd::bench::Args),
    Report(cmd::report::Args),
    Sim(cmd::sim::Args),
    Pagecache(cmd::pagecache::Args),
    Trace(cmd::trace::Args),
    Record(cmd::record::Args),
    Config(cmd::config::Args),
    Service(cmd::service::Args),
    Completions(cmd::completions::Args),
    #[command(hide = true)]
    Man(cmd::man::Args),
    #[command(hide = true)]
    Depot(cmd::depot::Args),
}

fn main() -> ExitCode {
    memfold_bench::manifest::built_from(option_env!("MEMFOLD_COMMIT"));
    outlive_limits();
    CompleteEnv::with_factory(Cli::command).var(cmd::completions::VARIABLE).complete();
    if std::env::args_os().len() == 1 {
        return text::print(help::FIRST).map_or_else(|error| exit::report(&error), |()| ExitCode::SUCCESS);
    }
    let command = Cli::command();
    let command = if help::is_asked(std::env::args_os()) { help::fit(command) } else { command };
    let matches = command.try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = matches.unwrap_or_else(|error| {
        let advice = cmd::ctl::advice(std::env::args_os()).filter(|_| error.use_stderr());
        let _ = error.print();
        if let Some(advice) = advice {
            text::say(advice);
        }
        std::process::exit(error.exit_code())
    });
    let result = match cli.command {
        Command::Run(args) => cmd::run::run(args),
        Command::Stat(args) => cmd::stat::run(args),
        Command::Survey(args) => cmd::survey::run(args),
        Command::Top(args) => cmd::top::run(args),
        Command::Web(args) => cmd::web::run(args),
        Command::Metrics(args) => cmd::metrics::run(args),
        Command::Heap(args) => cmd::heap::run(args),
        Command::Ctl(args) => cmd::ctl::run(args),
        Command::Attach(args) => cmd::attach::run(args),
        Command::Detach(args) => cmd::detach::run(args),
        Command::Daemon(args) => cmd::daemon::run(args),
        Command::Doctor(args) => cmd::doctor::run(args),
        Command::Core(args) => cmd::core_dump::run(args),
        Command::Setup(args) => cmd::setup::run(args),
        Command::Demo(args) => cmd::demo::run(args),
        Command::Bench(args) => cmd::bench::run(args),
        Command::Report(args) => cmd::report::run(args),
        Command::Sim(args) => cmd::sim::run(args),
        Command::Pagecache(args) => cmd::pagecache::run(args),
        Command::Trace(args) => cmd::trace::run(args),
        Command::Record(args) => cmd::record::run(args),
        Command::Config(args) => cmd::config::run(args, &Cli::command()),
        Command::Service(args) => cmd::service::run(args, &Cli::command()),
        Command::Completions(args) => cmd::completions::run(args),
        Command::Depot(args) => cmd::depot::run(args),
        Command::Man(args) => cmd::man::run(args, Cli::command()),
    };
    let code = result.unwrap_or_else(|error| exit::report(&error));
    if code == ExitCode::SUCCESS && text::failed() {
        return ExitCode::from(exit::FAILED);
    }
    code
}

/// Has a write beyond `RLIMIT_FSIZE` be an error. By a handler: programs that are started get the default back, as they would
/// without us; and not where the signal is ignored already, which they would inherit too.
fn outlive_limits() {
    extern "C" fn nothing(_: i32) {}
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler does nothing.
    let before = unsafe { sigaction(Signal::SIGXFSZ, &action) };
    if let Some(ignored) = before.ok().filter(|before| matches!(before.handler(), SigHandler::SigIgn)) {
        // SAFETY: as it was.
        let _ = unsafe { sigaction(Signal::SIGXFSZ, &ignored) };
    }
}
