//! The directory of results: its manifest, raw results and what is made of them.
//!
//! Invariants: a directory that holds something else is never written to. A raw result is whole or not there.

use crate::Refused;
use anyhow::Result;
use memfold_experiment::manifest::Manifest;
use memfold_experiment::output::Output;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// What a directory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Schema {
    /// Workloads by themselves, through the cache and past it.
    #[serde(rename = "memfold-pagecache-run-1")]
    Run,
    /// Tenants side by side.
    #[serde(rename = "memfold-pagecache-corun-1")]
    CoRun,
}

/// `manifest.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// What the directory holds.
    pub schema: Schema,
    /// Where and how each call ran that added to it, the first one first.
    pub sessions: Vec<Session>,
}

/// One call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Session {
    /// The machine, the program and the moment.
    pub machine: Manifest,
    /// fio's version.
    pub fio: String,
    /// The directory of the test files.
    pub directory: PathBuf,
    /// The block device that they lie on.
    pub device: String,
    /// By how much sizes and times were made smaller, such as `1/16`.
    pub scale: String,
    /// Memory that the tenants together could have for pages of files and their own, bytes; `None`: all there is.
    pub cache_limit_bytes: Option<u64>,
    /// What the reader must know to judge the figures, in sentences.
    pub notes: Vec<String>,
}

const MANIFEST: &str = "manifest.json";

/// A directory of results.
#[derive(Debug)]
pub struct Folder {
    output: Output,
    record: Record,
}

impl Folder {
    /// Begins a directory, or goes on with one that holds the same.
    ///
    /// # Errors
    /// [`Refused`] if it holds something else.
    pub fn begin(path: &Path, schema: Schema) -> Result<Folder> {
        let name = path.display();
        let output = Output::create(path).map_err(|error| Refused(format!("-o: {error:#}")))?;
        if path.join(MANIFEST).exists() {
            let folder = Folder::open(path)?;
            if folder.record.schema != schema {
                return Err(Refused(format!(
                    "-o {name} holds results of another kind: name another directory"
                ))
                .into());
            }
            return Ok(folder);
        }
        if fs::read_dir(path)?.next().is_some() {
            return Err(Refused(format!(
                "-o {name} is not empty and holds no results: name another directory"
            ))
            .into());
        }
        Ok(Folder { output, record: Record { schema, sessions: Vec::new() } })
    }

    /// Opens what is there.
    ///
    /// # Errors
    /// [`Refused`] if there are no results of this program.
    pub fn open(path: &Path) -> Result<Folder> {
        let file = path.join(MANIFEST);
        let text = fs::read_to_string(&file).map_err(|error| {
            Refused(format!(
                "{} holds no results of `memfold pagecache`: {MANIFEST}: {error}",
                path.display()
            ))
        })?;
        let record = serde_json::from_str(&text).map_err(|error| {
            Refused(format!("{} is no manifest of `memfold pagecache`: {error}", file.display()))
        })?;
        Ok(Folder { output: Output::at(path), record })
    }

    /// Notes a call.
    ///
    /// # Errors
    /// When the manifest cannot be written.
    pub fn add(&mut self, session: Session) -> Result<()> {
        self.record.sessions.push(session);
        self.output.json(MANIFEST, &self.record)
    }

    /// What writes into it.
    pub fn output(&self) -> &Output {
        &self.output
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.output.path()
    }

    /// Its manifest.
    pub fn record(&self) -> &Record {
        &self.record
    }
}

impl Session {
    /// The rows of a table that says where the figures come from.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let machine = &self.machine;
        let limit =
            self.cache_limit_bytes.map_or_else(|| "none".into(), |bytes| format!("{} MiB", bytes >> 20));
        [
            ("host", machine.host.clone()),
            ("kernel", machine.kernel.clone()),
            ("CPU", format!("{}, {} usable", machine.cpu, machine.cpus)),
            ("memory", format!("{} MiB", machine.memory_bytes >> 20)),
            ("fio", self.fio.clone()),
            ("memfold", format!("{} {}", machine.version, machine.commit.as_deref().unwrap_or(""))),
            ("test files", format!("{} on {}", self.directory.display(), self.device)),
            ("scale", self.scale.clone()),
            ("cache limit", limit),
            ("command", machine.command.join(" ")),
        ]
        .map(|(name, value)| vec![name.to_owned(), value])
        .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_something_else_is_left_alone() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("letter"), "dear").unwrap();
        let refused = Folder::begin(home.path(), Schema::Run).unwrap_err().downcast::<Refused>().unwrap();
        assert!(refused.0.contains("is not empty and holds no results"), "{refused}");
        assert!(Folder::open(home.path()).unwrap_err().is::<Refused>());
    }

    #[test]
    fn results_of_another_kind_are_not_mixed_in() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a/b");
        let folder = Folder::begin(&path, Schema::Run).unwrap();
        folder.output().json(MANIFEST, folder.record()).unwrap();
        assert!(Folder::begin(&path, Schema::Run).is_ok());
        assert!(Folder::begin(&path, Schema::CoRun).unwrap_err().is::<Refused>());
    }
}
