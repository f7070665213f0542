//! Where programs are, and running those that prepare something.

use crate::launch::plain;
use anyhow::{ensure, Context, Result};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file of a program: in `PATH`, or where Debian keeps each version of postgres's programs.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    // The newest first.
    versions.sort_by_key(|path| std::cmp::Reverse(number(path)));
    let folders = std::env::split_paths(&path).chain(versions);
    folders.map(|folder| folder.join(name)).find(|file| executable(file))
}

fn number(folder: &Path) -> u32 {
    let version = folder.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    version.and_then(|name| name.parse().ok()).unwrap_or(0)
}

fn executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// As [`find`], where the program was found before.
///
/// # Errors
/// When it is gone.
pub(super) fn path(name: &str) -> Result<PathBuf> {
    find(name).with_context(|| format!("{name} is not installed any more"))
}

/// The first line that a program prints with this argument; empty where it prints none.
pub(super) fn first_line(program: &Path, argument: &str) -> String {
    let mut command = Command::new(program);
    plain(&mut command);
    let output = command.arg(argument).output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).lines().next().unwrap_or_default().trim().to_owned()
}

/// Runs a command that is no part of what is measured, to its end.
///
/// # Errors
/// When it fails, with what it said.
pub(super) fn prepare(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    plain(command);
    let output = command.output().with_context(|| format!("cannot start {name}"))?;
    ensure!(
        output.status.success(),
        "{name}: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
