//! oracleGeneral, libCacheSim's binary format: records of 24 bytes, little-endian, of a time (`u32`, seconds), an object
//! (`u64`), its size (`u32`, bytes) and the number of the request that asks for it next (`i64`). The last two are not used:
//! every object counts as one page, and what comes next is worked out from the trace itself.

use super::{Input, Request};
use crate::error::TraceError;

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
