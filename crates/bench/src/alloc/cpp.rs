//! The C++ program of the suite, compiled when it is needed: who builds memfold need not have a C++ compiler.

use crate::Unsupported;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const SOURCE: &str = include_str!("string_map.cpp");

/// The compiled program; removed when dropped.
#[derive(Debug)]
pub(super) struct StringMap {
    directory: TempDir,
}

impl StringMap {
    /// Compiles it with `$CXX`, or else `g++`.
    ///
    /// # Errors
    /// [`Unsupported`] when there is no compiler, or it cannot compile the program.
    pub(super) fn build() -> Result<StringMap> {
        let compiler = std::env::var("CXX").ok().filter(|name| !name.is_empty()).unwrap_or("g++".into());
        StringMap::build_with(&compiler)
    }

    fn build_with(compiler: &str) -> Result<StringMap> {
        let directory = tempfile::Builder::new()
            .prefix("memfold-cpp-")
            .tempdir()
            .context("cannot make a directory for the C++ program")?;
        let source = directory.path().join("string_map.cpp");
        std::fs::write(&source, SOURCE).context("cannot write the C++ program")?;
        let output = Command::new(compiler)
            .args(["-std=c++17", "-O2", "-o"])
            .arg(directory.path().join("string_map"))
            .arg(&source)
            .arg("-ldl")
            .output();
        let remedy =
            "install a C++ compiler (Debian: g++), name it in CXX, or leave string_map out by --pattern";
        match output {
            Err(error) => Err(Unsupported(format!("cannot run {compiler:?}: {error}; {remedy}")).into()),
            Ok(output) if !output.status.success() => {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                Err(Unsupported(format!("{compiler:?} cannot compile string_map: {said}; {remedy}")).into())
            }
            Ok(_) => Ok(StringMap { directory }),
        }
    }

    /// A command that runs it.
    pub(super) fn command(&self, seed: u64) -> Command {
        let mut command = Command::new(self.path());
        command.arg(seed.to_string());
        command
    }

    fn path(&self) -> PathBuf {
        Path::new(self.directory.path()).join("string_map")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_compiler_the_remedy_is_named() {
        let error = StringMap::build_with("/no/such/compiler").unwrap_err();
        assert!(error.downcast_ref::<Unsupported>().is_some());
        assert!(error.to_string().contains("CXX"), "{error}");
    }
}
