//! Moves that are made although the kernel says that they were not (Linux 6.18 does so when a move succeeds at its second try), and an error at the next
//! call: what moved counts as moved, to the last page.
//!
//! Built with the feature `inject` only: `cargo test -p memfold-pager --features inject --test unseen`.
#![cfg(feature = "inject")]

mod common;

use common::*;
use memfold_pager::config::Setting;
use memfold_pager::control::Command;
use memfold_pager::{Engine, Phase};
use memfold_sys::inject::{fail_next, Failure, Point};
use memfold_sys::pagemap::{Entry, Pagemap};
use memfold_sys::{Errno, EXTENT_PAGES, EXTENT_SIZE, PAGE_SIZE};

/// An extent, one huge page where the machine has any, that is set aside and stays so; the first moves fail like this.
fn set_aside(seed: u64, failures: &[Failure]) -> (&'static Engine, Memory) {
    let engine = engine(200);
    let memory = Memory::new(engine, EXTENT_SIZE).in_huge_pages();
    wait_until("it runs", || engine.phase() == Phase::Running);
    memory.fill(seed);
    fail_next(Point::Move, failures);
    wait_until("it is set aside", || engine.is_away(memory.base, EXTENT_SIZE));
    // It would be compressed soon.
    request(engine, Command::Set, Setting::ColdAge as u64, 3_600_000_000_000, "");
    (engine, memory)
}

#[test]
fn what_left_unseen_is_away_also_where_the_next_move_fails() {
    let (engine, memory) = set_aside(1, &[Failure::Unseen, Failure::Error(Errno::EBUSY)]);
    memory.check_page(1, EXTENT_PAGES - 1);
    memory.check(1);
    assert_eq!(fail_next(Point::Move, &[]), 0, "moves that were to fail did not");
    engine.stop(&"there is another");
    memory.check(1);
}

#[test]
fn what_came_back_unseen_is_there_also_where_the_next_copy_fails() {
    let (engine, memory) = set_aside(2, &[]);
    fail_next(Point::Move, &[Failure::Unseen]);
    fail_next(Point::Copy, &[Failure::Error(Errno::EAGAIN)]);
    memory.check_page(2, EXTENT_PAGES - 1);
    fail_next(Point::Move, &[]);
    fail_next(Point::Copy, &[]);
    let mut pages = [Entry::default(); EXTENT_PAGES];
    assert_eq!(Pagemap::open().unwrap().entries(memory.base, &mut pages), Ok(EXTENT_PAGES));
    for (page, _) in pages.iter().enumerate().filter(|(_, page)| page.present()) {
        assert!(!engine.is_away(memory.base + page * PAGE_SIZE, PAGE_SIZE), "page {page} counts as away");
    }
    memory.check(2);
    engine.stop(&"there is another");
    memory.check(2);
}
