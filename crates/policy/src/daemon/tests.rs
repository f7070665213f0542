use super::*;
use crate::spec::{names, Spec};
use alloc::boxed::Box;
use proptest::prelude::*;
use std::vec::Vec;

fn daemon(spec: &str, limit: usize, universe: usize) -> Box<dyn PageDaemon + Send> {
    Spec::parse(spec).unwrap().make_daemon(limit, universe).unwrap()
}

fn live() -> impl Iterator<Item = &'static str> {
    names().filter(|name| *name != "belady")
}

/// Passes with nothing but time between them until page 0 is no longer active.
fn passes_until_inactive(spec: &str) -> usize {
    let mut daemon = daemon(spec, 100, 100);
    for page in 0..100 {
        daemon.touch(page, false);
    }
    (1..100)
        .find(|_| {
            daemon.pass(100, INTERVAL);
            daemon.place(0) != Place::Active
        })
        .unwrap()
}

#[test]
fn an_unreferenced_page_loses_one_a_scan_with_freebsd_and_half_with_bon_chance() {
    // 5, 4, 3, 2, 1, 0 and 5, 2, 1, 0.
    assert_eq!(passes_until_inactive("freebsd"), 5);
    assert_eq!(passes_until_inactive("bonchance"), 3);
}

#[test]
fn a_reference_adds_four_up_to_sixty_four() {
    let mut daemon = daemon("freebsd", 4, 16);
    (0..4).for_each(|page| daemon.touch(page, false));
    // 5 + 20 times 4 is more than 64.
    for _ in 0..20 {
        (0..4).for_each(|page| daemon.touch(page, false));
        daemon.pass(4, INTERVAL);
    }
    let passes = (1..).find(|_| {
        daemon.touch(1, false);
        daemon.touch(2, false);
        daemon.touch(3, false);
        daemon.pass(4, INTERVAL);
        daemon.place(0) != Place::Active
    });
    assert_eq!(passes, Some(64));
}

#[test]
fn a_dirty_page_is_laundered_before_it_is_freed_and_a_clean_one_is_not() {
    for written in [false, true] {
        let mut daemon = daemon("freebsd", 50, 100);
        (0..60).for_each(|page| daemon.touch(page, written));
        let rows: Vec<Row> = (0..20).map(|_| daemon.pass(50, INTERVAL)).collect();
        let (laundered, straight) =
            rows.iter().fold((0, 0), |(l, f), row| (l + row.laundered, f + row.inactive_to_free));
        assert_eq!((laundered > 0, straight > 0), (written, !written), "written: {written}");
        assert!(daemon.in_use() <= 50);
    }
}

#[test]
fn a_touch_of_an_inactive_page_saves_it() {
    let mut daemon = daemon("freebsd", 100, 200);
    (0..100).for_each(|page| daemon.touch(page, false));
    while daemon.place(0) != Place::Inactive {
        daemon.pass(100, INTERVAL);
    }
    daemon.touch(0, false);
    let mut saved = 0;
    for _ in 0..5 {
        (100..110).for_each(|page| daemon.touch(page, false));
        saved += daemon.pass(100, INTERVAL).inactive_to_active;
    }
    assert_eq!((saved, daemon.place(0)), (1, Place::Active));
}

#[test]
fn a_page_that_was_brought_ahead_is_inactive_until_it_is_touched_and_no_reference_before() {
    for name in live() {
        let mut daemon = daemon(name, 32, 64);
        (0..16).for_each(|page| daemon.bring(page));
        let row = daemon.pass(32, INTERVAL);
        assert_eq!((row.brought, row.arrived, row.active, row.inactive), (16, 0, 0, 16), "{name}");
        daemon.touch(3, false);
        (0..16).for_each(|page| daemon.bring(page));
        for page in 40..60 {
            daemon.touch(page, false);
        }
        let row = daemon.pass(24, INTERVAL);
        assert!(row.brought == 0 && row.arrived == 20, "{name}: what is there cannot be brought");
        // What was never touched goes first.
        let mut places = (0..16).map(|page| daemon.place(page));
        assert!(places.any(|place| matches!(place, Place::Free | Place::Out)), "{name}");
        assert!(!matches!(daemon.place(3), Place::Free | Place::Out), "{name}: what was touched went");
    }
}

#[test]
fn every_active_page_is_looked_at_once_in_the_period_even_without_any_shortage() {
    let mut daemon = daemon("freebsd:period=1,free=0", 2000, 1010);
    (0..1010).for_each(|page| daemon.touch(page, false));
    let mut pass = || {
        (0..1000).for_each(|page| daemon.touch(page, false));
        daemon.pass(2000, INTERVAL)
    };
    // The ten that are not touched become inactive, and the inactive queue is then long enough.
    while pass().inactive == 0 {}
    let looked: Vec<u64> = (0..10).map(|_| pass().scanned).collect();
    assert!(looked.iter().all(|&pages| (95..=105).contains(&pages)), "{looked:?}");
}

proptest! {
    #[test]
    fn the_queue_counters_add_up_on_every_pass_and_the_limit_is_reached(
        passes in prop::collection::vec(
            (
                prop::collection::vec((0u32..128, any::<bool>()), 0..60),
                prop::collection::vec(0u32..128, 0..9),
                prop::collection::vec(0u32..128, 0..4),
                8usize..64,
            ),
            1..40,
        )
    ) {
        for name in live() {
            let mut daemon = daemon(name, 32, 64);
            daemon.grow(128);
            let mut before = Row::default();
            for (touches, brought, removed, limit) in &passes {
                touches.iter().for_each(|&(page, written)| daemon.touch(page, written));
                brought.iter().for_each(|&page| daemon.bring(page));
                removed.iter().for_each(|&page| daemon.remove(page));
                let row = daemon.pass(*limit, INTERVAL);
                prop_assert!(row.adds_up(&before), "{name}: {before:?} {row:?}");
                let count = |place| (0..128).filter(|&page| daemon.place(page) == place).count() as u64;
                prop_assert_eq!(
                    (row.active, row.inactive, row.laundry, row.free_queue),
                    (count(Place::Active), count(Place::Inactive), count(Place::Laundry), count(Place::Free)),
                    "{}", name
                );
                prop_assert_eq!(daemon.in_use() as u64, row.active + row.inactive + row.laundry);
                prop_assert!(row.active + row.inactive + row.laundry + row.free_queue <= 128);
                before = row;
            }
            // Untouched from now on, it comes down to the limit.
            for _ in 0..80 {
                daemon.pass(8, INTERVAL);
            }
            prop_assert!(daemon.in_use() <= 8, "{name}: {} of 8", daemon.in_use());
        }
    }

    #[test]
    fn bon_chance_decides_by_its_seed_alone(touches in prop::collection::vec(0u32..256, 300..2000)) {
        let run = |spec: &str| {
            let mut daemon = daemon(spec, 64, 256);
            for part in touches.chunks(40) {
                part.iter().for_each(|&page| daemon.touch(page, false));
                daemon.pass(64, INTERVAL);
            }
            (0..256).map(|page| daemon.place(page)).collect::<Vec<_>>()
        };
        prop_assert_eq!(run("bonchance:seed=7"), run("bonchance:seed=7"));
    }
}
