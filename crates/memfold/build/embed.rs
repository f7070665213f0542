//! The preload library, the agent and the program that makes handshakes inside the executable, for `cargo install`, which installs executables only.
//!
//! They are the files that `MEMFOLD_EMBED`, `MEMFOLD_EMBED_AGENT` and `MEMFOLD_EMBED_HANDSHAKE` name, as `make build` has it. In a release build without the variable (`cargo install --path
//! crates/memfold`) each is built here, by a cargo of its own: it may not share features with what has the standard library. Other builds,
//! those for tests among them, have none.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What is embedded.
pub struct Embedded {
    variable: &'static str,
    package: &'static str,
    /// What its crate's folder is called.
    folder: &'static str,
    file: &'static str,
    /// What the compressed file is called.
    pub packed: &'static str,
}

/// The preload library.
pub const LIBRARY: Embedded = Embedded {
    variable: "MEMFOLD_EMBED",
    package: "memfold-preload",
    folder: "preload",
    file: "libmemfold.so",
    packed: "libmemfold.z",
};

/// The agent.
pub const AGENT: Embedded = Embedded {
    variable: "MEMFOLD_EMBED_AGENT",
    package: "memfold-agent",
    folder: "agent",
    file: "memfold-agent",
    packed: "memfold-agent.z",
};

/// The program that makes handshakes.
pub const HANDSHAKE: Embedded = Embedded {
    variable: "MEMFOLD_EMBED_HANDSHAKE",
    package: "memfold-agent",
    folder: "agent",
    file: "memfold-handshake",
    packed: "memfold-handshake.z",
};

/// The file without its debug information; `None` where there is to be none.
///
/// # Panics
/// If a file that was named cannot be read, or what is to be built cannot be.
pub fn file(what: &Embedded, root: &Path, out: &Path) -> Option<Vec<u8>> {
    let file = match std::env::var_os(what.variable) {
        Some(named) if named.is_empty() || named == "off" => return None,
        Some(named) => {
            println!("cargo:rerun-if-changed={}", Path::new(&named).display());
            PathBuf::from(named)
        }
        // Its source is there in the workspace only, and not in a crate by itself.
        None if std::env::var("PROFILE").as_deref() == Ok("release")
            && root.join("crates").join(what.folder).join("Cargo.toml").is_file() =>
        {
            build(what, root, out)
        }
        None => return None,
    };
    let stripped = out.join(what.file);
    let strip = Command::new("strip").arg("--strip-unneeded").arg("-o").arg(&stripped).arg(&file).status();
    let file = if strip.is_ok_and(|status| status.success()) { stripped } else { file };
    Some(std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display())))
}

fn build(what: &Embedded, root: &Path, out: &Path) -> PathBuf {
    let target = out.join(what.folder);
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--release", "--locked", "-p", what.package, "--manifest-path"]);
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
        "{} cannot be built; {}=off builds the executable without it",
        what.package,
        what.variable
    );
    target.join("release").join(what.file)
}
