//! The explicit API: a program names the ranges of its memory that may be folded, and says what it knows of them.
//!
//! For programs that do not want their allocator replaced: nothing is preloaded, no function of libc is intercepted. In
//! Rust by [`start`], [`register`], [`unregister`] and [`hint`]; in C by the same functions in `memfold.h`, of the crate `client-c`.
//!
//! What it is not: a pager. The engine of the crate `pager` runs in the process and does the work.
//!
//! Invariants: whatever is called in whatever order, the program finds the bytes that it wrote. A range need not be
//! unregistered before it is unmapped, remapped, protected or forked; what the kernel reports of that is followed. Under a daemon's
//! budget all of it is the same.
//!
//! ```no_run
//! use memfold_client::{hint, register, start, Hint, Options};
//! let memory = vec![7u8; 64 << 20];
//! start(&Options::default())?;
//! register(memory.as_ptr(), memory.len())?;
//! hint(memory.as_ptr(), 32 << 20, Hint::DontNeedSoon)?;
//! # Ok::<(), memfold_client::Error>(())
//! ```

mod api;
mod control_dir;
mod embedded;
mod environment;
mod error;
mod maps;
mod options;
mod socket;

pub use api::{hint, register, start, stats, stop, unregister, Hint, Stats};
pub use embedded::have_own_heap;
pub use error::Error;
pub use memfold_pager::own_heap::OwnHeap;
pub use options::Options;
