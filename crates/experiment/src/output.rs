//! The directory of results: `result.json`, `manifest.json`, the raw runs, tables as CSV, plots and the page.
//!
//! Invariants: what [`Output::text`] and [`Output::json`] write is whole or not there.

use crate::manifest::Manifest;
use anyhow::{Context, Result};
use memfold_plot::{Plot, Report};
use serde::de::DeserializeOwned;
use serde::Serialize;
use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind};
use std::path::{Path, PathBuf};

/// A directory that a run is written to.
#[derive(Debug)]
pub struct Output {
    directory: PathBuf,
}

impl Output {
    /// Makes the directory, before the run, so that a bad path costs nothing.
    ///
    /// # Errors
    /// When it cannot be made or written to.
    pub fn create(directory: &Path) -> Result<Output> {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make the directory {}", directory.display()))?;
        tempfile::tempfile_in(directory)
            .with_context(|| format!("cannot write into {}", directory.display()))?;
        Ok(Output { directory: directory.to_owned() })
    }

    /// A directory that is there.
    pub fn at(directory: &Path) -> Output {
        Output { directory: directory.to_owned() }
    }

    /// Writes the result and the manifest.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn result(&self, result: &impl Serialize, manifest: &Manifest) -> Result<()> {
        self.json("result.json", result)?;
        self.json("manifest.json", manifest)
    }

    /// Writes raw rows to the file `name`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn rows<T: Serialize>(&self, name: &str, rows: impl IntoIterator<Item = T>) -> Result<()> {
        let path = self.directory.join(name);
        let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        memfold_stats::write_csv(BufWriter::new(file), rows)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Writes a table whose columns are known at run time only to the file `name`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn table(
        &self,
        name: &str,
        head: &[String],
        rows: impl IntoIterator<Item = Vec<String>>,
    ) -> Result<()> {
        let path = self.directory.join(name);
        let write = || -> Result<()> {
            let mut writer = csv::Writer::from_path(&path)?;
            writer.write_record(head)?;
            rows.into_iter().try_for_each(|row| writer.write_record(row))?;
            Ok(writer.flush()?)
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Makes the directory `name` in it.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn below(&self, name: &str) -> Result<PathBuf> {
        let path = self.directory.join(name);
        fs::create_dir_all(&path).with_context(|| format!("cannot make the directory {}", path.display()))?;
        Ok(path)
    }

    /// Writes a value as indented JSON to the file `name`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn json(&self, name: &str, value: &impl Serialize) -> Result<()> {
        self.text(name, &(serde_json::to_string_pretty(value)? + "\n"))
    }

    /// Writes a text to the file `name`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn text(&self, name: &str, text: &str) -> Result<()> {
        let path = self.directory.join(name);
        let part = path.with_extension("part");
        fs::write(&part, text)
            .and_then(|()| fs::rename(&part, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Reads a value that was written as JSON; `None` if it is not there.
    ///
    /// # Errors
    /// When the file cannot be read or is damaged.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let path = self.directory.join(name);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.with_context(|| format!("cannot read {}", path.display()))?,
        };
        serde_json::from_str(&text).map(Some).with_context(|| format!("{} is damaged", path.display()))
    }

    /// Draws plots into the directory `plots`.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn plots(&self, plots: &[Plot]) -> Result<()> {
        let below = self.below("plots")?;
        plots.iter().try_for_each(|plot| memfold_plot::save(plot.chart.as_ref(), &below, plot.name))
    }

    /// Draws plots, and writes the page that shows them.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn page(&self, page: &Report, plots: &[Plot]) -> Result<()> {
        self.plots(plots)?;
        self.text("report.html", &page.html())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.directory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_cannot_be_made_is_refused_before_the_run() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(Output::create(&file.path().join("below")).is_err());
    }

    #[test]
    fn a_run_leaves_its_result_manifest_and_rows() {
        let directory = tempfile::tempdir().unwrap();
        let output = Output::create(&directory.path().join("a/b")).unwrap();
        output.result(&[1, 2], &Manifest::gather()).unwrap();
        output.rows("runs.csv", [(1, 2)]).unwrap();
        assert_eq!(output.read::<Vec<u32>>("result.json").unwrap(), Some(vec![1, 2]));
        assert_eq!(output.read::<Vec<u32>>("no.json").unwrap(), None);
        assert!(output.read::<u32>("result.json").unwrap_err().to_string().contains("damaged"));
        let names = ["result.json", "manifest.json", "runs.csv"];
        assert!(names.iter().all(|n| directory.path().join("a/b").join(n).exists()));
    }
}
