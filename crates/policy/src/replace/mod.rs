//! Which page goes when another must come: replacement policies, for a cache of a fixed number of pages.
//!
//! What it is not: a cache. A policy sees page numbers and nothing else; it holds no contents, reads no clock and draws
//! its random numbers from a seed.
//!
//! Invariants: pages are numbers below the `universe` that a policy is made for, so that everything about a page is found
//! by an index; a policy never has more pages resident than its capacity, and evicts none that is not resident.

pub(crate) mod adaptive;
pub(crate) mod belady;
pub(crate) mod clock;
mod fetch;
pub(crate) mod frequency;
pub(crate) mod list;
pub(crate) mod mglru;
pub(crate) mod queues;
pub(crate) mod recency;
mod refaults;
pub(crate) mod s3fifo;
mod sketch;
pub(crate) mod tinylfu;

pub use belady::NEVER;

/// What a request came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The page was resident.
    Hit,
    /// It was not, and is now.
    Miss {
        /// The page that went for it, if the cache was full.
        evicted: Option<u32>,
    },
}

/// A replacement policy at work.
pub trait Replacement {
    /// A page is requested. `next` is the number of the request that asks for it next, or [`NEVER`]; only the offline
    /// policy looks at it.
    fn request(&mut self, page: u32, next: u64) -> Outcome;

    /// Whether the page is resident.
    fn is_resident(&self, page: u32) -> bool;

    /// How many pages are resident.
    fn resident(&self) -> usize;

    /// Says that the page will be requested soon, so that what the policy knows of it can be fetched into the cache.
    fn prefetch(&self, _page: u32) {}

    /// Requests pages one after the other and returns how many were missed. `next` has for each the number of the request
    /// that asks for it next, or [`NO_NEXT`]; it may be empty where the policy does not look at it.
    fn replay(&mut self, pages: &[u32], next: &[u32]) -> u64 {
        let mut misses = 0;
        for (number, &page) in pages.iter().enumerate() {
            if let Some(&coming) = pages.get(number + AHEAD) {
                self.prefetch(coming);
            }
            let next =
                next.get(number).filter(|&&next| next != NO_NEXT).map_or(NEVER, |&next| u64::from(next));
            misses += u64::from(self.request(page, next) != Outcome::Hit);
        }
        misses
    }
}

/// In [`Replacement::replay`]: no request asks for the page again.
pub const NO_NEXT: u32 = u32::MAX;

/// Requests between a prefetch and the request that it is for: memory takes about as long as that many take.
const AHEAD: usize = 24;

/// That part of the capacity, at least one page and at most all.
fn share(capacity: usize, part: f64) -> usize {
    ((capacity as f64 * part) as usize).clamp(1, capacity)
}

#[cfg(test)]
mod tests;
