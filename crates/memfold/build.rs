//! Tells the executable of which commit it is built, as `MEMFOLD_COMMIT`, where that can be known, and its version with it; and puts
//! the preload library, the agent and the program that makes handshakes into it, compressed, where they are to be.
//!
//! It stands in the crate that nothing depends on, so that a new commit costs one compilation.

#[path = "build/commit.rs"]
mod commit;
#[path = "build/embed.rs"]
mod embed;

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
    for variable in ["MEMFOLD_EMBED", "MEMFOLD_EMBED_AGENT", "MEMFOLD_EMBED_HANDSHAKE"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let out = std::env::var_os("OUT_DIR").expect("cargo names a directory for what is made");
    let embedded = |what: &embed::Embedded| {
        let file = embed::file(what, &root, Path::new(&out)).unwrap_or_default();
        let packed =
            if file.is_empty() { Vec::new() } else { miniz_oxide::deflate::compress_to_vec(&file, 8) };
        std::fs::write(Path::new(&out).join(what.packed), packed).expect("what is made can be written");
        file
    };
    let library = embedded(&embed::LIBRARY);
    embedded(&embed::AGENT);
    embedded(&embed::HANDSHAKE);
    println!("cargo:rustc-env=MEMFOLD_EMBEDDED={:08x}-{}", crc32fast::hash(&library), library.len());
    for path in commit::watched(&root) {
        println!("cargo:rerun-if-changed={}", path.display());
    }
}
