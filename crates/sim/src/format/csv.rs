//! CSV: text with one request a line.
//!
//! An object that is a decimal number below 2^63 is that number; any other text counts by a hash of 63 bits, so that two
//! texts among ten million are taken for one with a probability of 1 in 180 000.
//! What it is not: RFC 4180; a quote has no meaning.

use super::{Input, Request};
use crate::error::TraceError;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The longest line, bytes.
const LINE: usize = 1 << 16;

/// Which column is what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Columns {
    /// The object's column, counted from 1.
    pub object: usize,
    /// The time's column; without one, the time is the number of the request.
    pub time: Option<usize>,
    /// The character between columns.
    pub separator: char,
    /// Whether the first line names the columns.
    pub header: bool,
}

impl Default for Columns {
    /// What memfold itself writes: a header, then `time,object`.
    fn default() -> Columns {
        Columns { object: 2, time: Some(1), separator: ',', header: true }
    }
}

pub(super) struct Reader {
    input: Input,
    columns: Columns,
    line: u64,
    requests: u64,
    text: Vec<u8>,
}

impl Reader {
    pub(super) fn new(input: Input, columns: Columns) -> Reader {
        Reader { input, columns, line: 0, requests: 0, text: Vec::new() }
    }

    fn request(&mut self) -> Result<Option<Request>, TraceError> {
        loop {
            let offset = self.input.offset();
            if !self.input.line(&mut self.text, LINE)? {
                return Ok(None);
            }
            self.line += 1;
            let row = String::from_utf8_lossy(&self.text);
            let row = row.trim_end_matches(['\n', '\r']);
            if row.is_empty() || self.columns.header && self.line == 1 {
                continue;
            }
            let cell = |what, column: usize| {
                row.split(self.columns.separator).nth(column.saturating_sub(1)).map(str::trim).ok_or_else(
                    || {
                        let columns = row.split(self.columns.separator).count();
                        TraceError::NoColumn { line: self.line, offset, columns, what, column }
                    },
                )
            };
            let object = object(cell("object", self.columns.object)?);
            let time = match self.columns.time {
                None => self.requests,
                Some(column) => {
                    let text = cell("time", column)?;
                    let time: f64 = text.parse().ok().filter(|time| *time >= 0.0).ok_or_else(|| {
                        let why = format!("line {}: {text:?} is no time", self.line);
                        TraceError::Damaged { offset, why }
                    })?;
                    time as u64
                }
            };
            self.requests += 1;
            return Ok(Some(Request { time, object }));
        }
    }
}

impl Iterator for Reader {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.request().transpose()
    }
}

fn object(text: &str) -> u64 {
    let plain = text == "0" || !text.starts_with(['0', '+']);
    match text.parse::<u64>() {
        Ok(number) if plain && number < 1 << 63 => number,
        _ => {
            let mut hasher = DefaultHasher::new();
            text.hash(&mut hasher);
            hasher.finish() | 1 << 63
        }
    }
}
