//! Tells the executable of which commit it is built, as `MEMFOLD_COMMIT`, where that can be known, and its version with it.
//!
//! It stands in the crate that nothing depends on, so that a new commit costs one compilation.

#[path = "build/commit.rs"]
mod commit;

use std::path::Path;

fn main() {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the package's directory");
    let root = Path::new(&package).join("../..");
    let version = env!("CARGO_PKG_VERSION");
    match commit::of(&root) {
        Some(commit) => {
            println!("cargo:rustc-env=MEMFOLD_COMMIT={commit}");
            println!("cargo:rustc-env=MEMFOLD_VERSION={version}, commit {commit}");
        }
        None => println!("cargo:rustc-env=MEMFOLD_VERSION={version}"),
    }
    for path in commit::watched(&root) {
        println!("cargo:rerun-if-changed={}", path.display());
    }
}
