//! Starting a program with the preload library, staying beside it, and saying at the end what came of it.
//!
//! [`program`] finds it and tells whether it can be folded, [`launch`] prepares its environment,
//! [`supervise`] waits and passes signals on, as far as its [`witness`] has not had them, with as small a [`footprint`] as can be, [`inherited`] is what the program has of its
//! own launcher's caller, [`filter`] is what of its confinement keeps it from being folded, [`tally`] adds up the control pages of its processes,
//! [`summary`] turns the sum into JSON and lines for people, [`destination`] is the file for it. [`depot`] is the
//! process that keeps a tier on the network. [`attaching`] is for programs into which nothing can be preloaded. [`recording`] has the pager note
//! what is touched instead; [`live`] is the line on the terminal meanwhile.

pub mod attaching;
pub mod depot;
pub mod destination;
pub mod filter;
mod footprint;
pub mod group_limit;
pub mod inherited;
pub mod launch;
pub mod live;
pub mod program;
pub mod recording;
pub mod summary;
pub mod supervise;
pub mod tally;
pub mod witness;
