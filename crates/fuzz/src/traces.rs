//! The readers of traces.
//!
//! Invariants: of a trace that unpacks to much, the first [`MOST`] requests are read.

use memfold_sim::format::{Columns, Format, Request, Requests, Sink};
use std::io::Cursor;

/// Requests read of one input.
const MOST: usize = 1 << 16;
const BARE: Columns = Columns { object: 1, time: None, separator: ';', header: false };

fn open(format: Format, bytes: &[u8]) -> Option<Requests> {
    format.read(Box::new(Cursor::new(bytes.to_vec()))).ok()
}

/// Reads to the end or the first error, which must say where it is or what it is.
fn drain(format: Format, bytes: &[u8]) {
    for request in open(format, bytes).into_iter().flatten().take(MOST) {
        if let Err(error) = request {
            assert!(!error.to_string().is_empty());
            return;
        }
    }
}

fn sample() -> Vec<Request> {
    (0..40).map(|n| Request { time: n * 3, object: n * n % 17 + (n % 5) * 1_000_000_007 }).collect()
}

fn write(requests: &[Request]) -> Vec<u8> {
    // Writing to a vector cannot fail.
    let mut sink = Sink::native(Vec::new()).expect("a vector takes everything");
    requests.iter().for_each(|&request| sink.push(request).expect("a vector takes everything"));
    sink.finish().expect("a vector takes everything")
}

fn pack(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).expect("a vector takes everything")
}

/// Memfold's own format: what can be read is written the same.
pub(crate) fn native(bytes: &[u8]) {
    let read = |bytes: &[u8]| open(Format::Native, bytes)?.collect::<Result<Vec<_>, _>>().ok();
    if let Some(requests) = read(bytes) {
        assert_eq!(read(&write(&requests)), Some(requests));
    }
}

pub(crate) fn native_seeds() -> Vec<Vec<u8>> {
    vec![write(&[]), write(&sample()), pack(&write(&sample()))]
}

/// The inside of a block of memfold's own format, behind a checksum that is right. The first two bytes are the number of
/// its requests.
pub(crate) fn native_block(bytes: &[u8]) {
    let Some((count, body)) = bytes.split_first_chunk::<2>() else { return };
    let count = u32::from(u16::from_le_bytes(*count));
    let mut trace = b"MFTRACE1".to_vec();
    block(&mut trace, count, body);
    block(&mut trace, 0, &u64::from(count).to_le_bytes());
    native(&trace);
}

fn block(trace: &mut Vec<u8>, count: u32, body: &[u8]) {
    let head = [(body.len() as u32).to_le_bytes(), count.to_le_bytes()].concat();
    let sum = crc32fast::hash(&[&head, body].concat());
    trace.extend_from_slice(&head);
    trace.extend_from_slice(&sum.to_le_bytes());
    trace.extend_from_slice(body);
}

pub(crate) fn native_block_seeds() -> Vec<Vec<u8>> {
    let whole = write(&sample());
    // The mark has 8 bytes, a block's head 12, the last block 20.
    vec![[&whole[12..14], &whole[20..whole.len() - 20]].concat(), vec![1, 0, 2, 2]]
}

/// libCacheSim's format.
pub(crate) fn oracle_general(bytes: &[u8]) {
    drain(Format::OracleGeneral, bytes);
}

pub(crate) fn oracle_general_seeds() -> Vec<Vec<u8>> {
    let record = |request: &Request| {
        let time = (request.time as u32).to_le_bytes();
        [&time[..], &request.object.to_le_bytes(), &4096u32.to_le_bytes(), &(-1i64).to_le_bytes()].concat()
    };
    let records: Vec<u8> = sample().iter().flat_map(record).collect();
    vec![pack(&records), records]
}

/// CSV, with a column of times and without.
pub(crate) fn csv(bytes: &[u8]) {
    drain(Format::Csv(Columns::default()), bytes);
    drain(Format::Csv(BARE), bytes);
    drain(Format::Csv(Columns { object: 3, time: Some(2), separator: '\t', header: true }), bytes);
}

pub(crate) fn csv_seeds() -> Vec<Vec<u8>> {
    let text = b"time,object\n1,900\n2.5,five\n\n3,900\r\n1e9,007";
    vec![text.to_vec(), b"a;b\n5;6\n".to_vec(), b"x\ty\tz\n1\t2\t3\n".to_vec(), pack(text)]
}

/// Every format inside a whole zstd frame, and the bytes themselves as one that is broken. The first byte picks the format.
pub(crate) fn zstd(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    let format = match first % 3 {
        0 => Format::Native,
        1 => Format::OracleGeneral,
        _ => Format::Csv(Columns::default()),
    };
    drain(format, &pack(rest));
    drain(format, &[&[0x28, 0xb5, 0x2f, 0xfd], rest].concat());
}

pub(crate) fn zstd_seeds() -> Vec<Vec<u8>> {
    let [native, records, text] =
        [native_seeds().remove(1), oracle_general_seeds().remove(1), csv_seeds().remove(0)];
    let plain = [(0, &native), (1, &records), (2, &text)].map(|(n, bytes)| [&[n][..], bytes].concat());
    // The frame's mark is put in front of what follows the first byte.
    let frames = [(0, &native), (1, &records), (2, &text)].map(|(n, b)| [&[n][..], &pack(b)[4..]].concat());
    [plain, frames].concat()
}
