//! The statistics that every benchmark of memfold reports with.
//!
//! What it is: quantiles, moments, the ratio of paired runs with its interval, a histogram that keeps every
//! value, a seeded generator of pseudo-random numbers, and the writing of rows as CSV and JSON.
//!
//! What it is not: a measuring tool. Nothing here reads a clock, starts a program or opens a file.
//!
//! Invariants: every result is a function of its arguments, the seed among them; no function panics on an
//! empty or a short sample, it says `None`.

mod histogram;
mod moments;
mod paired;
mod quantile;
mod rng;
mod rows;
mod unpaired;

pub use histogram::{Histogram, Quantiles};
pub use moments::Moments;
pub use paired::{median_interval, BadPairs, Interval, Ratio, LEAST_PAIRS};
pub use quantile::{median, nearest_rank, quantile};
pub use rng::Rng;
pub use rows::write_csv;
pub use unpaired::{mean_interval, Difference};
