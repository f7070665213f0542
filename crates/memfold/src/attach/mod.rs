//! Attaching to processes, one or many: where their control pages are to be, which of them are meant, and what came of each.
//!
//! What it is not: the putting of the agent into a process, which is `memfold-attach`.

pub mod place;

use crate::pages;
use memfold_attach::{Image, Stop, Target};
use place::Place;

/// Folds a process from now on. `choices` are what the agent is told.
///
/// # Errors
/// The process refuses, or the agent does, or there is no place for the control page.
pub fn fold(pid: u32, image: &Image, choices: &[(String, String)]) -> anyhow::Result<Stop> {
    let target = Target::new(pid);
    // Nothing is made for who is refused.
    target.check()?;
    let place = Place::of(pid)?;
    let mut choices = choices.to_vec();
    choices.push((pages::VARIABLE.into(), place.path()?.into()));
    Ok(memfold_attach::attach(&target, image, &choices)?)
}
