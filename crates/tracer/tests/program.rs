//! What is recorded of a program whose accesses are known.
#![cfg(target_arch = "x86_64")]

use memfold_sim::format::Request;
use memfold_tracer::{record, End, Mode, Recorded};
use std::collections::HashSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const PAGES: u64 = 64;
const BITS: Mode = Mode::Bits(Duration::from_millis(5));

/// What was recorded of the program's part of that name, and its 64 pages' requests by the pages' numbers from 0.
fn recorded(part: &str, mode: Mode, most: u64) -> (Recorded, Vec<Request>) {
    let folder = tempfile::tempdir().unwrap();
    let (program, said) = (folder.path().join("touches"), folder.path().join("said"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/touches.c");
    let built =
        Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&program).arg(source).status().unwrap();
    assert!(built.success());
    let mut command = Command::new(&program);
    command.arg(part).stdout(std::fs::File::create(&said).unwrap());
    let mut requests = Vec::new();
    let recorded = record(command, mode, most, |request| {
        requests.push(request);
        Ok(())
    });
    let recorded = recorded.unwrap();
    assert_eq!(recorded.requests, requests.len() as u64);
    let base = u64::from_le_bytes(std::fs::read(&said).unwrap()[..8].try_into().unwrap()) / 4096;
    let ours = requests.into_iter().filter(|request| (base..base + PAGES).contains(&request.object));
    (recorded, ours.map(|request| Request { object: request.object - base, ..request }).collect())
}

#[test]
fn an_exact_recording_has_every_access_in_its_order() {
    let (recorded, requests) = recorded("exact", Mode::Exact, u64::MAX);
    assert_eq!((recorded.code, recorded.end), (0, End::Program));
    let objects: Vec<u64> = requests.iter().map(|request| request.object).collect();
    let expected: Vec<u64> = (0..3 * PAGES).map(|n| n % PAGES).chain([0, 1]).collect();
    assert_eq!(objects, expected);
    assert!(requests.windows(2).all(|pair| pair[0].time < pair[1].time));
}

#[test]
fn a_recorded_program_does_what_it_would_do_alone() {
    for mode in [Mode::Exact, BITS] {
        let (recorded, requests) = recorded("kernel", mode, u64::MAX);
        assert_eq!((recorded.code, recorded.end), (0, End::Program), "{mode:?}");
        assert!(requests.iter().any(|request| request.object == 1), "{mode:?}");
        let (recorded, _) = self::recorded("signal", mode, u64::MAX);
        assert_eq!((recorded.code, recorded.end), (128 + 15, End::Program), "{mode:?}");
    }
}

#[test]
fn a_page_has_one_request_an_interval_and_the_next_interval_sees_it_again() {
    let (recorded, requests) = recorded("busy", BITS, u64::MAX);
    assert_eq!((recorded.code, recorded.end), (0, End::Program));
    let bits: HashSet<(u64, u64)> = requests.iter().map(|request| (request.time, request.object)).collect();
    assert_eq!(bits.len(), requests.len());
    assert_eq!(requests.iter().map(|request| request.object).collect::<HashSet<_>>().len() as u64, PAGES);
    let again = requests.iter().filter(|request| request.object == 3).count();
    assert!(again >= 2, "page 3 was seen in {again} intervals");
}

#[test]
fn a_program_goes_on_alone_after_a_second_thread_or_enough_requests() {
    for mode in [Mode::Exact, BITS] {
        let (threads, requests) = recorded("threads", mode, u64::MAX);
        assert_eq!((threads.code, threads.end), (9, End::Thread), "{mode:?}");
        assert!(requests.iter().any(|request| request.object == 5), "{mode:?}");
    }
    let (limited, _) = recorded("exact", Mode::Exact, 5);
    assert_eq!((limited.code, limited.end, limited.requests), (0, End::Limit, 5));
}
