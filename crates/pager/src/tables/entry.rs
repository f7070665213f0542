//! The life of a page in one word.
//!
//! ```text
//!   Resident ──► Leaving ──► Aside ──► Stored or Same
//!       ▲           │          │          │
//!       └───────────┴──────────┴──────────┘   restore, discard
//! ```
//!
//! `Leaving` is the background thread at work. Whoever wants to bring a page back or drop it *takes* the
//! entry by a compare-and-swap, which fails when somebody else was quicker. The background thread
//! compresses a page that is `Aside`, or puts a stored one elsewhere, without telling anybody, and only then
//! tries to swap the entry; if the page was taken meanwhile, it throws its work away. So nobody
//! waits for a codec, and no page is in two hands.
//!
//! The busy bit marks an entry that was taken for a restore. The rest of the word stays what it was, so
//! that a child forked in the middle of a restore still finds the page.

use crate::sync::{AtomicU64, Ordering::*};
use core::fmt;

/// Where a page is. The discriminant is the low bits of the word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum State {
    /// In the program's view, or never touched: the kernel knows.
    Resident = 0,
    /// Being moved to staging.
    Leaving = 1,
    /// Being moved to staging, and a thread waits for it: wake it when the move is over.
    LeavingWanted = 2,
    /// Whole, in staging.
    Aside = 3,
    /// Compressed; the payload tells where it lies ([`crate::tier::location`]).
    Stored = 4,
    /// One word repeated; the payload is the word, shortened.
    Same = 5,
}

impl State {
    /// Whether who touches the page waits for it.
    pub fn is_away(self) -> bool {
        matches!(self, State::Aside | State::Stored | State::Same)
    }
}

const STATE_BITS: u32 = 3;
const STATE_MASK: u64 = (1 << STATE_BITS) - 1;
const BUSY: u64 = 1 << STATE_BITS;
const PAYLOAD_SHIFT: u32 = STATE_BITS + 1;

/// Largest payload of an entry.
pub const MAX_PAYLOAD: u64 = u64::MAX >> PAYLOAD_SHIFT;

/// The value of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entry(u64);

impl Entry {
    /// In the program's view.
    pub const RESIDENT: Entry = Entry(State::Resident as u64);

    /// An entry without payload.
    pub const fn new(state: State) -> Entry {
        Entry(state as u64)
    }

    /// An entry with a payload of at most [`MAX_PAYLOAD`].
    pub fn with_payload(state: State, payload: u64) -> Entry {
        debug_assert!(payload <= MAX_PAYLOAD);
        Entry(payload << PAYLOAD_SHIFT | state as u64)
    }

    /// From the word of an [`AtomicEntry`] in a core.
    pub fn from_word(word: u64) -> Entry {
        Entry(word)
    }

    /// The word of the entry.
    pub fn word(self) -> u64 {
        self.0
    }

    /// Where the page is.
    pub fn state(self) -> State {
        match self.0 & STATE_MASK {
            0 => State::Resident,
            1 => State::Leaving,
            2 => State::LeavingWanted,
            3 => State::Aside,
            4 => State::Stored,
            _ => State::Same,
        }
    }

    /// The number that goes with the state.
    pub fn payload(self) -> u64 {
        self.0 >> PAYLOAD_SHIFT
    }

    /// Whether somebody is bringing it back at this moment.
    pub fn is_busy(self) -> bool {
        self.0 & BUSY != 0
    }

    fn busy(self) -> Entry {
        Entry(self.0 | BUSY)
    }

    /// An entry for a page whose 512 words are all `word`, if the word can be shortened to the payload:
    /// one that a 58-bit number sign-extends to, or one whose two halves are equal.
    pub fn same(word: u64) -> Option<Entry> {
        const VALUE_BITS: u32 = 64 - PAYLOAD_SHIFT - 1;
        let kept = (word << (64 - VALUE_BITS)) as i64 >> (64 - VALUE_BITS);
        if kept as u64 == word {
            return Some(Entry::with_payload(State::Same, word << 1 & MAX_PAYLOAD));
        }
        (word >> 32 == word & 0xFFFF_FFFF)
            .then(|| Entry::with_payload(State::Same, (word & 0xFFFF_FFFF) << 1 | 1))
    }

    /// The word that a [`State::Same`] page repeats.
    pub fn same_word(self) -> u64 {
        let payload = self.payload();
        if payload & 1 == 1 {
            let half = payload >> 1;
            return half << 32 | half;
        }
        ((payload << PAYLOAD_SHIFT) as i64 >> (PAYLOAD_SHIFT + 1)) as u64
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let busy = if self.is_busy() { " busy" } else { "" };
        write!(f, "{:?}({:#x}){busy}", self.state(), self.payload())
    }
}

/// An entry that threads share. All operations are `SeqCst`: the protocol with `Extent::changing` needs a
/// total order of the two words, and none of this is hot enough to matter.
#[derive(Default)]
#[repr(transparent)]
pub struct AtomicEntry(AtomicU64);

impl AtomicEntry {
    /// Reads it.
    pub fn load(&self) -> Entry {
        Entry(self.0.load(SeqCst))
    }

    /// Replaces `from`, not busy, by `to`; false when the entry was something else.
    pub fn transition(&self, from: Entry, to: Entry) -> bool {
        debug_assert!(!from.is_busy() && legal(from.state(), to.state()), "{from:?} -> {to:?}");
        self.0.compare_exchange(from.0, to.0, SeqCst, SeqCst).is_ok()
    }

    /// Takes the entry for a restore: marks it busy if it still is `from`.
    pub fn take(&self, from: Entry) -> bool {
        debug_assert!(!from.is_busy());
        self.0.compare_exchange(from.0, from.busy().0, SeqCst, SeqCst).is_ok()
    }

    /// Ends a restore: the page is in the program's view.
    pub fn finish(&self, taken: Entry) {
        debug_assert_eq!(self.load(), taken.busy());
        self.0.store(Entry::RESIDENT.0, SeqCst);
    }

    /// Gives up a restore: the page stays where it was.
    pub fn put_back(&self, taken: Entry) {
        debug_assert_eq!(self.load(), taken.busy());
        self.0.store(taken.0, SeqCst);
    }

    /// Ends the restore that a forked child inherited half done. The page is still where the entry says, or
    /// it is in the child's view already; then the entry is out of date, which does no harm: the page is never missed.
    pub fn settle_in_child(&self) {
        self.0.fetch_and(!BUSY, SeqCst);
    }
}

impl AtomicEntry {
    /// Ends what a forked child inherited of a page that it has not. Returns what it was.
    pub fn forget_in_child(&self) -> Entry {
        Entry(self.0.swap(Entry::RESIDENT.0, SeqCst))
    }
}

/// The transitions that the background thread, a restore or a discard may make.
fn legal(from: State, to: State) -> bool {
    use State::*;
    match (from, to) {
        (Resident, Leaving) | (Leaving, LeavingWanted) => true,
        (Leaving | LeavingWanted, Aside | Resident) => true,
        (Aside, Stored | Same) => true,
        // Another place in the store.
        (Stored, Stored) => true,
        // A discard, or the end of a restore.
        (Aside | Stored | Same, Resident) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_repeated_word_survives_its_entry(word: u64, small: i32) {
            let mirrored = word << 32 | word & 0xFFFF_FFFF;
            for word in [word, mirrored, small as i64 as u64, 0, u64::MAX, 1 << 58, !(1 << 58)] {
                if let Some(entry) = Entry::same(word) {
                    prop_assert_eq!(entry.state(), State::Same);
                    prop_assert!(!entry.is_busy());
                    prop_assert_eq!(entry.same_word(), word);
                }
            }
            prop_assert!(Entry::same(mirrored).is_some());
            prop_assert!(Entry::same(small as i64 as u64).is_some());
        }

        #[test]
        fn a_taken_entry_cannot_be_taken_or_changed_by_another(payload in 0..=MAX_PAYLOAD) {
            let stored = Entry::with_payload(State::Stored, payload);
            let entry = AtomicEntry(AtomicU64::new(stored.0));
            prop_assert!(entry.take(stored));
            prop_assert!(!entry.take(stored));
            prop_assert!(!entry.transition(stored, Entry::RESIDENT));
            prop_assert_eq!(entry.load().payload(), payload);
            entry.put_back(stored);
            let elsewhere = Entry::with_payload(State::Stored, payload ^ 1);
            prop_assert!(entry.transition(stored, elsewhere));
            prop_assert!(!entry.take(stored));
        }
    }
}
