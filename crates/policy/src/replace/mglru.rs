//! Generations instead of one order: the multi-generational LRU of Linux.
//!
//! Source: the kernel's `Documentation/mm/multigen_lru.rst` and `Documentation/admin-guide/mm/multigen_lru.rst` (Zhao, Linux
//! 6.1, 2022), with the rules of Linux 6.14 for what counts as use.
//! What differs: there is one kind of page, not file and anonymous ones beside each other; every walk sees every page, so
//! that no Bloom filter is needed; eviction takes one page, where the kernel takes batches; and the working set has no
//! least time to live, which is the kernel's default too.
//!
//! Invariants: a page's generation lies between the oldest and the youngest; these are at most [`GENERATIONS`]; the two
//! youngest are never evicted from. A page stands in the list of the generation that it had when it was put there, and is
//! sorted into its own when the eviction meets it.

use super::list::Queues;
use super::refaults::{Refaults, TIERS};
use super::{Outcome, Replacement};
use alloc::vec::Vec;

/// Most generations that are told apart (`MAX_NR_GENS`).
const GENERATIONS: usize = 4;
/// Generations that are not evicted from (`MIN_NR_GENS`).
const YOUNG: u64 = 2;
/// Pages around one that was found accessed which are looked at with it (`MIN_LRU_BATCH`).
const AROUND: u32 = 64;

// What is known of a page, in its mark: five bits, and its generation above them.
/// Accessed through the page tables since that was last looked at.
const ACCESSED: u8 = 1;
/// Used once.
const REFERENCED: u8 = 2;
/// Used again: belongs to the working set.
const WORKINGSET: u8 = 4;
/// Further uses through descriptors.
const USES: u8 = 3 << 3;
const ONE_USE: u8 = 1 << 3;
const GENERATION: u32 = 5;

/// MGLRU. Aging starts a generation: it walks the page tables, and a page that it finds accessed for the second time goes
/// to the youngest. Eviction takes from the oldest; a page that is accessed there is spared. A page that was evicted
/// and comes back soon tells how good the choice was: tiers, the levels of use, of which outstandingly many come back
/// are spared too.
///
/// Requests are touches of mapped memory; with `descriptors` they are reads of files. Those are trusted less, as in the
/// kernel: a page comes to the oldest generation, and stays for its tier alone.
pub struct MgLru {
    queues: Queues<GENERATIONS>,
    /// Of pages that were evicted: the oldest generation then, their tier, and whether they belonged to the working set.
    shadows: Vec<u32>,
    /// Pages accessed since the last walk, and others.
    accessed: Vec<u32>,
    oldest: u64,
    youngest: u64,
    refaults: Refaults,
    capacity: usize,
    resident: usize,
    descriptors: bool,
}

impl MgLru {
    pub fn new(capacity: usize, universe: usize, descriptors: bool) -> MgLru {
        MgLru {
            queues: Queues::new(universe),
            shadows: alloc::vec![0; universe],
            accessed: Vec::new(),
            oldest: 0,
            youngest: GENERATIONS as u64 - 1,
            refaults: Refaults::default(),
            capacity,
            resident: 0,
            descriptors,
        }
    }

    fn access(&mut self, page: u32) {
        let mark = self.queues.mark(page);
        if self.descriptors {
            *mark = with_use(*mark);
        } else if *mark & ACCESSED == 0 {
            *mark |= ACCESSED;
            self.accessed.push(page);
        }
    }

    /// Puts a page that is in no list at the front of a generation's.
    fn enter(&mut self, page: u32, generation: u64, flags: u8) {
        *self.queues.mark(page) = flags | ((generation % GENERATIONS as u64) as u8) << GENERATION;
        self.queues.push_front((generation % GENERATIONS as u64) as usize, page);
    }

    /// Where a page comes to, by whether it belongs to the working set.
    fn add(&mut self, page: u32, workingset: u8) {
        let place = if self.descriptors { GENERATIONS as u64 } else { YOUNG };
        let place = place - u64::from(workingset != 0);
        self.enter(page, (self.youngest + 1 - place).max(self.oldest), workingset);
        self.access(page);
    }

    /// A page was found accessed: has it join the youngest generation if it was used before. It stays in its list for now.
    fn promote(&mut self, page: u32) -> bool {
        let youngest = ((self.youngest % GENERATIONS as u64) as u8) << GENERATION;
        let mark = self.queues.mark(page);
        let again = *mark & (REFERENCED | WORKINGSET) != 0;
        *mark = match again {
            true => WORKINGSET | youngest,
            false => *mark & !(ACCESSED | USES) | REFERENCED,
        };
        again
    }

    fn is_accessed(&mut self, page: u32) -> bool {
        self.is_resident(page) && *self.queues.mark(page) & ACCESSED != 0
    }

    /// Walks the page tables and starts a generation.
    fn age(&mut self) {
        for page in core::mem::take(&mut self.accessed) {
            if self.is_accessed(page) {
                self.promote(page);
            }
        }
        self.youngest += 1;
        debug_assert!(self.youngest - self.oldest < GENERATIONS as u64);
    }

    /// Looks at the neighbours of a page that was found accessed: use comes in patches.
    fn look_around(&mut self, page: u32) {
        let last = (page | (AROUND - 1)).min(self.shadows.len() as u32 - 1);
        for neighbour in page & !(AROUND - 1)..=last {
            if neighbour != page && self.is_accessed(neighbour) {
                self.promote(neighbour);
            }
        }
    }

    fn evict(&mut self) -> Option<u32> {
        loop {
            let list = (self.oldest % GENERATIONS as u64) as usize;
            if self.oldest + YOUNG > self.youngest {
                self.age();
                continue;
            }
            let Some(page) = self.queues.pop_back(list) else {
                self.oldest += 1;
                self.refaults.next_generation();
                continue;
            };
            let mark = *self.queues.mark(page);
            if usize::from(mark >> GENERATION) != list {
                self.queues.push_front((mark >> GENERATION).into(), page);
                continue;
            }
            let (tier, worn_out) =
                (tier(mark), mark & (WORKINGSET | REFERENCED | USES) == WORKINGSET | REFERENCED | USES);
            if worn_out || tier > self.refaults.highest_evictable() {
                if !worn_out {
                    self.refaults.looked_at(tier);
                }
                self.enter(page, self.oldest + 1, mark & (ACCESSED | WORKINGSET));
                continue;
            }
            if mark & ACCESSED != 0 {
                let again = self.promote(page);
                let flags = if again { WORKINGSET } else { REFERENCED };
                self.enter(page, self.youngest - u64::from(!again), flags);
                self.look_around(page);
                continue;
            }
            self.refaults.looked_at(tier);
            self.shadows[page as usize] = shadow(self.oldest, tier);
            return Some(page);
        }
    }

    /// A page comes that may have been evicted lately. Returns whether it belongs to the working set.
    fn refault(&mut self, page: u32) -> u8 {
        let Some((oldest, tier)) = evicted(core::mem::take(&mut self.shadows[page as usize])) else {
            return 0;
        };
        if (self.youngest as u32 & SHADOW).wrapping_sub(oldest) & SHADOW >= GENERATIONS as u32 {
            return 0;
        }
        self.refaults.refaulted(tier);
        if tier == TIERS - 1 {
            WORKINGSET
        } else {
            0
        }
    }
}

/// The generation in a shadow, which has three bits below it.
const SHADOW: u32 = u32::MAX >> 3;

fn shadow(oldest: u64, tier: usize) -> u32 {
    (oldest as u32) << 3 | (tier as u32) << 1 | 1
}

fn evicted(shadow: u32) -> Option<(u32, usize)> {
    (shadow != 0).then_some((shadow >> 3, (shadow >> 1) as usize % TIERS))
}

/// Adds a use through a descriptor.
fn with_use(mark: u8) -> u8 {
    match mark {
        _ if mark & REFERENCED == 0 => mark & !USES | REFERENCED,
        _ if mark & USES == USES => mark | WORKINGSET,
        _ => mark + ONE_USE,
    }
}

/// A page of the working set is of the last tier; one that was used n times through descriptors is of tier log2 n, rounded
/// up.
fn tier(mark: u8) -> usize {
    match mark {
        _ if mark & WORKINGSET != 0 => TIERS - 1,
        _ if mark & REFERENCED == 0 => 0,
        _ => [0, 1, 2, 2][usize::from((mark & USES) / ONE_USE)],
    }
}

impl Replacement for MgLru {
    fn request(&mut self, page: u32, _next: u64) -> Outcome {
        if self.is_resident(page) {
            self.access(page);
            return Outcome::Hit;
        }
        let evicted = if self.resident == self.capacity { self.evict() } else { None };
        self.resident += usize::from(evicted.is_none());
        let workingset = self.refault(page);
        self.add(page, workingset);
        Outcome::Miss { evicted }
    }

    fn is_resident(&self, page: u32) -> bool {
        self.queues.queue_of(page).is_some()
    }

    fn resident(&self) -> usize {
        self.resident
    }

    fn prefetch(&self, page: u32) {
        self.queues.prefetch(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn mglru(capacity: usize, universe: usize, descriptors: bool) -> MgLru {
        MgLru::new(capacity, universe, descriptors)
    }

    fn generation(policy: &mut MgLru, page: u32) -> u64 {
        let of = u64::from(*policy.queues.mark(page) >> GENERATION);
        (policy.oldest..=policy.youngest).find(|n| n % GENERATIONS as u64 == of).unwrap()
    }

    #[test]
    fn a_touched_page_comes_to_the_second_youngest_generation_and_a_read_one_to_the_oldest() {
        let mut touched = mglru(8, 8, false);
        touched.request(0, 0);
        assert_eq!((generation(&mut touched, 0), touched.youngest), (2, 3));
        let mut read = mglru(8, 8, true);
        read.request(0, 0);
        assert_eq!((generation(&mut read, 0), read.youngest), (0, 3));
    }

    #[test]
    fn a_walk_promotes_what_it_finds_accessed_twice_and_nothing_else() {
        let mut policy = mglru(8, 8, false);
        for page in 0..3 {
            policy.request(page, 0);
        }
        // As the eviction does it where generations are empty.
        policy.oldest = 2;
        policy.age();
        assert_eq!(
            [0, 1, 2].map(|page| generation(&mut policy, page)),
            [2; 3],
            "their coming is the first access"
        );
        assert!(!policy.is_accessed(1), "a walk clears what it finds");
        policy.request(1, 0);
        policy.age();
        assert_eq!([0, 1, 2].map(|page| generation(&mut policy, page)), [2, 4, 2]);
        assert_eq!((policy.youngest, policy.oldest), (5, 2));
    }

    #[test]
    fn uses_through_descriptors_make_tiers_of_one_two_four_and_more() {
        let mut policy = mglru(8, 8, true);
        let tiers: Vec<usize> = (0..6)
            .map(|_| {
                policy.request(0, 0);
                tier(*policy.queues.mark(0))
            })
            .collect();
        assert_eq!(tiers, [0, 1, 2, 2, 3, 3]);
    }

    #[test]
    fn a_page_of_a_tier_that_keeps_coming_back_is_spared_once_the_refaults_are_many() {
        // 300 pages that are read twice in every round, between 300 others that are read once and never again: by the order of
        // their coming none would ever be kept, as the cache has room for 400.
        let mut policy = mglru(400, 10_000, true);
        let mut once = 300;
        let mut round = || -> Vec<bool> {
            let pages = (0..300).map(|page| {
                let kept = policy.request(page, 0) == Outcome::Hit;
                policy.request(page, 0);
                policy.request(once, 0);
                once += 1;
                kept
            });
            pages.collect()
        };
        assert!(!round().contains(&true));
        let refaults = round().iter().take_while(|kept| !**kept).count();
        assert!((64..200).contains(&refaults), "{refaults} came back before the first was spared");
        let kept: usize = (0..20).map(|_| round().iter().filter(|kept| **kept).count()).sum();
        assert!(kept > 20 * 60, "{kept} of 6000");
    }
}
