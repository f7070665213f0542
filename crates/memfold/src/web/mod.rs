//! `memfold web`: what `memfold top` shows, as a page for a browser.
//!
//! What is known stands in [`model`], how it is told to the page in [`json`]; who may know it, and who may change anything, in [`access`]; what
//! is asked over HTTP and answered in [`server`]. The page itself is in `page/`: HTML, style and script, which become one file.
//!
//! Invariants: there is one reader of control pages however many browsers look, and it takes less than half a per cent of a CPU. One thread
//! does everything but wait for programs, so nothing is locked. Nobody waits for a browser that does not read.

mod access;
mod json;
mod model;
mod page;
mod server;

pub use access::Readers;
pub use server::{serve, Options};
