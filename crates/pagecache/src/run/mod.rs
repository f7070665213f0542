//! Each workload by itself, through the page cache and past it: `memfold pagecache run`.
//!
//! Invariants: everything that can be checked is checked before a file is made. Before each run the cache is dropped. An
//! interrupted run keeps the results that are whole, and removes the test files that it made.

mod charts;
mod results;
pub(crate) mod table;

pub use results::{Results, Row};

use crate::cgroup::{Group, Hierarchy};
use crate::drop_caches::{drop_caches, Dropped};
use crate::engine::try_dontcache;
use crate::files::{Files, Wanted};
use crate::folder::{Folder, Schema, Session};
use crate::iostat::Iostat;
use crate::job::{Access, Job};
use crate::place::Place;
use crate::stop::{Interrupted, Stop};
use crate::tenant::{self, Program};
use crate::workload::{Scale, Workload};
use crate::{fio, Unsupported};
use anyhow::{Context, Result};
use memfold_experiment::course::Advance;
use memfold_experiment::manifest::Manifest;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Instant;

/// What to run, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// The workloads, as they are to run.
    pub workloads: Vec<Workload>,
    /// By how much they were made smaller.
    pub scale: Scale,
    /// The ways to reach the file, in the order of the runs.
    pub accesses: Vec<Access>,
    /// Where the test files lie.
    pub directory: PathBuf,
    /// Where results go.
    pub out: PathBuf,
    /// Memory for each tenant with its page cache, bytes.
    pub limit: Limit,
}

/// How much memory a tenant may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// All there is.
    None,
    /// So many bytes where a memory cgroup can be made; without it the run says that there was none.
    Wanted(u64),
    /// So many bytes, or no run at all.
    Needed(u64),
}

/// What is told while it runs.
#[derive(Debug)]
pub enum Event<'a> {
    /// How far it is.
    Advance(Advance<'a>),
    /// Something that a person wants to know in any case.
    Note(&'a str),
    /// Something for those who want to know more.
    Detail(&'a str),
}

/// What was noted of one run, beside fio's own results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Noted {
    /// The workload as it ran.
    pub workload: Workload,
    /// How its file was reached.
    pub access: Access,
    /// What measured.
    pub engine: String,
    /// What was dropped from the cache before it.
    pub dropped: Dropped,
    /// Time to write back what the run before this one had left, and to drop the cache, seconds.
    pub drop_seconds: f64,
    /// CPU time of this program beside the engine, per cent of one CPU.
    pub harness_cpu_pct: f64,
    /// Seconds from start to end of the engine.
    pub wall_seconds: f64,
}

/// The file that holds what was noted of a run.
fn noted_file(workload: &str, access: Access) -> String {
    format!("runs/{workload}_{}.json", access.name())
}

/// Runs everything, and returns what came of it.
///
/// # Errors
/// [`crate::Refused`] and [`Unsupported`] before anything has run, [`Interrupted`], or what went wrong.
pub fn run(
    options: &Options,
    program: &Program,
    stop: &Stop,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<Results> {
    let fio = fio::version()?;
    let place = Place::examine(&options.directory)?;
    let mut notes = Vec::new();
    let mut accesses = options.accesses.clone();
    if accesses.contains(&Access::DontCache) {
        if let Err(error) = try_dontcache(&place.directory) {
            accesses.retain(|access| *access != Access::DontCache);
            notes.push(format!("dontcache is left out: {error:#}."));
        } else {
            notes.push("The dontcache rows are measured by memfold's own engine, the others by fio.".into());
        }
    }
    let (_hierarchy, group) = limited(options.limit, &mut notes)?;
    let mut files = Files::take(place.clone())?;
    let wanted = |workload: &Workload| Wanted { bytes: workload.file_size, owner: 0 };
    let mut all: Vec<Wanted> = options.workloads.iter().map(wanted).collect();
    all.sort();
    all.dedup();
    files.check(&all)?;
    let mut folder = Folder::begin(&options.out, Schema::Run)?;
    for below in ["iostat", "runs"] {
        folder.output().below(below)?;
    }
    let dropped = drop_caches(&[])?;
    notes.push(format!("Before each run {}.", dropped.sentence()));
    notes.iter().for_each(|note| tell(Event::Detail(note)));
    folder.add(Session {
        machine: Manifest::gather(),
        fio,
        directory: place.directory.clone(),
        device: place.device.clone(),
        scale: options.scale.to_string(),
        cache_limit_bytes: group.as_ref().and(options.limit.bytes()),
        notes,
    })?;
    let doors = group.as_ref().map_or_else(Vec::new, Group::doors);
    let mut each = || -> Result<()> {
        make_all(&mut files, &all, stop, tell)?;
        let total = (options.workloads.len() * accesses.len()) as u64;
        let mut done = 0;
        for workload in &options.workloads {
            for &access in &accesses {
                let name = format!("{}_{}", workload.name, access.name());
                tell(Event::Advance(Advance { done, total, what: &name }));
                let file = files.path(&wanted(workload));
                let job = Job { workload: workload.clone(), file, access, warm: false, ramp: 0, rate: None };
                let noted = once(&job, &name, &folder, &place, &doors, program, stop)
                    .with_context(|| format!("{} ({})", workload.name, access.name()))?;
                tell(Event::Detail(&format!(
                    "{name}: {:.1} s by {}, cache dropped in {:.2} s",
                    noted.wall_seconds, noted.engine, noted.drop_seconds
                )));
                folder.output().json(&noted_file(&workload.name, access), &noted)?;
                done += 1;
            }
        }
        Ok(())
    };
    let outcome = each();
    if outcome.as_ref().is_err_and(|error| error.is::<Interrupted>()) {
        files.remove_made()?;
    }
    outcome?;
    Results::write(&folder)
}

/// Makes the test files that are missing.
pub(crate) fn make_all(
    files: &mut Files,
    wanted: &[Wanted],
    stop: &Stop,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<()> {
    for wanted in wanted {
        let what = format!("writing {}", wanted.name());
        files.make(wanted, stop, &mut |done| {
            tell(Event::Advance(Advance { done: done >> 20, total: wanted.bytes >> 20, what: &what }));
        })?;
    }
    Ok(())
}

impl Limit {
    /// The bytes, if there is a limit.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Limit::None => None,
            Limit::Wanted(bytes) | Limit::Needed(bytes) => Some(bytes),
        }
    }
}

/// The group that keeps to the limit.
fn limited(limit: Limit, notes: &mut Vec<String>) -> Result<(Option<Hierarchy>, Option<Group>)> {
    let Some(bytes) = limit.bytes() else { return Ok((None, None)) };
    let make = || -> Result<(Hierarchy, Group)> {
        let hierarchy = Hierarchy::find()?;
        let group = Group::create(&hierarchy, "run")?;
        group.limit(bytes)?;
        Ok((hierarchy, group))
    };
    match make() {
        Ok((hierarchy, group)) => {
            notes.push(format!(
                "Each run had {} MiB of memory for itself and its page cache (memory cgroup).",
                bytes >> 20
            ));
            Ok((Some(hierarchy), Some(group)))
        }
        Err(error) if limit == Limit::Needed(bytes) => {
            Err(Unsupported(format!("--cache-limit: {error:#}")).into())
        }
        Err(error) => {
            notes.push(format!("The page cache was not limited, so large files may fit: {error:#}."));
            Ok((None, None))
        }
    }
}

fn once(
    job: &Job,
    name: &str,
    folder: &Folder,
    place: &Place,
    doors: &[PathBuf],
    program: &Program,
    stop: &Stop,
) -> Result<Noted> {
    stop.check()?;
    let begun = Instant::now();
    let dropped = drop_caches(&[&job.file])?;
    let drop_seconds = begun.elapsed().as_secs_f64();
    let log = Iostat::start(&place.device, &folder.path().join(format!("iostat/{name}.log")))?;
    let (begun, cpu) = (Instant::now(), own_cpu_seconds());
    let outcome = tenant::start(job, folder.path(), name, doors, program)?.wait(stop)?;
    let wall_seconds = begun.elapsed().as_secs_f64();
    let harness_cpu_pct = (own_cpu_seconds() - cpu) / wall_seconds * 100.0;
    drop(log);
    Ok(Noted {
        workload: job.workload.clone(),
        access: job.access,
        engine: outcome.engine,
        dropped,
        drop_seconds,
        harness_cpu_pct,
        wall_seconds,
    })
}

/// CPU time of this process, without its children, in seconds.
pub(crate) fn own_cpu_seconds() -> f64 {
    // SAFETY: the structure is plain numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is valid.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
