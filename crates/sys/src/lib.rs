//! The kernel interfaces that the rest of memfold stands on.
//!
//! What it is: one thin, typed function for every kernel call that the allocator and the pager make.
//! Each goes straight to the kernel, past libc, for three reasons: `libmemfold.so` itself exports
//! `mmap`, `munmap` and their kin, so libc's would call back into it; the agent's threads have no libc
//! thread control block, so nothing they call may touch `errno`; and a single gate is where a test can
//! make a call fail.
//!
//! What it is not: policy. Nothing here retries or decides, and all that it remembers is one hook ([`mem::on_claim`]).
//!
//! Invariants: no function allocates, locks or touches thread-local storage.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod address_space;
pub mod aio;
pub mod cachestat;
pub mod call;
pub mod cgroup;
pub mod dir;
pub mod file;
pub mod futex;
pub mod handing;
mod identity;
pub mod inject;
pub mod life;
pub mod limits;
pub mod mem;
pub mod pagemap;
pub mod pin;
pub mod racing;
pub mod random;
pub mod signal;
pub mod socket;
pub mod table;
mod text;
pub mod thread;
pub mod time;
pub mod trace;
pub mod uffd;
pub mod version;
mod weak;

pub use call::{Errno, Result};

/// Size of a page in bytes. The kernels that memfold manages memory on use 4 KiB pages; `doctor` and the
/// pager's start-up refuse others (aarch64 may be built with 16 KiB or 64 KiB pages).
pub const PAGE_SIZE: usize = 4096;

/// Size of an extent in bytes: the address range of one page-table page, and of one transparent huge page.
pub const EXTENT_SIZE: usize = 2 << 20;

/// Pages in an extent.
pub const EXTENT_PAGES: usize = EXTENT_SIZE / PAGE_SIZE;
