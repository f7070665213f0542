//! Removing what runs leave on purpose, the test files, and what killed ones left behind.

use crate::cgroup::Hierarchy;
use crate::files::Files;
use crate::place::Place;
use crate::Refused;
use anyhow::Result;
use std::path::Path;

/// Removes the test files of `directory`, whole and unfinished, and the cgroups of killed runs. Returns the names and
/// bytes of the files.
///
/// # Errors
/// [`Refused`] if the directory is not there or a run uses it, and when a file cannot be removed.
pub fn clean(directory: &Path) -> Result<Vec<(String, u64)>> {
    let path = directory
        .canonicalize()
        .map_err(|error| Refused(format!("--dir {}: {error}", directory.display())))?;
    // Finding a hierarchy sweeps it. Without one there was nothing that could have been left.
    let _ = Hierarchy::find();
    let place = Place { directory: path, device: String::new(), disk: (0, 0) };
    Files::take(place)?.remove_all()
}
