//! How fast the policies are, and beside another simulator on the same trace.
//!
//! Invariants: a ratio is formed from pairs of runs that followed each other on this machine, both of which read the trace
//! from the same file; without a peer there is none.

use crate::error::TraceError;
use crate::format::{Format, Request, Sink};
use crate::peer::{Peer, PeerError, Said};
use crate::run::one;
use crate::trace::Trace;
use memfold_policy::spec::Spec;
use memfold_stats::Ratio;
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::time::Instant;

/// What is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The policies.
    pub policies: Vec<Spec>,
    /// The cache's pages.
    pub size: usize,
    /// Runs of each policy, in turns.
    pub rounds: usize,
    /// Who is run beside, in turns.
    pub peer: Option<Peer>,
}

/// Who has just run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arm {
    /// Our simulator.
    Ours,
    /// The peer.
    Peer,
}

/// What came of a policy.
#[derive(Clone, Debug, Serialize)]
pub struct Speed {
    /// The policy, with the parameters that are not its defaults.
    pub policy: String,
    /// Misses per request.
    pub miss_ratio: f64,
    /// Million requests a second over a trace that was read and numbered before: the median of the runs.
    pub mega_requests_per_second: f64,
    /// What the peer came to, where there is one that has the policy.
    pub peer: Option<Beside>,
}

/// A policy beside the peer's.
#[derive(Clone, Debug, Serialize)]
pub struct Beside {
    /// Million requests a second of ours, reading and numbering the trace's file included: the median of the runs.
    pub ours_from_file: f64,
    /// Million requests a second of the peer's, reading the file included: the median of the runs.
    pub theirs_from_file: f64,
    /// The peer's misses per request.
    pub miss_ratio: f64,
    /// How many times as fast ours is, both from the file.
    pub ratio: Ratio,
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Requests of the trace.
    pub requests: u64,
    /// Its different pages.
    pub pages: usize,
    /// The cache's pages.
    pub size: usize,
    /// Runs of each policy.
    pub rounds: usize,
    /// The peer's path.
    pub peer: Option<PathBuf>,
    /// A row a policy.
    pub rows: Vec<Speed>,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum SpeedError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The file for the peer cannot be written.
    #[error(
        "cannot write the trace for the peer into {}: {error}; 24 bytes a request are needed there, and TMPDIR names another \
         folder",
        std::env::temp_dir().display()
    )]
    Temporary {
        /// What the system says.
        error: std::io::Error,
    },
    /// The peer has no result.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The cache is larger than all that is asked for.
    #[error("a cache of {size} pages holds all {pages} different pages of the trace: nothing would ever be evicted")]
    TooLarge {
        /// The cache's pages.
        size: usize,
        /// The trace's.
        pages: usize,
    },
}

impl From<std::io::Error> for SpeedError {
    fn from(error: std::io::Error) -> SpeedError {
        SpeedError::Temporary { error }
    }
}

/// The trace, and its file if a peer needs it.
struct Input {
    trace: Trace,
    file: Option<(tempfile::TempDir, PathBuf)>,
}

impl Input {
    fn of(
        requests: impl Iterator<Item = Result<Request, TraceError>>,
        with_file: bool,
    ) -> Result<Input, SpeedError> {
        if !with_file {
            return Ok(Input { trace: Trace::number(requests)?, file: None });
        }
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("trace.oracleGeneral.bin");
        let mut sink = Sink::oracle_general(BufWriter::with_capacity(1 << 20, File::create(&path)?));
        for (number, request) in (0..).zip(requests) {
            // Nobody looks at the times here, and not all formats' fit.
            sink.push(Request { time: number as u32 as u64, ..request? })?;
        }
        sink.finish()?;
        Ok(Input { trace: Trace::open(&path, Format::OracleGeneral)?, file: Some((folder, path)) })
    }
}

/// Runs of one policy.
#[derive(Default)]
struct Runs {
    speeds: Vec<f64>,
    miss_ratio: f64,
    from_file: Vec<f64>,
    said: Vec<Said>,
}

/// Runs every policy on one thread, and the peer's in turns with it. `done` is called after each run.
///
/// # Errors
/// See [`SpeedError`].
pub fn run(
    options: &Options,
    requests: impl Iterator<Item = Result<Request, TraceError>>,
    mut done: impl FnMut(&Spec, Arm),
) -> Result<Report, SpeedError> {
    let Options { policies, size, rounds, peer } = options;
    let input = Input::of(requests, peer.is_some())?;
    let (count, pages) = (input.trace.requests(), input.trace.universe());
    if *size > pages {
        return Err(SpeedError::TooLarge { size: *size, pages });
    }
    let mut all: Vec<Runs> = policies.iter().map(|_| Runs::default()).collect();
    for round in 0..*rounds {
        for (spec, runs) in policies.iter().zip(&mut all) {
            for turn in 0..2 {
                // Who goes first changes, so that neither always has the machine as the other left it.
                if (turn + round) % 2 == 0 {
                    ours(&input, spec, *size, runs)?;
                    done(spec, Arm::Ours);
                } else if let (Some(peer), Some((_, path))) = (peer, &input.file) {
                    if let Some(said) = peer.run(path, spec, *size, count)? {
                        runs.said.push(said);
                        done(spec, Arm::Peer);
                    }
                }
            }
        }
    }
    let rows = policies.iter().zip(all).map(|(spec, runs)| row(spec, runs)).collect();
    let peer = peer.as_ref().map(|peer| peer.path().to_owned());
    Ok(Report { requests: count, pages, size: *size, rounds: *rounds, peer, rows })
}

fn ours(input: &Input, spec: &Spec, size: usize, runs: &mut Runs) -> Result<(), SpeedError> {
    let row = match input.file.as_ref().filter(|_| Peer::policy(spec).is_some()) {
        None => one(&input.trace, spec, size)?,
        Some((_, path)) => {
            let began = Instant::now();
            let row = one(&Trace::open(path, Format::OracleGeneral)?, spec, size)?;
            let seconds = began.elapsed().as_secs_f64().max(1e-9);
            runs.from_file.push(row.requests as f64 / 1e6 / seconds);
            row
        }
    };
    runs.speeds.push(row.requests_per_second / 1e6);
    runs.miss_ratio = row.miss_ratio;
    Ok(())
}

fn row(spec: &Spec, runs: Runs) -> Speed {
    let median = |values: &[f64]| memfold_stats::median(values).unwrap_or(0.0);
    let theirs: Vec<f64> = runs.said.iter().map(|said| said.mega_requests_per_second).collect();
    let beside = |ratio| Beside {
        ours_from_file: median(&runs.from_file),
        theirs_from_file: median(&theirs),
        miss_ratio: runs.said[0].miss_ratio,
        ratio,
    };
    Speed {
        policy: spec.to_string(),
        miss_ratio: runs.miss_ratio,
        mega_requests_per_second: median(&runs.speeds),
        peer: Ratio::of(&runs.from_file, &theirs).ok().map(beside),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { requests, pages, size, rounds, .. } = self;
        writeln!(
            f,
            "{requests} requests of {pages} pages, cache of {size}, one thread, medians of {rounds} runs; M/s: million \
             requests a second"
        )?;
        if let Some(peer) = &self.peer {
            writeln!(
                f,
                "beside {}, in turns; both read the same file in the times compared",
                peer.display()
            )?;
        }
        let width = self.rows.iter().map(|row| row.policy.len()).max().unwrap_or(0).max(10);
        write!(f, "\n{:<width$} {:>10} {:>9}", "policy", "miss ratio", "M/s")?;
        match self.peer {
            Some(_) => {
                writeln!(f, " {:>14} {:>9} {:>15}  ratio", "M/s from file", "peer M/s", "peer miss ratio")?
            }
            None => writeln!(f)?,
        }
        for row in &self.rows {
            let speed = row.mega_requests_per_second;
            write!(f, "{:<width$} {:>10.4} {:>9.1}", row.policy, row.miss_ratio, speed)?;
            match &row.peer {
                Some(Beside { ours_from_file, theirs_from_file, miss_ratio, ratio }) => writeln!(
                    f,
                    " {ours_from_file:>14.1} {theirs_from_file:>9.2} {miss_ratio:>15.4}  {ratio}"
                )?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{Generator, Shape};
    use memfold_policy::spec;
    use std::path::Path;

    fn requests() -> impl Iterator<Item = Result<Request, TraceError>> {
        let objects = Generator::new(Shape::Zipf { skew: 1.0 }, 300, 3000, 1);
        objects.map(|object| Ok(Request { time: u64::MAX, object }))
    }

    fn options(policies: &[&str], peer: Option<Peer>) -> Options {
        let policies = policies.iter().map(|name| Spec::parse(name).unwrap()).collect();
        Options { policies, size: 30, rounds: 3, peer }
    }

    #[test]
    fn without_a_peer_every_policy_has_a_speed_and_none_a_ratio() {
        let names: Vec<_> = spec::names().collect();
        let mut runs = 0;
        let report = run(&options(&names, None), requests(), |_, arm| {
            assert_eq!(arm, Arm::Ours);
            runs += 1;
        })
        .unwrap();
        assert_eq!((report.rows.len(), runs), (names.len(), 3 * names.len()));
        assert!(report
            .rows
            .iter()
            .all(|row| row.miss_ratio > 0.0 && row.miss_ratio < 1.0 && row.peer.is_none()));
        let text = report.to_string();
        assert!(
            !text.contains("from file")
                && !text.contains("peer")
                && !text.to_lowercase().contains("libcachesim"),
            "{text}"
        );
    }

    #[test]
    fn a_peer_runs_in_turns_on_the_same_trace_and_only_where_it_has_the_policy() {
        let peer = Peer::new(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cachesim")).unwrap();
        let mut turns = Vec::new();
        let report = run(&options(&["lru", "mglru"], Some(peer)), requests(), |spec, arm| {
            turns.push((spec.name(), arm));
        })
        .unwrap();
        let (ours, theirs) = (("lru", Arm::Ours), ("lru", Arm::Peer));
        let alone = ("mglru", Arm::Ours);
        assert_eq!(turns, [ours, theirs, alone, theirs, ours, alone, ours, theirs, alone]);
        let beside = report.rows[0].peer.as_ref().unwrap();
        // The stand-in says 8 million, whatever it is asked.
        assert_eq!((beside.theirs_from_file, beside.miss_ratio, beside.ratio.pairs), (8.0, 0.5, 3));
        assert!((beside.ratio.median - beside.ours_from_file / 8.0).abs() < 1e-9);
        assert!(report.rows[1].peer.is_none());
        assert!(report.to_string().contains("(3 pairs: too few for an interval)"), "{report}");
    }

    #[test]
    fn a_cache_that_holds_everything_is_refused() {
        let large = Options { size: 301, ..options(&["lru"], None) };
        let error = run(&large, requests(), |_, _| {}).unwrap_err().to_string();
        assert!(error.starts_with("a cache of 301 pages holds all"), "{error}");
    }
}
