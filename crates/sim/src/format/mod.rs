//! How traces are written: one module a format, each with a reader that streams.
//!
//! What it is not: the numbering of pages; that is [`crate::trace`]'s. A file may be compressed by zstd, which its first
//! bytes say; offsets in errors are those of the unpacked trace.
//!
//! Invariants: a reader holds at most one record, one line or one block; what it cannot make sense of is an error that
//! names the offset, never a panic and never a request that is not there.

mod csv;
mod input;
mod native;
mod oracle;

pub use crate::trace::Request;
pub use csv::Columns;

use crate::error::TraceError;
use crate::trace::Trace;
use input::Input;
use std::fs::File;
use std::io::{BufRead, Write};
use std::path::Path;

/// How a trace is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Memfold's own: compact, in blocks with checksums.
    Native,
    /// libCacheSim's binary format.
    OracleGeneral,
    /// Text, one request a line.
    Csv(Columns),
}

impl Trace {
    /// Reads a file.
    ///
    /// # Errors
    /// See [`TraceError`].
    pub fn open(path: &Path, format: Format) -> Result<Trace, TraceError> {
        Trace::number(format.open(path)?)
    }
}

/// The requests of a trace, one by one.
pub type Requests = Box<dyn Iterator<Item = Result<Request, TraceError>> + Send>;

impl Format {
    /// The format that a file's first bytes or its name tell: memfold's own by its mark, CSV by `.csv` or `.csv.zst`, and
    /// oracleGeneral otherwise, which has no mark.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn detect(path: &Path) -> Result<Format, TraceError> {
        let mut input = Input::open(Box::new(std::io::BufReader::new(File::open(path)?)))?;
        let mut mark = [0; native::MARK.len()];
        let len = input.fill(&mut mark)?;
        let name = path.to_string_lossy().to_ascii_lowercase();
        Ok(match mark[..len] == native::MARK {
            true => Format::Native,
            false if name.trim_end_matches(".zst").ends_with(".csv") => Format::Csv(Columns::default()),
            false => Format::OracleGeneral,
        })
    }

    /// The requests of a file.
    ///
    /// # Errors
    /// When it cannot be opened, or does not begin as the format does.
    pub fn open(self, path: &Path) -> Result<Requests, TraceError> {
        self.read(Box::new(std::io::BufReader::with_capacity(1 << 20, File::open(path)?)))
    }

    /// The requests in a stream of bytes.
    ///
    /// # Errors
    /// As for [`Format::open`].
    pub fn read(self, from: Box<dyn BufRead + Send>) -> Result<Requests, TraceError> {
        let input = Input::open(from)?;
        Ok(match self {
            Format::Native => Box::new(native::Reader::new(input)?),
            Format::OracleGeneral => Box::new(oracle::Reader::new(input)),
            Format::Csv(columns) => Box::new(csv::Reader::new(input, columns)),
        })
    }
}

/// A trace being written.
pub enum Sink<W: Write> {
    /// In memfold's own format.
    Native(native::Writer<W>),
    /// In libCacheSim's binary format; nothing is written before the end.
    OracleGeneral(oracle::Writer<W>),
    /// As text, `time,object` a line, with a header.
    Csv(W),
}

impl<W: Write> Sink<W> {
    /// Begins a trace in memfold's own format.
    ///
    /// # Errors
    /// When nothing can be written.
    pub fn native(to: W) -> std::io::Result<Sink<W>> {
        Ok(Sink::Native(native::Writer::new(to)?))
    }

    /// Begins a trace in libCacheSim's binary format.
    pub fn oracle_general(to: W) -> Sink<W> {
        Sink::OracleGeneral(oracle::Writer::new(to))
    }

    /// Begins a trace as text.
    ///
    /// # Errors
    /// When nothing can be written.
    pub fn csv(mut to: W) -> std::io::Result<Sink<W>> {
        to.write_all(b"time,object\n")?;
        Ok(Sink::Csv(to))
    }

    /// Adds a request.
    ///
    /// # Errors
    /// When it cannot be written, or the format has no room for its time.
    pub fn push(&mut self, request: Request) -> std::io::Result<()> {
        match self {
            Sink::Native(writer) => writer.push(request),
            Sink::OracleGeneral(writer) => Ok(writer.push(request)?),
            Sink::Csv(to) => writeln!(to, "{},{}", request.time, request.object),
        }
    }

    /// Ends the trace and returns what it was written to.
    ///
    /// # Errors
    /// When the last of it cannot be written.
    pub fn finish(self) -> std::io::Result<W> {
        match self {
            Sink::Native(writer) => writer.finish(),
            Sink::OracleGeneral(writer) => Ok(writer.finish()?),
            Sink::Csv(mut to) => to.flush().map(|()| to),
        }
    }
}

#[cfg(test)]
mod tests;
