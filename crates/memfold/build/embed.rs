//! The preload library inside the executable, for `cargo install`, which installs executables only.
//!
//! It is the file that `MEMFOLD_EMBED` names, as `make build` has it. In a release build without that variable (`cargo install --path
//! crates/memfold`) it is built here, by a cargo of its own: it may not share features with what has the standard library. Other builds,
//! those for tests among them, have none.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library without its debug information; `None` where there is to be none.
///
/// # Panics
/// If a file that was named cannot be read, or the library cannot be built.
pub fn library(root: &Path, out: &Path) -> Option<Vec<u8>> {
    let file = match std::env::var_os("MEMFOLD_EMBED") {
        Some(named) if named.is_empty() || named == "off" => return None,
        Some(named) => {
            println!("cargo:rerun-if-changed={}", Path::new(&named).display());
            PathBuf::from(named)
        }
        // The source of the library is there in the workspace only, and not in a crate by itself.
        None if std::env::var("PROFILE").as_deref() == Ok("release")
            && root.join("crates/preload/Cargo.toml").is_file() =>
        {
            build(root, out)
        }
        None => return None,
    };
    let stripped = out.join("libmemfold.so");
    let strip = Command::new("strip").arg("--strip-unneeded").arg("-o").arg(&stripped).arg(&file).status();
    let file = if strip.is_ok_and(|status| status.success()) { stripped } else { file };
    Some(std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display())))
}

fn build(root: &Path, out: &Path) -> PathBuf {
    let target = out.join("preload");
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--release", "--locked", "-p", "memfold-preload", "--manifest-path"]);
    command.arg(root.join("Cargo.toml")).arg("--target-dir").arg(&target);
    // What is said to this build is not meant for that one.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_") && text != "CARGO_HOME"
            || text == "MAKEFLAGS"
            || text == "RUSTC_WORKSPACE_WRAPPER"
        {
            command.env_remove(name);
        }
    }
    let built = command.status().expect("cargo can be executed");
    assert!(
        built.success(),
        "the preload library cannot be built; MEMFOLD_EMBED=off builds the executable without it"
    );
    target.join("release/libmemfold.so")
}
