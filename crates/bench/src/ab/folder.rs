//! The directory of an experiment: its manifest and its raw runs, and going on where an earlier call was interrupted.
//!
//! Invariants: one call at a time writes into a directory; a raw run appears whole or not at all; a finished run is never overwritten; runs of different machines,
//! programs or options never come into one directory.

use super::single_run::Run;
use super::{Arm, Options};
use crate::manifest::Manifest;
use crate::output::Output;
use crate::workload::Kind;
use anyhow::{bail, Context, Result};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::statvfs::statvfs;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::path::Path;

/// What `manifest.json` holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Names this layout.
    pub schema: String,
    /// What was asked for.
    pub options: Options,
    /// Where and when each call ran that added to the directory, the first one first.
    pub sessions: Vec<Manifest>,
}

const SCHEMA: &str = "memfold-bench-pager-1";
const MANIFEST: &str = "manifest.json";
const RUNS: &str = "runs";
const LOCK: &str = "runs/lock";
/// What a raw run takes at most, with its share of tables and plots, bytes.
const RUN_BYTES: u64 = 1 << 20;

/// A directory of results.
#[derive(Debug)]
pub struct Folder {
    output: Output,
    /// Held while it is written into; let go when the process ends, however it ends.
    _lock: Option<Flock<File>>,
    /// Its manifest.
    pub record: Record,
}

impl Folder {
    /// Begins an experiment in a directory that is empty or not there yet, or goes on with one of the same options.
    ///
    /// # Errors
    /// When the directory cannot be used: it holds something else, or an experiment that differs.
    pub fn begin(path: &Path, options: &Options, session: Manifest) -> Result<Folder> {
        let name = path.display();
        fs::create_dir_all(path).with_context(|| format!("cannot make the directory {name}"))?;
        let runs = options.runs.saturating_mul(options.workloads.len() * options.arms.len()) as u64;
        let runs_bytes = runs.saturating_mul(RUN_BYTES);
        let free = free_bytes(path)?;
        if free < runs_bytes {
            bail!(
                "too little room in {name}: the runs may take {} MiB and {} MiB are free; free some, or name a directory elsewhere",
                runs_bytes >> 20,
                free >> 20
            );
        }
        let mut sessions = Vec::new();
        if path.join(MANIFEST).exists() {
            let earlier = Folder::open(path)?.record;
            if let Some(difference) = difference(&earlier, options, &session) {
                bail!(
                    "{name} holds an experiment that differs: {difference}. Its runs are kept; name another directory, \
                     or repeat the command that began it"
                );
            }
            sessions = earlier.sessions;
        } else if fs::read_dir(path)?.flatten().next().is_some() {
            bail!("{name} is not empty and holds no experiment; name another directory");
        }
        fs::create_dir_all(path.join(RUNS)).with_context(|| format!("cannot write into {name}"))?;
        let lock = lock(path)?;
        sessions.push(session);
        let record = Record { schema: SCHEMA.into(), options: options.clone(), sessions };
        let folder = Folder { output: Output::at(path), _lock: Some(lock), record };
        folder.output.text(MANIFEST, &(serde_json::to_string(&folder.record)? + "\n"))?;
        Ok(folder)
    }

    /// Opens the results of an experiment.
    ///
    /// # Errors
    /// When the directory holds none of this layout.
    pub fn open(path: &Path) -> Result<Folder> {
        let file = path.join(MANIFEST);
        let text = fs::read_to_string(&file).with_context(|| {
            format!("{} holds no results of `memfold bench pager`: {MANIFEST} is missing", path.display())
        })?;
        let record: Record = serde_json::from_str(&text)
            .with_context(|| format!("{} is not a manifest of `memfold bench pager`", file.display()))?;
        if record.schema != SCHEMA {
            bail!("{} has the layout {:?}, this program reads {SCHEMA:?}", file.display(), record.schema);
        }
        Ok(Folder { output: Output::at(path), _lock: None, record })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.output.path()
    }

    /// Whether a run is finished.
    pub fn has(&self, workload: Kind, repeat: usize, arm: Arm) -> bool {
        self.path().join(file_of(workload, repeat, arm)).exists()
    }

    /// Keeps a finished run.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep(&self, run: &Run) -> Result<()> {
        // Not indented: a run has thousands of numbers.
        let text = serde_json::to_string(run)? + "\n";
        self.output.text(&file_of(run.workload, run.repeat, run.arm), &text)
    }

    /// Every finished run that belongs to the options: by workload, repeat and arm in the order of the options.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn runs(&self) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        for (workload, repeat, arm) in self.record.options.plan() {
            runs.extend(self.output.read(&file_of(workload, repeat, arm))?);
        }
        Ok(runs)
    }
}

/// Takes the directory for this process.
fn lock(path: &Path) -> Result<Flock<File>> {
    let file =
        File::create(path.join(LOCK)).with_context(|| format!("cannot write into {}", path.display()))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(lock),
        Err((_, Errno::EWOULDBLOCK)) => bail!(
            "{} is in use: another `memfold bench pager` writes into it; wait for it, or name another directory",
            path.display()
        ),
        Err((_, error)) => Err(error).with_context(|| format!("cannot lock {}", path.join(LOCK).display())),
    }
}

/// Room that is left for this user on the file system, bytes.
fn free_bytes(path: &Path) -> Result<u64> {
    let room = statvfs(path).with_context(|| format!("cannot look at {}", path.display()))?;
    Ok(room.blocks_available() * room.fragment_size())
}

fn file_of(workload: Kind, repeat: usize, arm: Arm) -> String {
    format!("{RUNS}/{}-{repeat:03}-{}.json", workload.name(), arm.name())
}

/// The first thing in which an experiment differs from one to be begun, as a clause. More or fewer runs do not differ.
fn difference(earlier: &Record, options: &Options, session: &Manifest) -> Option<String> {
    let other = |what: &str, there: String, here: String| {
        (there != here).then(|| format!("its {what} is {there}, not {here}"))
    };
    let commit = |manifest: &Manifest| manifest.commit.clone().unwrap_or_else(|| "unknown".into());
    let machine = earlier.sessions.last().and_then(|there| {
        other("host", there.host.clone(), session.host.clone())
            .or_else(|| other("kernel", there.kernel.clone(), session.kernel.clone()))
            .or_else(|| other("version of memfold", there.version.clone(), session.version.clone()))
            .or_else(|| other("commit", commit(there), commit(session)))
    });
    let list = |arms: &[Arm]| arms.iter().map(|arm| arm.name()).collect::<Vec<_>>().join(",");
    let kinds = |kinds: &[Kind]| kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(",");
    machine
        .or_else(|| other("list of arms", list(&earlier.options.arms), list(&options.arms)))
        .or_else(|| other("list of workloads", kinds(&earlier.options.workloads), kinds(&options.workloads)))
        .or_else(|| {
            let (there, here) = (&earlier.options.measures, &options.measures);
            (there != here).then(|| format!("its measures are {there:?}, not {here:?}"))
        })
}
