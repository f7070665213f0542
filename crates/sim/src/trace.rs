//! Traces of page requests.
//!
//! Two formats are read. *oracleGeneral* is libCacheSim's binary one: records of 24 bytes, little-endian, of a time
//! (`u32`, seconds), an object's number (`u64`), its size (`u32`, bytes) and the number of the request that asks for it next
//! (`i64`). *CSV* is text with one request a line and the object in a column. Each object counts as one page. When each
//! page is requested next is worked out here, from the trace itself.
//!
//! Invariants: pages are numbered from 0 in the order of their first requests, so that policies find them by index.

use policy::replace::NEVER;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// Length of an oracleGeneral record, bytes.
const RECORD: usize = 24;

/// How a trace is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// libCacheSim's binary format.
    OracleGeneral,
    /// Text, with the object in this column, counted from 1.
    Csv {
        /// The object's column.
        column: usize,
        /// The character between columns.
        separator: char,
        /// Whether the first line names the columns.
        header: bool,
    },
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read at all.
    #[error("cannot read it: {0}")]
    Io(#[from] std::io::Error),
    /// It ends in the middle of a record.
    #[error(
        "truncated: {left} bytes are left at offset {offset}, and a record of oracleGeneral has {RECORD}"
    )]
    Truncated {
        /// Where the last record begins, bytes from the start.
        offset: u64,
        /// Bytes there are of it.
        left: usize,
    },
    /// A line has no such column.
    #[error(
        "line {line} (offset {offset}) has {columns} columns; the object is expected in column {column}"
    )]
    NoColumn {
        /// The line, from 1.
        line: u64,
        /// Where it begins, bytes from the start.
        offset: u64,
        /// The columns that it has.
        columns: usize,
        /// The column that was asked for.
        column: usize,
    },
    /// It has no request.
    #[error("it has no request")]
    Empty,
    /// More pages than page numbers.
    #[error("it asks for more than {} different pages", u32::MAX / 2)]
    TooManyPages,
}

/// A trace in memory.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The requested pages.
    pub pages: Vec<u32>,
    /// The number of the request that asks for the same page next, or [`NEVER`].
    pub next: Vec<u64>,
    /// How many different pages there are.
    pub universe: usize,
}

impl Trace {
    /// Reads a file.
    pub fn open(path: &Path, format: Format) -> Result<Trace, TraceError> {
        Trace::read(BufReader::with_capacity(1 << 20, File::open(path)?), format)
    }

    /// Reads a trace to its end.
    pub fn read(from: impl BufRead, format: Format) -> Result<Trace, TraceError> {
        let mut builder = Builder::default();
        match format {
            Format::OracleGeneral => builder.oracle_general(from)?,
            Format::Csv { column, separator, header } => builder.csv(from, column, separator, header)?,
        }
        builder.finish()
    }
}

/// Numbers the objects.
#[derive(Default)]
struct Builder {
    pages: Vec<u32>,
    numbers: HashMap<u64, u32>,
    names: HashMap<String, u64>,
}

impl Builder {
    fn request(&mut self, object: u64) -> Result<(), TraceError> {
        let fresh = self.numbers.len();
        if fresh > u32::MAX as usize / 2 {
            return Err(TraceError::TooManyPages);
        }
        self.pages.push(*self.numbers.entry(object).or_insert(fresh as u32));
        Ok(())
    }

    fn oracle_general(&mut self, mut from: impl Read) -> Result<(), TraceError> {
        let mut record = [0u8; RECORD];
        for number in 0.. {
            let mut have = 0;
            while have < RECORD {
                match from.read(&mut record[have..])? {
                    0 => break,
                    more => have += more,
                }
            }
            match have {
                0 => break,
                RECORD => {}
                left => return Err(TraceError::Truncated { offset: number * RECORD as u64, left }),
            }
            let object = record[4..12].try_into().expect("eight bytes");
            self.request(u64::from_le_bytes(object))?;
        }
        Ok(())
    }

    fn csv(
        &mut self,
        mut from: impl BufRead,
        column: usize,
        separator: char,
        header: bool,
    ) -> Result<(), TraceError> {
        let (mut text, mut offset, mut line) = (Vec::new(), 0, 0);
        loop {
            text.clear();
            let len = from.read_until(b'\n', &mut text)?;
            if len == 0 {
                return Ok(());
            }
            line += 1;
            let row = String::from_utf8_lossy(&text);
            let row = row.trim_end_matches(['\n', '\r']);
            if !(row.is_empty() || header && line == 1) {
                let mut columns = row.split(separator);
                let Some(object) = columns.nth(column.saturating_sub(1)) else {
                    let columns = row.split(separator).count();
                    return Err(TraceError::NoColumn { line, offset, columns, column });
                };
                let fresh = self.names.len() as u64;
                let object = *self.names.entry(object.trim().to_owned()).or_insert(fresh);
                self.request(object)?;
            }
            offset += len as u64;
        }
    }

    fn finish(self) -> Result<Trace, TraceError> {
        if self.pages.is_empty() {
            return Err(TraceError::Empty);
        }
        let universe = self.numbers.len();
        let mut coming = vec![NEVER; universe];
        let mut next = vec![NEVER; self.pages.len()];
        for (number, &page) in self.pages.iter().enumerate().rev() {
            next[number] = std::mem::replace(&mut coming[page as usize], number as u64);
        }
        Ok(Trace { pages: self.pages, next, universe })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CSV: Format = Format::Csv { column: 2, separator: ',', header: true };

    fn record(object: u64) -> Vec<u8> {
        [&7u32.to_le_bytes()[..], &object.to_le_bytes(), &4096u32.to_le_bytes(), &(-1i64).to_le_bytes()]
            .concat()
    }

    #[test]
    fn pages_are_numbered_by_their_first_requests_and_know_the_next() {
        let bytes: Vec<u8> = [900, 5, 900, 7, 5].into_iter().flat_map(record).collect();
        let trace = Trace::read(&bytes[..], Format::OracleGeneral).unwrap();
        assert_eq!((trace.pages, trace.universe), (vec![0, 1, 0, 2, 1], 3));
        assert_eq!(trace.next, [2, 4, NEVER, NEVER, NEVER]);
        let text = "time,object\n1,900\n2,five\n\n3,900\r\n4,7\n5,five";
        let same = Trace::read(text.as_bytes(), CSV).unwrap();
        assert_eq!(same.pages, [0, 1, 0, 2, 1]);
    }

    #[test]
    fn a_broken_trace_is_refused_with_the_offset() {
        let bytes: Vec<u8> = [record(1), record(2)].concat();
        let error = Trace::read(&bytes[..47], Format::OracleGeneral).unwrap_err().to_string();
        assert_eq!(error, "truncated: 23 bytes are left at offset 24, and a record of oracleGeneral has 24");
        let error = Trace::read("a,b\n1,2\nlonely\n".as_bytes(), CSV).unwrap_err().to_string();
        assert_eq!(error, "line 3 (offset 8) has 1 columns; the object is expected in column 2");
        assert!(matches!(Trace::read(&b""[..], Format::OracleGeneral), Err(TraceError::Empty)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_trace_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            for format in [Format::OracleGeneral, CSV] {
                if let Ok(trace) = Trace::read(&bytes[..], format) {
                    prop_assert!(trace.pages.iter().all(|&page| (page as usize) < trace.universe));
                }
            }
        }
    }
}
