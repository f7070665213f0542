//! The command line as a user types it: exit codes, messages, signals, the summary, and steering a
//! program while it runs. What folding does to a program's bytes is tested elsewhere.

use memfold_bench::launch::preload;
use memfold_e2e::run::copy_program;
use memfold_e2e::wait_until;
use memfold_e2e::{is_root, memfold, preload_library, scratch, LIMIT};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().expect("memfold can be executed")
}

fn run(args: &[&str]) -> Output {
    let runtime = scratch();
    output(memfold(runtime.path()).arg("run").args(args))
}

fn error_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("the file was written")).expect("it is JSON")
}

fn signal(child: &Child, number: i32) {
    // SAFETY: the child is not waited for yet, so the number is its own.
    unsafe { libc::kill(child.id() as i32, number) };
}

#[test]
fn the_exit_code_of_the_program_comes_back() {
    assert_eq!(run(&["--", "sh", "-c", "exit 0"]).status.code(), Some(0));
    assert_eq!(run(&["--", "sh", "-c", "exit 43"]).status.code(), Some(43));
    assert_eq!(run(&["--", "sh", "-c", "kill -KILL $$"]).status.code(), Some(128 + 9));
}

#[test]
fn standard_output_is_the_programs_alone_and_a_run_without_folding_has_one_line_of_summary() {
    let loud = run(&["--", "echo", "hello"]);
    assert_eq!(loud.stdout, b"hello\n");
    let ran = |line: &&str| line.starts_with("memfold: echo ran ") && line.contains("not folded: ");
    assert_eq!(error_text(&loud).lines().filter(ran).count(), 1, "{}", error_text(&loud));
    let quiet = run(&["--quiet", "--", "echo", "hello"]);
    assert_eq!((error_text(&quiet), quiet.stdout), (String::new(), b"hello\n".to_vec()));
}

#[test]
fn options_of_the_program_are_not_taken_for_memfolds() {
    assert_eq!(run(&["--", "echo", "--cold-age", "soon"]).stdout, b"--cold-age soon\n");
    assert_eq!(run(&["echo", "--quiet", "-x"]).stdout, b"--quiet -x\n");
}

#[test]
fn bad_usage_ends_with_2_names_the_value_and_starts_nothing() {
    let dir = scratch();
    let mark = dir.path().join("ran");
    let cases: [(&[&str], &str); 9] = [
        (&["--cold-age", "soon"], "'soon' for '--cold-age"),
        (&["--cold-age", "0"], "'0' for '--cold-age"),
        (&["--cold-age", "-5"], "'-5' for '--cold-age"),
        (&["--max-stall", "101"], "'101' for '--max-stall"),
        (&["--resident-limit", "0"], "'0' for '--resident-limit"),
        (&["--resident-limit", "99999999999999999999G"], "for '--resident-limit"),
        (&["--policy", "clairvoyant"], "'clairvoyant' for '--policy"),
        (&["--profile", "fast"], "'fast' for '--profile"),
        (&["--colour"], "--colour"),
    ];
    for (options, expected) in cases {
        let result = run(&[options, &["--", "touch", mark.to_str().unwrap()]].concat());
        assert_eq!(result.status.code(), Some(2), "{options:?}");
        assert!(error_text(&result).contains(expected), "{options:?}: {}", error_text(&result));
        assert!(!mark.exists(), "{options:?} started the program");
    }
    assert_eq!(run(&[]).status.code(), Some(2));
}

#[test]
fn a_bad_variable_is_no_reason_not_to_run_the_program() {
    let dir = scratch();
    let result =
        output(memfold(dir.path()).env("MEMFOLD_COLD_AGE", "soon").args(["run", "--", "echo", "hello"]));
    assert_eq!((result.status.code(), result.stdout), (Some(0), b"hello\n".to_vec()));
}

#[test]
fn a_missing_program_is_127_and_one_that_cannot_be_executed_126() {
    let missing = run(&["--", "no-such-program"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(error_text(&missing).contains("no-such-program"));
    assert_eq!(run(&["--", "/etc/passwd"]).status.code(), Some(126));
    assert_eq!(run(&["--", "/"]).status.code(), Some(126));
}

#[test]
fn a_static_program_runs_plainly_and_the_reason_is_given() {
    let dir = scratch();
    let (source, program, summary) =
        (dir.path().join("p.c"), dir.path().join("p"), dir.path().join("summary.json"));
    fs::write(&source, "int main(void) { return 5; }").unwrap();
    let compiled = Command::new("cc").arg("-static").arg("-o").arg(&program).arg(&source).status();
    assert!(compiled.expect("apt-get install build-essential").success());
    let result = run(&["--summary", summary.to_str().unwrap(), "--", program.to_str().unwrap()]);
    assert_eq!(result.status.code(), Some(5));
    assert!(error_text(&result).contains("statically linked"), "{}", error_text(&result));
    let summary = json(&summary);
    assert_eq!((&summary["mode"], &summary["exit_code"]), (&"off".into(), &5.into()));
    assert!(summary["reason"].as_str().unwrap().contains("statically linked"));
}

#[test]
fn programs_with_a_sanitizer_run_plainly_and_the_reason_is_given() {
    let dir = scratch();
    let source = dir.path().join("three.c");
    fs::write(&source, "#include <stdlib.h>\nint main(void) { free(malloc(1)); return 3; }").unwrap();
    for (sanitizer, by_a_shell) in [("address", false), ("thread", false), ("leak", false), ("leak", true)] {
        let program = dir.path().join(sanitizer);
        let mut compiler = Command::new("cc");
        compiler.arg(format!("-fsanitize={sanitizer}")).arg("-o").arg(&program).arg(&source);
        assert!(compiler.status().unwrap().success(), "{sanitizer}");
        let path = program.to_str().unwrap();
        // What a program starts is seen by the library alone.
        let script = format!("{path}; exit $?");
        let command = if by_a_shell { vec!["sh", "-c", &script] } else { vec![path] };
        let result = run(&[&["--"], &command[..]].concat());
        assert_eq!(result.status.code(), Some(3), "{command:?}: {}", error_text(&result));
        assert!(error_text(&result).contains("sanitizer"), "{command:?}: {}", error_text(&result));
    }
}

#[test]
fn a_set_user_id_program_runs_plainly_and_the_reason_is_given() {
    let dir = scratch();
    let program = dir.path().join("echo");
    copy_program("/bin/echo".as_ref(), &program);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let result = run(&["--", program.to_str().unwrap(), "hello"]);
    assert_eq!((result.status.code(), result.stdout.as_slice()), (Some(0), b"hello\n".as_slice()));
    assert!(error_text(&result).contains("set-user-ID"), "{}", error_text(&result));
}

#[test]
fn a_summary_that_cannot_be_written_is_noticed_before_the_program_starts() {
    let dir = scratch();
    let mark = dir.path().join("ran");
    let result = run(&["--summary", "/nonexistent/s.json", "--", "touch", mark.to_str().unwrap()]);
    assert_eq!(result.status.code(), Some(2));
    assert!(error_text(&result).contains("/nonexistent/s.json") && !mark.exists());
}

#[test]
fn what_a_variable_asks_for_and_cannot_be_had_is_left_out_and_said() {
    let dir = scratch();
    for (variable, value, said) in [
        ("MEMFOLD_SUMMARY", "/nonexistent/s.json", "left out: summary (variable MEMFOLD_SUMMARY)"),
        (
            "MEMFOLD_TIER",
            "redis://127.0.0.1:1",
            "left out: tier (variable MEMFOLD_TIER): redis://127.0.0.1:1",
        ),
        ("MEMFOLD_BUDGET_OF", &"/x".repeat(60), "left out: daemon (variable MEMFOLD_BUDGET_OF)"),
    ] {
        let mut command = memfold(dir.path());
        let program = format!("exit ${{{variable}:-7}}");
        let result = command.env(variable, value).args(["run", "--", "sh", "-c", &program]).output().unwrap();
        assert_eq!(result.status.code(), Some(7), "{}", error_text(&result));
        let text = error_text(&result);
        assert!(text.contains(said) && text.matches(variable).count() == 1, "{text}");
    }
    let file = dir.path().join("settings.toml");
    fs::write(&file, "[defaults]\ntier = \"redis://127.0.0.1:1\"\n").unwrap();
    let mut command = memfold(dir.path());
    let result = command.env("MEMFOLD_CONFIG", &file).args(["run", "--", "true"]).output().unwrap();
    assert!(
        result.status.success() && error_text(&result).contains("settings.toml:2"),
        "{}",
        error_text(&result)
    );
}

#[test]
fn a_switch_in_a_variable_is_read_in_all_its_spellings() {
    let dir = scratch();
    let inside = |variable: &str, value: &str| {
        let mut command = memfold(dir.path());
        command.env(variable, value).args(["run", "--quiet", "--", "sh", "-c", "cat /proc/self/maps"]);
        String::from_utf8(command.output().unwrap().stdout).unwrap().contains("libmemfold.so")
    };
    for off in ["off", "0", "OFF"] {
        assert!(!inside("MEMFOLD_FOLLOW", off), "{off}");
    }
    assert!(inside("MEMFOLD_FOLLOW", "on") && inside("MEMFOLD_FOLLOW", "no such value"));
    // By the library alone: whether the program is folded, with the library in what it starts, and what is said.
    let alone = |variables: [&str; 4]| {
        let dir = scratch();
        let names = ["MEMFOLD_PAGER", "MEMFOLD_FOLLOW", "MEMFOLD_WIPE", "MEMFOLD_STATS"];
        let mut command = Command::new("sh");
        preload(&mut command, &preload_library());
        command.envs(names.into_iter().zip(variables)).env("MEMFOLD_CONTROL_DIR", dir.path());
        let output = output(command.env("MEMFOLD_START_AT", "0").args(["-c", "cat /proc/self/maps; true"]));
        let follows = String::from_utf8_lossy(&output.stdout).contains("libmemfold.so");
        let folded = fs::read_dir(dir.path()).unwrap().count() > 0;
        (folded, follows, error_text(&output))
    };
    for [on, off] in [["on", "off"], ["1", "0"], ["ON", "OFF"]] {
        assert_eq!(alone([on, off, on, off]), (true, false, String::new()), "{on} {off}");
        assert_eq!(alone([off, on, off, off]), (false, true, String::new()), "{on} {off}");
    }
    let (folded, follows, said) = alone(["on", "maybe", "maybe", "maybe"]);
    assert!(folded && follows, "{said}");
    for variable in ["FOLLOW", "WIPE", "STATS"] {
        let line = format!("memfold: ignoring MEMFOLD_{variable}=maybe: it takes `on` or `off`");
        assert_eq!(said.lines().filter(|said| *said == line).count(), 1, "{said}");
    }
}

#[test]
fn the_summary_survives_the_program_and_tells_how_it_died() {
    let dir = scratch();
    let file = dir.path().join("s.json");
    run(&["--quiet", "--summary", file.to_str().unwrap(), "--", "sh", "-c", "kill -KILL $$"]);
    let summary = json(&file);
    assert_eq!((&summary["exit_code"], &summary["signal"]), (&137.into(), &9.into()));
    for key in ["schema", "command", "wall_ns", "mode", "reason", "saved_bytes_mean", "pages", "fault_ns"] {
        assert!(summary.get(key).is_some(), "{key} is missing");
    }
}

#[test]
fn a_signal_sent_to_the_launcher_reaches_the_program() {
    for (name, number) in [("TERM", libc::SIGTERM), ("USR1", libc::SIGUSR1), ("HUP", libc::SIGHUP)] {
        let dir = scratch();
        let ready = dir.path().join("ready");
        let script = format!("trap 'exit 9' {name}; touch {}; while :; do sleep 0.05; done", ready.display());
        let mut command = memfold(dir.path());
        command.args(["run", "--quiet", "--", "sh", "-c", &script]);
        // A shell cannot trap what was ignored when it started, as SIGHUP is under nohup(1).
        // SAFETY: a system call, and the closure allocates nothing.
        unsafe {
            command.pre_exec(move || match libc::signal(number, libc::SIG_DFL) {
                libc::SIG_ERR => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            })
        };
        let mut child = command.spawn().unwrap();
        wait_until(LIMIT, "the trap", || ready.exists());
        signal(&child, number);
        assert_eq!(child.wait().unwrap().code(), Some(9), "{name}");
    }
}

/// A program that says at the end how often it had SIGUSR1; SIGUSR2 ends it.
const COUNTER: &str = "\
import signal, time
count = 0
def one(*_):
    global count
    count += 1
def end(*_):
    print(count, flush=True)
    raise SystemExit
signal.signal(signal.SIGUSR1, one)
signal.signal(signal.SIGUSR2, end)
print('ready', flush=True)
while True: time.sleep(60)
";

#[test]
fn a_signal_to_the_whole_group_reaches_the_program_once() {
    use std::io::BufRead;
    for to_group in [true, false] {
        let dir = scratch();
        let mut command = memfold(dir.path());
        command.args(["run", "--quiet", "--", "/usr/bin/python3", "-c", COUNTER]);
        let mut child = command.process_group(0).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let group = if to_group { -(child.id() as i32) } else { child.id() as i32 };
        // SAFETY: the child is not waited for yet.
        unsafe { libc::kill(group, libc::SIGUSR1) };
        // The launcher takes them in their order.
        signal(&child, libc::SIGUSR2);
        assert_eq!(lines.next().unwrap().unwrap(), "1", "to the group: {to_group}");
        assert!(child.wait().unwrap().success());
    }
}

/// Whether a process has yet to take a signal that it was sent.
fn is_pending(pid: u32, signal: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).expect("a mask of signals");
    u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal - 1) & 1 != 0
}

/// Sends SIGUSR1 to its own group, and then counts as above.
const OF_ITS_OWN: &str = "\
import os, signal, time
count = 0
def one(*_):
    global count
    count += 1
    print(count, flush=True)
signal.signal(signal.SIGUSR1, one)
os.kill(0, signal.SIGUSR1)
while True: time.sleep(60)
";

#[test]
fn what_a_program_sends_to_its_own_group_hides_no_signal_that_it_is_sent_later() {
    use std::io::BufRead;
    let dir = scratch();
    let mut command = memfold(dir.path());
    command.args(["run", "--quiet", "--", "/usr/bin/python3", "-c", OF_ITS_OWN]);
    let mut child = command.process_group(0).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "1");
    // Of two of a kind that are pending the kernel keeps one.
    wait_until(LIMIT, "the launcher takes its own", || !is_pending(child.id(), libc::SIGUSR1));
    for count in 2..4 {
        signal(&child, libc::SIGUSR1);
        assert_eq!(lines.next().unwrap().unwrap(), count.to_string());
    }
    signal(&child, libc::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(128 + libc::SIGTERM));
}

/// Runs a script at a terminal of its own, with the further arguments.
const AT_A_TERMINAL: &str = "\
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0: os.execv('/bin/sh', ['sh', '-c'] + sys.argv[1:])
while True:
    try: told = os.read(terminal, 1000)
    except OSError: break
    if not told: break
    os.write(1, told)
";

/// Stops what a command runs by its number, and has it go on.
const STOPPED_AND_CONTINUED: &str = r#"
"$@" & launcher=$!
until program=$(pgrep -P $launcher -x sleep); do sleep 0.05; done
state() { cut -d' ' -f3 /proc/$1/stat; }
kill -STOP $program; until [ "$(state $program)" = T ]; do sleep 0.05; done
# Until the launcher has seen it.
sleep 0.3
kill -CONT $program; until [ "$(state $program)" != T ]; do sleep 0.05; done
kill $program; wait $launcher; echo ended $?"#;

#[test]
fn a_script_at_a_terminal_goes_on_when_its_program_was_stopped_and_continued_by_number() {
    let dir = scratch();
    let mut memfold = memfold(dir.path());
    memfold.args(["run", "--quiet", "--", "/bin/sleep", "1000"]);
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", AT_A_TERMINAL, STOPPED_AND_CONTINUED, "sh"]);
    python.arg(memfold.get_program()).args(memfold.get_args());
    python.envs(memfold.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let told = String::from_utf8(output(&mut python).stdout).unwrap();
    assert!(told.contains("ended 143"), "{told}");
}

#[test]
fn what_was_ignored_and_what_was_closed_is_so_in_the_program() {
    let dir = scratch();
    let told = |memfold: &str| {
        let script = format!(
            "trap '' PIPE CHLD USR1; {memfold} grep SigIgn /proc/self/status; \
             {memfold} sh -c 'cat; echo $?' <&- 2>/dev/null; {memfold} sh -c 'echo hi; exit $?' >&- 2>/dev/null; echo $?"
        );
        let mut shell = memfold_e2e::memfold(dir.path());
        let program = shell.get_program().to_owned();
        let mut command = Command::new("sh");
        command.args(["-c", &script]).env("MEMFOLD", program);
        command.envs(shell.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.env_clear();
        String::from_utf8(output(&mut command).stdout).unwrap()
    };
    assert_eq!(told("$MEMFOLD run --quiet --"), told(""));
}

#[test]
fn an_alarm_that_was_set_before_ends_the_program() {
    let dir = scratch();
    let mut command = memfold(dir.path());
    command.args(["run", "--quiet", "--", "sleep", "1000"]);
    // SAFETY: a system call, and the closure allocates nothing.
    unsafe {
        command.pre_exec(|| {
            libc::alarm(1);
            Ok(())
        })
    };
    assert_eq!(output(&mut command).status.code(), Some(128 + libc::SIGALRM));
}

#[test]
fn where_it_is_wanted_the_launcher_ends_by_the_programs_signal() {
    let dir = scratch();
    let end = |options: &[&str]| {
        let mut command = memfold(dir.path());
        command.args(["run", "--quiet"]).args(options).args(["--", "sh", "-c", "kill -TERM $$"]);
        let status = output(&mut command).status;
        (status.code(), status.signal())
    };
    assert_eq!(end(&[]), (Some(143), None));
    assert_eq!(end(&["--same-end"]), (None, Some(libc::SIGTERM)));
}

#[test]
fn as_the_first_process_of_a_container_it_waits_for_orphans() {
    if !is_root() {
        return;
    }
    let dir = scratch();
    // What is left is looked for by the program itself, until there is nothing.
    let script = "sleep 0.5; for i in $(seq 1200); do \
                  grep -l '^State:.Z' /proc/[0-9]*/status >/dev/null 2>&1 || exit 5; sleep 0.1; done";
    let script = format!("sh -c 'sh -c \"setsid sleep 0.1 & setsid sleep 0.1 &\"'; {script}");
    let inner = memfold(dir.path());
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc"]).arg(inner.get_program());
    command.args(["run", "--quiet", "--", "sh", "-c", &script]);
    command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = output(&mut command);
    if error_text(&output).contains("unshare") {
        // Not permitted here.
        return;
    }
    assert_eq!(output.status.code(), Some(5), "{}", error_text(&output));
}

#[test]
fn what_the_program_starts_is_folded_too_unless_it_is_not_to_follow() {
    let folded = |options: &[&str]| {
        let dir = scratch();
        // Of a shell and of one that it starts: the library's mappings, and control pages, which are named by process.
        let tell =
            format!("grep -c libmemfold.so /proc/$$/maps; find {} -name $$ | wc -l", dir.path().display());
        let script = format!("{tell}; sh -c '{tell}'; true");
        let mut command = memfold(dir.path());
        command.args(["run", "--quiet"]).args(options).args(["--", "sh", "-c", &script]);
        let text = String::from_utf8(output(&mut command).stdout).expect("text");
        let counts: Vec<u32> = text.lines().map(|line| line.parse().expect("a number")).collect();
        assert_eq!(counts.len(), 4, "{text}");
        counts.into_iter().map(|count| count > 0).collect::<Vec<_>>()
    };
    assert_eq!(folded(&[]), [true, true, true, true]);
    assert_eq!(folded(&["--no-follow"]), [true, true, false, false]);
}

#[test]
fn nothing_is_left_in_the_runtime_directory() {
    let dir = scratch();
    output(memfold(dir.path()).args(["run", "--quiet", "--", "sh", "-c", "true; true"]));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// A folded program that holds 64 MiB and sleeps, with its process id.
fn sleeper(runtime: &Path) -> (Child, u32) {
    let ready = runtime.join("ready");
    let script = format!(
        "import os,time; held=bytearray(os.urandom(1024)*65536); open({ready:?},'w').write(str(os.getpid())); \
         time.sleep(60)"
    );
    let mut command = memfold(runtime);
    command.args(["run", "--quiet", "--start-at", "0", "--cold-age", "1h", "--", "python3", "-c", &script]);
    let child = command.spawn().unwrap();
    let mut pid = 0;
    wait_until(LIMIT, "the start of python3", || {
        pid = fs::read_to_string(&ready).ok().and_then(|t| t.parse().ok()).unwrap_or(0);
        pid != 0
    });
    (child, pid)
}

fn stat(runtime: &Path, pid: u32) -> Value {
    let result = output(memfold(runtime).args(["stat", "--json", &pid.to_string()]));
    assert!(result.status.success(), "{}", error_text(&result));
    serde_json::from_slice::<Value>(&result.stdout).unwrap()[0].clone()
}

fn ctl(runtime: &Path, pid: u32, words: &[&str]) -> Output {
    output(memfold(runtime).args(["ctl", &pid.to_string()]).args(words))
}

#[test]
fn a_running_program_is_listed_and_can_be_steered() {
    let runtime = scratch();
    let dir = runtime.path();
    let (mut child, pid) = sleeper(dir);
    wait_until(LIMIT, "folding", || stat(dir, pid)["mode"] == "embedded");
    let done = |words: &[&str]| {
        let result = ctl(dir, pid, words);
        assert!(result.status.success(), "{words:?}: {}", error_text(&result));
    };
    done(&["evict"]);
    assert!(stat(dir, pid)["pages"]["evicted"].as_u64() > Some(0));
    done(&["pause"]);
    assert_eq!(stat(dir, pid)["paused"], true);
    done(&["resume"]);
    done(&["set", "cold_age", "90s"]);
    assert_eq!(stat(dir, pid)["settings"]["cold_age"], 90_000_000_000u64);
    done(&["restore"]);
    assert_eq!(stat(dir, pid)["evicted_bytes"], 0);
    let mut alloc = Value::Null;
    wait_until(LIMIT, "the allocator's counters", || {
        let result = output(memfold(dir).args(["stat", "--alloc", "--json", &pid.to_string()]));
        alloc = serde_json::from_slice::<Value>(&result.stdout).unwrap()[0].clone();
        alloc["live_bytes"].as_u64() > Some(64 << 20)
    });
    assert!(alloc["mmap_calls"].as_u64() > Some(0), "{alloc}");
    assert!(alloc["classes"].as_array().unwrap().len() > 5, "{alloc}");
    let refused = ctl(dir, pid, &["set", "cold_age", "soon"]);
    assert_eq!(refused.status.code(), Some(2));
    signal(&child, libc::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    assert_eq!(ctl(dir, pid, &["pause"]).status.code(), Some(1));
}

#[test]
fn what_becomes_another_user_is_folded_listed_steered_and_counted() {
    if !is_root() {
        let _ = writeln!(std::io::stderr(), "NOT TESTED: another user's program: only root can become one");
        return;
    }
    let (open, runtime) = (scratch(), scratch());
    let readable = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    let at = |name: &str| open.path().join(name);
    let source = "#include <string.h>\n#include <stdlib.h>\n#include <unistd.h>\n\
        int main(void) { char *held = malloc(32 << 20); memset(held, 7, 32 << 20); sleep(60); return held[4711]; }";
    fs::write(at("held.c"), source).unwrap();
    let compiled = Command::new("cc").arg("-o").arg(at("held")).arg(at("held.c")).status();
    assert!(compiled.unwrap().success());
    copy_program(&memfold_e2e::preload_library(), &at("libmemfold.so"));
    ["", "held", "libmemfold.so"].iter().for_each(|name| readable(&at(name)));
    let summary = runtime.path().join("summary");
    let mut command = memfold(runtime.path());
    command.env("MEMFOLD_LIB", at("libmemfold.so"));
    command.args(["run", "--quiet", "--start-at", "0", "--cold-age", "200ms", "--summary"]).arg(&summary);
    command.args(["--", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]).arg(at("held"));
    let mut child = command.spawn().unwrap();
    let launcher = child.id();
    let list = || {
        let result = output(memfold(runtime.path()).args(["stat", "--json"]));
        let list: Value = serde_json::from_slice(&result.stdout).unwrap_or_default();
        list.as_array().cloned().unwrap_or_default()
    };
    let mut pid = 0;
    wait_until(LIMIT, "folding of another user's program", || {
        let is_ours = |program: &&Value| program["parent_pid"] == launcher && program["name"] == "held";
        let found = list().iter().find(is_ours).cloned().unwrap_or_default();
        pid = found["pid"].as_u64().unwrap_or(0) as u32;
        found["pages"]["evicted"].as_u64() > Some(4096)
    });
    let restored = ctl(runtime.path(), pid, &["restore"]);
    assert!(restored.status.success(), "{}", error_text(&restored));
    // SAFETY: it runs: its launcher, which is not waited for yet, waits for it.
    unsafe { libc::kill(pid as i32, libc::SIGTERM) };
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    let summary = json(&summary);
    assert_eq!(summary["mode"], "embedded", "{summary}");
    assert!(summary["pages"]["evicted"].as_u64() > Some(4096), "{summary}");
    let left = fs::read_dir("/tmp/memfold-65534").unwrap().map(|entry| entry.unwrap().file_name());
    let of_this = format!("run-{launcher}-");
    assert!(left.map(|name| name.into_string().unwrap()).all(|name| !name.starts_with(&of_this)));
}

#[test]
fn the_page_of_a_program_that_was_killed_with_its_launcher_is_cleaned_away() {
    let runtime = scratch();
    let dir = runtime.path();
    let (mut child, pid) = sleeper(dir);
    // SAFETY: both run: the launcher is not waited for yet, and it has not waited for the program.
    unsafe {
        libc::kill(child.id() as i32, libc::SIGKILL);
        libc::kill(pid as i32, libc::SIGKILL);
    }
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    wait_until(LIMIT, "the cleaning", || {
        // Others of this user may be folded elsewhere.
        let list: Value =
            serde_json::from_slice(&output(memfold(dir).args(["stat", "--json"])).stdout).unwrap();
        let is_listed = list.as_array().unwrap().iter().any(|program| program["pid"] == pid);
        !is_listed && fs::read_dir(dir).unwrap().all(|e| e.unwrap().path().is_file())
    });
}

#[test]
fn a_process_that_is_not_folded_or_not_there_is_an_error_that_says_so() {
    let dir = scratch();
    let own = std::process::id();
    assert!(error_text(&ctl(dir.path(), own, &["pause"])).contains("not started by `memfold run`"));
    let missing = ctl(dir.path(), 4_194_303, &["pause"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(error_text(&missing).contains("no process 4194303"));
    assert!(output(memfold(dir.path()).arg("stat")).status.success());
}

#[test]
fn doctor_agrees_with_its_exit_code() {
    let dir = scratch();
    let result = output(memfold(dir.path()).args(["doctor", "--json"]));
    let report: Value = serde_json::from_slice(&result.stdout).unwrap();
    let works = report["works"].as_bool().unwrap();
    assert_eq!(result.status.code(), Some(if works { 0 } else { 3 }));
    assert_eq!(report["hindrance"].is_null(), works);
    assert!(works || !report["remedies"].as_array().unwrap().is_empty());
}

#[test]
fn doctor_tells_a_user_without_permission_what_to_do() {
    let unprivileged = memfold_e2e::installed_for_all();
    let result = output(unprivileged.command().arg("doctor").env("MEMFOLD_RUNTIME_DIR", unprivileged.home()));
    let text = String::from_utf8_lossy(&result.stdout).into_owned();
    if result.status.code() == Some(0) {
        // vm.unprivileged_userfaultfd is 1 here, or the device is open to all.
        assert!(text.contains("can be folded"));
    } else {
        assert_eq!(result.status.code(), Some(3), "{text}");
        assert!(text.contains("memfold setup --user") || text.contains("CONFIG_USERFAULTFD"), "{text}");
    }
}

#[test]
fn setup_without_root_changes_nothing_and_says_what_it_needs() {
    let unprivileged = memfold_e2e::installed_for_all();
    let refused = output(unprivileged.command().arg("setup"));
    assert_eq!(refused.status.code(), Some(1));
    assert!(error_text(&refused).contains("needs root"));
    let dry = output(unprivileged.command().args(["setup", "--dry-run"]));
    assert!(dry.status.success());
    let unknown = output(unprivileged.command().args(["setup", "--dry-run", "--user", "no-such-user"]));
    assert_eq!(unknown.status.code(), Some(2));
}

#[test]
fn a_session_of_its_own_changes_nothing_about_exit_codes() {
    let runtime = scratch();
    let mut command = memfold(runtime.path());
    command.args(["run", "--quiet", "--", "sh", "-c", "exit 4"]).process_group(0);
    assert_eq!(output(&mut command).status.code(), Some(4));
}

#[test]
fn a_file_that_is_no_core_dump_of_a_folded_program_is_refused_by_what_it_is() {
    let dir = scratch();
    let (text, plain, taken) =
        (dir.path().join("text"), dir.path().join("plain"), dir.path().join("plain.whole"));
    fs::write(&text, "nothing").unwrap();
    // The head of a core dump, without any memory.
    let mut head = vec![0x7F, b'E', b'L', b'F', 2, 1, 1];
    head.resize(64, 0);
    (head[16], head[54]) = (4, 56);
    fs::write(&plain, head).unwrap();
    let refused = |path: &Path| {
        let result = output(memfold(dir.path()).arg("core").arg(path));
        assert_eq!(result.status.code(), Some(2), "{}", error_text(&result));
        error_text(&result)
    };
    assert!(refused(&dir.path().join("missing")).contains("missing: No such file"));
    assert!(refused(dir.path()).contains("is no file"));
    assert!(refused(&text).contains("text is no core dump"));
    assert!(refused(&memfold_e2e::command_line::executable()).contains("another kind of ELF file"));
    assert!(refused(&plain).contains("tables are not in it"));
    fs::write(&taken, "mine").unwrap();
    assert!(refused(&plain).contains("plain.whole exists already"));
    assert_eq!(fs::read(&taken).unwrap(), b"mine");
}
