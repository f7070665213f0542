//! `memfold service`: fold a service of systemd from its next start on.

use super::run;
use crate::config::decide::{self, Decision, Start};
use crate::config::keys::SYSTEM_FILE;
use crate::library::{self, Places};
use crate::options::{self, Named};
use crate::service::dropin::{self, Host};
use crate::service::unit::{self, Unit};
use crate::setup::{machine, DEVICE, GROUP};
use crate::{exit, text};
use anyhow::{bail, Context};
use clap::FromArgMatches;
use memfold_attach::hand::{do_apart, Late};
use memfold_pager::config::Setting;
use memfold_pager::tier::choice::Choice;
use nix::unistd::{
    access, geteuid, getgrouplist, setgroups, setresgid, setresuid, AccessFlags, Gid, Group, Uid, User,
};
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

/// How long it may take to make a file.
const PATIENCE: Duration = Duration::from_secs(10);

const AFTER_HELP: &str = "\
Examples:
  memfold service redis-server --dry-run             what would be written, and where
  sudo memfold service redis-server                  fold it from its next start on
  sudo memfold service redis-server -- --cold-age 1m --tier disk=/var/tmp
  sudo memfold service redis-server --undo

It writes one file, /etc/systemd/system/NAME.d/90-memfold.conf, and leaves all others as they are. Start the service again when it
suits you: systemctl restart NAME. Settings may also stand in /etc/memfold/memfold.toml.

Exit codes: 0 done, 1 failed (not root, no such service, one that cannot be folded this way), 2 bad usage.";

/// Fold a service of systemd, by a drop-in (as root).
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The service, such as redis-server or postgresql@15-main.service.
    #[arg(value_name = "SERVICE")]
    name: String,
    /// Remove the drop-in.
    #[arg(long)]
    undo: bool,
    /// Print what would be written, and write nothing. Needs no root.
    #[arg(long)]
    dry_run: bool,
    /// Read and write below this directory instead, for images of systems.
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Options of `memfold run` for it.
    #[arg(last = true, value_name = "OPTIONS", conflicts_with = "undo")]
    options: Vec<String>,
}

/// Writes the drop-in, removes it, or prints it. `command` is the one whose subcommand `run` has the options that the service may get.
///
/// # Errors
/// There is no such service, it cannot be folded this way, or the file cannot be written; bad options of `run` (exit code 2).
pub fn run(args: Args, command: &clap::Command) -> anyhow::Result<ExitCode> {
    let unit = Unit::read(&args.root, &args.name, dropin::NAME)?;
    let mut told = Told::of(&args, &unit, command)?;
    let path = unit::dropins(&args.root, &unit.name).join(dropin::NAME);
    if !args.dry_run && args.root == Path::new("/") && !geteuid().is_root() {
        bail!("service changes the system and needs root: sudo memfold service {} (or see what it would do: --dry-run)", args.name);
    }
    if args.undo {
        return undo(&args, &unit.name, &path);
    }
    let memfold = std::env::current_exe()?;
    let memfold = memfold.to_str().filter(|path| !path.contains(char::is_whitespace));
    let memfold = memfold.context(
        "systemd cannot be told the path of this executable; install it where the path has no spaces",
    )?;
    let library = library::find()?;
    let places = Places::of(library::FILE_NAME, library::VARIABLE)?;
    if places.found().is_none() {
        bail!("a service may have no place for the library inside this executable: install memfold below /usr, by its package or `make install`");
    }
    if places.named {
        told.variables.push((library::VARIABLE, library.display().to_string()));
    }
    let reaches = || access(memfold, AccessFlags::X_OK).and(access(&library, AccessFlags::R_OK)).is_ok();
    if as_user(&args, &unit, reaches) == Some(false) {
        bail!(
            "the user of {} reaches {memfold} or {} not: install memfold below /usr",
            unit.name,
            library.display()
        );
    }
    let host = Host {
        memfold,
        library_dir: library
            .parent()
            .and_then(Path::to_str)
            .context("the path of the library must be UTF-8")?,
        options: &told.options,
        variables: &told.variables,
        tier: told.tier.as_deref(),
        daemon: told.daemon,
        has_group: has_group(&args.root),
        is_open: fs::metadata(DEVICE).is_ok_and(|meta| meta.mode() & 0o006 == 0o006),
    };
    let dropin = match dropin::compose(&unit, &host) {
        Ok(dropin) => dropin,
        Err(why) => bail!("{} cannot be folded by a drop-in: {why}", unit.name),
    };
    if args.dry_run {
        text::print(&format!("would write {}:\n\n{}\n", path.display(), dropin.text))?;
    } else {
        refuse_foreign(&path)?;
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
        machine::write_whole(&path, &dropin.text)?;
        text::print(&format!("written: {}\n\n{}\n", path.display(), dropin.text))?;
    }
    for note in dropin.notes.iter().chain(&unwritable(&args, &unit, told.tier.as_deref())) {
        text::print(&format!("note: {note}\n"))?;
    }
    finish(&args, &unit.name, "folded")?;
    Ok(ExitCode::SUCCESS)
}

fn undo(args: &Args, name: &str, path: &Path) -> anyhow::Result<ExitCode> {
    if !path.exists() {
        text::print(&format!("nothing to undo: there is no {}\n", path.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    refuse_foreign(path)?;
    if args.dry_run {
        text::print(&format!("would remove {}\n", path.display()))?;
    } else {
        fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
        // It stays where others have drop-ins of theirs in it.
        let _ = path.parent().map(fs::remove_dir);
        text::print(&format!("removed: {}\n", path.display()))?;
    }
    finish(args, name, "as before")?;
    Ok(ExitCode::SUCCESS)
}

/// Has systemd read its files again, and says what is left to do.
fn finish(args: &Args, name: &str, how: &str) -> anyhow::Result<()> {
    if args.dry_run {
        return Ok(());
    }
    if args.root == Path::new("/") && Path::new("/run/systemd/system").is_dir() {
        let reloaded = Command::new("systemctl").arg("daemon-reload").stdin(Stdio::null()).status();
        if !reloaded.is_ok_and(|status| status.success()) {
            text::say("systemd did not read its files again: systemctl daemon-reload");
        }
    }
    text::print(&format!("{name} is {how} from its next start on: systemctl restart {name}\n"))
}

/// A file of this name that somebody else wrote is left alone.
fn refuse_foreign(path: &Path) -> anyhow::Result<()> {
    match fs::read_to_string(path) {
        Ok(text) if !text.starts_with(dropin::HEADER) => {
            bail!("{} is not memfold's and is left as it is", path.display())
        }
        _ => Ok(()),
    }
}

fn has_group(root: &Path) -> bool {
    let groups = fs::read_to_string(root.join("etc/group")).unwrap_or_default();
    groups.lines().any(|line| line.split(':').next() == Some(GROUP))
        || root == Path::new("/") && nix::unistd::Group::from_name(GROUP).ok().flatten().is_some()
}

/// What `memfold run` starts nothing without where a person gives it as an option, and what may be there now and not at a later start.
const MAY_BE_GONE: [Named; 3] = [options::TIER, options::SUMMARY, options::POLICY_LOG];

/// What a service is told, and what it is to have that it needs further rights for.
struct Told {
    /// Options of `memfold run`.
    options: Vec<String>,
    /// What is said by variables in their place.
    variables: Vec<(&'static str, String)>,
    tier: Option<String>,
    daemon: bool,
}

impl Told {
    /// Of the options behind `--`, or where they say nothing of the service itself, and then of the machine's file of settings.
    ///
    /// # Errors
    /// `memfold run` would not take these options.
    fn of(args: &Args, unit: &Unit, command: &clap::Command) -> anyhow::Result<Told> {
        let run = command.find_subcommand("run").unwrap_or(command).clone().no_binary_name(true);
        let words = args.options.iter().map(String::as_str).chain(["--", "true"]);
        let matches = match run.try_get_matches_from(words) {
            Ok(matches) if matches.get_raw("command").is_some_and(|words| words.len() == 1) => matches,
            Ok(_) => {
                return Err(exit::usage("options of `memfold run` are expected behind --, and no command"))
            }
            Err(error) => {
                return Err(exit::usage(error.render().to_string().trim_start_matches("error: ").trim_end()))
            }
        };
        let given = run::Args::from_arg_matches(&matches)?;
        let decided = settings(args, unit);
        let in_file = |key: Named| decided.iter().find(|decision| decision.key == key)?.value.clone();
        let other = |key: Named| unit.variable(key.variable).or_else(|| in_file(key));
        let has = |key: Named| given.given(key).or_else(|| other(key));
        let limit = options::settings().find(|key| key.option == Setting::ResidentLimit.option());
        run::check_policy(given.given(options::POLICY).as_deref(), limit.and_then(has).is_some())?;
        let variables = MAY_BE_GONE.into_iter().filter_map(|key| Some((key.variable, given.given(key)?)));
        Ok(Told {
            options: without(&args.options, &MAY_BE_GONE),
            variables: variables.collect(),
            tier: has(options::TIER),
            daemon: has(options::DAEMON).is_some(),
        })
    }
}

/// Words of a command line without these options and their values.
fn without(words: &[String], those: &[Named]) -> Vec<String> {
    let (mut rest, mut words) = (Vec::new(), words.iter());
    while let Some(word) = words.next() {
        let option = word.strip_prefix("--").unwrap_or_default();
        let (name, value) =
            option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        match those.iter().any(|named| named.option == name) {
            true if value.is_none() => drop(words.next()),
            true => {}
            false => rest.push(word.clone()),
        }
    }
    rest
}

/// What is to be known where the service's user may not make files in the directory of its tier.
fn unwritable(args: &Args, unit: &Unit, tier: Option<&str>) -> Option<String> {
    let tier = Choice::parse(tier?).ok()?;
    let directory = tier.directory()?;
    let made = as_user(args, unit, || tempfile::tempfile_in(directory).is_ok());
    (made == Some(false)).then(|| {
        format!(
            "its user can make no files in {directory}: the service does without the tier until that is so"
        )
    })
}

/// Does something as the user that a service runs as; `None` where that is root or cannot be tried.
fn as_user<R: Copy>(args: &Args, unit: &Unit, work: impl FnOnce() -> R) -> Option<R> {
    /// One of those that systemd takes for `DynamicUser=` (systemd.exec(5)).
    const DYNAMIC: u32 = 61_184;
    let is_as_root =
        |command: &String| command.trim_start_matches(['-', ':', '@', '|']).starts_with(['+', '!']);
    if args.root != Path::new("/") || !geteuid().is_root() || unit.all("ExecStart").iter().any(is_as_root) {
        return None;
    }
    let found = |name: &str| match name.parse() {
        Ok(uid) => User::from_uid(Uid::from_raw(uid)),
        Err(_) => User::from_name(name),
    };
    let group = |name: String| Some(Group::from_name(&name).ok()??.gid);
    let mut groups: Vec<Gid> = unit.words("SupplementaryGroups").into_iter().filter_map(group).collect();
    let (uid, gid) = match unit.last("User").and_then(|name| found(name).ok().flatten()) {
        Some(user) => {
            groups.extend(getgrouplist(&CString::new(user.name).ok()?, user.gid).ok()?);
            (user.uid, user.gid)
        }
        None if unit.is("DynamicUser") => (Uid::from_raw(DYNAMIC), Gid::from_raw(DYNAMIC)),
        None => return None,
    };
    if uid.is_root() {
        return None;
    }
    let gid = unit.last("Group").and_then(|name| group(name.to_owned())).unwrap_or(gid);
    let done = do_apart([], PATIENCE, Late::Killed, || {
        let is_user = setgroups(&groups).and(setresgid(gid, gid, gid)).and(setresuid(uid, uid, uid)).is_ok();
        is_user.then(work)
    });
    done.ok()??
}

/// What the machine's file of settings says of the service's program.
fn settings(args: &Args, unit: &Unit) -> Vec<Decision> {
    let command = unit.last("ExecStart").and_then(|line| line.split_whitespace().next());
    let Some(program) = command.filter(|_| args.root == Path::new("/")) else { return Vec::new() };
    let user = unit.last("User").unwrap_or("root").to_owned();
    let start = Start {
        program: program.trim_start_matches(|c| "-:+!@|".contains(c)).into(),
        uid: User::from_name(&user).ok().flatten().map_or(0, |user| user.uid.as_raw()),
        user,
        cgroup: format!("/{}/{}", unit.last("Slice").unwrap_or("system.slice"), unit.name),
    };
    let (mut files, _) = decide::files();
    files.retain(|file| file.path == Path::new(SYSTEM_FILE));
    decide::decide(&files, &start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::unit::tests::root;
    use clap::Args as _;

    fn service(unit: &str, options: &[&str]) -> (Args, Unit) {
        let root = root(&[("lib/systemd/system/x.service", &format!("[Service]\nExecStart=/bin/a\n{unit}"))]);
        let unit = Unit::read(root.path(), "x", dropin::NAME).unwrap();
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        (Args { name: "x".into(), undo: false, dry_run: true, root: "/".into(), options }, unit)
    }

    fn told(unit: &str, options: &[&str]) -> anyhow::Result<Told> {
        let (mut args, unit) = service(unit, options);
        // The machine's own settings say nothing here.
        args.root = "/nowhere".into();
        Told::of(&args, &unit, &run::Args::augment_args(clap::Command::new("run")))
    }

    #[test]
    fn what_may_be_gone_at_a_later_start_is_said_by_variables() {
        let options = ["--tier", "redis://a", "--now", "--summary=/x y", "--daemon", "--cold-age", "2s"];
        let told = told("", &options).unwrap();
        assert_eq!(told.options, ["--now", "--daemon", "--cold-age", "2s"]);
        let variables = [("MEMFOLD_TIER", "redis://a".into()), ("MEMFOLD_SUMMARY", "/x y".into())];
        assert_eq!(told.variables, variables);
        assert!(told.daemon && told.tier.as_deref() == Some("redis://a"));
    }

    #[test]
    fn what_the_service_says_itself_counts_where_no_option_does() {
        let unit =
            "Environment=MEMFOLD_TIER=redis://a \"MEMFOLD_BUDGET_OF=/run/x\" MEMFOLD_RESIDENT_LIMIT=1G\n";
        let own = told(unit, &["--policy", "freebsd"]).unwrap();
        assert!(own.daemon && own.tier.as_deref() == Some("redis://a") && own.variables.is_empty());
        assert_eq!(told(unit, &["--tier=redis://b"]).unwrap().tier.as_deref(), Some("redis://b"));
        let refused = told("", &["--policy", "freebsd"]).err().unwrap().to_string();
        assert!(refused.contains("--resident-limit"), "{refused}");
    }

    #[test]
    fn what_a_service_may_do_is_tried_as_its_user() {
        // Nobody else can be another user.
        if !geteuid().is_root() {
            return;
        }
        let ids = |unit: &str| {
            let (args, unit) = service(unit, &[]);
            as_user(&args, &unit, || (geteuid().as_raw(), nix::unistd::getegid().as_raw()))
        };
        let daemon = User::from_name("daemon").unwrap().unwrap();
        let daemon = (daemon.uid.as_raw(), daemon.gid.as_raw());
        assert_eq!(ids("User=daemon\n"), Some(daemon));
        assert_eq!(ids(&format!("User={}\nGroup=root\n", daemon.0)), Some((daemon.0, 0)));
        assert_eq!(ids("DynamicUser=yes\n"), Some((61_184, 61_184)));
        for as_root in ["", "User=root\n", "User=daemon\nExecStart=\nExecStart=-+/bin/a\n"] {
            assert_eq!(ids(as_root), None, "{as_root}");
        }
        let note = |user: &str| {
            let (args, unit) = service(user, &[]);
            unwritable(&args, &unit, Some("disk=/etc"))
        };
        assert!(note("User=daemon\n").is_some_and(|note| note.contains("no files in /etc")));
        assert_eq!(note(""), None);
    }
}
