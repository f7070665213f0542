//! What the end-to-end tests share: where the preload library is.
//!
//! The tests of this package run real programs with `libmemfold.so` preloaded, as a user would. They do not
//! build the library: cargo cannot make a test depend on another package's `cdylib`, so `make test` builds it
//! first and a test that does not find it fails and says so.

pub mod agent;
pub mod browser;
pub mod client;
pub mod command_line;
pub mod cores;
pub mod daemon;
pub mod dialogue;
pub mod engine;
pub mod forged;
pub mod held;
pub mod holder;
pub mod keep;
pub mod machine;
pub mod redis;
pub mod row;
pub mod run;
pub mod terminal;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use command_line::{installed_for_all, is_root, memfold, output, scratch};

/// How long a test waits for what must come: what has not by then never comes, also where a hundred others want the CPU.
pub const LIMIT: Duration = Duration::from_secs(600);

/// Waits until `seen` says so, at most `limit`.
///
/// # Panics
/// If it does not by then.
pub fn wait_until(limit: Duration, what: &str, mut seen: impl FnMut() -> bool) {
    wait_for(limit, || if seen() { Ok(()) } else { Err(what) });
}

/// Waits until the look finds what it looks for, at most `limit`.
///
/// # Panics
/// If it does not by then, with what it said last was missing.
pub fn wait_for<T, Missing: Display>(limit: Duration, mut look: impl FnMut() -> Result<T, Missing>) -> T {
    let began = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(missing) => assert!(began.elapsed() < limit, "never: {missing}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The absolute path of `libmemfold.so`: the value of `MEMFOLD_LIB`, else `target/release/libmemfold.so` of
/// this workspace.
///
/// # Panics
/// If the file is not there, with the command that builds it.
pub fn preload_library() -> PathBuf {
    let path = std::env::var_os("MEMFOLD_LIB")
        .map(PathBuf::from)
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release/libmemfold.so"));
    path.canonicalize().unwrap_or_else(|error| {
        panic!(
            "{}: {error}. Build it with `cargo build --release -p memfold-preload`, or name it in MEMFOLD_LIB",
            path.display()
        )
    })
}
