//! `memfold metrics`: the counters of all folded programs for Prometheus.

use crate::cmd::daemon::{metrics_for, scraper, stop_on_signals, STOP};
use crate::watch::Watch;
use crate::{metrics, text};
use memfold_daemon::server::MetricsAt;
use memfold_sys::time::Nanos;
use std::cell::RefCell;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

const AFTER_HELP: &str = "\
Examples:
  memfold metrics                                             the counters as they are now, on standard output
  memfold metrics --listen 9274 --metrics-token FILE          at 127.0.0.1:9274, for who has the token
  sudo memfold metrics --listen /run/memfold-metrics.sock     everybody's programs, on a socket of root's (0600)
  memfold metrics > /var/lib/node_exporter/memfold.prom       for node_exporter's textfile collector, from a timer

What `memfold daemon --metrics` says of its programs has the same names here. contrib/ in the sources has a dashboard for Grafana and rules for alerts.

Root sees everybody's programs.

Exit codes: 0 done (or ended by a signal), 1 failed (the port is in use), 2 bad usage.";

/// The time between two looks at the signals.
const LOOK: Nanos = Nanos::from_millis(250);
/// Who asks more often than this is told the same again.
const FRESH: Duration = Duration::from_secs(1);

/// Print or serve the counters of all folded programs, in the text format of Prometheus.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Answer requests for the counters on a Unix socket or a loopback port, until a signal.
    #[arg(long, value_name = "PATH|[ADDRESS:]PORT")]
    listen: Option<MetricsAt>,
    /// Answer who sends `Authorization: Bearer TOKEN`, with the token in this file, which must be closed to others (0600).
    #[arg(long, value_name = "FILE", requires = "listen", conflicts_with = "metrics_open")]
    metrics_token: Option<PathBuf>,
    /// Answer whoever can connect to the port: every user of this machine.
    #[arg(long, requires = "listen")]
    metrics_open: bool,
}

/// Prints the counters, or serves them until SIGINT, SIGTERM or SIGHUP.
///
/// # Errors
/// The port or the socket is in use, or the token's file is not to be trusted.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut watch = Watch::new();
    let Some(at) = args.listen else {
        text::print(&metrics::text(watch.look()))?;
        return Ok(ExitCode::SUCCESS);
    };
    let place = match &at {
        MetricsAt::Path(path) => path.display().to_string(),
        MetricsAt::Port(address) => address.to_string(),
    };
    let metrics = metrics_for(at.clone(), args.metrics_token.as_deref(), args.metrics_open)?;
    stop_on_signals()?;
    let mut scraper = scraper(&metrics, "--listen")?;
    text::say(format_args!("the counters are at {place}"));
    let last: RefCell<Option<(Instant, String)>> = RefCell::default();
    let watch = RefCell::new(watch);
    while !STOP.load(Relaxed) {
        scraper.step(LOOK, || {
            let mut last = last.borrow_mut();
            let fresh = last.as_ref().filter(|(at, _)| at.elapsed() < FRESH);
            let text =
                fresh.map_or_else(|| metrics::text(watch.borrow_mut().look()), |(_, text)| text.clone());
            last.get_or_insert_with(|| (Instant::now(), text.clone()));
            text
        });
        // What is not fresh any more is not kept.
        last.borrow_mut().take_if(|(at, _)| at.elapsed() >= FRESH);
    }
    if let MetricsAt::Path(path) = at {
        let _ = std::fs::remove_file(path);
    }
    Ok(ExitCode::SUCCESS)
}
