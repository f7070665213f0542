//! `memfold attach --match`, `--rules` and `memfold daemon --attach-rules`; and who may attach to whom: root to everybody, an ordinary user whom root lets to
//! their own programs, another one to nobody, with the reason.
//!
//! The programs have names that no other program has, as root sees everybody's.

use memfold_e2e::agent::{agent, install_handshake, may_attach, memfold_with_agent, Subject, CAP_SYS_PTRACE};
use memfold_e2e::daemon::Running;
use memfold_e2e::run::{self, copy_program, program};
use memfold_e2e::{installed_for_all, scratch, wait_until, LIMIT};
use memfold_sys::handing::{hand_over, pair, take_over};
use memfold_sys::time::Nanos;
use memfold_sys::uffd::{Features, Userfaultfd};
use serde_json::Value;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

const NOBODY: u32 = 65534;
const DAEMON: u32 = 1;

/// Holds 8 MiB, and says whether a child of it has them when it is told anything.
const HOLDS: &str = r#"
my $held = join '', map { "$_ held " x 64 } 1..16000;
my $sum = unpack '%32C*', $held;
$| = 1;
print "ready\n";
while (my $line = <STDIN>) {
    my $child = fork // die;
    exit(unpack('%32C*', $held) == $sum ? 0 : 9) unless $child;
    waitpid $child, 0;
    print $? ? "the child has lost bytes\n" : $line;
}
"#;

/// Where programs lie that anybody may execute, and the beginning of their names.
struct Programs {
    dir: TempDir,
    tag: String,
}

impl Programs {
    fn new(of: &str) -> Programs {
        let dir = scratch();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Programs { dir, tag: format!("{of}{}", std::process::id()) }
    }

    /// Starts one whose name ends in `end`, as a user.
    fn start(&self, end: &str, user: Option<u32>) -> Subject {
        let file = self.dir.path().join(format!("{}{end}", self.tag));
        copy_program(&program("perl", "perl"), &file);
        let mut command = Command::new(file);
        command.args(["-e", HOLDS]).current_dir("/");
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        Subject::start(&mut command)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

fn memfold(home: &Path, arguments: &[&str]) -> Output {
    memfold_with_agent(home).args(arguments).output().expect("memfold can be executed")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What became of a process, by the JSON that was printed.
fn result(output: &Output, subject: &Subject) -> String {
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let found = all.as_array().unwrap().iter().find(|one| one["pid"] == subject.pid());
    found.map_or("none", |one| one["result"].as_str().unwrap()).to_owned()
}

fn is_attached(subject: &Subject) -> bool {
    subject.traces().agents > 0
}

#[test]
fn all_that_match_are_attached_to_once_and_the_others_are_skipped_with_the_reason() {
    if !may_attach() {
        return;
    }
    let (programs, home) = (Programs::new("m"), scratch());
    let (mine, folded, spare) =
        (programs.start("a", None), programs.start("b", None), programs.start("c", None));
    let theirs = programs.start("d", Some(NOBODY));
    let all = ["attach", "--match", &programs.tag, "--exclude", "c$", "--json"];
    let with = |more: &[&str]| memfold(home.path(), &[&all, more].concat());
    folded.attach();
    let looked = with(&["--dry-run"]);
    let results = |output: &Output| [&mine, &folded, &spare, &theirs].map(|subject| result(output, subject));
    assert_eq!(results(&looked), ["possible", "folded", "excluded", "possible"], "{}", said(&looked));
    assert!(looked.status.success() && !is_attached(&mine) && !is_attached(&theirs));
    // By size, and by user.
    let large = with(&["--min", "1T"]);
    assert_eq!((large.status.code(), large.stdout.trim_ascii()), (Some(1), b"[]".as_slice()));
    let of_nobody = with(&["--user", "65534", "--dry-run"]);
    assert_eq!(results(&of_nobody), ["none", "none", "none", "possible"]);
    let done = with(&[]);
    assert_eq!(results(&done), ["attached", "folded", "excluded", "attached"], "{}", said(&done));
    assert!(done.status.success() && !is_attached(&spare));
    let again = memfold(home.path(), &all[..5]);
    let lines = said(&again);
    assert!(again.status.success() && lines.contains("3 folded already, 1 excluded"), "{lines}");
    assert!(lines.contains(&format!("process {} is excluded by --exclude", spare.pid())), "{lines}");
    for mut subject in [mine, folded, theirs] {
        subject.tell("are they there");
        subject.detach();
        assert_eq!(subject.finish().0, Some(0));
    }
}

#[test]
fn what_matches_nothing_or_is_no_pattern_is_said() {
    let home = scratch();
    let none = memfold(home.path(), &["attach", "--match", "^no such program at all$", "--dry-run"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(said(&none).contains("no process is meant"), "{}", said(&none));
    for (arguments, says) in [
        (
            ["--match", "(", "--dry-run"].as_slice(),
            "a regular expression is needed: found open group without closing",
        ),
        (&["--match", "x", "--user", "no-such-user"], "there is no such user here"),
        (&["--match", "x", "--min", "much"], "a size such as"),
        (&["--dry-run"], "<PID|NAME"),
    ] {
        let bad = memfold(home.path(), &[&["attach"], arguments].concat());
        assert_eq!(bad.status.code(), Some(2), "{arguments:?}: {}", said(&bad));
        assert!(said(&bad).contains(says), "{arguments:?}: {}", said(&bad));
    }
}

#[test]
fn a_broken_file_of_rules_is_refused_with_line_and_column() {
    let (programs, home) = (Programs::new("x"), scratch());
    let file = programs.file("rules.toml", "[[rule]]\nname = \"x\"\ncold-age = \"soon\"\nunits = 1\n");
    for arguments in [["attach", "--dry-run", "--rules"].as_slice(), &["daemon", "--attach-rules"]] {
        let refused = memfold(home.path(), &[arguments, &[&file]].concat());
        assert_eq!(refused.status.code(), Some(2));
        let lines = said(&refused);
        assert!(lines.contains(&format!("{file}:3:12: cold-age: a time such as")), "{lines}");
        assert!(lines.contains(&format!("{file}:4:1: there is no key 'units'")), "{lines}");
    }
}

#[test]
fn a_daemon_attaches_by_rules_to_what_is_there_and_what_comes_and_to_nothing_twice() {
    if !may_attach() {
        return;
    }
    let (programs, home) = (Programs::new("r"), scratch());
    let (tag, refuses) = (&programs.tag, std::process::id());
    let rules = format!(
        "[[rule]]\nname = \"{tag}c\"\nexclude = true\n[[rule]]\nname = \"{tag}*\"\nuser = 65534\ncold-age = \"50ms\"\n[[rule]]\nname = \"{tag}a\"\n"
    );
    let file = programs.file("rules.toml", &rules);
    let (there, excluded, other) =
        (programs.start("a", None), programs.start("c", Some(NOBODY)), programs.start("o", Some(DAEMON)));
    let looked = memfold(home.path(), &["attach", "--rules", &file, "--dry-run", "--json"]);
    let results = [&there, &excluded, &other].map(|subject| result(&looked, subject));
    assert_eq!(results, ["possible", "excluded", "none"]);
    let executable = memfold_e2e::command_line::executable();
    let words = ["daemon", "--attach-rules", &file];
    let mut command = Running::command(executable.to_str().unwrap(), home.path(), &words);
    let daemon = Running(command.env("MEMFOLD_AGENT", agent()).spawn().expect("a daemon"));
    wait_until(LIMIT, "what is there is attached to", || is_attached(&there));
    // What a person detaches stays so.
    there.detach();
    let mut comes = programs.start("b", Some(NOBODY));
    wait_until(LIMIT, "what comes is attached to", || is_attached(&comes));
    wait_until(LIMIT, "it is folded, with the rule's own options", || comes.folded() > 0);
    let last = programs.start("d", Some(NOBODY));
    wait_until(LIMIT, "a second look", || is_attached(&last));
    assert!(!is_attached(&there) && !is_attached(&excluded) && !is_attached(&other));
    comes.tell("are they there");
    daemon.signal(libc::SIGTERM);
    let (_, lines) = daemon.finish("the daemon");
    let times = |subject: &Subject| {
        lines.matches(&format!("(process {}) is folded from now on", subject.pid())).count()
    };
    assert_eq!([&there, &comes, &last, &excluded, &other].map(times), [1, 1, 1, 0, 0], "{refuses}: {lines}");
    assert!(lines.contains(&format!("({file}:4)")) && lines.contains(&format!("({file}:8)")), "{lines}");
    for subject in [comes, last] {
        subject.detach();
        assert_eq!(subject.finish().0, Some(0));
    }
}

#[test]
fn children_of_an_ordinary_users_program_have_every_byte() {
    if !may_attach() {
        return;
    }
    let programs = Programs::new("u");
    let mut subject = programs.start("a", Some(NOBODY));
    let before = subject.traces();
    for _ in 0..3 {
        subject.attach();
        wait_until(LIMIT, "most of it is folded", || subject.counter("evicted_bytes") > 6 << 20);
        subject.tell("are they there");
        assert_eq!(subject.counter("lost"), 0);
        subject.detach();
    }
    subject.tell("are they there");
    wait_until(LIMIT, "nothing of the agent's is left", || subject.traces() == before);
    assert_eq!(subject.finish().0, Some(0));
}

#[test]
fn an_ordinary_user_is_refused_with_the_reason_and_the_remedy() {
    if !may_attach() {
        return;
    }
    let (programs, installed) = (Programs::new("o"), installed_for_all());
    let copy = programs.dir.path().join("memfold-agent");
    copy_program(&agent(), &copy);
    let (own, of_root, of_another) =
        (programs.start("a", Some(NOBODY)), programs.start("b", None), programs.start("c", Some(DAEMON)));
    let attach = |subject: &Subject, more: &[&str]| {
        let pid = subject.pid().to_string();
        let mut command = installed.command();
        command.env("MEMFOLD_AGENT", &copy).env("MEMFOLD_RUNTIME_DIR", installed.home());
        let output = command.arg("attach").args(more).arg(&pid).output().expect("memfold can be executed");
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(!is_attached(subject));
        said(&output)
    };
    for more in [&[][..], &["--dry-run"]] {
        let line = attach(&own, more);
        let needs = format!("would not report the forks of process {} to user {NOBODY}", own.pid());
        assert!(
            line.contains(&needs) && line.contains(&format!("`sudo memfold attach {}`", own.pid())),
            "{line}"
        );
        for subject in [&of_root, &of_another] {
            let line = attach(subject, more);
            assert!(
                line.contains(&format!("process {} may not be traced by this user", subject.pid())),
                "{line}"
            );
            assert!(line.contains("attach as root") || line.contains("ptrace_scope"), "{line}");
        }
    }
    for subject in [own, of_root, of_another] {
        assert_eq!(subject.finish().0, Some(0));
    }
}

#[test]
fn an_ordinary_user_whom_root_lets_attaches_to_own_programs() {
    const CAP_SYS_NICE: u32 = 23;
    if !may_attach() {
        return;
    }
    let device = File::options().read(true).write(true).open("/dev/userfaultfd").expect("root may open it");
    let (programs, installed) = (Programs::new("p"), installed_for_all());
    let copy = programs.dir.path().join("memfold-agent");
    copy_program(&agent(), &copy);
    let [helper, for_others, powerless] =
        ["helper", "others", "powerless"].map(|name| programs.dir.path().join(name));
    install_handshake(&helper, NOBODY, CAP_SYS_PTRACE);
    install_handshake(&for_others, DAEMON, CAP_SYS_PTRACE);
    install_handshake(&powerless, NOBODY, CAP_SYS_NICE);
    let (mut own, of_root) = (programs.start("a", Some(NOBODY)), programs.start("b", None));
    let before = own.traces();
    let as_owner = |helper: &Path, words: &[&str], subject: &Subject| {
        let mut command = installed.command();
        command
            .env("MEMFOLD_AGENT", &copy)
            .env("MEMFOLD_RUNTIME_DIR", installed.home())
            .env("MEMFOLD_HANDSHAKE", helper);
        run::inherit(&mut command, &device);
        command.args(words).arg(subject.pid().to_string()).output().expect("memfold can be executed")
    };
    let attach = ["attach", "--cold-age", "50ms", "--max-cpu", "100"];
    let why = ["sudo memfold setup --user NAME", "memfold-handshake: Operation not permitted"];
    for (helper, why) in [&for_others, &powerless].into_iter().zip(why) {
        let output = as_owner(helper, &attach, &own);
        assert!(output.status.code() == Some(1) && said(&output).contains(why), "{}", said(&output));
        own.tell("are they there");
        assert_eq!(own.traces(), before, "{why}");
    }
    // What the one program may do nobody else can.
    let output = as_owner(&helper, &attach, &of_root);
    assert!(said(&output).contains("may not be traced by this user"), "{}", said(&output));
    for _ in 0..3 {
        let output = as_owner(&helper, &attach, &own);
        assert!(output.status.success(), "{}", said(&output));
        wait_until(LIMIT, "most of it is folded", || {
            let output = as_owner(&helper, &["stat", "--json"], &own);
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let evicted = text.split("\"evicted_bytes\":").nth(1).unwrap_or_default();
            evicted.split([',', '}', '\n']).next().and_then(|n| n.trim().parse::<u64>().ok()).unwrap_or(0)
                > 6 << 20
        });
        // A child has every byte.
        own.tell("are they there");
        let output = as_owner(&helper, &["detach"], &own);
        assert!(output.status.success(), "{}", said(&output));
    }
    own.tell("are they there");
    wait_until(LIMIT, "nothing of the agent's is left", || own.traces() == before);
    for subject in [own, of_root] {
        assert_eq!(subject.finish().0, Some(0));
    }
}

#[test]
fn what_makes_handshakes_makes_them_of_userfaultfds_alone() {
    if !may_attach() {
        return;
    }
    let programs = Programs::new("h");
    let helper = programs.dir.path().join("helper");
    install_handshake(&helper, NOBODY, CAP_SYS_PTRACE);
    let answer = |arguments: &[&str], handed: Option<i32>| {
        let (own, theirs) = pair().unwrap();
        hand_over(own.raw(), 0, handed).unwrap();
        // SAFETY: nobody else has it.
        let theirs = unsafe { OwnedFd::from_raw_fd(theirs.into_raw()) };
        let mut command = Command::new(&helper);
        command.args(arguments).stdin(theirs).uid(NOBODY).gid(NOBODY);
        assert!(command.status().expect("it can be executed").success());
        take_over(own.raw(), Nanos::from_secs(20)).expect("an answer").0
    };
    let null = File::open("/dev/null").unwrap();
    let uffd = Userfaultfd::open().unwrap();
    let forks = Features::EVENT_FORK.bits().to_string();
    assert_eq!(i32::from(answer(&[&forks], Some(null.as_raw_fd()))), libc::EBADF);
    assert_eq!(i32::from(answer(&[&forks], None)), libc::ENODATA);
    for arguments in [&[][..], &["x"], &["-1"], &[&forks, "2"]] {
        assert_eq!(i32::from(answer(arguments, Some(uffd.raw_fd()))), libc::EINVAL, "{arguments:?}");
    }
    assert_eq!(answer(&[&forks], Some(uffd.raw_fd())), 0);
    // One handshake is all that a userfaultfd has.
    assert_eq!(i32::from(answer(&[&forks], Some(uffd.raw_fd()))), libc::EINVAL);
}
