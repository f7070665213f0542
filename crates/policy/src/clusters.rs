//! What is in use beside what is touched: pages that are used lie together, in many programs.
//!
//! Only a touch tells that a page is in use, and each has the program wait. Where some of the pages around one that is touched were touched as well, those
//! between them will be; they can come back with it, and are taken for used. Whether that holds is learnt first from what is foretold and not brought, and
//! from then on from one page in [`SAMPLE`], which is left out.
//!
//! What it is not: for walks ([`crate::walk`]), in which everything is touched once and nothing is in use.

/// How far away from a page others count that were touched, and how far beyond the outermost of them pages are foretold.
pub const NEAR: usize = 5;
/// See [`NEAR`].
pub const BEYOND: usize = 1;
/// One page in so many never comes with others.
const SAMPLE: usize = 8;
/// So many pages must have been foretold before anything is brought.
const LEAST: u64 = 32;
/// What was foretold before the last so many pages counts half.
const MOST: u64 = 1024;

/// Whether the page is left out, so that it is seen whether it is touched.
pub fn is_sample(page: usize) -> bool {
    page % SAMPLE == SAMPLE / 2
}

/// How many of the pages that were foretold and not brought are touched.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clusters {
    foretold: u64,
    touched: u64,
}

impl Clusters {
    /// Nothing was foretold.
    pub const fn new() -> Clusters {
        Clusters { foretold: 0, touched: 0 }
    }

    /// So many pages were foretold, and stay away until they are touched.
    pub fn foretell(&mut self, pages: u64) {
        self.foretold += pages;
        if self.foretold >= 2 * MOST {
            (self.foretold, self.touched) = (self.foretold / 2, self.touched / 2);
        }
    }

    /// One of them was.
    pub fn touch(&mut self) {
        self.touched += 1;
    }

    /// Whether what is foretold should come back with a page near which so many others were touched. Where three quarters of it are in use, or more, one other is
    /// enough: a page that is not in use stays in memory for a while, and one that is saves a wait. Where half is, it takes two.
    pub fn pay(&self, near: usize) -> bool {
        let quarters = if near > 1 { 2 } else { 3 };
        near > 0 && self.foretold >= LEAST && self.touched * 4 >= self.foretold * quarters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_page_in_eight_never_comes() {
        assert_eq!((0..64).filter(|&page| is_sample(page)).count(), 8);
    }

    #[test]
    fn it_pays_while_most_of_what_was_foretold_lately_is_touched() {
        let mut clusters = Clusters::new();
        let mut see = |foretold: u64, touched: u64| {
            clusters.foretell(foretold);
            (0..touched).for_each(|_| clusters.touch());
            [0, 1, 2].map(|near| clusters.pay(near))
        };
        assert_eq!(see(LEAST - 1, LEAST - 1), [false; 3], "too few were seen");
        assert_eq!(see(1, 1), [false, true, true]);
        assert_eq!(see(100, 60), [false, false, true]);
        assert_eq!(see(100, 20), [false; 3]);
        assert_eq!(see(400, 400), [false, true, true]);
        // What was long ago is forgotten.
        for _ in 0..20 {
            see(MOST, MOST);
        }
        assert!((0..8).any(|_| see(MOST, 0) == [false; 3]));
    }
}
