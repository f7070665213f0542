//! Where `libmemfold.so` is.

use crate::exit;
use std::path::{Path, PathBuf};

/// The file name of the preload library.
pub const FILE_NAME: &str = "libmemfold.so";

/// The variable that names the library's path when it is at none of the usual places.
pub const VARIABLE: &str = "MEMFOLD_LIB";

/// Finds the preload library: `$MEMFOLD_LIB`, else beside this executable, else in `../lib/memfold` or
/// `../lib` seen from there. The path is absolute.
///
/// # Errors
/// Ends with exit code 2 and the list of places where it looked. A path with a space or a colon cannot be
/// written in `LD_PRELOAD` (ld.so(8)) and is refused too.
pub fn find() -> anyhow::Result<PathBuf> {
    let executable = std::env::current_exe()?;
    let places = match std::env::var_os(VARIABLE).filter(|v| !v.is_empty()) {
        Some(path) => vec![PathBuf::from(path)],
        None => usual_places(executable.parent().unwrap_or(Path::new("/"))),
    };
    let Some(found) = places.iter().find(|p| p.is_file()) else {
        let list: Vec<_> = places.iter().map(|p| p.display().to_string()).collect();
        return Err(exit::usage(format!(
            "{FILE_NAME} not found; looked for {}. Build it with `make build`, or name it in {VARIABLE}",
            list.join(", ")
        )));
    };
    let path = found.canonicalize()?;
    if path.to_string_lossy().contains([' ', ':', '\t', '\n']) {
        return Err(exit::usage(format!(
            "the path {path:?} has a space or a colon, which LD_PRELOAD cannot carry; \
             copy the library elsewhere and name it in {VARIABLE}"
        )));
    }
    Ok(path)
}

fn usual_places(beside: &Path) -> Vec<PathBuf> {
    ["", "../lib/memfold", "../lib"].iter().map(|place| beside.join(place).join(FILE_NAME)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_beside_the_executable_comes_first() {
        let places = usual_places(Path::new("/opt/memfold/bin"));
        assert_eq!(places[0], Path::new("/opt/memfold/bin/libmemfold.so"));
        assert_eq!(places[1], Path::new("/opt/memfold/bin/../lib/memfold/libmemfold.so"));
    }
}
