//! The preload library, the agent and the program that makes handshakes inside this executable, for who has nothing else: `cargo install` installs executables only.
//!
//! The agent is used from here, and the program installed by `memfold setup`. The library is written to the user's cache once, under a name with its checksum and length, and read and checked against both before each use: a
//! file that was cut short or changed is written anew. Who could change that directory is checked where the library is found.

use crate::exit;
use anyhow::Context;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The file name of the preload library.
pub const FILE_NAME: &str = "libmemfold.so";

/// The library, compressed; empty in executables without it.
static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libmemfold.z"));
/// Its checksum (CRC-32) and its length, as `sum-length`.
const NAME: &str = env!("MEMFOLD_EMBEDDED");

/// The agent, compressed; empty in executables without it. Who puts it into a process checks that it is one.
static AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/memfold-agent.z"));

/// The program that makes handshakes, compressed; empty in executables without it.
static HANDSHAKE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/memfold-handshake.z"));

/// The agent's file; `None` if this executable has none inside.
pub fn agent() -> Option<Vec<u8>> {
    whole(AGENT)
}

/// The file of the program that makes handshakes; `None` if this executable has none inside.
pub fn handshake() -> Option<Vec<u8>> {
    whole(HANDSHAKE)
}

fn whole(packed: &[u8]) -> Option<Vec<u8>> {
    miniz_oxide::inflate::decompress_to_vec(packed).ok().filter(|file| !file.is_empty())
}

/// Puts the library into the user's cache if it is not there, once `check` has nothing against the place; where it is. `None` if this executable has none inside.
///
/// # Errors
/// There is no place for it, or it cannot be written.
pub fn library(check: impl Fn(&Path) -> anyhow::Result<()>) -> anyhow::Result<Option<PathBuf>> {
    if PACKED.is_empty() {
        return Ok(None);
    }
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let Some(cache) = cache else {
        return Err(exit::usage(
            "the library inside this executable needs a place, and neither HOME nor XDG_CACHE_HOME names one",
        ));
    };
    let dir = cache.join("memfold").join(NAME);
    // Before anything is made there: it may be another user's home (`sudo -E`).
    let there = dir.ancestors().find_map(|part| part.canonicalize().ok());
    check(&there.unwrap_or_else(|| "/".into()))?;
    unpack(&dir, NAME, PACKED)
        .with_context(|| format!("cannot put the library into {}", dir.display()))
        .map(Some)
}

/// The library in `dir`, written there unless it is there already. `name` is its checksum and its length.
fn unpack(dir: &Path, name: &str, packed: &[u8]) -> anyhow::Result<PathBuf> {
    let path = dir.join(FILE_NAME);
    if fs::read(&path).is_ok_and(|found| name_of(&found) == name) {
        return Ok(path);
    }
    let library =
        miniz_oxide::inflate::decompress_to_vec(packed).ok().filter(|library| name_of(library) == name);
    let library = library.context("what is inside the executable is damaged")?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(dir)?;
    file.write_all(&library)?;
    file.as_file().set_permissions(fs::Permissions::from_mode(0o644))?;
    // Others may be doing the same; each puts the whole file there.
    file.persist(&path)?;
    Ok(path)
}

fn name_of(library: &[u8]) -> String {
    format!("{:08x}-{}", crc32fast::hash(library), library.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_written_once_and_again_where_it_was_changed() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("memfold/x");
        let library = b"a library".repeat(1000);
        let (name, packed) = (name_of(&library), miniz_oxide::deflate::compress_to_vec(&library, 6));
        let path = unpack(&dir, &name, &packed).unwrap();
        assert_eq!(fs::read(&path).unwrap(), library);
        let first = fs::metadata(&path).unwrap().modified().unwrap();
        unpack(&dir, &name, &packed).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), first);
        for damaged in [&library[..100], &[0u8; 9000]] {
            fs::write(&path, damaged).unwrap();
            assert_eq!(fs::read(unpack(&dir, &name, &packed).unwrap()).unwrap(), library);
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        assert!(unpack(&home.path().join("y"), &name, &packed[..20]).is_err());
    }
}
