//! The environment that makes a program a folded one.
//!
//! What it is not: the start itself; [`Launch::apply`] only prepares a `Command`.
//!
//! Invariants: what is not said here is left to the variables that are already set; every other variable
//! of the program stays as it is.

use crate::library;
use crate::options::{self, Named, PagerOptions};
use crate::run_dir::RunDir;
use crate::setup::DEVICE;
use crate::text;
use memfold_arena::settings::Profile;
use memfold_attach::rights::{self, DEVICE_VARIABLE};
use memfold_pager::tier::choice::{Choice, UNSEALED};
use memfold_pager::TIER_DIRECTORY;
use memfold_policy::spec::{BadSpec, Spec};
use nix::fcntl::{fcntl, open, FcntlArg, OFlag};
use nix::sys::resource::{getrlimit, Resource};
use nix::sys::stat::Mode;
use nix::sys::statfs::TMPFS_MAGIC;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program inherits the device by a number just below this, or below its limit if that is lower, where programs that count on
/// low numbers do not meet it. A higher one would make the kernel's tables of descriptors larger.
const UFFD_FD_MOST: u64 = 1024;

/// What a user chose; `None` and `false` leave it to the environment.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    /// The pager's settings.
    pub settings: PagerOptions,
    /// The tier below memory, with a directory by its whole path.
    pub tier: Option<String>,
    /// The replacement policy.
    pub policy: Option<String>,
    /// The allocator's profile.
    pub profile: Option<String>,
    /// The file that passes of the page daemon are logged to, by its whole path.
    pub policy_log: Option<PathBuf>,
    /// The socket of the daemon under whose budget the program is to be.
    pub daemon: Option<PathBuf>,
    /// Allocator only.
    pub no_pager: bool,
    /// What comes back, or is given up, is overwritten in the pager at once.
    pub wipe: bool,
    /// Programs that the program starts run plainly.
    pub no_follow: bool,
    /// The library says nothing on standard error.
    pub quiet: bool,
}

/// Everything that a folded program needs, for as long as it runs.
#[derive(Debug)]
pub struct Launch {
    variables: Vec<(&'static str, OsString)>,
    uffd: Option<OwnedFd>,
    run_dir: RunDir,
}

impl Launch {
    /// Makes the directory for control pages and opens `/dev/userfaultfd` if that is permitted. `library`
    /// is the preload library.
    ///
    /// # Errors
    /// There is no directory that can be trusted.
    pub fn prepare(library: &Path, choices: &Choices) -> anyhow::Result<Launch> {
        let run_dir = RunDir::create()?;
        let uffd = match pager_off(choices.no_pager) {
            // The allocator needs no right.
            true => None,
            false => open_device().ok().or_else(inherited_device),
        };
        let mut variables = vec![
            ("LD_PRELOAD", preload(library)),
            ("MEMFOLD_CONTROL_DIR", run_dir.path().into()),
            (options::NO_PAGER.variable, pager_variable(choices.no_pager)),
        ];
        let flags = [
            (options::NO_FOLLOW, follows_nobody(choices.no_follow)),
            (options::WIPE, choices.wipe),
            (options::QUIET, choices.quiet),
        ];
        for (named, _) in flags.iter().filter(|(_, on)| *on) {
            variables.extend(named.flag.map(|value| (named.variable, value.into())));
        }
        let texts = [
            (options::POLICY, choices.policy.as_ref().map(OsString::from)),
            (options::TIER, choices.tier.as_ref().map(OsString::from)),
            (options::PROFILE, choices.profile.as_ref().map(OsString::from)),
            (options::POLICY_LOG, choices.policy_log.as_ref().map(OsString::from)),
            (options::DAEMON, choices.daemon.as_ref().map(OsString::from)),
        ];
        for (named, value) in texts {
            variables.extend(value.map(|value| (named.variable, value)));
        }
        let mut set = |name, value: &str| variables.push((name, value.into()));
        for (setting, value) in choices.settings.given() {
            set(setting.variable(), value);
        }
        if let Some(fd) = &uffd {
            set(DEVICE_VARIABLE, &fd.as_raw_fd().to_string());
        }
        Ok(Launch { variables, uffd, run_dir })
    }

    /// The program's processes find the process that keeps their tier in this directory.
    pub fn have_depot(&mut self, directory: &Path) {
        self.variables.push((TIER_DIRECTORY, directory.into()));
    }

    /// Where the control pages of the program's processes appear.
    pub fn control_dir(&self) -> &Path {
        self.run_dir.path()
    }

    /// Adds the environment and the descriptor to a command that is to be started while `self` lives.
    pub fn apply(&self, command: &mut Command) {
        if self.uffd.is_none() {
            command.env_remove(DEVICE_VARIABLE);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if let Some(fd) = self.uffd.as_ref().map(AsRawFd::as_raw_fd) {
            // SAFETY: fcntl is async-signal-safe, and the closure allocates nothing.
            unsafe {
                command.pre_exec(move || match libc::fcntl(fd, libc::F_SETFD, 0) {
                    -1 => Err(std::io::Error::last_os_error()),
                    _ => Ok(()),
                });
            }
        }
    }
}

/// The device as it was passed to this process, by a launcher above it or by a service manager that may
/// open it.
fn inherited_device() -> Option<OwnedFd> {
    let number = rights::inherited_device()?;
    // SAFETY: the descriptor is open, as its link shows; it is borrowed for this call only.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    duplicate(&borrowed).ok()
}

/// A program that may have no more descriptors gets none of ours: it opens some before it begins.
const FEW_DESCRIPTORS: i32 = 10;

fn duplicate(fd: &impl AsFd) -> nix::Result<OwnedFd> {
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let end = limit.min(UFFD_FD_MOST) as i32;
    // The last ones a program with few would miss.
    let end = if end > FEW_DESCRIPTORS { end } else { 0 };
    let number = (3..end).rev().find_map(|n| fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(n)).ok());
    // SAFETY: the kernel just made the descriptor for us.
    number.map(|n| unsafe { OwnedFd::from_raw_fd(n) }).ok_or_else(nix::errno::Errno::last)
}

/// Removes everything of memfold's from a command's environment, the library from `LD_PRELOAD` included.
pub fn strip(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MEMFOLD_") {
            command.env_remove(name);
        }
    }
    let Some(preload) = std::env::var_os("LD_PRELOAD") else { return };
    match without_library(&preload.to_string_lossy()) {
        rest if rest.is_empty() => command.env_remove("LD_PRELOAD"),
        rest => command.env("LD_PRELOAD", rest),
    };
}

/// Says that the variable that turns the pager off has a value that it cannot have. The library, which is told what came of it, does not see it.
pub fn complain() {
    let name = options::NO_PAGER.variable;
    let Some(value) = std::env::var_os(name) else { return };
    if !value.is_empty() && options::switch(&value).is_none() {
        text::say(format_args!("ignoring {name}={}: it takes `on` or `off`", value.to_string_lossy()));
    }
}

/// Whether a variable turns off what it is for.
fn turns_off(named: Named) -> bool {
    std::env::var_os(named.variable).is_some_and(|value| options::switch(&value) == Some(false))
}

/// Whether the environment or an option has what the program starts run plainly.
pub fn follows_nobody(no_follow: bool) -> bool {
    no_follow || turns_off(options::NO_FOLLOW)
}

/// Whether the environment or an option turns the pager off.
pub fn pager_off(no_pager: bool) -> bool {
    pager_variable(no_pager) == "off"
}

fn pager_variable(no_pager: bool) -> OsString {
    if no_pager || turns_off(options::NO_PAGER) { "off" } else { "on" }.into()
}

/// `LD_PRELOAD` with the library first and what was there behind it.
fn preload(library: &Path) -> OsString {
    let mut value = library.as_os_str().to_owned();
    let rest = std::env::var("LD_PRELOAD").map(|v| without_library(&v)).unwrap_or_default();
    if !rest.is_empty() {
        value.push(":");
        value.push(rest);
    }
    value
}

/// A value of `LD_PRELOAD` without the parts that name a memfold library.
fn without_library(value: &str) -> String {
    let parts = value.split([':', ' ']).filter(|p| !p.is_empty());
    let others = parts.filter(|p| p.rsplit('/').next() != Some(library::FILE_NAME));
    others.collect::<Vec<_>>().join(":")
}

/// Opens the userfaultfd device, at a number out of the way. The right to use it is checked here, once;
/// the program inherits the open descriptor.
///
/// # Errors
/// There is no such device, or this user may not open it.
pub fn open_device() -> nix::Result<OwnedFd> {
    let device = open(DEVICE, OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())?;
    // A low limit on descriptors may forbid another one: the number that it has will do.
    Ok(duplicate(&device).unwrap_or(device))
}

/// A profile of the allocator's.
///
/// # Errors
/// A sentence that names those there are.
pub fn known_profile(name: &str) -> Result<String, String> {
    if Profile::from_name(name).is_some() {
        return Ok(name.to_owned());
    }
    Err(format!("one of {} is needed", Profile::ALL.map(Profile::name).join(", ")))
}

/// Reads a policy that can evict from a running program: `age`, or a page daemon with its parameters.
///
/// # Errors
/// There is no such policy or parameter, or the value is out of range.
pub fn known_policy(text: &str) -> Result<String, String> {
    if text == "age" {
        return Ok(text.to_owned());
    }
    let names = || {
        let names = memfold_policy::spec::names()
            .filter(|name| Spec::parse(name).is_ok_and(|spec| !spec.needs_future()));
        format!("age, {}", names.collect::<Vec<_>>().join(", "))
    };
    match Spec::parse(text) {
        _ if text.len() > memfold_pager::SharedText::<16>::MOST => {
            Err("a shorter list of parameters is needed".into())
        }
        Ok(spec) if !spec.needs_future() => Ok(text.to_owned()),
        Ok(_) => Err(format!("it must know the future; one of {} is needed", names())),
        Err(BadSpec::Name(_)) => Err(format!("one of {} is needed", names())),
        Err(BadSpec::Parameter(what)) => Err(format!("the policy has no parameter '{what}'")),
        Err(BadSpec::Value(what)) => Err(format!("'{what}' is not in the parameter's range")),
    }
}

/// Reads a tier, and names its directory by its whole path.
///
/// # Errors
/// It makes no sense, or no file can be made there.
pub fn known_tier(text: &str) -> Result<String, String> {
    let choice = Choice::parse(text).map_err(|wrong| wrong.to_string())?;
    if text.len() > TIER_MOST {
        return Err("a shorter text is needed".into());
    }
    // Whether engines on the network are there is found out when the program is started.
    let Some(named) = choice.directory() else { return Ok(text.to_owned()) };
    let directory = std::path::absolute(named).map_err(|error| error.to_string())?;
    let path = directory
        .to_str()
        .filter(|path| !path.contains(','))
        .ok_or("a directory in UTF-8, without a comma")?;
    if nix::sys::statfs::statfs(&directory).is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC) {
        return Err(format!(
            "{path} lies in memory (tmpfs) and not on a disk: name another directory, such as /var/tmp"
        ));
    }
    tempfile::tempfile_in(&directory).map_err(|error| format!("no file can be made in {path}: {error}"))?;
    let whole = text.replacen(&format!("disk={named}"), &format!("disk={path}"), 1);
    if whole.len() > TIER_MOST {
        return Err(format!("{whole}: a directory with a shorter path is needed"));
    }
    Ok(whole)
}

/// The same for a program that was not started with one: a tier on the network is kept by a process beside it, from the start.
pub fn disk_tier(text: &str) -> Result<String, String> {
    let whole = known_tier(text)?;
    is_on_disk(&whole).then_some(whole).ok_or_else(|| {
        format!("a tier on the network is there from the start: `memfold run --tier {text} -- CMD`; disk=DIR is for programs that run already")
    })
}

/// What people are told of the tier at the start, where it is not sealed.
pub fn word_on_seal(text: &str) -> Option<String> {
    let choice = Choice::parse(text).ok().filter(|choice| !choice.sealed)?;
    Some(format!("the tier in {} {UNSEALED}", choice.name()))
}

/// Whether the tier is on a disk alone.
pub fn is_on_disk(text: &str) -> bool {
    Choice::parse(text).is_ok_and(|choice| choice.engines().is_none())
}

/// Most bytes of a tier's text.
const TIER_MOST: usize = 500;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_is_known_where_files_can_be_made_and_by_its_whole_path() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        assert!(known_tier("disk=/dev/shm").unwrap_err().contains("tmpfs"));
        let text = format!("disk={},after=1s", dir.path().display());
        assert_eq!(known_tier(&text), Ok(text));
        assert!(known_tier("disk=.").unwrap().starts_with("disk=/"));
        let wrong = known_tier("disk=/nowhere-at-all").unwrap_err();
        assert!(wrong.contains("/nowhere-at-all") && wrong.contains("No such file"), "{wrong}");
        assert!(known_tier("tape=/x").unwrap_err().contains("disk=DIR"));
    }

    #[test]
    fn of_a_tier_that_is_not_sealed_it_is_said_what_that_gives_up() {
        let said = word_on_seal("disk=/var/tmp,seal=no").unwrap();
        assert!(
            said.contains("/var/tmp") && said.contains("reads the program's memory") && !said.contains('\n'),
            "{said}"
        );
        assert_eq!(word_on_seal("disk=/var/tmp"), None);
        assert_eq!(word_on_seal("redis://a"), None);
    }

    #[test]
    fn another_preloaded_library_stays_and_ours_is_not_named_twice() {
        assert_eq!(without_library("/a/libmemfold.so:/b/libasan.so libx.so"), "/b/libasan.so:libx.so");
        assert_eq!(without_library("/a/libmemfold.so"), "");
        assert_eq!(without_library("/a/notlibmemfold.so"), "/a/notlibmemfold.so");
    }

    #[test]
    fn a_name_that_is_not_known_is_answered_with_those_that_are() {
        assert_eq!(known_profile("lean").unwrap(), "lean");
        assert_eq!(known_profile("fat").unwrap_err(), "one of speed, balanced, lean, secure is needed");
        assert_eq!(known_policy("age").unwrap(), "age");
        assert!(known_policy("freebsd:free=0.1").is_ok());
        let message = known_policy("clairvoyant").unwrap_err();
        assert!(message.starts_with("one of age, lru,") && !message.contains("belady"), "{message}");
        assert!(known_policy("belady").unwrap_err().contains("future"));
        assert!(known_policy("s3fifo:tiny=1").unwrap_err().contains("'tiny'"));
    }
}
