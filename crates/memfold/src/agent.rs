//! Where the agent is, which is put into processes that run.

use crate::embedded;
use crate::library::{self, Places};
use anyhow::Context;
use memfold_attach::Image;
use std::fs;

/// The file name of the agent.
pub const FILE_NAME: &str = "memfold-agent";

/// The variable that names the agent's path when it is at none of the usual places.
pub const VARIABLE: &str = "MEMFOLD_AGENT";

/// Finds the agent: `$MEMFOLD_AGENT`, else beside this executable, else in `../lib/memfold` or `../lib` seen from there, else inside the executable.
///
/// # Errors
/// Ends with exit code 2 and the list of places where it looked. What the variable names is refused if another user could change it.
pub fn find() -> anyhow::Result<Image> {
    let places = Places::of(FILE_NAME, VARIABLE)?;
    let file = match places.found() {
        Some(path) => {
            let path = path.canonicalize()?;
            if places.named {
                library::check_owners(&path, VARIABLE, true)?;
            }
            fs::read(&path).with_context(|| format!("cannot read the agent {}", path.display()))?
        }
        None => embedded::agent().filter(|_| !places.named).ok_or_else(|| places.none())?,
    };
    Ok(Image::parse(&file)?)
}
