//! Folding services of systemd: [`mod@unit`] reads what a service is, [`dropin`] writes what has to be added to it.
//!
//! What it is not: a way to start or stop anything. It writes one file, below the directory of the service's drop-ins, and the
//! service is folded from its next start on.
//!
//! Invariants: the service's own files stay as they are; what confines it is loosened by what folding needs and no more; a service
//! that cannot be wrapped is refused, with the reason.

pub mod dropin;
pub mod unit;
