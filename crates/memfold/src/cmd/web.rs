//! `memfold web`: a page of all folded programs, for a browser.

use crate::exit;
use crate::listening::{self, place};
use crate::options;
use crate::text;
use crate::web::{self, Options, Readers};
use anyhow::Context;
use memfold_daemon::token::Token;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{signal, SignalKind};

const AFTER_HELP: &str = "\
Examples:
  memfold web                                 the page is at http://127.0.0.1:9275/
  memfold web --listen 8080                   at another port; 0 takes one that is free
  memfold web --token-file ~/.memfold-token   who types the token into the page may change settings, evict, restore
  sudo memfold web                            everybody's programs, for root and for who called sudo
  ssh -L 9275:127.0.0.1:9275 HOST             from another machine, through a tunnel

A token is 16 characters or more, in a file that is closed to others: (umask 077; openssl rand -hex 32 > ~/.memfold-token)

Only connections of your own user and of root are answered, and no page of another site gets an answer. With nobody looking the
server looks at the programs every ten seconds.

Exit codes: 0 done (ended by a signal), 1 failed (the port is in use), 2 bad usage.";

/// Serve a page of all folded programs, to look at and to steer.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Where: a port, or an address of the loopback interface with one.
    #[arg(long, value_name = "[ADDRESS:]PORT", default_value = "127.0.0.1:9275", value_parser = place)]
    listen: SocketAddr,
    /// Let whoever knows the token in this file change settings, evict, restore, pause, sleep and wake. Others may not read the file (0600).
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Let every user of this machine look.
    #[arg(long)]
    open: bool,
    /// The time from one look to the next.
    #[arg(
        long, value_name = "TIME", default_value = "1s",
        value_parser = options::time_in(Duration::from_millis(250)..=Duration::from_secs(3600),
            "a time between 250ms and 1h is needed, such as 1s")
    )]
    every: Duration,
}

/// Serves the page until SIGINT, SIGTERM or SIGHUP.
///
/// # Errors
/// The port is in use, or the token's file is not to be trusted.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let options = options_for(args.every, args.token_file.as_deref(), args.open)?;
    let listener = listening::at(args.listen, "--listen")?;
    let steered = what_for(&options);
    web::serve(
        listener,
        options,
        |at| text::say(format_args!("the page is at http://{at}/, {steered}; Ctrl-C ends it")),
        async {
            if let Err(error) = stopped().await {
                text::say(format_args!("{error:#}"));
            }
        },
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Who may look at the page, and who may change anything by it.
///
/// # Errors
/// The token's file is not to be trusted.
pub(super) fn options_for(every: Duration, token: Option<&Path>, open: bool) -> anyhow::Result<Options> {
    let readers = if open { Readers::All } else { Readers::own() };
    Ok(Options { every, readers, token: token.map(token_in).transpose()? })
}

/// The token in a file.
///
/// # Errors
/// It is not to be trusted.
pub(super) fn token_in(path: &Path) -> anyhow::Result<Token> {
    Token::read(path).map_err(|refused| exit::usage(format!("{}: {refused}", path.display())))
}

/// What a page with these options is for.
pub(super) fn what_for(options: &Options) -> &'static str {
    match options.token {
        Some(_) => "and can be changed with the token",
        None => "to look at",
    }
}

/// A signal that ends.
async fn stopped() -> anyhow::Result<()> {
    let watch = |kind| signal(kind).context("cannot watch for signals");
    let (mut interrupt, mut term, mut hangup) =
        (watch(SignalKind::interrupt())?, watch(SignalKind::terminate())?, watch(SignalKind::hangup())?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = term.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(())
}
