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

/// What a process that is folded now is like.
pub struct Folded {
    /// For how long a thread of it was stopped.
    pub stop: Stop,
    /// Why there is no control page, as in a container without a directory for temporary files: nobody sees or steers it.
    pub unseen: Option<String>,
}

/// Folds a process from now on.
///
/// # Errors
/// The process refuses, or the agent does, or there is no place for the control page among this user's own.
pub fn fold(target: &Target, image: &Image, choices: &[(String, String)]) -> anyhow::Result<Folded> {
    let place = Place::of(target.pid())?;
    let mut choices = choices.to_vec();
    choices.extend(place.path()?.map(|path| (pages::VARIABLE.into(), path.into())));
    let stop = memfold_attach::attach(target, image, &choices)?;
    Ok(Folded { stop, unseen: place.unseen() })
}
