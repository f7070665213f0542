//! How well each access source knows what is cold, beside a workload that knows what it touched.
//!
//! A region, of which a tenth of the pages is read and another tenth written again and again while the rest lies idle; the
//! places move halfway through. Each source in turn says, at regular moments, which pages it takes for cold; precision is the
//! share of those that were, recall the share of the cold ones that it named. Beside it stands the CPU time that it took.
//!
//! The sources are those that programs are folded by, none is of its own: what the pager asks is seen by what it takes away, and what the
//! launcher and the daemon observe by what they would report.

mod inside;
mod outside;

use crate::course::{Course, Progress};
use crate::experiment::{Experiment, Report};
use crate::output::Output;
use crate::worker::Program;
use crate::Unsupported;
use anyhow::{anyhow, ensure, Result};
use memfold_experiment::text::{cells, columns};
use memfold_pager::config::{parse_duration, parse_size};
use memfold_pager::source::Kind;
use memfold_sys::PAGE_SIZE;
use serde::{Serialize, Serializer};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  memfold bench sources                                  every source, 64 MiB, 10 s each
  sudo memfold bench sources --source damon-paddr,probe  DAMON needs root, and nobody else who uses it
  memfold bench sources --cold-age 500ms --out runs/s    also writes result.json, manifest.json and sources.csv

Exit codes: 0 done (a source that cannot be had here is named), 1 failed, 2 bad usage.";

/// Compare what each access source takes for cold with what a workload has not touched.
#[derive(Clone, Debug, Serialize, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// The sources: writes, probe, damon-vaddr, damon-paddr, idle.
    #[arg(
        long = "source",
        value_name = "SOURCE,..",
        value_delimiter = ',',
        default_value = "writes,probe,damon-vaddr,damon-paddr,idle",
        value_parser = kind
    )]
    #[serde(serialize_with = "names")]
    pub sources: Vec<Kind>,
    /// Memory of the workload.
    #[arg(long = "region", value_name = "BYTES", default_value = "64M", value_parser = size)]
    pub bytes: usize,
    /// How long each source is watched.
    #[arg(long = "duration", value_name = "TIME", default_value = "10s", value_parser = millis)]
    pub millis: u64,
    /// How long a page must be untouched to be cold.
    #[arg(long = "cold-age", value_name = "TIME", default_value = "1s", value_parser = millis)]
    pub cold_millis: u64,
}

fn kind(text: &str) -> Result<Kind, String> {
    let names = || Kind::ALL.map(Kind::name).join(", ");
    Kind::parse(text.trim()).ok_or_else(|| format!("one of {} is needed", names()))
}

fn names<S: Serializer>(kinds: &[Kind], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(kinds.iter().map(|kind| kind.name()))
}

fn size(text: &str) -> Result<usize, String> {
    let bytes = parse_size(text).filter(|bytes| (4 << 20..=64 << 30).contains(bytes));
    bytes.map(|bytes| bytes as usize).ok_or_else(|| "a size from 4M to 64G is needed".into())
}

fn millis(text: &str) -> Result<u64, String> {
    let millis = parse_duration(text).map(|ns| ns / 1_000_000).filter(|ms| (20..=3_600_000).contains(ms));
    millis.ok_or_else(|| "a time from 20ms to 1h is needed".into())
}

/// How a source fared.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which.
    pub source: &'static str,
    /// Why it could not be tried here.
    pub unsupported: Option<String>,
    /// Share of the pages that it took for cold that were, 0 to 1; none if it took none.
    pub precision: Option<f64>,
    /// Share of the cold pages that it named, 0 to 1.
    pub recall: Option<f64>,
    /// CPU time that it took, per cent of one CPU.
    pub cpu_pct: Option<f64>,
    /// Moments at which it was asked.
    pub samples: usize,
}

/// Finds out what is cold in one region.
trait Source {
    /// Looks, as often as it is called, and marks the pages that it takes for cold by now.
    fn cold(&mut self, cold: &mut [bool]) -> Result<()>;
    /// CPU time since it began, ns; that of the calling thread's looks is added by the caller.
    fn background_ns(&self) -> u64;
}

/// A region and when each of its pages was last touched.
struct Ground {
    base: usize,
    touched: Vec<AtomicU64>,
    begin: Instant,
}

/// Share of the pages that are read, and as many written: one in so many.
const ONE_IN: usize = 10;
/// Looks in each cold age.
const LOOKS: u32 = 8;

impl Ground {
    fn new(bytes: usize) -> Result<Ground> {
        let pages = bytes / PAGE_SIZE;
        ensure!(pages >= 1024, "{bytes} bytes are too few: 4 MiB are needed");
        let base = crate::workload::map(bytes)?;
        // SAFETY: our own mapping. Huge pages would be judged as one.
        let _ = unsafe { memfold_sys::mem::madvise(base, pages * PAGE_SIZE, libc::MADV_NOHUGEPAGE) };
        let ground =
            Ground { base, touched: (0..pages).map(|_| AtomicU64::new(0)).collect(), begin: Instant::now() };
        (0..pages).for_each(|page| ground.write(page));
        Ok(ground)
    }

    fn len(&self) -> usize {
        self.touched.len() * PAGE_SIZE
    }

    fn now(&self) -> u64 {
        self.begin.elapsed().as_millis() as u64
    }

    fn read(&self, page: usize) {
        self.touched[page].store(self.now(), Relaxed);
        // SAFETY: within our mapping.
        unsafe { core::ptr::read_volatile((self.base + page * PAGE_SIZE) as *const u64) };
    }

    fn write(&self, page: usize) {
        self.touched[page].store(self.now(), Relaxed);
        // SAFETY: within our mapping; one thread writes.
        unsafe { core::ptr::write_volatile((self.base + page * PAGE_SIZE) as *mut u64, page as u64) };
    }

    /// Touches what is in use, about ten times in each cold age, until `stop`.
    fn work(&self, cold: Duration, whole: Duration, stop: &AtomicBool) {
        let began = Instant::now();
        while !stop.load(Relaxed) {
            // Neighbours of 16 pages are in use together, as in real programs.
            let moved = if began.elapsed() > whole / 2 { 3 } else { 0 };
            for page in 0..self.touched.len() {
                match (page / 16 + moved) % ONE_IN {
                    0 => self.read(page),
                    1 => self.write(page),
                    _ => {}
                }
            }
            sleep(cold / 10);
        }
    }

    fn is_cold(&self, page: usize, cold_millis: u64) -> bool {
        self.now().saturating_sub(self.touched[page].load(Relaxed)) >= cold_millis
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and every source of it is gone.
        let _ = unsafe { memfold_sys::mem::munmap(self.base, self.len()) };
    }
}

/// What is found.
#[derive(Debug, Serialize)]
pub struct Found {
    /// How each source fared, in the order of the options.
    pub sources: Vec<Row>,
}

impl Experiment for Options {
    const SCHEMA: Option<&'static str> = Some("memfold-bench-sources-1");

    type Found = Found;

    /// One that cannot be had here is no error: its row says why.
    fn run(&self, _program: &Program, progress: Progress<'_>) -> Result<Found> {
        let mut course = Course::of(self.sources.len(), progress);
        let rows = self.sources.iter().map(|&kind| course.run(kind.name(), || one(kind, self)));
        Ok(Found { sources: rows.collect::<Result<_>>()? })
    }

    fn keep(report: &Report<Options>, output: &Output) -> Result<()> {
        output.rows("sources.csv", &report.found.sources)
    }
}

impl fmt::Display for Report<Options> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |value: Option<f64>, decimals: usize| {
            value.map_or("-".to_owned(), |value| format!("{value:.decimals$} %"))
        };
        let share = |value: Option<f64>| percent(value.map(|value| value * 100.0), 1);
        let head = cells(["source", "precision", "recall", "CPU", ""]);
        let rows = self.found.sources.iter().map(|row| {
            let why = row.unsupported.clone().unwrap_or_default();
            let (precision, recall) = (share(row.precision), share(row.recall));
            vec![row.source.to_owned(), precision, recall, percent(row.cpu_pct, 2), why]
        });
        let all: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
        f.write_str(&columns(&all, 1))
    }
}

fn one(kind: Kind, options: &Options) -> Result<Row> {
    let ground = Ground::new(options.bytes)?;
    let mut row = Row {
        source: kind.name(),
        unsupported: None,
        precision: None,
        recall: None,
        cpu_pct: None,
        samples: 0,
    };
    let cold = Duration::from_millis(options.cold_millis);
    let made: Result<Box<dyn Source>> = match kind.is_told() {
        true => outside::Outside::new(&ground, cold, kind).map(|source| Box::new(source) as _),
        false => {
            // The usual one by its own name.
            let kind = if kind == Kind::Auto { Kind::Probe } else { kind };
            inside::Inside::new(&ground, cold, kind).map(|source| Box::new(source) as _)
        }
    };
    let mut source = match made {
        Ok(source) => source,
        Err(error) if error.is::<Unsupported>() => {
            row.unsupported = Some(error.to_string());
            return Ok(row);
        }
        Err(error) => return Err(error),
    };
    let whole = Duration::from_millis(options.millis);
    let stop = AtomicBool::new(false);
    let (mut said, mut right, mut truth) = (0u64, 0u64, 0u64);
    let mut looking = 0;
    std::thread::scope(|scope| -> Result<()> {
        let worker = scope.spawn(|| ground.work(cold, whole, &stop));
        let began = Instant::now();
        let mut verdict = vec![false; ground.touched.len()];
        let result = (|| {
            while began.elapsed() < whole {
                sleep(cold / LOOKS);
                let before = memfold_sys::time::thread_cpu().0;
                verdict.fill(false);
                source.cold(&mut verdict)?;
                looking += memfold_sys::time::thread_cpu().0 - before;
                // Once everything had time to grow cold.
                if began.elapsed() < cold * 3 {
                    continue;
                }
                for (page, &cold) in verdict.iter().enumerate() {
                    let is = ground.is_cold(page, options.cold_millis);
                    said += u64::from(cold);
                    right += u64::from(cold && is);
                    truth += u64::from(is);
                }
                row.samples += 1;
            }
            Ok(())
        })();
        stop.store(true, Relaxed);
        worker.join().map_err(|_| anyhow!("the workload panicked"))?;
        result
    })?;
    let share = |part: u64, of: u64| (of != 0).then(|| part as f64 / of as f64);
    row.precision = share(right, said);
    row.recall = share(right, truth);
    row.cpu_pct = Some((looking + source.background_ns()) as f64 * 100.0 / whole.as_nanos() as f64);
    Ok(row)
}
