//! The order of things: start both servers, fill them, let one fold, press both in turns, read all back.

use super::load::{self, Slice};
use super::plan::Plan;
use super::report::{Arm, Report};
use super::server::{self, Server};
use crate::run::launch::{Choices, Launch};
use crate::{exit, library, options::PagerOptions};
use indicatif::ProgressBar;
use memfold_inspect::Snapshot;
use memfold_pager::config::{parse_duration, Setting};
use memfold_pager::control::Mode;
use memfold_stats::Rng;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long one server is pressed before it is the other's turn: well below the cold age, so that the hot
/// keys of the server that waits stay hot.
const TURN: Duration = Duration::from_millis(400);
/// How long the servers are pressed, at least and at most, until the folded one has settled; and two cold ages besides, one to be set aside and
/// one to be folded.
const SETTLE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));
/// Growth of what is saved, within one cold age, below which the folded server has settled: what was looked at in vain is looked at again a cold age later, and
/// what is stored is made smaller after one.
const SETTLED: f64 = 0.01;
/// How many pairs of turns are measured.
const PAIRS: u64 = 14;

/// The two servers, in turns.
struct Stage<'a> {
    plan: &'a Plan,
    plain: Server,
    folded: Server,
    rng: Rng,
    bar: &'a ProgressBar,
}

/// Runs the whole demo; `bar` counts to 100.
///
/// # Errors
/// Something is missing here (exit code 3), a server fails, a value is wrong, or the user interrupts.
pub fn play(plan: &Plan, bar: &ProgressBar) -> anyhow::Result<Report> {
    let program = server::find()?;
    let library = library::find()?;
    let closed = std::fs::Permissions::from_mode(0o700);
    let dir = tempfile::Builder::new().prefix("memfold-demo-").permissions(closed).tempdir()?;
    let settings = PagerOptions::default()
        .with(Setting::ColdAge, &plan.cold_age)
        .with(Setting::RecompressAge, &plan.cold_age)
        .with(Setting::MaxStall, &plan.max_stall)
        .with(Setting::MaxCpu, &plan.max_cpu);
    let launch = Launch::prepare(&library, &Choices { settings, quiet: true, ..Choices::default() })?;
    bar.set_message("starting two redis-servers");
    let mut stage = Stage {
        plain: Server::start("plain", &program, dir.path(), None)?,
        folded: Server::start("folded", &program, dir.path(), Some(&launch))?,
        plan,
        rng: Rng::new(1),
        bar,
    };
    let begun = Instant::now();
    stage.act().map(|report| report.finish(begun.elapsed())).map_err(|error| {
        let error = stage.plain.explain(error);
        stage.folded.explain(error)
    })
}

impl Stage<'_> {
    fn act(&mut self) -> anyhow::Result<Report> {
        let value_bytes = self.fill()?;
        self.settle()?;
        let before = self.page()?;
        let (plain, folded) = self.measure()?;
        let settled = self.page()?;
        let different = self.verify()?;
        let after = self.page()?;
        Ok(Report::new(self.plan, value_bytes, plain, folded, [before, settled, after], different))
    }

    /// The folded server's page.
    fn page(&self) -> anyhow::Result<Snapshot> {
        let page = self.folded.page();
        match page {
            Some(page) if page.mode == Mode::Off => Err(exit::unsupported(format!(
                "nothing can be folded here: {}; see `memfold doctor`",
                page.reason
            ))),
            Some(page) => Ok(page),
            None => Err(exit::unsupported("the folded server has no control page; see `memfold doctor`")),
        }
    }

    fn fill(&mut self) -> anyhow::Result<u64> {
        self.bar.set_message(format!("writing {} records to each", self.plan.records));
        let bytes = self.on_both(0..20, load::fill)?;
        self.page()?;
        Ok(bytes[0])
    }

    fn verify(&mut self) -> anyhow::Result<[u64; 2]> {
        self.bar.set_message("reading every value back");
        self.on_both(85..100, load::verify)
    }

    /// Does something with both servers at the same time, and shows how far it is.
    fn on_both(
        &self,
        part: std::ops::Range<u64>,
        work: fn(&mut memfold_bench::redis::resp::Client, u64, &AtomicU64) -> anyhow::Result<u64>,
    ) -> anyhow::Result<[u64; 2]> {
        let records = self.plan.records;
        let done = AtomicU64::new(0);
        let one = |server: &Server| work(&mut server.connect()?, records, &done);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| one(&self.plain));
            let second = scope.spawn(|| one(&self.folded));
            while !(first.is_finished() && second.is_finished()) {
                let share = done.load(Relaxed) * (part.end - part.start) / (2 * records);
                self.bar.set_position(part.start + share);
                std::thread::sleep(Duration::from_millis(50));
            }
            let result = |r: std::thread::Result<anyhow::Result<u64>>| r.expect("the thread does not panic");
            Ok([result(first.join())?, result(second.join())?])
        })
    }

    /// Presses one server for a turn.
    fn turn(&mut self, folded: bool) -> anyhow::Result<Slice> {
        let server = if folded { &self.folded } else { &self.plain };
        load::press(&mut server.connect()?, &mut self.rng, self.plan.hot, self.plan.records, TURN)
    }

    /// Presses both in turns until what is folded grows no more.
    fn settle(&mut self) -> anyhow::Result<()> {
        self.bar.set_message("keeping 5 % of the keys busy while the rest grows cold");
        let begun = Instant::now();
        let age = parse_duration(&self.plan.cold_age).map_or(Duration::ZERO, Duration::from_nanos);
        let (least, most) = (SETTLE.0 + 2 * age, SETTLE.1 + 2 * age);
        let mut seen = vec![];
        loop {
            self.turn(false)?;
            self.turn(true)?;
            let elapsed = begun.elapsed();
            self.bar.set_position(20 + 30 * elapsed.as_millis() as u64 / most.as_millis() as u64);
            let saved = self.page()?.sizes.saved_bytes;
            seen.push((elapsed, saved));
            let earlier = seen.iter().rev().find(|(at, _)| elapsed - *at >= age.max(Duration::from_secs(2)));
            let settled = earlier.is_some_and(|(_, then)| saved > 0 && grown(*then, saved) < SETTLED);
            if elapsed >= most || (elapsed >= least && settled) {
                return Ok(());
            }
        }
    }

    /// Presses both in turns and measures.
    fn measure(&mut self) -> anyhow::Result<(Arm, Arm)> {
        self.bar.set_message("measuring both in turns");
        let (mut plain, mut folded) = (Arm::default(), Arm::default());
        for pair in 0..PAIRS {
            // Who is first changes, so that neither always follows a pause.
            for is_folded in [pair % 2 == 1, pair % 2 == 0] {
                let slice = self.turn(is_folded)?;
                let server = if is_folded { &self.folded } else { &self.plain };
                let resident = server.resident()?;
                if is_folded { &mut folded } else { &mut plain }.add(&slice, resident)?;
            }
            self.bar.set_position(50 + 35 * (pair + 1) / PAIRS);
        }
        Ok((plain, folded))
    }
}

fn grown(then: u64, now: u64) -> f64 {
    now.abs_diff(then) as f64 / now.max(1) as f64
}
