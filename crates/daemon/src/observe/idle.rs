//! Idle page tracking as an observer (Documentation/admin-guide/mm/idle_page_tracking.rst): pages are marked idle, and whoever touches one
//! takes its mark away.
//!
//! It tells of reads and writes, by page, and costs a walk through the reverse mappings of each page that is asked for. The kernel has one
//! mark for each page: two who use it at once spoil each other's ages, and nobody's memory.

use super::damon::Pieces;
use super::{frames, Observer, Places, Untouched};
use crate::damon::Refusal;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Instant;

/// Pages of one word of the bitmap, which is what the kernel reads and writes at once.
const WORD: u64 = 64;

/// The observer.
pub struct Idle {
    bitmap: File,
    /// By physical page: since when it was not seen touched.
    since: HashMap<u64, Instant>,
}

impl Idle {
    /// Opens the bitmap.
    pub fn start(places: &Places) -> Result<Idle, Refusal> {
        let bitmap =
            OpenOptions::new().read(true).write(true).open(&places.idle).map_err(Refusal::NoIdleTracking)?;
        Ok(Idle { bitmap, since: HashMap::new() })
    }

    /// Which pages still have the mark that they were given, by the word that they lie in; and marks all that are wanted.
    fn look_and_mark(&self, wanted: &HashMap<u64, u64>) -> HashMap<u64, u64> {
        let look = |(&word, &pages): (&u64, &u64)| {
            let mut bytes = [0; 8];
            // A hole in physical memory has no marks.
            let read: io::Result<()> = self.bitmap.read_exact_at(&mut bytes, word * 8);
            let idle = if read.is_ok() { u64::from_ne_bytes(bytes) & pages } else { 0 };
            let _ = self.bitmap.write_all_at(&pages.to_ne_bytes(), word * 8);
            (word, idle)
        };
        wanted.iter().map(look).collect()
    }

    /// The ages of pages of one process, of which the addresses and physical pages are given, and of another.
    fn ages(&mut self, processes: &[Vec<(usize, u64)>], now: Instant) -> Vec<Vec<Untouched>> {
        let mut wanted = HashMap::<u64, u64>::new();
        for (_, frame) in processes.iter().flatten() {
            *wanted.entry(frame / WORD).or_default() |= 1 << (frame % WORD);
        }
        let idle = self.look_and_mark(&wanted);
        let mut since = HashMap::with_capacity(self.since.len());
        for (_, frame) in processes.iter().flatten() {
            let still = idle.get(&(frame / WORD)).is_some_and(|word| word >> (frame % WORD) & 1 == 1);
            let known = self.since.get(frame).copied().filter(|_| still);
            since.insert(*frame, known.unwrap_or(now));
        }
        self.since = since;
        let age = |frame: &u64| now.saturating_duration_since(self.since[frame]).as_nanos() as u64;
        let pieces = |pages: &Vec<(usize, u64)>| {
            let mut pieces = Pieces::default();
            pages.iter().for_each(|(address, frame)| pieces.add(*address, age(frame)));
            pieces.0
        };
        processes.iter().map(pieces).collect()
    }
}

impl Observer for Idle {
    fn look(&mut self, pids: &[u32]) -> Vec<Result<Vec<Untouched>, Refusal>> {
        let pages = |pid: &u32| {
            let mut pages = Vec::new();
            frames::for_each(*pid, |address, frame| pages.push((address, frame)))
                .map(|()| pages)
                .map_err(|error| Refusal::Process { pid: *pid, error })
        };
        let (mut found, mut gone) = (Vec::new(), Vec::new());
        for pid in pids {
            let (pages, error) = match pages(pid) {
                Ok(pages) => (pages, None),
                Err(error) => (Vec::new(), Some(error)),
            };
            found.push(pages);
            gone.push(error);
        }
        let ages = self.ages(&found, Instant::now());
        gone.into_iter().zip(ages).map(|(error, ages)| error.map_or(Ok(ages), Err)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfold_sys::PAGE_SIZE;
    use std::fs;
    use std::time::Duration;

    /// A file in place of the kernel's bitmap.
    struct Bitmap(tempfile::TempDir);

    impl Bitmap {
        fn new() -> Bitmap {
            let bitmap = Bitmap(tempfile::tempdir().unwrap());
            fs::write(bitmap.places().idle, [0; 64]).unwrap();
            bitmap
        }

        fn places(&self) -> Places {
            Places { idle: self.0.path().join("bitmap"), ..Places::default() }
        }

        fn word(&self, word: usize) -> u64 {
            let bytes = fs::read(self.places().idle).unwrap();
            u64::from_ne_bytes(bytes[word * 8..word * 8 + 8].try_into().unwrap())
        }

        /// As the kernel does when a page is touched.
        fn touch(&self, frame: u64) {
            let word = self.word((frame / 64) as usize) & !(1 << (frame % 64));
            let file = OpenOptions::new().write(true).open(self.places().idle).unwrap();
            file.write_all_at(&word.to_ne_bytes(), frame / 64 * 8).unwrap();
        }
    }

    #[test]
    fn a_page_grows_old_while_it_keeps_its_mark() {
        let bitmap = Bitmap::new();
        let mut idle = Idle::start(&bitmap.places()).unwrap();
        let page = |page: usize, frame| (page * PAGE_SIZE, frame);
        let pages = [vec![page(1, 3), page(2, 70), page(3, 71)]];
        let begin = Instant::now();
        let at = |secs| begin + Duration::from_secs(secs);
        assert_eq!(idle.ages(&pages, at(0)), [[]]);
        assert_eq!((bitmap.word(0), bitmap.word(1)), (1 << 3, 0b11 << 6));
        bitmap.touch(70);
        let piece = |start: usize, end: usize, secs: u64| Untouched {
            start: start * PAGE_SIZE,
            end: end * PAGE_SIZE,
            for_ns: secs * 1_000_000_000,
        };
        assert_eq!(idle.ages(&pages, at(2)), [[piece(1, 2, 2), piece(3, 4, 2)]]);
        assert_eq!(bitmap.word(1), 0b11 << 6, "it was marked again");
        assert_eq!(idle.ages(&pages, at(5)), [[piece(1, 2, 5), piece(2, 3, 3), piece(3, 4, 5)]]);
        // Another physical page at an address is a page that nothing is known of.
        let moved = [vec![page(1, 4), page(2, 70)]];
        assert_eq!(idle.ages(&moved, at(6)), [[piece(2, 3, 4)]]);
        // Nor is anything known of one that was not asked for meanwhile.
        assert_eq!(idle.ages(&pages, at(7)), [[piece(2, 3, 5)]]);
    }

    #[test]
    fn a_hole_in_physical_memory_is_never_old() {
        let bitmap = Bitmap::new();
        fs::write(bitmap.places().idle, []).unwrap();
        let mut idle = Idle { bitmap: File::open(bitmap.places().idle).unwrap(), since: HashMap::new() };
        let pages = [vec![(PAGE_SIZE, 9)]];
        let begin = Instant::now();
        assert_eq!(idle.ages(&pages, begin), [[]]);
        assert_eq!(idle.ages(&pages, begin + Duration::from_secs(9)), [[]]);
    }

    #[test]
    fn a_kernel_without_it_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places { idle: dir.path().join("none"), ..Places::default() };
        let refusal = Idle::start(&places).err().unwrap().to_string();
        assert!(refusal.contains("CONFIG_IDLE_PAGE_TRACKING"), "{refusal}");
    }
}
