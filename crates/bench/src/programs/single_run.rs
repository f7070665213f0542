//! One run of one program in one arm.

use super::attached::Attacher;
use super::below;
use super::kind::Kind;
use super::measured::{Folded, Moment, Run};
use super::place::{kill, Place};
use super::subject::{Hot, Subject};
use super::{Arm, Options};
use crate::backing;
use crate::process::{cpu_ns, proportional, tree, Memory};
use crate::worker::Program;
use anyhow::{anyhow, ensure, Context, Result};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long it may take in all, beside the idle phase: one that hangs is killed then.
const LONGEST: Duration = Duration::from_secs(1200);
/// Longest part of the idle phase over which the hot load is measured, at its begin and at its end.
const WINDOW: Duration = Duration::from_secs(5);
/// Memory is looked at so often.
const PAUSE: Duration = Duration::from_secs(1);

/// Carries out one run.
pub(super) fn run(memfold: &Program, options: &Options, kind: Kind, arm: Arm, repeat: usize) -> Result<Run> {
    let closed = fs::Permissions::from_mode(0o700);
    let scratch = tempfile::Builder::new().prefix("memfold-programs-").permissions(closed).tempdir()?;
    let folds = arm == Arm::Folded;
    let place = Place::new(scratch.path(), options.bytes as u64, options.together, folds.then_some(memfold))
        .over(options.tier.as_deref());
    backing::back(2 * options.bytes as u64);
    let began = Instant::now();
    let mut subject = kind.start(&place)?;
    let root = subject.started().pid();
    let busy = Duration::from_millis(options.busy_millis.unwrap_or(0));
    let _watchdog = Watchdog::over(root, busy + Duration::from_millis(options.idle_millis) + LONGEST);
    let attacher = (arm == Arm::Attached).then(|| Attacher::over(memfold, root)).transpose()?;
    let items = subject.load()?;
    let load_s = began.elapsed().as_secs_f64();
    if options.spoil {
        subject.spoil()?;
    }
    be_busy(subject.as_mut(), busy, items)?;
    let watched = Watched { root, pagers: (folds && options.tier.is_some()).then_some(memfold) };
    let (moments, [hot_begin, _, hot_end]) = idle(subject.as_mut(), watched, options)?;
    let collected = if options.collect { subject.collect()? } else { None };
    let collect_s = collected.map(|time| time.as_secs_f64());
    let began = Instant::now();
    let wrong = if options.leave_folded { 0 } else { subject.verify()? };
    let verify_s = began.elapsed().as_secs_f64();
    ensure!(wrong == 0, "{wrong} of {items} items are wrong");
    let attached = attacher.map(Attacher::finish).transpose()?;
    let before = tree(root).into_iter().filter_map(|pid| cpu_ns(pid).ok()).sum::<u64>() as f64 / 1e9;
    let began = Instant::now();
    subject.leave()?;
    let cost = subject.started().finish()?;
    let exit_s = began.elapsed().as_secs_f64();
    Ok(Run {
        program: kind,
        repeat,
        arm,
        items,
        load_s,
        moments,
        hot_begin,
        hot_end,
        collect_s,
        verify_s,
        exit_s,
        // What nobody waited for is missing in the one, what came after the last look in the other.
        cpu_s: before.max(cost.user_s + cost.system_s),
        folded: folds.then(|| summary(&place)).transpose()?,
        attached,
    })
}

/// Has it read all its data for so long.
fn be_busy(subject: &mut dyn Subject, time: Duration, items: u64) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < time {
        let wrong = subject.verify()?;
        ensure!(wrong == 0, "{wrong} of {items} items are wrong");
    }
    Ok(())
}

/// What `memfold run` says of it.
fn summary(place: &Place<'_>) -> Result<Folded> {
    let text = fs::read_to_string(place.summary_file()).context("memfold run wrote no summary")?;
    let folded: Folded = serde_json::from_str(&text).context("the summary of memfold run")?;
    ensure!(folded.pages.lost == 0, "the pager reports {} lost pages", folded.pages.lost);
    Ok(folded)
}

/// What is looked at.
#[derive(Clone, Copy)]
struct Watched<'a> {
    /// The process that was started.
    root: u32,
    /// What asks its pagers, where they are to be asked.
    pagers: Option<&'a Program>,
}

/// The idle phase: the program's own small load in three windows, and memory meanwhile.
fn idle(
    subject: &mut dyn Subject,
    watched: Watched<'_>,
    options: &Options,
) -> Result<(Vec<Moment>, [Hot; 3])> {
    let whole = Duration::from_millis(options.idle_millis);
    let window = (whole / 3).min(WINDOW);
    let stop = AtomicBool::new(false);
    let first = look(watched, Instant::now(), true)?;
    let began = Instant::now();
    std::thread::scope(|scope| {
        let sampler = scope.spawn(|| watch(watched, began, &options.moments(), whole, &stop));
        let hot = [window, whole - 2 * window, window].map(|time| subject.hot(time));
        let failed = hot.iter().any(Result::is_err);
        stop.store(failed, Relaxed);
        let moments = sampler.join().map_err(|_| anyhow!("the sampling thread panicked"))?;
        let [begin, middle, end] = hot;
        let hot = [begin?, middle?, end?];
        Ok((std::iter::once(first).chain(moments?).collect(), hot))
    })
}

/// Looks at the memory until the idle phase is over, closely at `moments`.
fn watch(
    watched: Watched<'_>,
    began: Instant,
    moments: &[Duration],
    whole: Duration,
    stop: &AtomicBool,
) -> Result<Vec<Moment>> {
    let pause = PAUSE.min(whole / 10).max(Duration::from_millis(10));
    let ticks = (1..).map(|number| pause * number).take_while(|at| *at <= whole);
    let mut plan: Vec<(Duration, bool)> =
        ticks.filter(|at| !moments.contains(at)).map(|at| (at, false)).collect();
    plan.extend(moments.iter().map(|at| (*at, true)));
    plan.sort();
    let mut seen = Vec::new();
    for (at, closely) in plan {
        while began.elapsed() < at && !stop.load(Relaxed) {
            sleep((at - began.elapsed().min(at)).min(Duration::from_millis(50)));
        }
        if stop.load(Relaxed) {
            break;
        }
        seen.push(look(watched, began, closely)?);
    }
    Ok(seen)
}

/// The memory of a process and all its descendants now.
fn look(Watched { root, pagers }: Watched<'_>, began: Instant, closely: bool) -> Result<Moment> {
    let (at_s, pids) = (began.elapsed().as_secs_f64(), tree(root));
    let mut moment = Moment {
        at_s,
        resident_bytes: 0,
        anonymous_bytes: 0,
        pss_bytes: closely.then_some(0),
        processes: 0,
        below: pagers.and_then(|memfold| below::of(memfold, &pids)),
    };
    for pid in pids {
        // One that has just ended has none.
        let Ok(memory) = Memory::of(pid) else { continue };
        moment.resident_bytes += memory.rss_bytes;
        moment.anonymous_bytes += memory.anonymous_bytes;
        moment.processes += 1;
        if let (Some(sum), Ok(share)) = (&mut moment.pss_bytes, proportional(pid)) {
            *sum += share;
        }
    }
    ensure!(moment.resident_bytes > 0, "the program is gone");
    Ok(moment)
}

/// Kills a program that hangs, so that whoever waits for its answer finds that it has ended.
struct Watchdog {
    /// Closed when it is over.
    _over: Sender<()>,
}

impl Watchdog {
    /// Over child `root`, which is not reaped before `limit` has passed or the value is dropped.
    fn over(root: u32, limit: Duration) -> Watchdog {
        let (over, wait) = channel::<()>();
        std::thread::spawn(move || {
            if wait.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                kill(root);
            }
        });
        Watchdog { _over: over }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_program_that_hangs_is_killed_with_its_children_and_one_that_ends_in_time_is_not() {
        let start = || {
            let mut command = Command::new("sh");
            command.args(["-c", "sleep 1000 & wait"]).spawn().expect("sh starts")
        };
        let mut patient = start();
        drop(Watchdog::over(patient.id(), Duration::from_secs(1000)));
        let mut hangs = start();
        let _watchdog = Watchdog::over(hangs.id(), Duration::from_millis(50));
        // By itself it would end after a thousand seconds.
        assert!(!hangs.wait().expect("a child").success());
        assert!(patient.try_wait().expect("a child").is_none());
        kill(patient.id());
        patient.wait().expect("a child");
    }
}
