//! One tenant at work: a workload on a file, in one of the ways to reach it.

use crate::child::{self, Running};
use crate::engine;
use crate::fio;
use crate::outcome::Outcome;
use crate::stop::Stop;
use crate::workload::Workload;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How a file is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Through the page cache, as programs do.
    Cached,
    /// Past it, by `O_DIRECT`.
    Direct,
    /// Through it, but its pages are dropped when the request is done (`RWF_DONTCACHE`, Linux 6.14).
    DontCache,
    /// Through it, with `posix_fadvise(POSIX_FADV_DONTNEED)` behind each 256 requests.
    DropBehind,
    /// Through it without read-ahead (`POSIX_FADV_RANDOM`).
    NoReadAhead,
    /// Through it, with write-back begun by `sync_file_range` after each 64 writes, and waited for 64 later.
    BoundedWriteback,
}

impl Access {
    /// The ways that `run` compares.
    pub const MODES: [Access; 3] = [Access::Cached, Access::Direct, Access::DontCache];

    /// Its name in files and tables.
    pub fn name(self) -> &'static str {
        match self {
            Access::Cached => "cached",
            Access::Direct => "direct",
            Access::DontCache => "dontcache",
            Access::DropBehind => "dropbehind",
            Access::NoReadAhead => "noreadahead",
            Access::BoundedWriteback => "boundedwriteback",
        }
    }

    /// Whether our own engine stands in for fio, whose 3.x in Debian cannot do it.
    pub fn by_engine(self) -> bool {
        matches!(self, Access::DontCache | Access::DropBehind)
    }
}

/// What one tenant does.
#[derive(Clone, Debug)]
pub struct Job {
    /// The workload; its size and runtime are those of this run.
    pub workload: Workload,
    /// Its file.
    pub file: PathBuf,
    /// How the file is reached.
    pub access: Access,
    /// Read the whole file into the cache before the run.
    pub warm: bool,
    /// Seconds at the start that do not count.
    pub ramp: u64,
    /// Bytes a second that it may move at most.
    pub rate: Option<u64>,
}

/// The program that runs our own engine when it is called with the arguments and a job as JSON.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its path.
    pub path: PathBuf,
    /// What stands before the job.
    pub arguments: Vec<String>,
}

/// A job under way.
#[derive(Debug)]
pub struct Working {
    running: Running,
    part: PathBuf,
    raw: PathBuf,
}

/// Starts `job` within `groups`. Its results go to `NAME.json` in `directory`, its fio job file to `jobs/NAME.fio`.
///
/// # Errors
/// When it cannot be started.
pub fn start(
    job: &Job,
    directory: &Path,
    name: &str,
    groups: &[PathBuf],
    program: &Program,
) -> Result<Working> {
    let (raw, part) = (directory.join(format!("{name}.json")), directory.join(format!("{name}.part")));
    // What an earlier run left must not be taken for this one's.
    let _ = fs::remove_file(&raw);
    let what = format!("{} ({})", job.workload.name, job.access.name());
    let (what, mut command) = if job.access.by_engine() {
        let mut command = Command::new(&program.path);
        command.args(&program.arguments).arg(serde_json::to_string(&engine::Spec::of(job, &part))?);
        (format!("the engine for {what}"), command)
    } else {
        let jobs = directory.join("jobs");
        let file = jobs.join(format!("{name}.fio"));
        fs::create_dir_all(&jobs)
            .and_then(|()| fs::write(&file, fio::job_file(job)))
            .with_context(|| format!("cannot write {}", file.display()))?;
        let mut command = Command::new("fio");
        command.arg("--output-format=json+").arg("--output").arg(&part).arg(&file);
        (format!("fio for {what}"), command)
    };
    Ok(Working { running: child::start(&mut command, what, groups)?, part, raw })
}

impl Working {
    /// Waits until it is done, and reads what came of it.
    ///
    /// # Errors
    /// [`crate::Interrupted`], or what went wrong; the results are then not there.
    pub fn wait(mut self, stop: &Stop) -> Result<Outcome> {
        self.running.wait(stop)?;
        let outcome = Outcome::read(&self.part)?;
        fs::rename(&self.part, &self.raw).with_context(|| format!("cannot write {}", self.raw.display()))?;
        Ok(outcome)
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.running.kill();
        let _ = fs::remove_file(&self.part);
    }
}
