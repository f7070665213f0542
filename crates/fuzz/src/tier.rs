//! What comes back from below memory, and what programs and the process beside them say to each other.
//!
//! What comes from a disk or from an engine is sealed, unless a user wants none on a disk, so nobody can choose it; it is looked at like any foreign
//! bytes all the same.

use memfold_pager::codec::CodecId;
use memfold_pager::tier::arrived::{Arrived, Writer};
use memfold_pager::tier::checksum::{self, OWN};
use memfold_pager::tier::choice::{Choice, Where};
use memfold_pager::tier::clusters::Place;
use memfold_pager::tier::wire::{Answer, Op, Request};
use memfold_pager::tier::{BLOCK, CLUSTER_BYTES};
use memfold_sys::PAGE_SIZE;

/// A request, or an answer: either means what it says, or is refused.
pub(crate) fn message(bytes: &[u8]) {
    if let Some(request) = bytes.first_chunk().and_then(Request::parse) {
        assert!(request.len <= CLUSTER_BYTES);
        assert_eq!(Some(&request.bytes()), bytes.first_chunk());
    }
    if let Some(answer) = bytes.first_chunk().and_then(Answer::parse) {
        assert!(answer.len <= CLUSTER_BYTES);
        assert_eq!(Some(&answer.bytes()), bytes.first_chunk());
    }
}

pub(crate) fn messages() -> Vec<Vec<u8>> {
    let request = |op, len| Request { op, file: [7; 16], segment: 3, number: 9, len }.bytes().to_vec();
    let answer = |error, len| Answer { error, len }.bytes().to_vec();
    vec![
        request(Op::Own, 0),
        request(Op::Put, CLUSTER_BYTES),
        request(Op::Get, 4096),
        answer(0, 4096),
        answer(28, 0),
    ]
}

/// A cluster whose seal was opened.
pub(crate) fn cluster(bytes: &[u8]) {
    let len = bytes.len().min(CLUSTER_BYTES);
    let place = Place::new(0, 0, CLUSTER_BYTES / BLOCK, 1);
    let mut arrived = Arrived::new();
    arrived.room(place).expect("there is memory")[..len].copy_from_slice(&bytes[..len]);
    let _ = arrived.accept(1, place, len);
}

pub(crate) fn clusters() -> Vec<Vec<u8>> {
    let mut bytes = vec![0; CLUSTER_BYTES];
    let mut writer = Writer::new(&mut bytes);
    for len in [0, 100, 3000] {
        writer.room()[..len].fill(1);
        writer.add(CodecId::Zstd, len);
    }
    writer.room().fill(2);
    writer.add(CodecId::Whole, PAGE_SIZE);
    let (_, len) = writer.size();
    bytes.truncate(len);
    vec![bytes]
}

/// An unsealed cluster: what is marked holds, and no longer once a bit of it is another. The first bytes say which.
pub(crate) fn unsealed(bytes: &[u8]) {
    let Some(([at, bit, sequence, cluster], body)) = bytes.split_first_chunk() else { return };
    let (own, sequence, cluster) = ([*at; OWN], u32::from(*sequence), u32::from(*cluster));
    let _ = checksum::holds(&own, sequence, cluster, body);
    let mut marked = body.to_vec();
    if checksum::mark(&own, sequence, cluster, &mut marked) {
        assert!(checksum::holds(&own, sequence, cluster, &marked));
        assert!(!checksum::holds(&own, sequence + 1, cluster, &marked));
        let at = usize::from(*at) * 97 % marked.len();
        marked[at] ^= 1 << (bit % 8);
        assert!(!checksum::holds(&own, sequence, cluster, &marked));
    }
}

pub(crate) fn unsealed_ones() -> Vec<Vec<u8>> {
    vec![vec![0; 20], (0..200).collect(), vec![7; 4100]]
}

/// What somebody gives for `--tier`.
pub(crate) fn choice(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match Choice::parse(text) {
        Err(wrong) => assert!(!wrong.to_string().is_empty()),
        Ok(choice) => match choice.place {
            Where::Disk(directory) => assert!(!directory.is_empty()),
            Where::Engines(engines) => {
                assert!(choice.sealed, "nothing leaves the machine unsealed");
                assert!(
                    engines.copies.is_none_or(|copies| (1..=8).contains(&copies))
                        && engines.addresses().all(|address| !address.is_empty())
                );
            }
        },
    }
}

pub(crate) fn choices() -> Vec<Vec<u8>> {
    let texts = [
        "disk=/var/tmp,size=1G,after=30s",
        "disk=/var/tmp,seal=no,after=30s",
        "redis://a:6379,seal=yes,disk=/var/tmp",
        "redis://a:6379,disk=/var/tmp,seal=no",
        "redis://a:6379,b:6379,copies=2,auth=/etc/x,wait=5m,expire=1h",
        "rediss://[::1]:7,rediss://c/",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
