//! Records in a redis-server: what the demo and the experiments fill a real server with, and how they know each value again.
//!
//! What it is not: a server's start or end, which differ between those who want one.
//!
//! Invariants: a value is a function of its record's number; what is read back is compared byte by byte.

pub mod resp;
pub mod values;

use anyhow::Result;
use resp::Client;

/// Records that are written or read back at a time.
const BATCH: u64 = 64;

/// Writes records 0 to `records` - 1; tells `written` how many after each batch. Returns the bytes of the values.
///
/// # Errors
/// The server fails, or `written` says so.
pub fn fill(client: &mut Client, records: u64, mut written: impl FnMut(u64) -> Result<()>) -> Result<u64> {
    let (mut value, mut answer, mut bytes) = (Vec::new(), Vec::new(), 0);
    for start in (0..records).step_by(BATCH as usize) {
        let batch = start..(start + BATCH).min(records);
        for number in batch.clone() {
            value.clear();
            values::append(number, &mut value);
            bytes += value.len() as u64;
            client.queue(&[b"SET", values::key(number).as_bytes(), &value]);
        }
        client.flush()?;
        for _ in batch.clone() {
            answer.clear();
            client.answer(&mut answer)?;
        }
        written(batch.end - batch.start)?;
    }
    Ok(bytes)
}

/// Reads every record back and compares it with what it must be; tells `read` how many after each batch. Returns how many
/// differ.
///
/// # Errors
/// The server fails or has lost a key, or `read` says so.
pub fn verify(client: &mut Client, records: u64, mut read: impl FnMut(u64) -> Result<()>) -> Result<u64> {
    let (mut expected, mut answer, mut different) = (Vec::new(), Vec::new(), 0);
    for start in (0..records).step_by(BATCH as usize) {
        let batch = start..(start + BATCH).min(records);
        for number in batch.clone() {
            client.queue(&[b"GET", values::key(number).as_bytes()]);
        }
        client.flush()?;
        for number in batch.clone() {
            answer.clear();
            client.answer(&mut answer)?;
            expected.clear();
            values::append(number, &mut expected);
            different += u64::from(answer != expected);
        }
        read(batch.end - batch.start)?;
    }
    Ok(different)
}
