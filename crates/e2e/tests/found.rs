//! Which folded programs `memfold stat` and `memfold ctl` find, by number and by name, whoever started them and wherever they are,
//! and what they say of one that is not folded.

use memfold_e2e::run::{copy_program, program, Server};
use memfold_e2e::{installed_for_all, memfold, scratch, wait_until, LIMIT};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().expect("memfold can be executed")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// The shell's line that sleeps as a program of this name: a copy of `sleep` in `dir`.
fn sleeper(dir: &Path, name: &str) -> String {
    let copy = dir.join(name);
    copy_program(&program("sleep", "coreutils"), &copy);
    format!("{} 60", copy.display())
}

/// A Perl program that writes its number to `ready` and holds 64 MiB.
fn holder(ready: &Path) -> String {
    format!(
        "my $held = join '', map {{ \"$_ held \" x 64 }} 1..120000; open my $f, '>', '{0}.new'; print $f $$; close $f; \
         rename '{0}.new', '{0}'; sleep 60",
        ready.display()
    )
}

fn written(file: &Path) -> u32 {
    let mut pid = 0;
    wait_until(LIMIT, "the start of the program", || {
        pid = fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        pid != 0
    });
    pid
}

/// A program that is killed by its number when it goes out of scope.
struct Killed(u32);

impl Drop for Killed {
    fn drop(&mut self) {
        // SAFETY: sends a signal to a program of the test's own, which ends by nothing else.
        unsafe { libc::kill(self.0 as i32, libc::SIGKILL) };
    }
}

fn rows(runtime: &Path, target: &str) -> Vec<Value> {
    let found = output(memfold(runtime).args(["stat", "--json", target]));
    serde_json::from_slice::<Vec<Value>>(&found.stdout).unwrap_or_default()
}

#[test]
fn a_program_that_went_into_the_background_is_found_and_steered() {
    let home = scratch();
    let ready = home.path().join("ready");
    let script = format!("exit 0 if fork; POSIX::setsid(); sleep 1; {}", holder(&ready));
    let mut command = memfold(home.path());
    command.args(["run", "--cold-age", "1h", "--", "perl", "-MPOSIX", "-e", &script]);
    // Without pipes, which the program would keep open.
    let ended = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    assert!(ended.success());
    let pid = written(&ready);
    let _killed = Killed(pid);
    wait_until(LIMIT, "folding", || {
        rows(home.path(), &pid.to_string()).first().is_some_and(|r| r["mode"] == "embedded")
    });
    let evicted = output(memfold(home.path()).args(["ctl", &pid.to_string(), "evict"]));
    assert!(evicted.status.success(), "{}", said(&evicted));
    assert!(rows(home.path(), &pid.to_string())[0]["pages"]["evicted"].as_u64() > Some(0));
}

#[test]
fn a_program_is_found_by_its_name_and_one_of_several_is_not_steered_by_it() {
    let home = scratch();
    // Longer than the kernel's names are.
    let name = "a-sleeper-with-a-long-name";
    let line = sleeper(home.path(), name);
    let start = || {
        let mut command = memfold(home.path());
        Server(command.args(["run", "--quiet", "--", "sh", "-c", &format!("exec {line}")]).spawn().unwrap())
    };
    let _one = start();
    wait_until(LIMIT, "one program", || rows(home.path(), name).len() == 1);
    let shown = said(&output(memfold(home.path()).args(["stat", name])));
    assert!(shown.contains("cold_age"), "all of the only one: {shown}");
    let got = output(memfold(home.path()).args(["ctl", name, "get"]));
    assert!(got.status.success(), "{}", said(&got));
    let _other = start();
    wait_until(LIMIT, "two programs", || rows(home.path(), name).len() == 2);
    let shown = said(&output(memfold(home.path()).args(["stat", name])));
    assert_eq!(shown.lines().count(), 3, "{shown}");
    let refused = output(memfold(home.path()).args(["ctl", name, "get"]));
    assert_eq!(refused.status.code(), Some(1));
    assert!(said(&refused).contains("2 folded processes are named"), "{}", said(&refused));
    let none = output(memfold(home.path()).args(["stat", "no-such-program"]));
    assert_eq!(none.status.code(), Some(1));
    assert!(said(&none).contains("no process named 'no-such-program'"), "{}", said(&none));
}

/// What `stat` says of the process of this name, once there is one.
fn reason(home: &Path, name: &str) -> String {
    let mut found = String::new();
    wait_until(LIMIT, "a program that is not folded", || {
        found = said(&output(memfold(home).args(["stat", name])));
        !found.contains("no process named")
    });
    found
}

fn launched(home: &Path, options: &[&str], script: &str) -> Server {
    let mut command = memfold(home);
    command.args(["run", "--quiet"]).args(options).args(["--", "sh", "-c", script]);
    Server(command.spawn().unwrap())
}

#[test]
fn of_a_program_that_is_not_folded_the_true_reason_is_given() {
    let home = scratch();
    let line = |name| sleeper(home.path(), name);
    let cases: [(&str, &[&str], String, &str); 4] = [
        ("slept-alone", &["--no-follow"], line("slept-alone") + "; true", "--no-follow"),
        ("slept-unpaged", &["--no-pager"], line("slept-unpaged") + "; true", "--no-pager"),
        ("slept-without", &[], format!("env -u LD_PRELOAD {}; true", line("slept-without")), "env -i"),
        ("slept-forked", &[], format!("({}) ", line("slept-forked")), "cold_age"),
    ];
    for (name, options, script, expected) in cases {
        let _launcher = launched(home.path(), options, &script);
        wait_until(LIMIT, &format!("{name}: {expected}"), || reason(home.path(), name).contains(expected));
    }
    let mut plain = Command::new("sh");
    let _plain = Server(plain.args(["-c", &format!("exec {}", line("slept-plainly"))]).spawn().unwrap());
    assert!(reason(home.path(), "slept-plainly").contains("not started by `memfold run`"));
}

/// As browsers' pages and mail servers' workers do. A filter that permits everything is one as well.
#[test]
fn a_child_that_confines_its_system_calls_says_so() {
    if !fs::read_to_string("/proc/self/status").unwrap().contains("Seccomp_filters:") {
        eprintln!(
            "not tested: this kernel does not tell how many filters a process is under (before Linux 5.9)"
        );
        return;
    }
    let home = scratch();
    let script = format!(
        "if (fork == 0) {{ $0 = 'slept-confined'; my $all = pack 'SCCL', 6, 0, 0, 0x7fff0000; \
         syscall({0}, {1}, 1, 0, 0, 0) == 0 && syscall({0}, {2}, 2, pack('Sx6P', 1, $all)) == 0 or exit 1; \
         sleep 60 }} else {{ wait }}",
        libc::SYS_prctl,
        libc::PR_SET_NO_NEW_PRIVS,
        libc::PR_SET_SECCOMP
    );
    let mut command = memfold(home.path());
    let _server = Server(command.args(["run", "--quiet", "--", "perl", "-e", &script]).spawn().unwrap());
    wait_until(LIMIT, "the reason", || {
        reason(home.path(), "slept-confined").contains("confined its system calls (seccomp)")
    });
}

#[test]
fn a_summary_does_not_blame_the_memory_of_what_was_not_followed() {
    let home = scratch();
    let summary = home.path().join("summary.json");
    let mut command = memfold(home.path());
    command.args(["run", "--no-follow", "--summary"]).arg(&summary).args(["--", "sh", "-c", "true"]);
    assert!(output(&mut command).status.success());
    let summary: Value = serde_json::from_slice(&fs::read(summary).unwrap()).unwrap();
    assert!(summary["reason"].as_str().unwrap().contains("--no-follow"), "{summary}");
}

#[test]
fn root_finds_and_steers_the_programs_of_others_and_they_do_not_find_roots() {
    // SAFETY: always succeeds.
    if unsafe { libc::geteuid() } != 0 {
        // Nobody but root can be root here; what others see of each other is the rest of the test.
        return;
    }
    let installed = installed_for_all();
    let line = |name: &str| {
        let copy = installed.home().join(name);
        copy_program(&program("sleep", "coreutils"), &copy);
        format!("exec {} 60", copy.display())
    };
    let theirs = line("slept-by-nobody");
    let mut command = installed.command();
    command.env("MEMFOLD_RUNTIME_DIR", installed.home()).args(["run", "--quiet", "--", "sh", "-c", &theirs]);
    let mut theirs = Server(command.spawn().unwrap());
    let home = scratch();
    wait_until(LIMIT, "root's look", || rows(home.path(), "slept-by-nobody").len() == 1);
    assert_eq!(rows(home.path(), "slept-by-nobody")[0]["uid"], 65_534);
    let table = said(&output(memfold(home.path()).arg("stat")));
    assert!(table.contains("USER") && table.contains("nobody"), "{table}");
    let got = output(memfold(home.path()).args(["ctl", "slept-by-nobody", "get"]));
    assert!(got.status.success(), "{}", said(&got));
    let _roots = launched(home.path(), &[], &line("slept-by-root"));
    wait_until(LIMIT, "root's own", || rows(home.path(), "slept-by-root").len() == 1);
    let refused = output(installed.command().args(["stat", "slept-by-root"]));
    assert_eq!(refused.status.code(), Some(1));
    assert!(said(&refused).contains("belongs to root"), "{}", said(&refused));
    theirs.0.kill().unwrap();
}

/// A shell in PID namespaces of its own, twice, each with a folded program that has the same number there.
#[test]
fn programs_with_the_same_number_in_two_pid_namespaces_have_pages_of_their_own() {
    let home = scratch();
    let line = sleeper(home.path(), "slept-inside");
    // SAFETY: always succeeds.
    let options = if unsafe { libc::geteuid() } == 0 { "-pf" } else { "-rpf" };
    let inside = format!("unshare {options} --kill-child --mount-proc sh -c '{line}; true'");
    let script = format!("{inside} & {inside} & wait");
    let launcher = launched(home.path(), &[], &script);
    wait_until(LIMIT, "both", || rows(home.path(), "slept-inside").len() == 2);
    let found = rows(home.path(), "slept-inside");
    assert_ne!(found[0]["pid"], found[1]["pid"]);
    for row in &found {
        let got = output(memfold(home.path()).args(["ctl", &row["pid"].to_string(), "get"]));
        assert!(got.status.success(), "{}", said(&got));
    }
    // From inside one of them the other's is not to be seen, and nothing of it is removed.
    let pid = found[0]["pid"].as_u64().unwrap();
    let seen = output(&mut inside_of(pid as u32, home.path(), &["stat", "--json", "slept-inside"]));
    let seen: Vec<Value> = serde_json::from_slice(&seen.stdout).unwrap_or_else(|_| panic!("{}", said(&seen)));
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(rows(home.path(), "slept-inside").len(), 2);
    for row in found {
        drop(Killed(row["pid"].as_u64().unwrap() as u32));
    }
    wait_until(LIMIT, "the launcher's end, with all pages", || runs(home.path()) == 0);
    drop(launcher);
}

/// How many runs have a directory.
fn runs(home: &Path) -> usize {
    let names = fs::read_dir(home).unwrap().flatten().map(|entry| entry.file_name());
    names.filter(|name| name.to_string_lossy().starts_with("run-")).count()
}

/// `memfold` as it is in the PID namespace of a process.
fn inside_of(pid: u32, home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program("nsenter", "util-linux"));
    command.args(["-t", &pid.to_string(), "-p", "-m"]);
    // SAFETY: always succeeds.
    if unsafe { libc::geteuid() } != 0 {
        command.args(["-U", "--preserve-credentials"]);
    }
    let memfold = memfold(home);
    command.arg(memfold.get_program()).args(arguments).env("MEMFOLD_RUNTIME_DIR", home);
    command
}

/// Two launchers that are containers of their own, with one runtime directory: each is process 1 in its namespace.
#[test]
fn containers_that_share_a_runtime_directory_leave_each_others_pages_alone() {
    let home = scratch();
    let start = |name: &str| -> (Child, u32) {
        let line = sleeper(home.path(), name);
        let look = memfold(home.path());
        // SAFETY: always succeeds.
        let options = if unsafe { libc::geteuid() } == 0 { "-pf" } else { "-rpf" };
        let mut command = Command::new(program("unshare", "util-linux"));
        command.args([options, "--kill-child", "--mount-proc"]).arg(look.get_program());
        command.args(["run", "--quiet", "--", "sh", "-c", &format!("exec {line}")]);
        for (name, value) in look.get_envs().filter_map(|(name, value)| Some((name, value?))) {
            command.env(name, value);
        }
        let child = command.spawn().unwrap();
        wait_until(LIMIT, name, || rows(home.path(), name).len() == 1);
        let pid = rows(home.path(), name)[0]["pid"].as_u64().unwrap() as u32;
        (child, pid)
    };
    let (mut first, inside) = start("slept-first");
    let (mut second, _) = start("slept-second");
    // A look from within the first finds what is left over, and removes it: that is not the second's.
    let seen = output(&mut inside_of(inside, home.path(), &["stat", "--json"]));
    let seen: Vec<Value> = serde_json::from_slice(&seen.stdout).unwrap_or_else(|_| panic!("{}", said(&seen)));
    let names: Vec<_> = seen.iter().map(|row| row["name"].as_str().unwrap_or_default()).collect();
    assert!(names.contains(&"slept-first") && !names.contains(&"slept-second"), "{names:?}");
    assert_eq!(rows(home.path(), "slept-second").len(), 1);
    for child in [&mut first, &mut second] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // From outside, what is left of containers that were killed is left over.
    wait_until(LIMIT, "the cleaning", || {
        let _ = output(memfold(home.path()).arg("stat"));
        runs(home.path()) == 0
    });
}
