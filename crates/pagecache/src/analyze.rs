//! What a directory of results says: tables, plots and the page, made anew from the raw results.

use crate::folder::{Folder, Schema};
use crate::{corun, run};
use anyhow::Result;
use serde::Serialize;
use std::fmt;
use std::path::Path;

/// What was found.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Analysis {
    /// Workloads by themselves.
    Run(Box<run::Results>),
    /// Tenants side by side.
    CoRun(Box<corun::Results>),
}

/// Reads `directory`, writes `summary.txt`, `plots/` and `report.html` there, and returns what they show.
///
/// # Errors
/// [`crate::Refused`] if there are no results, and when they are damaged or a file cannot be written.
pub fn write(directory: &Path) -> Result<Analysis> {
    let folder = Folder::open(directory)?;
    match folder.record().schema {
        Schema::Run => run::Results::write(&folder).map(|results| Analysis::Run(Box::new(results))),
        Schema::CoRun => corun::Results::write(&folder).map(|results| Analysis::CoRun(Box::new(results))),
    }
}

impl fmt::Display for Analysis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Analysis::Run(results) => results.fmt(f),
            Analysis::CoRun(results) => results.fmt(f),
        }
    }
}
