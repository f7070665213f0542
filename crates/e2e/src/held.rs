//! A folded program that holds some memory, under a name that no other program has: root sees everybody's.

use crate::command_line::{memfold, output};
use crate::dialogue::Dialogue;
use crate::run::{copy_program, program};
use crate::{wait_until, LIMIT};
use serde_json::Value;
use std::path::Path;

/// A Perl program under `memfold run`.
#[derive(Debug)]
pub struct Held {
    dialogue: Dialogue,
    /// Its name.
    pub name: String,
    /// Its number.
    pub pid: u32,
}

impl Held {
    /// It holds `mib` MiB, about, until [`Held::end`], and folds nothing unless it is asked to. Its name ends in `tag`.
    ///
    /// # Panics
    /// If it cannot be started, or is not folded.
    pub fn start(home: &Path, tag: &str, mib: usize) -> Held {
        let name = format!("{}{tag}", std::process::id());
        let copy = home.join(&name);
        if !copy.exists() {
            copy_program(&program("perl", "perl"), &copy);
        }
        let script = format!(
            "my $held = join '', map {{ \"$_ held \" x 64 }} 1..{}; $| = 1; print \"$$\\n\"; <STDIN>",
            mib * 1800
        );
        let mut command = memfold(home);
        command
            .args(["run", "--quiet", "--cold-age", "1h", "--start-at", "1M", "--"])
            .arg(copy)
            .args(["-e", &script]);
        let mut dialogue = Dialogue::start(&mut command);
        let pid = dialogue.hear().parse().expect("a number");
        let held = Held { dialogue, name, pid };
        wait_until(LIMIT, "folding", || held.stat(home)["mode"] == "embedded");
        held
    }

    /// What `memfold stat` says of it; null where there is nothing.
    ///
    /// # Panics
    /// If memfold cannot be executed.
    pub fn stat(&self, home: &Path) -> Value {
        let mut command = memfold(home);
        command.args(["stat", "--json", &self.pid.to_string()]);
        let rows: Value = serde_json::from_slice(&output(command).stdout).unwrap_or_default();
        rows[0].clone()
    }

    /// Ends it.
    pub fn end(self) {
        self.dialogue.end();
    }
}
