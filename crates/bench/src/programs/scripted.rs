//! Programs that are scripts of ours for an interpreter, a machine or a compiler: they build a heap, and do what they are told
//! on standard input.

use super::install::{path, prepare};
use super::place::{Place, Started};
use super::subject::{Hot, Subject};
use super::Kind;
use anyhow::{bail, Context, Result};
use serde::Deserialize;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// A running script.
pub(super) struct Script {
    kind: Kind,
    started: Started,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// Files by name.
type Files = &'static [(&'static str, &'static str)];

const PYTHON: Files =
    &[("heap.py", include_str!("scripts/heap.py")), ("python3.py", include_str!("scripts/python3.py"))];
const SQLITE: Files =
    &[("heap.py", include_str!("scripts/heap.py")), ("sqlite.py", include_str!("scripts/sqlite.py"))];
const NODE: Files =
    &[("heap.js", include_str!("scripts/heap.js")), ("node.js", include_str!("scripts/node.js"))];
const JAVA: Files = &[("Heap.java", include_str!("scripts/Heap.java"))];
const GO: Files = &[("heap.go", include_str!("scripts/heap.go"))];

impl Script {
    /// Starts the script of a program.
    ///
    /// # Errors
    /// When it cannot be compiled or started.
    pub(super) fn start(kind: Kind, place: &Place<'_>) -> Result<Script> {
        let (dir, mib) = (place.dir, place.bytes >> 20);
        let mut command = match kind {
            Kind::Python3 => with(place, kind, dir, PYTHON, &["python3.py"])?,
            Kind::Sqlite => with(place, kind, dir, SQLITE, &["sqlite.py"])?,
            Kind::Node => {
                // By itself it takes a part of the machine's memory, whatever is asked for.
                let limit = format!("--max-old-space-size={}", 2 * mib + 256);
                with(place, kind, dir, NODE, &[&limit, "node.js"])?
            }
            Kind::Java => {
                put(dir, JAVA)?;
                prepare(Command::new(path("javac")?).arg("-d").arg(dir).arg(dir.join("Heap.java")))?;
                let most = format!("-Xmx{}m", 2 * mib + 64);
                place.command(&kind.path()?, &["-XX:+UseG1GC", &most, "-cp", ".", "Heap"])
            }
            Kind::Go => {
                put(dir, GO)?;
                // The toolchain that is here, and nothing from a network.
                let here =
                    [("CGO_ENABLED", "1"), ("GOTOOLCHAIN", "local"), ("GOPROXY", "off"), ("GOFLAGS", "")];
                let mut build = Command::new(kind.path()?);
                build.args(["build", "-o", "heap", "heap.go"]).envs(here).current_dir(dir);
                prepare(&mut build)?;
                place.command(&dir.join("heap"), &[])
            }
            _ => bail!("{} is no script", kind.name()),
        };
        command
            .args([place.bytes, place.together].map(|n| n.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut started = place.spawn(command)?;
        let (requests, answers) = started.pipes()?;
        Ok(Script { kind, started, requests: Some(requests), answers: BufReader::new(answers) })
    }

    fn ask<T: for<'a> Deserialize<'a>>(&mut self, request: &str) -> Result<T> {
        let pipe = self.requests.as_mut().context("it was told to end")?;
        writeln!(pipe, "{request}").with_context(|| self.started.last_words())?;
        self.answer()
    }

    fn answer<T: for<'a> Deserialize<'a>>(&mut self) -> Result<T> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            bail!("it ended: {}", self.started.last_words());
        }
        serde_json::from_str(&line).with_context(|| format!("it answered {line:?}"))
    }
}

/// A command that runs a script of these files.
fn with(place: &Place<'_>, kind: Kind, dir: &Path, files: Files, arguments: &[&str]) -> Result<Command> {
    put(dir, files)?;
    Ok(place.command(&kind.path()?, arguments))
}

/// Writes the files.
pub(super) fn put(dir: &Path, files: &[(&str, &str)]) -> Result<()> {
    for (name, text) in files {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

#[derive(Deserialize)]
struct Loaded {
    items: u64,
}

#[derive(Deserialize)]
struct Verified {
    wrong: u64,
}

#[derive(Deserialize)]
struct Done {}

impl Subject for Script {
    fn started(&mut self) -> &mut Started {
        &mut self.started
    }

    fn load(&mut self) -> Result<u64> {
        Ok(self.answer::<Loaded>()?.items)
    }

    fn spoil(&mut self) -> Result<()> {
        self.ask::<Done>("spoil").map(|_| ())
    }

    fn hot(&mut self, time: Duration) -> Result<Hot> {
        self.ask(&format!("hot {}", time.as_secs_f64()))
    }

    fn collect(&mut self) -> Result<Option<Duration>> {
        // What a database in memory has are no objects of Python's.
        if self.kind == Kind::Sqlite {
            return Ok(None);
        }
        let began = Instant::now();
        self.ask::<Done>("collect")?;
        Ok(Some(began.elapsed()))
    }

    fn verify(&mut self) -> Result<u64> {
        Ok(self.ask::<Verified>("verify")?.wrong)
    }

    fn leave(&mut self) -> Result<()> {
        // The end of its input.
        drop(self.requests.take());
        Ok(())
    }
}
