//! oracleGeneral, libCacheSim's binary format: records of 24 bytes, little-endian, of a time (`u32`, seconds), an object
//! (`u64`), its size (`u32`, bytes) and the number, counted from 1, of the request that asks for it next (`i64`; -1 if none
//! does). The last two are not read: every object counts as one page, and what comes next is worked out from the trace itself.

use super::{Input, Request};
use crate::column::Column;
use crate::error::TraceError;
use crate::trace::Numbering;
use memfold_policy::replace::NO_NEXT;
use std::io::Write;

/// Length of a record, bytes.
const RECORD: usize = 24;

pub(super) struct Reader {
    input: Input,
}

impl Reader {
    pub(super) fn new(input: Input) -> Reader {
        Reader { input }
    }
}

impl Iterator for Reader {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut record = [0u8; RECORD];
        match self.input.fill_all(&mut record, "a record of oracleGeneral") {
            Ok(false) => None,
            Ok(true) => {
                let [time, object @ ..] = [0, 4, 8].map(|at| le32(&record, at));
                Some(Ok(Request { time, object: object[0] | object[1] << 32 }))
            }
            Err(error) => Some(Err(error)),
        }
    }
}

fn le32(bytes: &[u8; RECORD], at: usize) -> u64 {
    u64::from(u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]))
}

/// Size of an object that is written: libCacheSim passes over requests of size 0, and with 1 its cache sizes are pages.
const SIZE: u32 = 1;

/// Writes a trace. As each record names the request that comes next for its object, all of them are kept until the end, as a
/// [`Trace`](crate::Trace) keeps them.
pub struct Writer<W: Write> {
    to: W,
    times: Column,
    numbering: Numbering,
}

impl<W: Write> Writer<W> {
    /// Begins a trace.
    pub fn new(to: W) -> Writer<W> {
        Writer { to, times: Column::default(), numbering: Numbering::default() }
    }

    /// Adds a request.
    ///
    /// # Errors
    /// When its time does not fit into 32 bits, or it cannot be kept.
    pub fn push(&mut self, request: Request) -> Result<(), TraceError> {
        let number = self.times.len() + 1;
        let time = u32::try_from(request.time);
        let time = time.map_err(|_| TraceError::Time { number, time: request.time })?;
        self.times.push(time)?;
        self.numbering.push(request.object)
    }

    /// Writes all of it, and returns what it was written to.
    ///
    /// # Errors
    /// When it has no request, or something cannot be written.
    pub fn finish(mut self) -> Result<W, TraceError> {
        let (trace, objects) = self.numbering.finish()?;
        let next = trace.next()?;
        let mut buffers = [const { Vec::new() }; 3];
        for start in trace.pages().starts() {
            let [first, second, third] = &mut buffers;
            let pages = trace.pages().block(start, first)?;
            let times = self.times.block(start, second)?;
            let next = next.block(start, third)?;
            for ((page, time), next) in pages.iter().zip(times).zip(next) {
                let next = if *next == NO_NEXT { -1 } else { i64::from(*next) + 1 };
                self.to.write_all(&time.to_le_bytes())?;
                self.to.write_all(&objects[*page as usize].to_le_bytes())?;
                self.to.write_all(&SIZE.to_le_bytes())?;
                self.to.write_all(&next.to_le_bytes())?;
            }
        }
        self.to.flush()?;
        Ok(self.to)
    }
}
