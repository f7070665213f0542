//! What holds for a program: the files that are there, and of their rules those whose conditions it meets.

use super::file::File;
use super::keys::{Keys, SYSTEM_FILE};
use super::origin::Origin;
use super::reading::Place;
use crate::options::{self, Named};
use crate::{process, text};
use nix::unistd::{geteuid, User};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The variable that names a file to be read instead, or is `off`.
pub const VARIABLE: &str = "MEMFOLD_CONFIG";
/// Longer ones are not read, bytes.
const LONGEST: u64 = 1 << 20;

/// What the conditions of rules are about.
#[derive(Clone, Debug)]
pub struct Start {
    /// The program's file, as it was found.
    pub program: PathBuf,
    /// The name of the user who starts it; the number where there is no name.
    pub user: String,
    /// The number of that user.
    pub uid: u32,
    /// The control group in which it is started.
    pub cgroup: String,
}

impl Start {
    /// A program that this process is about to start.
    pub fn here(program: &Path) -> Start {
        let uid = geteuid();
        let user = User::from_uid(uid).ok().flatten().map_or(uid.to_string(), |user| user.name);
        Start { program: program.to_owned(), user, uid: uid.as_raw(), cgroup: group_of(std::process::id()) }
    }
}

/// The control group of a process; nothing where that is not known.
pub fn group_of(pid: u32) -> String {
    group(&process::text(&format!("/proc/{pid}/cgroup")).unwrap_or_default())
}

/// The group of version 2, else that of the memory controller of version 1 (cgroups(7)).
fn group(lines: &str) -> String {
    let of = |wanted: fn(&str, &str) -> bool| {
        lines.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            wanted(number, controllers).then(|| path.to_owned())
        })
    };
    // Where both are mounted, version 1 has the processes in groups.
    of(|_, controllers| controllers.split(',').any(|name| name == "memory"))
        .or_else(|| of(|number, controllers| number == "0" && controllers.is_empty()))
        .unwrap_or_default()
}

/// What a file decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Which setting.
    pub key: Named,
    /// Its value, as its variable is to have it; `None` for a flag that is off.
    pub value: Option<String>,
    /// The file.
    pub path: PathBuf,
    /// Where in it.
    pub place: Place,
}

impl Decision {
    /// The line that decided.
    pub fn line(&self) -> String {
        format!("{}:{}", self.path.display(), self.place.line)
    }

    /// For who asks later.
    pub fn origin(&self) -> Origin {
        let value = match (&self.value, self.key.flag) {
            (Some(value), None) => value.clone(),
            (value, _) => value.is_some().to_string(),
        };
        Origin { value, from: self.line() }
    }
}

/// The last word of all files on each setting.
pub fn decide(files: &[File], start: &Start) -> Vec<Decision> {
    let mut decided: BTreeMap<&str, Decision> = BTreeMap::new();
    for file in files {
        for rule in file.rules.iter().filter(|rule| meets(start, rule)) {
            for entry in &rule.entries {
                let (value, path) = (entry.value.clone(), file.path.clone());
                decided
                    .insert(entry.key.option, Decision { key: entry.key, value, path, place: entry.place });
            }
        }
    }
    decided.into_values().collect()
}

fn meets(start: &Start, rule: &super::file::Rule) -> bool {
    let program = |pattern: &glob::Pattern| match pattern.as_str().contains('/') {
        true => pattern.matches_path(&start.program),
        false => pattern.matches(&start.program.file_name().unwrap_or(OsStr::new("")).to_string_lossy()),
    };
    rule.program.as_ref().is_none_or(program)
        && rule.user.as_ref().is_none_or(|user| *user == start.user || *user == start.uid.to_string())
        && rule.cgroup.as_ref().is_none_or(|pattern| pattern.matches(&start.cgroup))
}

/// What the files that are there decide for a program, with values as their options read them, and what is to be said of the rest.
pub fn known(start: &Start, keys: &Keys) -> (Vec<Decision>, Vec<String>) {
    let (files, mut said) = files();
    for file in &files {
        said.extend(file.faults.iter().map(|fault| format!("{}:{fault}", file.path.display())));
    }
    let mut decided = decide(&files, start);
    decided.retain_mut(|decision| {
        let Some(value) = decision.value.as_ref().filter(|_| decision.key.flag.is_none()) else {
            return true;
        };
        match keys.check(decision.key, value) {
            Ok(value) => {
                decision.value = Some(value);
                true
            }
            Err(why) => {
                said.push(format!("{}: {} = \"{value}\": {why}", decision.line(), decision.key.option));
                false
            }
        }
    });
    (decided, said)
}

/// The files that hold, the system's first, and what was said of those that are there and are not read.
pub fn files() -> (Vec<File>, Vec<String>) {
    let (mut found, mut said) = (Vec::new(), Vec::new());
    for path in places() {
        match read(&path) {
            Ok(Some(text)) => found.push(File::parse(path, &text)),
            Ok(None) if std::env::var_os(VARIABLE).is_some_and(|named| Path::new(&named) == path) => {
                said.push(format!("{VARIABLE} names {}, and there is no such file", path.display()));
            }
            Ok(None) => {}
            Err(why) => said.push(format!("{} is not read: {why}", path.display())),
        }
    }
    (found, said)
}

/// Where files of settings are looked for.
pub fn places() -> Vec<PathBuf> {
    let variable = |name: &str| options::variable(name).map(PathBuf::from);
    match variable(VARIABLE) {
        Some(path) if path == Path::new("off") => return Vec::new(),
        Some(path) => return vec![path],
        None => {}
    }
    let home = || variable("HOME").map(|home| home.join(".config"));
    let users = variable("XDG_CONFIG_HOME").filter(|path| path.is_absolute()).or_else(home);
    let users = users.map(|dir| dir.join("memfold/memfold.toml"));
    [PathBuf::from(SYSTEM_FILE)].into_iter().chain(users).collect()
}

/// The text of a file; `None` where there is none.
///
/// # Errors
/// Why it is not to be read.
pub fn read(path: &Path) -> Result<Option<String>, String> {
    read_if(path, |_| Ok(()))
}

/// The same of a file that decides over other users' programs: nobody's group but root's may write it.
pub fn read_closed(path: &Path) -> Result<Option<String>, String> {
    read_if(path, |meta| match meta.mode() & 0o020 != 0 && meta.gid() != 0 {
        true => Err(format!("it is writable by group {}", meta.gid())),
        false => Ok(()),
    })
}

fn read_if(path: &Path, may_be: impl Fn(&Metadata) -> Result<(), String>) -> Result<Option<String>, String> {
    // What is no file is told below, and not waited for.
    let mut options = fs::File::options();
    let mut file = match options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => return Ok(None),
        Err(error) => return Err(plain(&error)),
    };
    let meta = file.metadata().map_err(|error| plain(&error))?;
    if !meta.is_file() {
        return Err("it is no regular file".into());
    }
    // HOME may be another user's (sudo), and a file of settings names files that are written.
    if meta.uid() != 0 && meta.uid() != geteuid().as_raw() {
        return Err(format!("it belongs to user {}", meta.uid()));
    }
    if meta.mode() & 0o002 != 0 {
        return Err("it is writable by everybody".into());
    }
    may_be(&meta)?;
    let mut text = String::new();
    match (&mut file).take(LONGEST + 1).read_to_string(&mut text) {
        Ok(length) if length as u64 > LONGEST => Err("it is longer than a megabyte".into()),
        Ok(_) => Ok(Some(text)),
        Err(error) => Err(plain(&error)),
    }
}

fn plain(error: &std::io::Error) -> String {
    text::plain(&error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn start() -> Start {
        Start {
            program: "/usr/bin/redis-server".into(),
            user: "ann".into(),
            uid: 1000,
            cgroup: "/user.slice/user-1000.slice/session-2.scope".into(),
        }
    }

    fn value(texts: &[&str], option: &str) -> Option<(Option<String>, String)> {
        let files: Vec<_> =
            texts.iter().enumerate().map(|(at, text)| File::parse(format!("/{at}").into(), text)).collect();
        assert!(files.iter().all(|file| file.faults.is_empty()), "{files:?}");
        let decided = decide(&files, &start()).into_iter().find(|decision| decision.key.option == option)?;
        Some((decided.value, format!("{}:{}", decided.path.display(), decided.place.line)))
    }

    #[test]
    fn what_is_said_later_wins_and_a_rule_over_the_defaults() {
        let system = "[[rule]]\nprogram = \"redis-*\"\ncold-age = \"2s\"\n[defaults]\ncold-age = \"30s\"\nmax-cpu = 5\n";
        assert_eq!(value(&[system], "cold-age"), Some((Some("2s".into()), "/0:3".into())));
        assert_eq!(value(&[system], "max-cpu"), Some((Some("5".into()), "/0:6".into())));
        let user = "[defaults]\ncold-age = \"1m\"\n";
        assert_eq!(value(&[system, user], "cold-age"), Some((Some("1m".into()), "/1:2".into())));
        assert_eq!(value(&[system], "tier"), None);
    }

    #[test]
    fn a_rule_holds_where_all_its_conditions_are_met() {
        let holds =
            |conditions: &str| value(&[&format!("[[rule]]\n{conditions}\nwipe = true\n")], "wipe").is_some();
        assert!(holds("program = \"redis-server\"") && holds("program = \"/usr/bin/*\""));
        assert!(!holds("program = \"redis\"") && !holds("program = \"/opt/*\""));
        assert!(holds("user = \"ann\"") && holds("user = 1000") && !holds("user = \"root\""));
        assert!(holds("cgroup = \"/user.slice/*\"") && !holds("cgroup = \"/system.slice/*\""));
        assert!(!holds("program = \"redis-server\"\nuser = \"bob\""));
    }

    #[test]
    fn a_flag_that_is_off_takes_back_what_was_on() {
        let text = "[defaults]\nno-pager = true\n[[rule]]\nuser = \"ann\"\nno-pager = false\n";
        assert_eq!(value(&[text], "no-pager"), Some((None, "/0:5".into())));
    }

    #[test]
    fn the_group_is_that_of_the_memory_controller() {
        assert_eq!(group("0::/a/b\n"), "/a/b");
        assert_eq!(group("5:cpu:/x\n4:memory,pids:/y:z\n0::/w\n"), "/y:z");
        assert_eq!(group(""), "");
    }

    #[test]
    fn a_file_that_others_could_write_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memfold.toml");
        assert_eq!(read(&path), Ok(None));
        fs::write(&path, "x").unwrap();
        assert_eq!(read(&path), Ok(Some("x".into())));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(read(&path), Err("it is writable by everybody".into()));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).unwrap();
        assert_eq!(read(&path), Ok(Some("x".into())));
        let gid = fs::metadata(&path).unwrap().gid();
        let closed =
            if gid == 0 { Ok(Some("x".into())) } else { Err(format!("it is writable by group {gid}")) };
        assert_eq!(read_closed(&path), closed);
        if geteuid().is_root() {
            std::os::unix::fs::chown(&path, None, Some(7)).unwrap();
            assert_eq!(read_closed(&path), Err("it is writable by group 7".into()));
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(read_closed(&path), Ok(Some("x".into())));
        assert_eq!(read(dir.path()), Err("it is no regular file".into()));
    }
}
