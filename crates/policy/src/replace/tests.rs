use super::*;
use crate::spec::{names, Spec};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;

fn next_requests(pages: &[u32]) -> Vec<u64> {
    let mut coming = BTreeMap::new();
    let mut next: Vec<u64> = pages
        .iter()
        .enumerate()
        .rev()
        .map(|(n, &page)| coming.insert(page, n as u64).unwrap_or(NEVER))
        .collect();
    next.reverse();
    next
}

fn misses(spec: &str, capacity: usize, pages: &[u32]) -> usize {
    let mut policy = Spec::parse(spec).unwrap().make(capacity, 64);
    let next = next_requests(pages);
    pages.iter().zip(next).filter(|&(&page, next)| policy.request(page, next) != Outcome::Hit).count()
}

#[test]
fn a_trace_worked_out_by_hand_has_the_misses_that_it_should() {
    let pages = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5];
    // Belady's own example, for three pages and four.
    for (policy, three, four) in [("fifo", 9, 10), ("lru", 10, 8), ("belady", 7, 6), ("clock", 10, 8)] {
        assert_eq!((misses(policy, 3, &pages), misses(policy, 4, &pages)), (three, four), "{policy}");
    }
    // The hand spares 1, which was asked for again, and takes 2, then 3.
    assert_eq!(misses("sieve", 3, &[1, 2, 3, 1, 4, 1, 5, 1, 2]), 6);
}

#[test]
fn the_least_often_requested_page_goes_and_the_older_of_equals() {
    // 1 twice, 2 once, 3 once: 2 goes for 4, then 3 for 5.
    let mut lfu = Spec::parse("lfu").unwrap().make(3, 8);
    let evicted: Vec<_> = [1, 1, 2, 3, 4, 5].map(|page| lfu.request(page, NEVER)).into();
    assert_eq!(evicted[4..], [Outcome::Miss { evicted: Some(2) }, Outcome::Miss { evicted: Some(3) }]);
    assert!(lfu.is_resident(1));
}

#[test]
fn a_scan_does_not_wash_out_what_is_used_again_where_the_policy_promises_that() {
    let hot: Vec<u32> = (0..8).cycle().take(200).collect();
    let mut pages = hot.clone();
    for scan in 0..4 {
        pages.extend((8 + scan * 12)..(20 + scan * 12));
        pages.extend(&hot[..16]);
    }
    let lru = misses("lru", 12, &pages);
    for policy in ["arc", "slru", "lirs", "s3fifo", "lfu", "wtinylfu"] {
        assert!(misses(policy, 12, &pages) < lru, "{policy}: {} of {lru}", misses(policy, 12, &pages));
    }
}

/// 400 pages that are touched again and again, in a cache of 1000; every now and then a scan of 1500 others goes by.
fn flooded() -> Vec<u32> {
    let mut pages: Vec<u32> = (0..400).cycle().take(4000).collect();
    for scan in 0..12 {
        pages.extend((400..1900).map(|page| page + scan * 1500));
        pages.extend((0..400).cycle().take(1200));
    }
    pages
}

#[test]
fn a_scan_that_floods_clock_leaves_the_working_set_to_mglru() {
    let pages = flooded();
    let misses = |spec: &str| {
        let mut policy = Spec::parse(spec).unwrap().make(1000, 20_000);
        let hot = |page: u32| page < 400;
        pages.iter().filter(|&&page| policy.request(page, NEVER) != Outcome::Hit && hot(page)).count()
    };
    let (clock, touched, read) = (misses("clock"), misses("mglru"), misses("mglru:descriptors=1"));
    // CLOCK loses all 400 to every scan, beside their first misses.
    assert_eq!(clock, 13 * 400);
    // Touches through the page tables are trusted more: what the scan touches takes longer to leave.
    assert!(touched * 10 < clock * 9, "touched: {touched} of {clock}");
    assert!(read < clock / 2, "read: {read} of {clock}");
}

#[test]
fn mglru_is_not_clock_by_another_name() {
    let mut random = 1u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let uniform: Vec<u32> = (0..40_000).map(|_| (next() % 2000) as u32).collect();
    // The smaller of two is small more often.
    let skewed: Vec<u32> = (0..40_000).map(|_| (next() % 2000).min(next() % 2000) as u32).collect();
    let run = |spec: &str, size, pages: &[u32]| {
        let mut policy = Spec::parse(spec).unwrap().make(size, 20_000);
        pages.iter().filter(|&&page| policy.request(page, NEVER) != Outcome::Hit).count()
    };
    for (name, pages) in [("uniform", uniform), ("skewed", skewed)] {
        for size in [100, 500, 1500] {
            let clock = run("clock", size, &pages);
            for spec in ["mglru", "mglru:descriptors=1"] {
                assert_ne!(run(spec, size, &pages), clock, "{spec}, {name}, {size} pages");
            }
        }
    }
}

proptest! {
    #[test]
    fn every_policy_keeps_at_most_its_capacity_and_evicts_only_what_it_has(
        pages in prop::collection::vec(0u32..64, 1..600), capacity in 1usize..40
    ) {
        let next = next_requests(&pages);
        let best = misses("belady", capacity, &pages);
        for name in names().chain(["mglru:descriptors=1", "s3fifo:fill=1", "wtinylfu:libcachesim=1"]) {
            let mut policy = Spec::parse(name).unwrap().make(capacity, 64);
            let mut model = BTreeSet::new();
            let mut missed = 0;
            for (&page, &next) in pages.iter().zip(&next) {
                match policy.request(page, next) {
                    Outcome::Hit => prop_assert!(model.contains(&page), "{name}: hit of a page that is away"),
                    Outcome::Miss { evicted } => {
                        missed += 1;
                        prop_assert!(model.insert(page), "{name}: missed a page that is there");
                        if let Some(evicted) = evicted {
                            prop_assert!(evicted != page && model.remove(&evicted), "{name}: evicted {evicted}");
                        }
                    }
                }
                prop_assert!(model.len() <= capacity, "{name}: {} of {capacity}", model.len());
                prop_assert_eq!(policy.resident(), model.len(), "{}", name);
                prop_assert!((0..64).all(|page| policy.is_resident(page) == model.contains(&page)), "{name}");
            }
            prop_assert!(missed >= best, "{name} misses less than the offline bound");
        }
    }

    #[test]
    fn a_larger_lru_cache_has_all_that_a_smaller_one_has(pages in prop::collection::vec(0u32..64, 1..300)) {
        let mut small = Spec::parse("lru").unwrap().make(7, 64);
        let mut large = Spec::parse("lru").unwrap().make(9, 64);
        for &page in &pages {
            small.request(page, NEVER);
            large.request(page, NEVER);
            prop_assert!((0..64).all(|page| !small.is_resident(page) || large.is_resident(page)));
        }
    }
}
