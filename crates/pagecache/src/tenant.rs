//! One tenant at work.

use crate::child::{self, Running};
use crate::engine;
use crate::fio;
use crate::job::Job;
use crate::outcome::Outcome;
use crate::stop::Stop;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

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
