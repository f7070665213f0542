//! Why memory is resident and not folded: the reasons, and which of them holds for a page.
//!
//! Each resident page has one reason, the first that holds in the order of [`choose`] for managed pages; of the others none holds
//! beside another. What they are made of is gathered by [`crate::inventory`].
//!
//! Everything here is a pure function of what is handed in.

use crate::tables::bitmap::PageSet;
use memfold_policy::age::Standing;

/// A reason; the number is its place in [`Counts`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Why {
    /// Not yet untouched for a cold age, as far as anybody has looked.
    Young,
    /// Written since the last look.
    Written,
    /// Touched while it was set aside, and left alone for a while; or in 2 MiB of which nothing was cold at the last looks.
    Hot,
    /// Touched soon after it was folded, and left alone for a while.
    CameBackSoon,
    /// Did not shrink by 5 % when it was last tried.
    Incompressible,
    /// A forked child has it too, as when last looked.
    SharedByFork,
    /// The kernel refuses to move it: a device has it.
    Pinned,
    /// A part of a huge page that is not cold as a whole.
    Huge,
    /// Cold, one of too few in their 2 MiB to be worth it.
    Few,
    /// Cold and due, and there was no CPU time for it (`--max-cpu`).
    WaitingForCpu,
    /// Cold, and held back by the stall budget (`--max-stall`).
    StallBudget,
    /// Cold and due, and there was no place to set it aside in.
    WaitingForRoom,
    /// The page daemon of `--policy` keeps it.
    Policy,
    /// Folding is paused, or the program is being recorded.
    Paused,
    /// Set aside whole: compressed if nobody touches it for a cold age.
    SetAside,
    /// Locked in memory by the program.
    Locked,
    /// Left alone by advice of the program, for its protection, or because it was changed past libc.
    Excluded,
    /// In a mapping of less than 64 KiB.
    Small,
    /// A thread's stack.
    Stack,
    /// Mapped from a file, programs and libraries among them.
    File,
    /// Shared memory.
    SharedMemory,
    /// Anonymous memory of which the pager was not told: it was mapped past libc.
    Unknown,
    /// Memfold's own: compressed pages, tables, the allocator's records, stacks and buffers.
    Own,
}

/// How many reasons there are.
pub const REASONS: usize = 23;

impl Why {
    /// All of them, by number.
    pub const ALL: [Why; REASONS] = [
        Why::Young,
        Why::Written,
        Why::Hot,
        Why::CameBackSoon,
        Why::Incompressible,
        Why::SharedByFork,
        Why::Pinned,
        Why::Huge,
        Why::Few,
        Why::WaitingForCpu,
        Why::StallBudget,
        Why::WaitingForRoom,
        Why::Policy,
        Why::Paused,
        Why::SetAside,
        Why::Locked,
        Why::Excluded,
        Why::Small,
        Why::Stack,
        Why::File,
        Why::SharedMemory,
        Why::Unknown,
        Why::Own,
    ];

    /// As it stands in JSON.
    pub fn name(self) -> &'static str {
        self.texts().0
    }

    /// A few words for people.
    pub fn words(self) -> &'static str {
        self.texts().1
    }

    fn texts(self) -> (&'static str, &'static str) {
        match self {
            Why::Young => ("young", "young: not untouched for a cold age yet"),
            Why::Written => ("written", "written since the last look"),
            Why::Hot => ("hot", "hot: touched while set aside, or nothing near it was cold"),
            Why::CameBackSoon => ("came_back_soon", "came back soon after it was folded"),
            Why::Incompressible => ("incompressible", "incompressible"),
            Why::SharedByFork => ("shared_by_fork", "shared with a forked child"),
            Why::Pinned => ("pinned", "pinned for a device"),
            Why::Huge => ("huge", "part of a huge page in use"),
            Why::Few => ("few", "too few cold pages near it"),
            Why::WaitingForCpu => ("waiting_for_cpu", "cold, waiting for CPU (--max-cpu)"),
            Why::StallBudget => ("stall_budget", "cold, held by the stall budget (--max-stall)"),
            Why::WaitingForRoom => ("waiting_for_room", "cold, waiting for room to be set aside in"),
            Why::Policy => ("policy", "kept by the policy (--policy)"),
            Why::Paused => ("paused", "folding is paused"),
            Why::SetAside => ("set_aside", "set aside, to be compressed unless touched"),
            Why::Locked => ("locked", "not managed: locked (mlock)"),
            Why::Excluded => ("excluded", "not managed: excluded by advice or protection"),
            Why::Small => ("small", "not managed: small mappings"),
            Why::Stack => ("stack", "not managed: stacks"),
            Why::File => ("file", "not managed: files, programs and libraries"),
            Why::SharedMemory => ("shared_memory", "not managed: shared memory"),
            Why::Unknown => ("unknown", "not managed: mapped past libc or in small pieces"),
            Why::Own => ("memfold", "memfold's own: compressed pages, tables, buffers"),
        }
    }
}

/// Pages by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([u64; REASONS]);

impl Counts {
    /// Counts pages.
    pub fn add(&mut self, why: Why, pages: usize) {
        self.0[why as usize] += pages as u64;
    }

    /// How many pages have a reason.
    pub fn pages(&self, why: Why) -> u64 {
        self.0[why as usize]
    }
}

/// What is known of pages of one extent that are managed and resident. Each set may have other pages in it too.
#[derive(Clone, Copy)]
pub(crate) struct Known {
    /// The pages.
    pub pages: PageSet,
    /// Touched while they were away.
    pub hot: PageSet,
    /// Of the hot ones those that came back soon after they were stored.
    pub back_soon: PageSet,
    /// Written since the last look.
    pub written: PageSet,
    /// Did not shrink.
    pub incompressible: PageSet,
    /// Refused by the kernel.
    pub refused: PageSet,
    /// Of the refused ones those that a forked child has.
    pub shared: PageSet,
    /// The extent is one huge page.
    pub huge: bool,
    /// How many could have gone at the last look but were too few.
    pub few: usize,
    /// How pages stand of which nothing of the above holds.
    pub standing: Standing,
    /// What the next step waits for, if it was due: CPU time, the stall budget, or a place in staging.
    pub waits_for: Option<Why>,
    /// Why nothing goes by its age at all.
    pub instead: Option<Why>,
}

/// Pages that have no reason so far.
struct Undecided<'c> {
    pages: PageSet,
    counts: &'c mut Counts,
}

impl Undecided<'_> {
    /// Those of a set have this reason.
    fn take(&mut self, why: Why, set: &PageSet) {
        self.counts.add(why, self.pages.and(set).len());
        self.pages = self.pages.minus(set);
    }

    /// So do all that are left.
    fn take_all(&mut self, why: Why) {
        self.take(why, &PageSet::ALL);
    }
}

/// Counts each of the pages under the first reason that holds.
pub(crate) fn choose(known: &Known, counts: &mut Counts) {
    let mut rest = Undecided { pages: known.pages, counts };
    if known.instead == Some(Why::Paused) {
        return rest.take_all(Why::Paused);
    }
    // First, because a page that is put back counts as written until the next look.
    rest.take(Why::CameBackSoon, &known.hot.and(&known.back_soon));
    rest.take(Why::Hot, &known.hot);
    // What was written is the program's alone by now, and may shrink.
    rest.take(Why::Written, &known.written);
    rest.take(Why::Incompressible, &known.incompressible);
    rest.take(Why::SharedByFork, &known.refused.and(&known.shared));
    rest.take(Why::Pinned, &known.refused);
    if let Some(why) = known.instead {
        return rest.take_all(why);
    }
    if known.standing == Standing::Young {
        return rest.take_all(Why::Young);
    }
    if known.huge && rest.pages != PageSet::ALL {
        return rest.take_all(Why::Huge);
    }
    let few = known.few.min(rest.pages.len());
    rest.counts.add(Why::Few, few);
    let other = if known.standing == Standing::Due { Why::Young } else { Why::Hot };
    rest.counts.add(known.waits_for.unwrap_or(other), rest.pages.len() - few);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Known {
        let empty = PageSet::EMPTY;
        Known {
            pages: PageSet::range(0, 100),
            hot: empty,
            back_soon: empty,
            written: empty,
            incompressible: empty,
            refused: empty,
            shared: empty,
            huge: false,
            few: 0,
            standing: Standing::Due,
            waits_for: None,
            instead: None,
        }
    }

    fn counted(known: Known) -> std::vec::Vec<(Why, u64)> {
        let mut counts = Counts::default();
        choose(&known, &mut counts);
        let sum: u64 = counts.0.iter().sum();
        assert_eq!(sum, known.pages.len() as u64, "each page has one reason");
        Why::ALL.into_iter().map(|why| (why, counts.pages(why))).filter(|(_, pages)| *pages > 0).collect()
    }

    #[test]
    fn reasons_are_numbered_in_their_order_and_named_apart() {
        let mut names = std::collections::BTreeSet::new();
        for (number, why) in Why::ALL.into_iter().enumerate() {
            assert_eq!(why as usize, number);
            assert!(names.insert(why.name()), "{}", why.name());
        }
    }

    #[test]
    fn of_several_reasons_the_first_in_order_counts() {
        let all = PageSet::ALL;
        let sets = Known {
            back_soon: PageSet::range(0, 10),
            hot: PageSet::range(0, 20),
            written: PageSet::range(0, 30),
            incompressible: PageSet::range(0, 40),
            shared: PageSet::range(0, 50),
            refused: PageSet::range(0, 60),
            ..known()
        };
        let first = [
            (Why::Written, 10),
            (Why::Hot, 10),
            (Why::CameBackSoon, 10),
            (Why::Incompressible, 10),
            (Why::SharedByFork, 10),
            (Why::Pinned, 10),
        ];
        let with = |last| {
            let mut expected = std::vec::Vec::from(first);
            expected.push((last, 40));
            expected.sort_by_key(|(why, _)| *why as usize);
            expected
        };
        assert_eq!(counted(Known { standing: Standing::Young, ..sets }), with(Why::Young));
        assert_eq!(counted(Known { waits_for: Some(Why::WaitingForCpu), ..sets }), with(Why::WaitingForCpu));
        assert_eq!(counted(Known { waits_for: Some(Why::StallBudget), ..sets }), with(Why::StallBudget));
        assert_eq!(counted(Known { instead: Some(Why::Policy), ..sets }), with(Why::Policy));
        assert_eq!(counted(Known { instead: Some(Why::Paused), ..sets }), [(Why::Paused, 100)]);
        assert_eq!(counted(Known { written: all, hot: PageSet::EMPTY, ..sets }), [(Why::Written, 100)]);
    }

    #[test]
    fn what_waits_for_a_budget_does_so_only_if_it_is_cold() {
        let young = Known { standing: Standing::Young, waits_for: Some(Why::WaitingForCpu), ..known() };
        assert_eq!(counted(young), [(Why::Young, 100)]);
        let retreated = Known { standing: Standing::Seldom, waits_for: Some(Why::StallBudget), ..known() };
        assert_eq!(counted(retreated), [(Why::StallBudget, 100)]);
        assert_eq!(counted(Known { standing: Standing::Seldom, ..known() }), [(Why::Hot, 100)]);
    }

    #[test]
    fn a_few_cold_pages_and_a_part_of_a_huge_page_stay_for_that() {
        let seldom = Known { standing: Standing::Seldom, few: 3, ..known() };
        assert_eq!(counted(seldom), [(Why::Hot, 97), (Why::Few, 3)]);
        let whole = Known { huge: true, pages: PageSet::ALL, waits_for: Some(Why::WaitingForCpu), ..known() };
        assert_eq!(counted(whole), [(Why::WaitingForCpu, memfold_sys::EXTENT_PAGES as u64)]);
        let part = Known { hot: PageSet::range(0, 1), ..whole };
        assert_eq!(counted(part), [(Why::Hot, 1), (Why::Huge, memfold_sys::EXTENT_PAGES as u64 - 1)]);
    }
}
