//! What program threads do when they change their mappings or fork, and who makes calls on the userfaultfd for them.

pub(crate) mod advice;
mod apart;
pub(crate) mod ending;
pub(crate) mod forking;
pub(crate) mod joining;
pub(crate) mod mappings;
pub(crate) mod pieces;
pub(crate) mod proxy;
pub(crate) mod touched;
