//! Options that name a trace, the same for every command that reads one.

use crate::exit;
use anyhow::Result;
use clap::ValueEnum;
use memfold_sim::format::{Columns, Format, Requests};
use memfold_sim::TraceError;
use std::path::{Path, PathBuf};

/// How a trace is written. Compression by zstd is noticed whatever the format.
#[derive(clap::Args, Clone, Debug)]
pub struct TraceOptions {
    /// How the trace is written [default: told by its first bytes or its name].
    #[arg(long, value_enum)]
    format: Option<Kind>,
    /// Read CSV, with the object in this column, counted from 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    csv_column: Option<u16>,
    /// CSV: the time's column, counted from 1; without it requests are numbered.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), requires = "csv_column")]
    csv_time: Option<u16>,
    /// CSV: the character between columns.
    #[arg(long, default_value_t = ',', requires = "csv_column")]
    csv_separator: char,
    /// CSV: the first line names the columns.
    #[arg(long, requires = "csv_column")]
    csv_header: bool,
}

#[derive(Clone, Copy, PartialEq, Debug, ValueEnum)]
enum Kind {
    /// Memfold's own.
    Memfold,
    /// libCacheSim's binary records of 24 bytes.
    #[value(name = "oracleGeneral")]
    OracleGeneral,
    /// Text: time,object below a header, or what --csv-column says.
    Csv,
}

impl TraceOptions {
    /// The format of the file at `path`.
    ///
    /// # Errors
    /// With exit code 2 for a file that cannot be read, and for options that contradict each other.
    pub fn format_of(&self, path: &Path) -> Result<Format> {
        let columns = self.csv_column.map(|object| Columns {
            object: object.into(),
            time: self.csv_time.map(usize::from),
            separator: self.csv_separator,
            header: self.csv_header,
        });
        match (self.format, columns) {
            (None | Some(Kind::Csv), Some(columns)) => Ok(Format::Csv(columns)),
            (Some(kind), Some(_)) => {
                Err(exit::usage(format!("--csv-column is for CSV, and --format is {kind:?}")))
            }
            (Some(Kind::Csv), None) => Ok(Format::Csv(Columns::default())),
            (Some(Kind::Memfold), None) => Ok(Format::Native),
            (Some(Kind::OracleGeneral), None) => Ok(Format::OracleGeneral),
            (None, None) => Format::detect(path).map_err(|error| bad(path, error)),
        }
    }

    /// The requests of the file at `path`.
    ///
    /// # Errors
    /// As for [`TraceOptions::format_of`].
    pub fn open(&self, path: &Path) -> Result<Requests> {
        self.format_of(path)?.open(path).map_err(|error| bad(path, error))
    }
}

/// The error that says what is wrong with a trace: with exit code 2, unless the machine failed.
pub fn bad(path: &Path, error: TraceError) -> anyhow::Error {
    exit::usage(format!("the trace {}: {error}", path.display()))
}

/// The path of a trace that a command reads.
#[derive(clap::Args, Clone, Debug)]
pub struct TraceFile {
    /// The trace.
    #[arg(value_name = "FILE")]
    pub path: PathBuf,
    #[command(flatten)]
    pub options: TraceOptions,
}
