//! A trace with its pages numbered, ready to be run over again and again.
//!
//! What it is not: a file format; those are in [`crate::format`].
//!
//! A page takes 16 bytes of memory while it is numbered, about 20 while the table grows, and none after; a request takes
//! 4, those beyond the first millions in a temporary file. So a trace of 1 GiB needs no more memory than a short one
//! with as many pages.
//!
//! Invariants: pages are numbered from 0 in the order of their first requests, so that policies find them by index.

use crate::column::{Column, BLOCK};
use crate::error::TraceError;
use crate::limits::{MOST_PAGES, MOST_REQUESTS};
use hashbrown::hash_table::{Entry, HashTable};
use memfold_policy::replace::NO_NEXT;
use std::sync::OnceLock;

/// One request of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Request {
    /// When, in the trace's own unit.
    pub time: u64,
    /// What: a page, a block, or another object that counts as one page.
    pub object: u64,
}

/// A trace.
#[derive(Debug)]
pub struct Trace {
    pages: Column,
    next: OnceLock<Column>,
    universe: usize,
}

impl Trace {
    /// Numbers the pages of a trace.
    ///
    /// # Errors
    /// Those of the requests, and those of keeping them.
    pub fn number(
        requests: impl IntoIterator<Item = Result<Request, TraceError>>,
    ) -> Result<Trace, TraceError> {
        let mut numbering = Numbering::default();
        for request in requests {
            numbering.push(request?.object)?;
        }
        Ok(numbering.finish()?.0)
    }

    /// A trace of objects at hand.
    ///
    /// # Errors
    /// As for [`Trace::number`].
    pub fn of(objects: impl IntoIterator<Item = u64>) -> Result<Trace, TraceError> {
        Trace::number(objects.into_iter().map(|object| Ok(Request { time: 0, object })))
    }

    /// How many different pages there are.
    pub fn universe(&self) -> usize {
        self.universe
    }

    /// How many requests there are.
    pub fn requests(&self) -> u64 {
        self.pages.len()
    }

    /// The requested pages.
    pub fn pages(&self) -> &Column {
        &self.pages
    }

    /// For each request the number of the one that asks for the same page next, or [`NO_NEXT`]. Worked out when it is first
    /// asked for, with 4 bytes of memory a page.
    ///
    /// # Errors
    /// When the temporary files cannot be read or written.
    pub fn next(&self) -> Result<&Column, TraceError> {
        if let Some(next) = self.next.get() {
            return Ok(next);
        }
        let mut next = Column::of_len(self.requests())?;
        let mut coming = vec![NO_NEXT; self.universe];
        let (mut buffer, mut numbers) = (Vec::new(), Vec::with_capacity(BLOCK));
        for start in self.pages.starts().rev() {
            let pages = self.pages.block(start, &mut buffer)?;
            numbers.resize(pages.len(), NO_NEXT);
            for (place, &page) in pages.iter().enumerate().rev() {
                numbers[place] = std::mem::replace(&mut coming[page as usize], (start + place as u64) as u32);
            }
            next.set(start, &numbers)?;
        }
        Ok(self.next.get_or_init(|| next))
    }
}

/// A trace of which further requests come.
#[derive(Default)]
pub(crate) struct Numbering {
    pages: Column,
    numbers: Numbers,
}

impl Numbering {
    /// Adds a request.
    pub(crate) fn push(&mut self, object: u64) -> Result<(), TraceError> {
        self.pages.push(self.numbers.of(object)?)?;
        match self.pages.len() > MOST_REQUESTS {
            true => Err(TraceError::TooManyRequests),
            false => Ok(()),
        }
    }

    /// The trace, and the objects by their numbers.
    pub(crate) fn finish(self) -> Result<(Trace, Vec<u64>), TraceError> {
        if self.pages.is_empty() {
            return Err(TraceError::Empty);
        }
        let objects = self.numbers.objects;
        Ok((Trace { pages: self.pages, next: OnceLock::new(), universe: objects.len() }, objects))
    }
}

/// Numbers for objects, in the order of their first requests.
#[derive(Default)]
struct Numbers {
    objects: Vec<u64>,
    table: HashTable<u32>,
}

impl Numbers {
    fn of(&mut self, object: u64) -> Result<u32, TraceError> {
        let objects = &self.objects;
        let same = |&number: &u32| objects[number as usize] == object;
        let entry = self.table.entry(spread(object), same, |&number| spread(objects[number as usize]));
        match entry {
            Entry::Occupied(entry) => Ok(*entry.get()),
            Entry::Vacant(_) if objects.len() == MOST_PAGES => Err(TraceError::TooManyPages),
            Entry::Vacant(entry) => {
                let number = objects.len() as u32;
                entry.insert(number);
                self.objects.push(object);
                Ok(number)
            }
        }
    }
}

/// A hash of an object (the finalizer of MurmurHash3; Appleby, 2011).
pub fn spread(object: u64) -> u64 {
    let mut z = object;
    z = (z ^ (z >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    z = (z ^ (z >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    z ^ (z >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(column: &Column) -> Vec<u32> {
        let mut buffer = Vec::new();
        column.starts().flat_map(|start| column.block(start, &mut buffer).unwrap().to_vec()).collect()
    }

    #[test]
    fn pages_are_numbered_by_their_first_requests_and_know_the_next() {
        let trace = Trace::of([900, 5, 900, 7, 5]).unwrap();
        assert_eq!((all(trace.pages()), trace.universe()), (vec![0, 1, 0, 2, 1], 3));
        assert_eq!(all(trace.next().unwrap()), [2, 4, NO_NEXT, NO_NEXT, NO_NEXT]);
        assert!(matches!(Trace::of([]), Err(TraceError::Empty)));
    }

    #[test]
    fn what_comes_next_is_known_across_blocks() {
        let period = BLOCK as u64 / 2 + 3;
        let trace = Trace::of((0..4 * BLOCK as u64).map(|n| n % period)).unwrap();
        let next = all(trace.next().unwrap());
        let last = 4 * BLOCK as u64 - period;
        for (number, &next) in next.iter().enumerate() {
            let expected = if (number as u64) < last { number as u64 + period } else { u64::from(NO_NEXT) };
            assert_eq!(u64::from(next), expected);
        }
    }
}
