//! Where the agent is, which is put into processes that run.

use crate::{embedded, exit, library};
use anyhow::Context;
use memfold_attach::Image;
use std::fs;
use std::path::{Path, PathBuf};

/// The file name of the agent.
pub const FILE_NAME: &str = "memfold-agent";

/// The variable that names the agent's path when it is at none of the usual places.
pub const VARIABLE: &str = "MEMFOLD_AGENT";

/// Finds the agent: `$MEMFOLD_AGENT`, else beside this executable, else in `../lib/memfold` or `../lib` seen from there, else inside the executable.
///
/// # Errors
/// Ends with exit code 2 and the list of places where it looked. What the variable names is refused if another user could change it.
pub fn find() -> anyhow::Result<Image> {
    let executable = std::env::current_exe()?;
    let named = std::env::var_os(VARIABLE).filter(|v| !v.is_empty()).map(PathBuf::from);
    let places = match &named {
        Some(path) => vec![path.clone()],
        None => library::usual_places(executable.parent().unwrap_or(Path::new("/")), FILE_NAME),
    };
    let found = places.iter().find(|place| place.is_file());
    let file = match found {
        Some(path) => {
            let path = path.canonicalize()?;
            if named.is_some() {
                library::check_owners(&path, VARIABLE, true)?;
            }
            fs::read(&path).with_context(|| format!("cannot read the agent {}", path.display()))?
        }
        None => embedded::agent().filter(|_| named.is_none()).ok_or_else(|| {
            let list: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
            exit::usage(format!(
                "{FILE_NAME} not found; looked for {}. Build it with `make build`, or name it in {VARIABLE}",
                list.join(", ")
            ))
        })?,
    };
    Ok(Image::parse(&file)?)
}
