//! The programs, and what each needs of the machine.

use super::install::{self, prepare};
use super::place::Place;
use super::subject::Subject;
use super::{chromium, postgres, redis, scripted};
use anyhow::Result;
use std::path::PathBuf;
use std::process::Command;

memfold_experiment::named! {
    /// A program.
    pub enum Kind, "program" {
        /// CPython: a dict of dicts.
        Python3 = "python3",
        /// SQLite in Python's module: a database in memory.
        Sqlite = "sqlite",
        /// redis-server: JSON values.
        Redis = "redis",
        /// redis-server: the same, with snapshots while a twentieth of what its clients do is writing.
        RedisSave = "redis-save",
        /// V8: a Map of objects.
        Node = "node",
        /// OpenJDK with G1: a HashMap of objects.
        Java = "java",
        /// Go: a map of structures, their text in memory of C's.
        Go = "go",
        /// PostgreSQL: pgbench, and a temporary table in a session's own memory.
        Postgres = "postgres",
        /// Chromium: pages, each with a Map of objects and paragraphs.
        Chromium = "chromium",
    }
}

/// What a program needs: an executable, and the Debian package that has it.
type Needs = &'static [(&'static str, &'static str)];

impl Kind {
    /// What it needs; the first is the program itself.
    fn needs(self) -> Needs {
        match self {
            Kind::Python3 | Kind::Sqlite => &[("python3", "python3")],
            Kind::Redis | Kind::RedisSave => &[("redis-server", "redis-server")],
            Kind::Node => &[("node", "nodejs")],
            Kind::Java => &[("java", "default-jre-headless"), ("javac", "default-jdk-headless")],
            Kind::Go => &[("go", "golang-go"), ("gcc", "gcc")],
            Kind::Postgres => &[
                ("postgres", "postgresql"),
                ("initdb", "postgresql"),
                ("pgbench", "postgresql"),
                ("psql", "postgresql"),
            ],
            Kind::Chromium => &[("chromium", "chromium")],
        }
    }

    /// Why it cannot run here, with the package that it lacks; `None` where it can.
    pub(super) fn missing(self) -> Option<String> {
        let lacks = self.needs().iter().find_map(|(name, package)| match install::find(name) {
            Some(_) => None,
            None => Some(format!("{name} is not installed: apt-get install {package}")),
        });
        lacks.or_else(|| {
            // Who compiles Python without SQLite at hand has it without the module.
            let module = || prepare(Command::new(self.path()?).args(["-c", "import sqlite3"]));
            let lacks = self == Kind::Sqlite && module().is_err();
            lacks.then(|| "this python3 has no module sqlite3: apt-get install python3, and have /usr/bin first in PATH".into())
        })
    }

    /// The path of the program.
    pub(super) fn path(self) -> Result<PathBuf> {
        install::path(self.needs()[0].0)
    }

    /// What the program says of its version.
    pub(super) fn version(self) -> String {
        let argument = if self == Kind::Go { "version" } else { "--version" };
        self.path().map(|path| install::first_line(&path, argument)).unwrap_or_default()
    }

    /// Starts it; it has not built its heap when this returns.
    pub(super) fn start(self, place: &Place<'_>) -> Result<Box<dyn Subject>> {
        Ok(match self {
            Kind::Redis => Box::new(redis::Server::start(place, false)?),
            Kind::RedisSave => Box::new(redis::Server::start(place, true)?),
            Kind::Postgres => Box::new(postgres::Server::start(place)?),
            Kind::Chromium => Box::new(chromium::Browser::start(place)?),
            Kind::Python3 | Kind::Sqlite | Kind::Node | Kind::Java | Kind::Go => {
                Box::new(scripted::Script::start(self, place)?)
            }
        })
    }
}
