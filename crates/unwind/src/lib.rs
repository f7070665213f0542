//! The calls that a thread is in, found without help: no allocation, no lock, and of libc one function of its loader's.
//!
//! What it is: [`capture`] walks the stack of the calling thread by the call frame information of the files that are mapped (`.eh_frame`,
//! which compilers emit for every function whether it keeps a frame pointer or not), and by frame pointers where there is none, as in code
//! that was made at run time. What is found out of an address is kept ([`rules`]), so a walk costs some dozens of nanoseconds a call.
//! What it is not: names; those are found from outside.
//!
//! Invariants: the stack is read by the kernel ([`stack`]), so a wrong rule yields a wrong caller and never a fault; a walk ends, as each
//! caller's frame lies above the last.
#![no_std]

#[cfg(test)]
extern crate std;

mod modules;
mod rules;
mod stack;
mod walk;

pub use modules::own_module;
pub use rules::Rules;
pub use walk::{capture, MOST_CALLS};
