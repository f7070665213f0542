//! Whether what is wanted from below memory is wanted in the order of addresses, and how far ahead it is worth reading then.
//!
//! As in the kernel's read-ahead (mm/readahead.c): a miss right behind what was brought last doubles how far is read ahead, and any other ends it. What
//! is touched after it was brought is not seen, so whoever reads slowly misses once where what was read ahead ends.
//!
//! What it is not: a reader. Addresses only.

use memfold_sys::EXTENT_SIZE;

/// Most clusters that are read ahead of a miss: a megabyte.
const MOST: u32 = 16;

/// Where the reader is. The tier's thread only.
#[derive(Debug, Default)]
pub struct Stream {
    /// Where it began to be brought, and the address behind what was.
    from: usize,
    end: usize,
    window: u32,
    /// Clusters that are yet to be brought ahead.
    left: u32,
}

impl Stream {
    /// Somebody wants the page at this address.
    pub fn wanted(&mut self, page: usize) {
        if (self.from..self.end).contains(&page) {
            // The reader is as fast as we are.
            self.left = self.window;
        } else if page == self.end {
            self.window = (2 * self.window).clamp(1, MOST);
            self.left = self.window;
        } else {
            *self = Stream { from: page, end: page, window: 0, left: 0 };
        }
    }

    /// What is to be brought ahead next: the address of its first page. It is up to the caller to find out whether that lies below memory.
    pub fn next(&self) -> Option<usize> {
        (self.left > 0).then_some(self.end)
    }

    /// Whether there is a reader in order.
    pub fn is_going(&self) -> bool {
        self.window > 0
    }

    /// A cluster was brought whose last page ends at this address.
    pub fn brought(&mut self, end: usize, ahead: bool) {
        self.left = self.left.saturating_sub(ahead.into());
        if end > self.end && end - self.end <= EXTENT_SIZE {
            self.end = end;
        }
    }

    /// Nothing more lies there to be brought ahead.
    pub fn end(&mut self) {
        self.left = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: usize = 64 << 10;
    const BASE: usize = 1 << 30;

    /// The reader wants a page; what is brought then.
    fn miss(stream: &mut Stream, page: usize) -> usize {
        stream.wanted(page);
        stream.brought((page / CLUSTER + 1) * CLUSTER, false);
        let mut ahead = 0;
        while let Some(next) = stream.next() {
            stream.brought(next + CLUSTER, true);
            ahead += 1;
        }
        ahead
    }

    #[test]
    fn the_further_a_program_reads_on_the_further_ahead_it_is_read_up_to_a_megabyte() {
        let (mut stream, mut at, mut ahead) = (Stream::default(), BASE, std::vec::Vec::new());
        for _ in 0..7 {
            let brought = miss(&mut stream, at);
            at += (brought + 1) * CLUSTER;
            ahead.push(brought);
        }
        assert_eq!(ahead, [0, 1, 2, 4, 8, 16, 16]);
    }

    #[test]
    fn who_jumps_about_gets_what_was_asked_for() {
        let mut stream = Stream::default();
        for n in 0..100 {
            assert_eq!(miss(&mut stream, BASE + n * 37 % 100 * 3 * CLUSTER), 0);
        }
    }

    #[test]
    fn who_is_as_fast_as_what_is_read_ahead_has_more_of_it() {
        let mut stream = Stream::default();
        miss(&mut stream, BASE);
        assert_eq!(miss(&mut stream, BASE + CLUSTER), 1);
        // Wanted while it is on its way.
        stream.wanted(BASE + 2 * CLUSTER);
        assert_eq!(stream.next(), Some(BASE + 3 * CLUSTER));
        stream.end();
        assert_eq!(stream.next(), None);
    }
}
