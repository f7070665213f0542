//! An experiment from its options to its report: what all have in common, and what each fills in.
//!
//! What it is not: the order of runs, their figures and their directory, which [`memfold_experiment`] has for other crates too.

use crate::course::Progress;
use crate::manifest::Manifest;
use crate::output::Output;
use crate::worker::Program;
use anyhow::Result;
use serde::Serialize;

/// The options of an experiment, as its command line takes them, and what they make of it.
pub trait Experiment: Serialize + Sized {
    /// Names the layout of the result; `None` in one that is older than such names.
    const SCHEMA: Option<&'static str>;

    /// What is found.
    type Found: Serialize;

    /// Completes the options, and looks whether they make sense here, before anything is begun.
    ///
    /// # Errors
    /// What is wrong with them.
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    /// Carries it out.
    ///
    /// # Errors
    /// [`crate::Unsupported`] where something is not to be had here; otherwise when a run fails or data is wrong.
    fn run(&self, program: &Program, progress: Progress<'_>) -> Result<Self::Found>;

    /// Writes what is kept beside the result and the manifest: raw runs, tables, plots, a page.
    ///
    /// # Errors
    /// When a file cannot be written.
    fn keep(report: &Report<Self>, output: &Output) -> Result<()>;

    /// Does what is asked for besides, wherever results go.
    ///
    /// # Errors
    /// When it fails.
    fn finish(_report: &Report<Self>) -> Result<()> {
        Ok(())
    }
}

/// What came of an experiment.
#[derive(Debug, Serialize)]
pub struct Report<E: Experiment> {
    /// Names this layout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<&'static str>,
    /// Where it ran.
    pub manifest: Manifest,
    /// What was asked for.
    pub options: E,
    /// What was found.
    #[serde(flatten)]
    pub found: E::Found,
}

impl<E: Experiment> Report<E> {
    /// Carries an experiment out.
    ///
    /// # Errors
    /// As [`Experiment::run`].
    pub fn of(options: E, program: &Program, progress: Progress<'_>) -> Result<Report<E>> {
        let manifest = Manifest::gather();
        let found = options.run(program, progress)?;
        Ok(Report { schema: E::SCHEMA, manifest, options, found })
    }

    /// Writes everything into a directory.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, output: &Output) -> Result<()> {
        E::keep(self, output)?;
        output.result(self, &self.manifest)
    }
}
