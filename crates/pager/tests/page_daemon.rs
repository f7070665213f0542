//! A page daemon in a real engine on real memory: it decides as it does in a simulation, and loses nothing.

// Every address here lies in a mapping that the test itself made and holds.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::*;
use memfold_pager::control::Command;
use memfold_policy::daemon::{Place, Row, INTERVAL};
use memfold_policy::spec::Spec;
use memfold_sys::{EXTENT_PAGES, EXTENT_SIZE, PAGE_SIZE};
use std::sync::atomic::Ordering::*;

fn write(memory: &Memory, page: usize) {
    unsafe { core::ptr::write_volatile((memory.base + page * PAGE_SIZE) as *mut u64, page as u64) };
}

/// Whether the page is in the program's view.
fn in_view(pagemap: &memfold_sys::pagemap::Pagemap, memory: &Memory, page: usize) -> bool {
    let mut entry = [memfold_sys::pagemap::Entry::default()];
    pagemap.entries(memory.base + page * PAGE_SIZE, &mut entry).unwrap();
    entry[0].present()
}

/// The last row of a log, as the names and values that a daemon's own row has too.
fn last_row(path: &std::path::Path) -> Vec<(String, u64)> {
    let text = std::fs::read_to_string(path).unwrap();
    let head = text.lines().next().unwrap().split(',').map(str::to_owned);
    let row = text.lines().next_back().unwrap().split(',').map(|value| value.parse().unwrap());
    head.zip(row).collect()
}

/// What the log should say of a row.
fn expected(row: &Row) -> [(&'static str, u64); 12] {
    [
        ("active_scan", row.active_scan.into()),
        ("inactive_scan", row.inactive_scan.into()),
        ("scanned", row.scanned),
        ("active_to_inactive", row.active_to_inactive),
        ("inactive_to_active", row.inactive_to_active),
        ("inactive_to_free", row.inactive_to_free),
        ("arrived", row.arrived),
        ("free_to_active", row.free_to_active),
        ("active", row.active),
        ("inactive", row.inactive),
        ("free", row.free),
        ("evicted", row.evicted),
    ]
}

#[test]
fn the_same_touches_bring_the_same_decisions_in_an_engine_and_in_a_simulation() {
    const PAGES: usize = 2 * EXTENT_PAGES;
    const LIMIT: usize = 256;
    let pagemap = memfold_sys::pagemap::Pagemap::open().unwrap();
    let dir = tempfile::tempdir().unwrap();
    for policy in ["freebsd", "bonchance:seed=9", "lru", "s3fifo:small=0.2", "mglru"] {
        let (engine, memory) = policed(policy, LIMIT, PAGES, true);
        let memory = memory.in_small_pages();
        let first = memory.base % EXTENT_SIZE / PAGE_SIZE;
        let universe = (first + PAGES).next_multiple_of(EXTENT_PAGES);
        let mut daemon = Spec::parse(policy).unwrap().make_daemon(LIMIT, universe).unwrap();
        let log = dir.path().join(policy.split(':').next().unwrap());
        assert_eq!(request(engine, Command::Log, 0, 0, log.to_str().unwrap()), 0);
        let number = |page: usize| (first + page) as u32;
        let mut random = 7u64;
        let mut stayed: Vec<usize> = Vec::new();
        let mut spared = vec![false; PAGES];
        let (mut decisions, mut strays) = (0, 0);
        for round in 0..40 {
            let mut touched = vec![false; PAGES];
            for _ in 0..80 {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // Even pages only: the pager goes ahead of touches of neighbours. Half of them come again and again.
                let range = if random >> 63 == 0 { PAGES / 8 } else { PAGES };
                let page = ((random >> 33) as usize % range) & !1;
                write(&memory, page);
                touched[page] = true;
            }
            // What the kernel would not let go counts as touched.
            stayed.iter().for_each(|&page| touched[page] = true);
            for page in (0..PAGES).filter(|&page| touched[page]) {
                daemon.touch(number(page), false);
            }
            // Only this clock counts for the daemon: the engine is paused, and passes when it is asked to.
            assert_eq!(request(engine, Command::Pass, 0, INTERVAL, ""), 0);
            let row = daemon.pass(LIMIT, INTERVAL);
            let logged = last_row(&log);
            for (name, value) in expected(&row) {
                let found = logged.iter().find(|(column, _)| column == name).unwrap().1;
                assert_eq!(found, value, "{policy}, round {round}: {name}; {row:?}");
            }
            stayed.clear();
            for page in 0..PAGES {
                let place = daemon.place(number(page));
                // What was touched while inactive stays in view until the daemon looks at it.
                spared[page] = (spared[page] || touched[page]) && place == Place::Inactive;
                match (place, in_view(&pagemap, &memory, page)) {
                    // An active page may be away: one that was referenced while inactive, and activated later.
                    (Place::Active, _) | (Place::Out, false) => {}
                    (_, true) if spared[page] => {}
                    (_, true) => stayed.push(page),
                    (_, false) => decisions += 1,
                }
            }
            strays += stayed.len();
        }
        assert!(
            decisions > 300 && strays * 50 < decisions,
            "{policy}: {decisions} decisions, {strays} strays"
        );
        for page in (0..PAGES).step_by(2) {
            let found = unsafe { *((memory.base + page * PAGE_SIZE) as *const u64) };
            assert!(found == page as u64 || found == 0, "page {page} holds {found}");
        }
    }
}

#[test]
fn every_byte_survives_while_policies_change_under_a_limit_below_what_is_needed() {
    const PAGES: usize = 4096;
    let (engine, memory) = policed("freebsd", PAGES / 4, PAGES, false);
    memory.fill(11);
    let policies = ["bonchance", "lru", "age", "arc", "mglru", "freebsd", "random", "twoq", "sieve"];
    for policy in policies {
        assert_eq!(request(engine, Command::Policy, 0, 0, policy), 0, "{policy}");
        for page in (0..PAGES).step_by(3) {
            memory.check_page(11, page);
        }
    }
    assert_eq!(request(engine, Command::Policy, 0, 0, "clairvoyant"), libc::EINVAL as u32);
    wait_until("it is down to the limit", || {
        evicted(engine) >= ((PAGES - PAGES / 4 - PAGES / 64) * PAGE_SIZE) as u64
    });
    memory.check(11);
    assert_eq!(engine.control().pages_lost.load(Relaxed), 0);
    engine.stop(&"the test is over");
    memory.check(11);
}

#[test]
fn the_logged_queues_gain_and_lose_what_the_counters_say() {
    const PAGES: usize = 2048;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("passes.csv");
    let (engine, memory) = policed("freebsd", PAGES / 2, PAGES, false);
    assert_eq!(request(engine, Command::Log, 0, 0, path.to_str().unwrap()), 0);
    memory.fill(5);
    wait_until("it is down to the limit", || evicted(engine) >= (PAGES / 2 * PAGE_SIZE) as u64);
    // What is compressed between two passes stands in the row of the later one.
    let passes = || engine.control().passes.load(Relaxed);
    let so_far = passes();
    wait_until("another pass is made", || passes() > so_far);
    memory.check(5);
    assert_eq!(request(engine, Command::Log, 0, 0, ""), 0);
    let text = std::fs::read_to_string(&path).unwrap();
    let logged = passes();
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap().split(',').collect();
    let rows: Vec<Vec<i64>> = lines.map(|l| l.split(',').map(|v| v.parse().unwrap()).collect()).collect();
    assert!(rows.len() > 3 && rows.len() as u64 <= logged, "{} of {logged}", rows.len());
    let at = |row: &Vec<i64>, name: &str| row[head.iter().position(|h| *h == name).unwrap()];
    for pair in rows.windows(2) {
        let (before, row) = (&pair[0], &pair[1]);
        assert_eq!(at(row, "pass"), at(before, "pass") + 1);
        assert_eq!(
            at(row, "inactive"),
            at(before, "inactive") + at(row, "active_to_inactive")
                - at(row, "inactive_to_active")
                - at(row, "inactive_to_free"),
            "{row:?}"
        );
        assert_eq!(
            at(row, "active"),
            at(before, "active")
                + at(row, "arrived")
                + at(row, "inactive_to_active")
                + at(row, "free_to_active")
                - at(row, "active_to_inactive"),
            "{row:?}"
        );
    }
    let last = rows.last().unwrap();
    assert!(at(last, "limit") == PAGES as i64 / 2 && rows.iter().any(|row| at(row, "compressed") > 0));
    // Logging has ended.
    wait_until("another pass is made", || passes() > logged + 1);
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), rows.len() + 1);
}

/// A column of the last row.
fn last(path: &std::path::Path, column: &str) -> u64 {
    let row = last_row(path);
    row.iter().find(|(name, _)| name == column).unwrap_or_else(|| panic!("no column {column}")).1
}

#[test]
fn the_laundry_is_what_waits_to_be_compressed_and_nothing_that_is_stored() {
    const PAGES: usize = 2048;
    let dir = tempfile::tempdir().unwrap();
    for policy in ["freebsd", "lru"] {
        let log = dir.path().join(policy);
        let (engine, memory) = policed(policy, PAGES / 4, PAGES, false);
        assert_eq!(request(engine, Command::Log, 0, 0, log.to_str().unwrap()), 0);
        memory.fill(7);
        let most = || evicted(engine) >= ((PAGES - PAGES / 4) * PAGE_SIZE) as u64;
        wait_until("it is down to the limit", most);
        // Nobody touches anything, so what was freed by then is soon compressed, and most of the memory is stored.
        wait_until("nothing waits any more", || log.exists() && last(&log, "laundry") == 0);
        assert!(most(), "{policy}: what is stored came back by itself");
        memory.check(7);
        engine.stop(&"the test is over");
    }
}

#[test]
fn a_fault_is_counted_once_and_what_its_window_brought_is_no_reference() {
    const PAGES: usize = 2 * EXTENT_PAGES;
    const LIMIT: usize = 256;
    let dir = tempfile::tempdir().unwrap();
    for policy in ["freebsd", "lru"] {
        let log = dir.path().join(policy);
        let (engine, memory) = policed(policy, LIMIT, PAGES, true);
        let memory = memory.in_small_pages();
        assert_eq!(request(engine, Command::Log, 0, 0, log.to_str().unwrap()), 0);
        let pass = || assert_eq!(request(engine, Command::Pass, 0, INTERVAL, ""), 0);
        (0..PAGES).for_each(|page| write(&memory, page));
        let stored = || evicted(engine) >= ((PAGES - 2 * LIMIT) * PAGE_SIZE) as u64;
        for _ in 0..400 {
            pass();
            if stored() {
                break;
            }
        }
        assert!(stored(), "{policy}: {} of {PAGES} pages are stored", evicted(engine) / PAGE_SIZE as u64);
        // Passes that see nothing touched, until none of the pages that are about to be read is in view.
        let first = PAGES / 2 + 8;
        let pagemap = memfold_sys::pagemap::Pagemap::open().unwrap();
        let away = || (first..first + 24).all(|page| !in_view(&pagemap, &memory, page));
        (0..100).take_while(|_| !away()).for_each(|_| pass());
        assert!(away(), "{policy}: what nobody touches stays");
        let served = || engine.control().restore_ns.count.load(Relaxed);
        let before = (served(), faults_so_far());
        for page in first..first + 16 {
            assert_eq!(unsafe { *((memory.base + page * PAGE_SIZE) as *const u64) }, page as u64);
        }
        let most = faults_so_far() - before.1;
        pass();
        let row = |column| last(&log, column);
        let faults = row("faults");
        assert!((1..16).contains(&faults), "{policy}: nothing was brought ahead: {:?}", last_row(&log));
        // One whose page was on its way already is a fault, but no restore of its own.
        assert!(faults <= most, "{policy}: {faults} of {most}: {:?}", last_row(&log));
        assert!(served() - before.0 <= faults, "{policy}: {:?}", last_row(&log));
        let found = row("arrived") + row("free_to_active") + row("inactive_to_active");
        // FreeBSD's daemon leaves a page that was touched while inactive where it is until it scans that queue.
        assert!((1..=faults).contains(&found), "{policy}: {found} of {faults}: {:?}", last_row(&log));
        let ahead = row("brought_ahead");
        assert!(ahead >= 16 - faults, "{policy}: {ahead} came ahead, {faults} faults");
        assert!(row("minor_faults") <= faults && row("restored") <= faults + ahead, "{policy}");
        engine.stop(&"the test is over");
        memory_is(&memory);
    }
}

#[test]
fn pages_that_do_not_shrink_stay_and_are_not_tried_again_pass_after_pass() {
    const PAGES: usize = 1024;
    let (engine, memory) = policed("freebsd", PAGES / 4, PAGES, true);
    let memory = memory.in_small_pages();
    let mut random = 7u64;
    let words = (memory.base as *mut u64, PAGES * PAGE_SIZE / 8);
    for word in unsafe { core::slice::from_raw_parts_mut(words.0, words.1) } {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        *word = random;
    }
    let tried = || engine.control().pages_incompressible.load(Relaxed);
    let pass = || assert_eq!(request(engine, Command::Pass, 0, INTERVAL, ""), 0);
    for _ in 0..60 {
        pass();
    }
    // Each at most once, and a few more whose try was interrupted.
    assert!((1..=PAGES as u64 * 5 / 4).contains(&tried()), "{} tries of {PAGES} pages", tried());
}

/// How many faults this thread has had, as the kernel counts them.
fn faults_so_far() -> u64 {
    let mut usage = core::mem::MaybeUninit::<libc::rusage>::uninit();
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) }, 0);
    let usage = unsafe { usage.assume_init() };
    (usage.ru_minflt + usage.ru_majflt) as u64
}

fn memory_is(memory: &Memory) {
    for page in 0..memory.pages {
        assert_eq!(unsafe { *((memory.base + page * PAGE_SIZE) as *const u64) }, page as u64);
    }
}
