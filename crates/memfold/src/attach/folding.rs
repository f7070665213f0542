//! Attaching to one process.

use super::place::Place;
use crate::pages;
use memfold_attach::{Image, Stop, Target};

/// What processes are attached to with.
#[derive(Clone, Copy)]
pub struct Attaching<'a> {
    /// The agent; none where it is only looked whether it could be done.
    pub image: Option<&'a Image>,
    /// What the agent is told.
    pub choices: &'a [(String, String)],
}

/// Folds a process from now on.
///
/// # Errors
/// The process refuses, or the agent does, or there is no place for the control page.
pub fn fold(pid: u32, image: &Image, choices: &[(String, String)]) -> anyhow::Result<Stop> {
    let place = Place::of(pid)?;
    let mut choices = choices.to_vec();
    choices.push((pages::VARIABLE.into(), place.path()?.into()));
    Ok(memfold_attach::attach(&Target::new(pid), image, &choices)?)
}
