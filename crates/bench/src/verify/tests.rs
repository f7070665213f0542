//! The verifier fails when it should: each test spoils memory behind the model's back, as a faulty pager would.

use super::area::Area;
use super::blocks::Block;
use super::calls::Pipe;
use super::children::{self, Kind};
use super::findings::{lock, Findings, Tags, WAYS};
use super::invocation::Way;
use super::pieces::cut_at;
use super::ring::{Hand, Ring};
use super::tally::Tally;
use super::{run, Options, Work};
use crate::content::Content;
use memfold_stats::Rng;
use memfold_sys::{mem, PAGE_SIZE};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;

fn options(without: &[Work]) -> Options {
    Options {
        seconds: 60,
        operations: Some(150),
        threads: 2,
        seed: 11,
        without: without.to_vec(),
        torture: false,
    }
}

fn findings() -> Findings {
    Findings::new(Content::varied(1))
}

fn mismatches(findings: &Findings) -> u64 {
    findings.mismatch_count.load(Relaxed)
}

/// An area of eight written pages.
fn written(findings: &Findings) -> (Area, Tags) {
    let (mut area, mut tags) = (Area::map(8).unwrap(), Tags::new(5));
    area.write(findings.content, 0..8, &mut tags);
    (area, tags)
}

fn copy_page(area: &Area, from: usize, to: usize) {
    // SAFETY: two different pages of the area.
    unsafe {
        std::ptr::copy_nonoverlapping(area.address(from) as *const u8, area.address(to) as *mut u8, PAGE_SIZE)
    };
}

#[test]
fn all_work_together_finds_nothing_wrong_in_a_plain_process() {
    let report = run(&options(&[])).unwrap();
    assert!(report.passed(), "{report}");
    assert!(report.operations >= 300 && report.bytes_verified > 0, "{report}");
}

#[test]
fn a_page_that_reads_as_zeros_is_found() {
    let findings = findings();
    let (area, _) = written(&findings);
    area.check(&findings, "test", 0..8);
    assert_eq!(mismatches(&findings), 0);
    // SAFETY: the test's own memory; losing it is the point.
    unsafe { mem::madvise(area.address(3), PAGE_SIZE, libc::MADV_DONTNEED).unwrap() };
    area.check(&findings, "test", 0..8);
    assert_eq!(mismatches(&findings), 1);
    let kept = lock(&findings.mismatches);
    assert!((area.address(3)..area.address(4)).contains(&kept[0].address), "{}", kept[0]);
}

#[test]
fn a_page_that_holds_its_neighbour_or_its_own_past_is_found() {
    let findings = findings();
    let (mut area, mut tags) = written(&findings);
    copy_page(&area, 1, 2);
    area.check(&findings, "test", 0..8);
    assert_eq!(mismatches(&findings), 1, "a neighbour");
    copy_page(&area, 4, 5);
    area.write(findings.content, 4..5, &mut tags);
    copy_page(&area, 5, 4);
    area.check(&findings, "test", 4..5);
    assert_eq!(mismatches(&findings), 2, "the past");
}

#[test]
fn a_single_lost_word_is_found() {
    let findings = findings();
    let (mut area, _) = written(&findings);
    area.patch(6, 100, 42);
    area.check(&findings, "test", 0..8);
    assert_eq!(mismatches(&findings), 0);
    // SAFETY: within the test's own area.
    unsafe { (area.address(6) as *mut u64).add(100).write_volatile(43) };
    area.check(&findings, "test", 0..8);
    assert_eq!(mismatches(&findings), 1);
}

#[test]
fn dropped_memory_that_keeps_its_old_bytes_is_found() {
    let findings = findings();
    let (mut area, _) = written(&findings);
    area.dont_need(2..4, Way::Named).unwrap();
    area.check(&findings, "test", 0..8);
    assert_eq!(mismatches(&findings), 0);
    copy_page(&area, 1, 2);
    area.check(&findings, "test", 0..8);
    assert_eq!(mismatches(&findings), 1);
}

#[test]
fn a_page_freed_lazily_may_keep_its_bytes_or_be_zero_but_nothing_else() {
    let findings = findings();
    let (mut area, _) = written(&findings);
    area.free(0..2, Way::Named).unwrap();
    area.check(&findings, "test", 0..2);
    // SAFETY: the test's own memory.
    unsafe { mem::madvise(area.address(0), PAGE_SIZE, libc::MADV_DONTNEED).unwrap() };
    area.check(&findings, "test", 0..2);
    assert_eq!(mismatches(&findings), 0);
    copy_page(&area, 5, 1);
    area.check(&findings, "test", 0..2);
    assert_eq!(mismatches(&findings), 1);
}

#[test]
fn memory_goes_to_the_kernel_and_back_on_every_way() {
    let findings = findings();
    let (from, mut tags) = written(&findings);
    let (mut to, mut pipe, mut rng) = (Area::map(8).unwrap(), Pipe::new().unwrap(), Rng::new(3));
    to.write(findings.content, 0..8, &mut tags);
    for _ in 0..200 {
        pipe.transfer(&findings, &from, &mut to, &mut rng).unwrap();
        to.check(&findings, "test", 0..8);
    }
    assert_eq!(mismatches(&findings), 0);
    let has_ring = Ring::open().unwrap().is_some();
    for (way, count) in WAYS.into_iter().zip(&findings.called) {
        // Not every file system has direct transfers, nor every machine io_uring.
        let may_lack = way == "direct" || !has_ring && ["io_uring", "registered_buffers"].contains(&way);
        assert!(count.load(Relaxed) > 0 || may_lack, "nothing went by {way}");
    }
}

#[test]
fn a_byte_that_changes_on_its_way_through_a_ring_is_found() {
    let Some(mut ring) = Ring::open().unwrap() else { return };
    for apart in [false, true] {
        for registered in [false, true] {
            let findings = findings();
            let (area, mut target) = (written(&findings).0, Area::map(8).unwrap());
            let (start, end, bytes) = (area.address(0), target.address(0), 8 * PAGE_SIZE);
            let hands =
                if registered { [Hand::Registered(0), Hand::Registered(1)] } else { [Hand::Cut(9); 2] };
            let buffers = [cut_at(start, bytes, bytes)[0], cut_at(end, bytes, bytes)[0]];
            for wrong in [false, true] {
                // SAFETY: both areas are the test's own, and mapped meanwhile.
                let done = unsafe {
                    ring.registered(buffers, |ring| {
                        ring.write(start, bytes, hands[0], apart)?;
                        if wrong {
                            let byte = *((start + 5 * PAGE_SIZE + 77) as *const u8);
                            ring.file.write_all_at(&[!byte], 5 * PAGE_SIZE as u64 + 77)?;
                        }
                        ring.read(end, bytes, hands[1], apart)
                    })
                };
                assert!(done.unwrap());
                target.became(0, area.states(0..8).unwrap());
                target.check(&findings, "test", 0..8);
                assert_eq!(mismatches(&findings), u64::from(wrong), "{hands:?}, apart: {apart}");
            }
        }
    }
}

#[test]
fn a_page_that_leaves_its_frame_while_it_is_a_registered_buffer_is_found() {
    let Some(mut ring) = Ring::open().unwrap() else { return };
    let (findings, bytes) = (findings(), 8 * PAGE_SIZE);
    let (area, mut target) = (written(&findings).0, written(&findings).0);
    let [from, to] = [&area, &target].map(|area| cut_at(area.address(0), bytes, bytes)[0]);
    // SAFETY: both areas are the test's own, and mapped meanwhile; losing a page is the point.
    let done = unsafe {
        ring.registered([from, to], |ring| {
            ring.write(area.address(0), bytes, Hand::Registered(0), false)?;
            mem::madvise(target.address(3), PAGE_SIZE, libc::MADV_DONTNEED).unwrap();
            ring.read(target.address(0), bytes, Hand::Registered(1), false)
        })
    };
    assert!(done.unwrap());
    target.became(0, area.states(0..8).unwrap());
    target.check(&findings, "test", 0..8);
    assert_eq!(mismatches(&findings), 1);
}

#[test]
fn a_spoilt_block_is_found_to_its_last_byte() {
    let findings = findings();
    let (mut rng, mut tags) = (Rng::new(1), Tags::new(5));
    for _ in 0..200 {
        let block = Block::allocate(&findings, &mut rng, &mut tags).unwrap();
        block.check(&findings);
        assert_eq!(mismatches(&findings), 0);
        block.spoil_last_byte();
        block.check(&findings);
        assert_eq!(findings.mismatch_count.swap(0, Relaxed), 1);
    }
}

#[test]
fn a_lost_increment_is_found() {
    let findings = findings();
    let tally = Tally::map().unwrap();
    (0..100).for_each(|draw| tally.count(draw));
    tally.check(&findings, 100);
    assert_eq!(mismatches(&findings), 0);
    tally.check(&findings, 101);
    assert_eq!(mismatches(&findings), 1);
}

#[test]
fn what_a_child_finds_wrong_or_how_it_dies_reaches_its_parent() {
    let findings = findings();
    let (area, _) = written(&findings);
    let child = children::make(&findings, Kind::Forked, |_| area.check(&findings, "area", 0..8)).unwrap();
    child.wait(&findings);
    assert_eq!((mismatches(&findings), findings.bytes_verified.load(Relaxed)), (0, 8 * PAGE_SIZE as u64));
    let child = children::make(&findings, Kind::Forked, |_| {
        copy_page(&area, 0, 1);
        area.check(&findings, "area", 0..8);
    });
    child.unwrap().wait(&findings);
    assert_eq!(mismatches(&findings), 1);
    assert!(lock(&findings.mismatches)[0].what.starts_with("area in child"));
    // SAFETY: the child ends itself, which is the point.
    let child = children::make(&findings, Kind::Forked, |_| unsafe { libc::_exit(9) }).unwrap();
    child.wait(&findings);
    assert!(lock(&findings.failures)[0].contains("status 9"));
}

#[test]
fn kinds_of_work_are_named_as_on_the_command_line() {
    for work in Work::ALL.into_iter() {
        let name = work.name();
        assert_eq!(name.parse::<Work>(), Ok(work));
        assert_eq!(serde_json::to_string(&work).unwrap(), format!("\"{name}\""));
    }
    assert!("everything".parse::<Work>().unwrap_err().contains("sabotage"));
}
