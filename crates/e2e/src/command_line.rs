//! The `memfold` executable, as the tests run it: with a runtime directory of the test's own, as the user
//! who runs the tests or as one without any rights.

use crate::preload_library;
use crate::run::copy_program;
use std::fs;
use std::os::unix::fs::{chown, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// The user and group `nobody` of every Linux: 65534, the kernel's overflow id.
const NOBODY: u32 = 65_534;

/// The absolute path of the executable: the value of `MEMFOLD_BIN`, else beside the library.
///
/// # Panics
/// If it is not there, with the command that builds it.
pub fn executable() -> PathBuf {
    let beside = || preload_library().with_file_name("memfold");
    let path = std::env::var_os("MEMFOLD_BIN").map_or_else(beside, PathBuf::from);
    path.canonicalize().unwrap_or_else(|error| {
        panic!(
            "{}: {error}. Build it with `cargo build --release -p memfold`, or name it in MEMFOLD_BIN",
            path.display()
        )
    })
}

/// An empty directory of the test's own, closed to others, removed when it is dropped.
pub fn scratch() -> TempDir {
    let closed = fs::Permissions::from_mode(0o700);
    let dir = tempfile::Builder::new().prefix("memfold-test-").permissions(closed).tempdir();
    dir.expect("a temporary directory can be made")
}

/// A command that runs the executable with control pages in `runtime`, and with no variable of memfold's
/// from outside but the library's path.
pub fn memfold(runtime: &Path) -> Command {
    let mut command = Command::new(executable());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MEMFOLD_") {
            command.env_remove(name);
        }
    }
    command
        .env("MEMFOLD_LIB", preload_library())
        .env("MEMFOLD_RUNTIME_DIR", runtime)
        .env("MEMFOLD_CONFIG", "off");
    command
}

/// Runs a command of memfold's, with nothing on its standard input, to its end.
///
/// # Panics
/// If it cannot be executed.
pub fn output(mut command: Command) -> Output {
    command.stdin(Stdio::null()).output().expect("memfold can be executed")
}

/// A copy of memfold where every user can execute it, to be run without rights: checkouts may lie where
/// only their owner looks.
pub struct Installed {
    dir: TempDir,
}

/// Makes the copy.
///
/// # Panics
/// If the files cannot be copied.
pub fn installed_for_all() -> Installed {
    let dir = scratch();
    let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    for (from, name) in [(executable(), "memfold"), (preload_library(), "libmemfold.so")] {
        let to = dir.path().join(name);
        copy_program(&from, &to);
        open(&to);
    }
    open(dir.path());
    let home = dir.path().join("home");
    fs::create_dir(&home).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
    if is_root() {
        chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    Installed { dir }
}

impl Installed {
    /// A directory that belongs to the user without rights.
    pub fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// A command that runs the executable without rights: as `nobody` where the tests run as root, else as
    /// the user who runs them.
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.dir.path().join("memfold"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("MEMFOLD_") {
                command.env_remove(name);
            }
        }
        command.env_remove("XDG_RUNTIME_DIR").env("MEMFOLD_CONFIG", "off").current_dir(self.dir.path());
        if is_root() {
            // Giving up root this way also drops the supplementary groups and all capabilities.
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    // SAFETY: geteuid always succeeds.
    unsafe { libc::geteuid() == 0 }
}
