//! Bytes with their offset, unpacked where they are compressed.

use crate::error::TraceError;
use std::io::{BufRead, BufReader, Read};

/// What every zstd frame begins with (RFC 8878).
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// A stream that counts what was taken from it.
pub(super) struct Input {
    from: Box<dyn BufRead + Send>,
    offset: u64,
    packed: bool,
}

impl Input {
    /// Wraps a stream; one that begins as a zstd frame does is unpacked.
    pub(super) fn open(mut from: Box<dyn BufRead + Send>) -> Result<Input, TraceError> {
        let packed = from.fill_buf()?.starts_with(&ZSTD);
        if packed {
            let decoder = zstd::stream::read::Decoder::with_buffer(from)?;
            from = Box::new(BufReader::with_capacity(1 << 18, decoder));
        }
        Ok(Input { from, offset: 0, packed })
    }

    /// Bytes taken so far.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Fills as much of `buffer` as there are bytes for; says how much.
    pub(super) fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, TraceError> {
        let mut have = 0;
        while have < buffer.len() {
            match self.from.read(&mut buffer[have..]) {
                Ok(0) => break,
                Ok(more) => have += more,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(error, have)),
            }
        }
        self.offset += have as u64;
        Ok(have)
    }

    /// Fills all of `buffer` with a `what`, or nothing where the stream ends; says which.
    pub(super) fn fill_all(&mut self, buffer: &mut [u8], what: &'static str) -> Result<bool, TraceError> {
        let offset = self.offset;
        match self.fill(buffer)? {
            0 if !buffer.is_empty() => Ok(false),
            len if len == buffer.len() => Ok(true),
            left => Err(TraceError::Truncated { offset, left, what, whole: buffer.len() }),
        }
    }

    /// Reads a line of at most `most` bytes into `line`, its end included; `false` at the end of the stream.
    pub(super) fn line(&mut self, line: &mut Vec<u8>, most: usize) -> Result<bool, TraceError> {
        line.clear();
        let read = (&mut self.from).take(most as u64).read_until(b'\n', line);
        if let Err(error) = read {
            return Err(self.broken(error, line.len()));
        }
        if line.len() == most && !line.ends_with(b"\n") {
            let why = format!("a line is longer than {most} bytes");
            return Err(TraceError::Damaged { offset: self.offset, why });
        }
        self.offset += line.len() as u64;
        Ok(!line.is_empty())
    }

    fn broken(&self, error: std::io::Error, further: usize) -> TraceError {
        if !self.packed {
            return error.into();
        }
        let why = format!("the compressed data breaks off or is corrupt ({error})");
        TraceError::Damaged { offset: self.offset + further as u64, why }
    }
}
