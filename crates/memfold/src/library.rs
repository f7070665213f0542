//! Where `libmemfold.so` is.

use crate::{embedded, exit};
use nix::unistd::geteuid;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The file name of the preload library.
pub const FILE_NAME: &str = embedded::FILE_NAME;

/// The variable that names the library's path when it is at none of the usual places.
pub const VARIABLE: &str = "MEMFOLD_LIB";

/// Finds the preload library: `$MEMFOLD_LIB`, else beside this executable, else in `../lib/memfold` or
/// `../lib` seen from there, else the one inside the executable, which is put into the user's cache. The path is absolute.
///
/// # Errors
/// Ends with exit code 2 and the list of places where it looked. A path with a space or a colon cannot be
/// written in `LD_PRELOAD` (ld.so(8)) and is refused too, and so is what the variable names if another user could change it.
pub fn find() -> anyhow::Result<PathBuf> {
    let places = Places::of(FILE_NAME, VARIABLE)?;
    let found = places.found();
    let unpacked = found.is_none() && !places.named;
    let Some(found) = found.map_or_else(
        || if unpacked { embedded::library(|place| check_owners(place, "", false)) } else { Ok(None) },
        |path| Ok(Some(path)),
    )?
    else {
        return Err(places.none());
    };
    let path = found.canonicalize()?;
    if places.named || unpacked {
        check_owners(&path, VARIABLE, !unpacked)?;
    }
    if path.to_string_lossy().contains([' ', ':', '\t', '\n']) {
        return Err(exit::usage(format!(
            "the path {path:?} has a space or a colon, which LD_PRELOAD cannot carry; \
             copy the library elsewhere and name it in {VARIABLE}"
        )));
    }
    Ok(path)
}

/// Where a file that belongs to this executable may be.
pub struct Places {
    file_name: &'static str,
    variable: &'static str,
    /// The variable says where.
    pub named: bool,
    places: Vec<PathBuf>,
}

impl Places {
    /// Where the variable says, or else the usual places.
    ///
    /// # Errors
    /// It is not known where this executable is.
    pub fn of(file_name: &'static str, variable: &'static str) -> anyhow::Result<Places> {
        let executable = std::env::current_exe()?;
        let named = std::env::var_os(variable).filter(|v| !v.is_empty()).map(PathBuf::from);
        let usual = || usual_places(executable.parent().unwrap_or(Path::new("/")), file_name);
        Ok(Places {
            file_name,
            variable,
            named: named.is_some(),
            places: named.map_or_else(usual, |path| vec![path]),
        })
    }

    /// The first of them at which it is.
    pub fn found(&self) -> Option<PathBuf> {
        self.places.iter().find(|place| place.is_file()).cloned()
    }

    /// That it is at none of them, and what to do about it.
    pub fn none(&self) -> anyhow::Error {
        let list: Vec<_> = self.places.iter().map(|place| place.display().to_string()).collect();
        let (file_name, variable) = (self.file_name, self.variable);
        exit::usage(format!(
            "{file_name} not found; looked for {}. Build it with `make build`, or name it in {variable}",
            list.join(", ")
        ))
    }
}

/// The variable, and where the user's cache is, may come from another user's environment (`su`, `sudo -E`), and the library's code runs as who calls: neither it nor
/// a directory above it may be another user's, nor be writable by everybody. `path` has no links in it; `named` says that `variable` names it.
///
/// # Errors
/// Ends with exit code 2, and says what is wrong with which.
pub fn check_owners(path: &Path, variable: &str, named: bool) -> anyhow::Result<()> {
    for part in path.ancestors() {
        let meta = fs::symlink_metadata(part)?;
        // In a sticky directory only owners remove and rename.
        let open = meta.mode() & 0o002 != 0 && !(meta.is_dir() && meta.mode() & 0o1000 != 0);
        let why = if meta.uid() != 0 && meta.uid() != geteuid().as_raw() {
            format!("belongs to user {}", meta.uid())
        } else if open {
            "is writable by everybody".to_owned()
        } else {
            continue;
        };
        let named = if named { format!("{variable}=") } else { String::new() };
        return Err(exit::usage(format!(
            "{named}{}: {} {why}, and its code would run in your programs; name one that only root or you can change",
            path.display(),
            part.display()
        )));
    }
    Ok(())
}

/// Where a file of memfold's is seen from the directory of this executable.
fn usual_places(beside: &Path, name: &str) -> Vec<PathBuf> {
    ["", "../lib/memfold", "../lib"].iter().map(|place| beside.join(place).join(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_beside_the_executable_comes_first() {
        let places = usual_places(Path::new("/opt/memfold/bin"), FILE_NAME);
        assert_eq!(places[0], Path::new("/opt/memfold/bin/libmemfold.so"));
        assert_eq!(places[1], Path::new("/opt/memfold/bin/../lib/memfold/libmemfold.so"));
    }
}
