//! Access sources decide what is tried, and nothing else: whatever they say, no byte changes.

// Every address here lies in a mapping that the test itself made and holds.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::*;
use memfold_pager::config::Setting;
use memfold_pager::control::Command;
use memfold_pager::control_file::ControlDir;
use memfold_pager::report::{Report, PREFIX};
use memfold_pager::source::Kind;
use memfold_pager::{Engine, Phase};
use memfold_sys::PAGE_SIZE;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::thread::{scope, sleep};
use std::time::Duration;

/// The directory in which an engine hears what is reported.
struct Reports {
    dir: tempfile::TempDir,
    sequence: AtomicU64,
}

impl Reports {
    fn to(engine: &'static Engine) -> Reports {
        let dir = tempfile::tempdir().unwrap();
        let heard: &'static ControlDir = Box::leak(Box::default());
        unsafe { heard.set(dir.path().to_str().unwrap()) };
        engine.hear_reports_in(heard);
        Reports { dir, sequence: AtomicU64::new(1) }
    }

    fn put(&self, bytes: &[u8]) {
        let file =
            |name: &str| -> PathBuf { self.dir.path().join(format!("{name}{PREFIX}{}", std::process::id())) };
        fs::write(file("new-"), bytes).unwrap();
        fs::rename(file("new-"), file("")).unwrap();
    }

    /// That all of the memory has not been touched for an age.
    fn everything_is_cold(&self, kind: Kind, memory: &Memory) -> Vec<u8> {
        let mut report = Report::new(kind, self.sequence.fetch_add(1, Relaxed), 1_000_000, 1_000_000_000);
        report.note(memory.base, memory.base + memory.pages * PAGE_SIZE, u64::MAX);
        report.bytes()
    }
}

/// Has the threads of a test end with it, however that ends.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn choose(engine: &'static Engine, kind: Kind) {
    wait_until("the engine runs", || engine.phase() == Phase::Running);
    assert_eq!(request(engine, Command::Set, Setting::Source as u64, kind as u64, ""), 0);
}

fn is_asked(engine: &'static Engine, kind: Kind) -> bool {
    engine.control().source.load(Relaxed) == kind as u64
}

fn why(engine: &'static Engine) -> String {
    engine.control().source_why.read(&mut [0; 256]).to_owned()
}

#[test]
fn a_source_that_lies_all_the_time_loses_no_byte_of_threads_that_write() {
    const THREADS: usize = 3;
    let engine = engine(20);
    let reports = Reports::to(engine);
    let memory = Memory::new(engine, 8 * MIB).in_small_pages();
    memory.fill(31);
    choose(engine, Kind::DamonPaddr);
    let stop = AtomicBool::new(false);
    let turns = AtomicU64::new(0);
    scope(|scope| {
        let _ends = Ends(&stop);
        // Everything is cold, and now and then the report is none.
        scope.spawn(|| {
            let mut n = 0;
            while !stop.load(Relaxed) {
                let report = reports.everything_is_cold(Kind::DamonPaddr, &memory);
                match n % 8 {
                    5 => reports.put(&report[..report.len() / 2]),
                    6 => reports.put(&[0xA5; 5000]),
                    _ => reports.put(&report),
                }
                n += 1;
                sleep(Duration::from_millis(5));
            }
        });
        // Each has pages of its own, of which it knows what it wrote last.
        for thread in 0..THREADS {
            let (memory, stop, turns) = (&memory, &stop, &turns);
            scope.spawn(move || {
                let own: Vec<usize> = (thread..memory.pages).step_by(THREADS).collect();
                let mut seeds = vec![31u64; own.len()];
                let mut at = thread;
                while !stop.load(Relaxed) {
                    at = (at * 5 + 3) % own.len();
                    let page = own[at];
                    memory.check_page(seeds[at], page);
                    seeds[at] += 1;
                    let addr = (memory.base + page * PAGE_SIZE) as *mut [u64; PAGE_SIZE / 8];
                    unsafe { addr.write_volatile(content(seeds[at], page)) };
                    turns.fetch_add(1, Relaxed);
                    // The pager's thread, which is the last to get a CPU, must come to it too.
                    if at % 8 == 0 {
                        sleep(Duration::from_millis(1));
                    }
                }
                own.iter().zip(&seeds).for_each(|(&page, &seed)| memory.check_page(seed, page));
            });
        }
        let control = engine.control();
        let done = || {
            let back = control.pages_restored.load(Relaxed) + control.pages_second_chance.load(Relaxed);
            is_asked(engine, Kind::DamonPaddr)
                && control.pages_set_aside.load(Relaxed) > 3 * memory.pages as u64 / 2
                && back > memory.pages as u64 / 2
                && turns.load(Relaxed) > 2 * memory.pages as u64
        };
        // What comes back is left alone for longer each time, so a slow machine does not come to much more.
        wait_until("everything in use was set aside, and came back", done);
    });
    assert_eq!(engine.control().pages_lost.load(Relaxed), 0);
}

#[test]
fn what_is_reported_as_cold_goes_and_what_is_not_stays() {
    let engine = engine(20);
    let reports = Reports::to(engine);
    let memory = Memory::new(engine, 8 * MIB).in_small_pages();
    memory.fill(32);
    assert_eq!(request(engine, Command::Pause, 0, 0, ""), 0);
    choose(engine, Kind::Idle);
    assert_eq!(request(engine, Command::Restore, 0, 0, ""), 0);
    // The first half, as long as the report is believed.
    let half = Memory { base: memory.base, pages: memory.pages / 2 };
    let mut report = Report::new(Kind::Idle, 1, 600_000_000_000, 1_000_000_000);
    report.note(half.base, half.base + half.pages * PAGE_SIZE, u64::MAX);
    reports.put(&report.bytes());
    wait_until("the report is heard", || is_asked(engine, Kind::Idle) && why(engine).is_empty());
    assert_eq!(request(engine, Command::Resume, 0, 0, ""), 0);
    wait_until("what is cold is away", || evicted(engine) == (half.pages * PAGE_SIZE) as u64);
    // Nobody touched the other half either, and many cold ages go by.
    for _ in 0..20 {
        sleep(Duration::from_millis(20));
        assert_eq!(evicted(engine), (half.pages * PAGE_SIZE) as u64);
    }
    memory.check(32);
}

#[test]
fn without_reports_or_with_none_any_more_the_usual_source_is_asked_and_the_reason_shown() {
    let engine = engine(20);
    let reports = Reports::to(engine);
    let memory = Memory::new(engine, 4 * MIB).in_small_pages();
    choose(engine, Kind::DamonVaddr);
    memory.fill(33);
    wait_until("it goes on by the usual source", || evicted(engine) == 4 * MIB as u64);
    wait_until("it says that nobody reports", || why(engine).starts_with("nobody outside"));
    // A report of another source is none.
    reports.put(&reports.everything_is_cold(Kind::DamonPaddr, &memory));
    sleep(Duration::from_millis(200));
    assert!(is_asked(engine, Kind::Probe) && !why(engine).is_empty());
    reports.put(&reports.everything_is_cold(Kind::DamonVaddr, &memory));
    wait_until("the report is heard", || is_asked(engine, Kind::DamonVaddr));
    assert_eq!(why(engine), "");
    wait_until("it is too old", || is_asked(engine, Kind::Probe));
    assert!(why(engine).starts_with("no report for"), "{}", why(engine));
    reports.put(&Report::refusal(Kind::DamonVaddr, 99, 1, "somebody else has it").bytes());
    wait_until("the refusal is shown", || why(engine) == "somebody else has it");
    assert!(is_asked(engine, Kind::Probe));
    choose(engine, Kind::Auto);
    wait_until("nothing is amiss", || why(engine).is_empty());
    memory.check(33);
}

#[test]
fn by_writes_alone_all_that_is_not_written_is_compressed_and_reads_the_same() {
    let engine = engine(20);
    let memory = Memory::new(engine, 8 * MIB).in_small_pages();
    choose(engine, Kind::Writes);
    wait_until("it is asked", || is_asked(engine, Kind::Writes) && why(engine).is_empty());
    memory.fill(34);
    wait_until("everything is away", || evicted(engine) == 8 * MIB as u64);
    // What is written again and again stays, whoever reads the rest.
    let stop = AtomicBool::new(false);
    scope(|scope| {
        let _ends = Ends(&stop);
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                let addr = memory.base as *mut [u64; PAGE_SIZE / 8];
                unsafe { addr.write_volatile(content(34, 0)) };
                sleep(Duration::from_micros(200));
            }
        });
        memory.check(34);
        wait_until("the rest is away again", || {
            evicted(engine) >= (memory.pages as u64 - 8) * PAGE_SIZE as u64
        });
    });
    memory.check(34);
}

#[test]
fn under_a_policy_no_other_source_is_asked_and_the_reason_shown() {
    let (engine, memory) = policed("lru", 512, 2048, false);
    memory.fill(35);
    choose(engine, Kind::Writes);
    wait_until("it says why", || why(engine).starts_with("a policy"));
    assert!(is_asked(engine, Kind::Probe));
    assert_eq!(request(engine, Command::Policy, 0, 0, "age"), 0);
    wait_until("it is asked", || is_asked(engine, Kind::Writes) && why(engine).is_empty());
    memory.check(35);
}
