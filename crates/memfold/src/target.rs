//! The processes that a person means, by number or by name.

use crate::pages::{self, Found};
use crate::{absence, process};
use anyhow::bail;
use std::convert::Infallible;
use std::str::FromStr;

/// How long a name is that the kernel keeps of a program (`TASK_COMM_LEN`, less its end).
const KEPT: usize = 15;
/// Of so many processes of one name it is said why they are not folded.
const TOLD: usize = 5;
/// What stands before the name of a program that would be taken for a number, or for what `ctl` is to do.
const NAME: &str = "name:";

/// What a person gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A process id.
    Pid(u32),
    /// The name of a program, as `ps` shows it or as its file is called; `name:NAME` is never taken for anything else.
    Name(String),
}

impl FromStr for Target {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Target, Infallible> {
        if let Some(name) = text.strip_prefix(NAME) {
            return Ok(Target::Name(name.to_owned()));
        }
        Ok(text.parse().map_or_else(|_| Target::Name(text.to_owned()), Target::Pid))
    }
}

impl Target {
    /// The folded processes that are meant; at least one.
    ///
    /// # Errors
    /// There is none; the error says why.
    pub fn all(&self) -> anyhow::Result<Vec<Found>> {
        let visible = pages::visible();
        let mut found: Vec<Found> = visible.iter().filter(|found| self.matches(found.pid)).cloned().collect();
        if let (Target::Pid(launcher), true) = (self, found.is_empty()) {
            // Who starts a program by a script has the launcher's number.
            let is_its = |found: &&Found| process::parent(found.pid) == Some(*launcher);
            if absence::is_launcher(*launcher) {
                found = visible.iter().filter(is_its).cloned().collect();
            }
        }
        if found.is_empty() {
            bail!(self.absent());
        }
        Ok(found)
    }

    /// The one folded process that is meant.
    ///
    /// # Errors
    /// There is none, or there are several of that name.
    pub fn one(&self) -> anyhow::Result<Found> {
        let mut found = self.all()?;
        match (found.len(), self) {
            (1, _) | (_, Target::Pid(_)) => Ok(found.remove(0)),
            (several, Target::Name(name)) => {
                let pids: Vec<_> = found.iter().map(|found| found.pid.to_string()).collect();
                bail!(
                    "{several} folded processes are named '{name}': {}; give the number of one",
                    pids.join(", ")
                )
            }
        }
    }

    /// Whether the process is meant, folded or not.
    pub fn matches(&self, pid: u32) -> bool {
        match self {
            Target::Pid(meant) => pid == *meant,
            Target::Name(name) => {
                let short = name.char_indices().take_while(|(at, c)| at + c.len_utf8() <= KEPT).count();
                let short: String = name.chars().take(short).collect();
                process::name(pid) == short && (name.len() <= KEPT || is_file(pid, name))
                    || is_file(pid, name)
            }
        }
    }

    fn absent(&self) -> String {
        let name = match self {
            Target::Pid(pid) => return absence::why(*pid),
            Target::Name(name) => name,
        };
        let pids: Vec<u32> = process::all().into_iter().filter(|&pid| self.matches(pid)).collect();
        match pids[..] {
            [] => format!("there is no process named '{name}'; `memfold stat` lists the folded ones"),
            [pid] => absence::why(pid),
            _ => {
                let told: Vec<_> =
                    pids.iter().take(TOLD).map(|&pid| format!("\n  {}", absence::why(pid))).collect();
                let more = pids.len().saturating_sub(TOLD);
                let more = if more == 0 { String::new() } else { format!("\n  and {more} more") };
                format!("no process named '{name}' is folded:{}{more}", told.concat())
            }
        }
    }
}

/// Whether the program's file is called so.
fn is_file(pid: u32, name: &str) -> bool {
    process::executable(pid).is_some_and(|file| file.file_name().is_some_and(|found| found == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_process_and_anything_else_a_name() {
        assert_eq!("4711".parse(), Ok(Target::Pid(4711)));
        for name in ["redis-server", "7zip", "-1", ""] {
            assert_eq!(name.parse(), Ok(Target::Name(name.into())));
        }
        for name in ["why", "4711", "name:x", ""] {
            assert_eq!(format!("name:{name}").parse(), Ok(Target::Name(name.into())));
        }
    }

    #[test]
    fn a_process_is_known_by_its_whole_name_and_by_that_of_its_file() {
        let pid = std::process::id();
        let file = process::executable(pid).unwrap().file_name().unwrap().to_string_lossy().into_owned();
        assert!(Target::Name(file.clone()).matches(pid));
        assert!(!Target::Name(file[..5].to_owned()).matches(pid));
        assert!(!Target::Name(String::new()).matches(pid));
        let why = Target::Name("no-such-program".into()).absent();
        assert!(why.starts_with("there is no process named 'no-such-program'"), "{why}");
    }
}
