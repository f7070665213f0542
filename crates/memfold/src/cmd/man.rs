//! `memfold man`: the pages of the manual as files, for who installs or packs memfold.

use crate::{manual, text};
use anyhow::Context;
use std::path::PathBuf;
use std::process::ExitCode;

/// Write the pages of the manual to a directory.
#[derive(clap::Args)]
pub struct Args {
    /// The directory, such as /usr/local/share/man: section 1 goes to `man1` in it, section 5 to `man5`.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Writes the pages and prints where.
///
/// # Errors
/// A file cannot be written.
pub fn run(args: Args, command: clap::Command) -> anyhow::Result<ExitCode> {
    for page in manual::pages(command)? {
        let section = page.name.rsplit('.').next().unwrap_or("1");
        let dir = args.dir.join(format!("man{section}"));
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let path = dir.join(&page.name);
        std::fs::write(&path, &page.text).with_context(|| format!("cannot write {}", path.display()))?;
        text::print(&format!("{}\n", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
