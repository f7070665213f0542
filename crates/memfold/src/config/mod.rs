//! The files of settings: what `memfold run` does where neither an option nor a variable says.
//!
//! [`keys`] are the words that a file may use, which are the options of `run`; [`mod@file`] reads one and says where it is wrong ([`reading`]); [`decide`] finds
//! what holds for a program; [`origin`] keeps, beside the control pages of a run, who decided what.
//!
//! What it is not: read by the library. A program gets what was decided as variables of its environment, as if a person had set them.
//!
//! Invariants: a file that another user could write is not read; what cannot be read is said and left out, and keeps no program from
//! starting.

pub mod decide;
pub mod file;
pub mod keys;
pub mod origin;
pub mod reading;
