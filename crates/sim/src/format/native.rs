//! Memfold's own format: two bytes a request where neighbours are close, readable as a stream, and no damage unnoticed.
//!
//! A file is the eight bytes `MFTRACE1` and blocks. A block is a head of three little-endian `u32`, the length of its
//! body in bytes, how many requests it has, and the CRC-32 (IEEE 802.3) of the two and the body; and the body: for each
//! request its time's and its object's difference from the request before, or from 0 at the block's start. A
//! difference wraps at 64 bits, is folded (0, -1, 1, -2, …) and written seven bits a byte, low ones first, with the high
//! bit set on all bytes but the last. The last block has no request, and its body is the number of all, as a `u64`: a file
//! without it is truncated.
//!
//! Invariants: blocks can be read by themselves; a body has at most [`MOST_BODY`] bytes.

use super::{Input, Request};
use crate::error::TraceError;
use std::io::Write;

/// What a file begins with.
pub(super) const MARK: [u8; 8] = *b"MFTRACE1";
/// The longest body of a block, bytes.
const MOST_BODY: usize = 1 << 16;
/// Room for one request.
const MOST_REQUEST: usize = 20;
const HEAD: usize = 12;

/// Writes a trace.
pub struct Writer<W: Write> {
    to: W,
    body: Vec<u8>,
    in_block: u32,
    last: Request,
    requests: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a trace.
    ///
    /// # Errors
    /// When nothing can be written.
    pub fn new(mut to: W) -> std::io::Result<Writer<W>> {
        to.write_all(&MARK)?;
        Ok(Writer { to, body: Vec::new(), in_block: 0, last: Request::default(), requests: 0 })
    }

    /// Adds a request.
    ///
    /// # Errors
    /// When a block cannot be written.
    pub fn push(&mut self, request: Request) -> std::io::Result<()> {
        if self.body.len() + MOST_REQUEST > MOST_BODY {
            self.block()?;
        }
        put(&mut self.body, request.time.wrapping_sub(self.last.time));
        put(&mut self.body, request.object.wrapping_sub(self.last.object));
        self.last = request;
        self.in_block += 1;
        self.requests += 1;
        Ok(())
    }

    /// Ends the trace, and returns what it was written to.
    ///
    /// # Errors
    /// When the last blocks cannot be written.
    pub fn finish(mut self) -> std::io::Result<W> {
        if self.in_block > 0 {
            self.block()?;
        }
        self.body.extend(self.requests.to_le_bytes());
        self.block()?;
        self.to.flush()?;
        Ok(self.to)
    }

    fn block(&mut self) -> std::io::Result<()> {
        let (len, requests) = ((self.body.len() as u32).to_le_bytes(), self.in_block.to_le_bytes());
        self.to.write_all(&len)?;
        self.to.write_all(&requests)?;
        self.to.write_all(&checksum(&len, &requests, &self.body).to_le_bytes())?;
        self.to.write_all(&self.body)?;
        self.body.clear();
        (self.in_block, self.last) = (0, Request::default());
        Ok(())
    }
}

fn checksum(len: &[u8], requests: &[u8], body: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    [len, requests, body].into_iter().for_each(|part| crc.update(part));
    crc.finalize()
}

fn put(to: &mut Vec<u8>, difference: u64) {
    let mut rest = difference << 1 ^ ((difference as i64) >> 63) as u64;
    while rest >= 0x80 {
        to.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    to.push(rest as u8);
}

/// A difference from the front of `bytes`, if one is there whole.
fn take(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut folded = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return None;
        }
        folded |= bits << shift;
        if byte < 0x80 {
            return Some(folded >> 1 ^ (folded & 1).wrapping_neg());
        }
    }
    None
}

pub(super) struct Reader {
    input: Input,
    body: Vec<u8>,
    /// Where the body begins in the file.
    offset: u64,
    at: usize,
    left: u32,
    last: Request,
    requests: u64,
    done: bool,
}

impl Reader {
    pub(super) fn new(mut input: Input) -> Result<Reader, TraceError> {
        let mut mark = [0; MARK.len()];
        let len = input.fill(&mut mark)?;
        if mark[..len] != MARK {
            let why = "a trace in memfold's own format begins with MFTRACE1".into();
            return Err(TraceError::Damaged { offset: 0, why });
        }
        let last = Request::default();
        Ok(Reader { input, body: Vec::new(), offset: 0, at: 0, left: 0, last, requests: 0, done: false })
    }

    /// Reads blocks until one has a request; `false` after the last.
    fn block(&mut self) -> Result<bool, TraceError> {
        let offset = self.input.offset();
        let damaged = |why: String| Err(TraceError::Damaged { offset, why });
        let mut head = [0; HEAD];
        if !self.input.fill_all(&mut head, "a block's head")? {
            return damaged("truncated: the block that ends a trace is missing".into());
        }
        let word = |at| u32::from_le_bytes(std::array::from_fn(|n| head[at + n]));
        let (len, requests, sum) = (word(0) as usize, word(4), word(8));
        if len == 0 || len > MOST_BODY || requests as usize > len / 2 {
            return damaged(format!("no block has {len} bytes and {requests} requests"));
        }
        self.body.resize(len, 0);
        self.offset = self.input.offset();
        if !self.input.fill_all(&mut self.body, "the block")? {
            return damaged("truncated: the block's head stands alone".into());
        }
        if checksum(&head[..4], &head[4..8], &self.body) != sum {
            return damaged("the block's checksum is wrong".into());
        }
        (self.at, self.left, self.last) = (0, requests, Request::default());
        if requests > 0 {
            return Ok(true);
        }
        self.done = true;
        if self.body != self.requests.to_le_bytes() {
            return damaged(format!(
                "the trace ends after {} requests, not as many as it says",
                self.requests
            ));
        }
        if self.input.fill(&mut [0])? > 0 {
            return damaged("something follows the block that ends the trace".into());
        }
        Ok(false)
    }

    fn request(&mut self) -> Result<Option<Request>, TraceError> {
        if self.done || self.left == 0 && !self.block()? {
            return Ok(None);
        }
        let offset = self.offset + self.at as u64;
        let damaged = |why: &str| TraceError::Damaged { offset, why: why.into() };
        let (time, object) = (take(&self.body, &mut self.at), take(&self.body, &mut self.at));
        let (Some(time), Some(object)) = (time, object) else {
            return Err(damaged("a request breaks off"));
        };
        self.last.time = self.last.time.wrapping_add(time);
        self.last.object = self.last.object.wrapping_add(object);
        self.left -= 1;
        self.requests += 1;
        if self.left == 0 && self.at != self.body.len() {
            return Err(damaged("the block is longer than its requests"));
        }
        Ok(Some(self.last))
    }
}

impl Iterator for Reader {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.request();
        self.done |= next.is_err();
        next.transpose()
    }
}
