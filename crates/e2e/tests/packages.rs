//! What comes with memfold, as a user meets it: the manual, completions, the file of settings, and services of systemd.

use memfold_e2e::{memfold, scratch, wait_until, LIMIT};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().expect("it can be executed")
}

/// What it prints, which is JSON.
fn json(command: &mut Command) -> Value {
    let output = output(command);
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs memfold; standard output and standard error after it.
fn said(args: &[&str]) -> (Option<i32>, String) {
    let runtime = scratch();
    let output = output(memfold(runtime.path()).args(args));
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.code(), text.into_owned())
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Commands as the help lists them.
fn commands(above: &[&str]) -> BTreeSet<String> {
    let (_, help) = said(&[&["help"], above].concat());
    let list = help.split("\nCommands:\n").nth(1).unwrap_or("").split("\n\n").next().unwrap_or("");
    let first = |line: &str| line.strip_prefix("  ")?.split_whitespace().next().map(str::to_owned);
    list.lines()
        .filter(|line| !line.starts_with("   "))
        .filter_map(first)
        .filter(|name| name != "help")
        .collect()
}

#[test]
fn every_command_has_a_page_of_the_manual_that_man_shows_without_a_warning() {
    let dir = scratch();
    let (code, text) = said(&["man", dir.path().to_str().unwrap()]);
    assert_eq!(code, Some(0), "{text}");
    let pages: BTreeSet<String> = fs::read_dir(dir.path().join("man1"))
        .unwrap()
        .map(|page| page.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut expected = BTreeSet::from(["memfold.1".to_owned()]);
    for command in commands(&[]) {
        expected.insert(format!("memfold-{command}.1"));
        expected.extend(commands(&[&command]).iter().map(|below| format!("memfold-{command}-{below}.1")));
    }
    assert!(expected.len() > 30, "{expected:?}");
    assert_eq!(pages, expected);
    let run = fs::read_to_string(dir.path().join("man1/memfold-run.1")).unwrap();
    for heading in ["SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "EXIT STATUS", "SEE ALSO"] {
        assert!(run.lines().any(|line| line.trim_matches('"').ends_with(heading)), "{heading}: {run}");
    }
    if !is_there("man") {
        eprintln!("skipped: there is no man(1)");
        return;
    }
    for page in pages.iter().map(|page| format!("man1/{page}")).chain(["man5/memfold.toml.5".into()]) {
        let shown = output(
            Command::new("man")
                .args(["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"])
                .arg(dir.path().join(&page))
                .env("LC_ALL", "C.UTF-8"),
        );
        assert!(
            shown.status.success() && shown.stderr.is_empty(),
            "{page}: {}",
            String::from_utf8_lossy(&shown.stderr)
        );
    }
}

/// A folded program that waits for its standard input to end, and its number.
fn waiting(runtime: &Path, configure: impl FnOnce(&mut Command)) -> (Child, String) {
    let mut command = memfold(runtime);
    configure(&mut command);
    // What `python3` names may be a script that becomes other programs first, each with a control page of its own: it says itself that it is there.
    let program =
        "import os, sys; block = bytearray(64 << 20); print(os.getpid(), flush=True); sys.stdin.read()";
    command.args(["--quiet", "--", "python3", "-c", program]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut pid = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut pid).unwrap();
    let pid = pid.trim().to_owned();
    wait_until(LIMIT, "the program is seen", || {
        output(memfold(runtime).args(["stat", &pid])).status.success()
    });
    (child, pid)
}

#[test]
fn bash_completes_commands_options_programs_and_folded_processes() {
    let runtime = scratch();
    let (mut child, pid) = waiting(runtime.path(), |command| {
        command.arg("run");
    });
    let complete = |words: &[&str]| -> Vec<String> {
        let at = (words.len() - 1).to_string();
        let shown = output(
            memfold(runtime.path())
                .env("MEMFOLD_COMPLETE", "bash")
                .envs([("_CLAP_COMPLETE_INDEX", at.as_str()), ("_CLAP_IFS", "\n")])
                .arg("--")
                .args(words),
        );
        String::from_utf8_lossy(&shown.stdout).lines().map(str::to_owned).collect()
    };
    assert_eq!(complete(&["memfold", "docto"]), ["doctor"]);
    assert_eq!(complete(&["memfold", "run", "--cold"]), ["--cold-age"]);
    assert!(complete(&["memfold", "run", "pytho"]).contains(&"python3".to_owned()));
    assert_eq!(complete(&["memfold", "ctl", &pid]), [pid.as_str()]);
    wait_until(LIMIT, "the program's name is completed", || {
        complete(&["memfold", "stat", "pytho"]) == ["python3"]
    });
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn progress_is_one_line_on_a_terminal_and_nothing_elsewhere() {
    let runtime = scratch();
    let program = [
        "run",
        "--now",
        "--progress",
        "--",
        "python3",
        "-c",
        "import time; b = bytearray(64 << 20); time.sleep(2)",
    ];
    let elsewhere = output(memfold(runtime.path()).args(program));
    assert!(!String::from_utf8_lossy(&elsewhere.stderr).contains("so far"));
    if !is_there("script") {
        eprintln!("skipped: there is no script(1), which makes a terminal");
        return;
    }
    let mut on_terminal = memfold(runtime.path());
    let words: Vec<String> = [on_terminal.get_program().to_string_lossy().into_owned()]
        .into_iter()
        .chain(program.map(str::to_owned))
        .map(|word| format!("'{word}'"))
        .collect();
    on_terminal.args(program);
    let mut script = Command::new("script");
    for (name, value) in on_terminal.get_envs() {
        match value {
            Some(value) => script.env(name, value),
            None => script.env_remove(name),
        };
    }
    let shown = output(script.args(["-q", "-e", "-c", &words.join(" "), "/dev/null"]));
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.status.success() && text.contains(" saved so far ("), "{text}");
    // Each time in the place of the one before, and gone in the end.
    let lines = text.split('\n').filter(|line| line.contains("so far"));
    assert_eq!(lines.count(), 1, "{text:?}");
    assert!(text.split("so far").last().unwrap().contains("\x1b[K"), "{text:?}");
}

#[test]
fn the_scripts_for_the_shells_are_accepted_by_them() {
    for (shell, check) in [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")] {
        let (code, script) = said(&["completions", shell]);
        assert_eq!(code, Some(0));
        assert!(script.contains("MEMFOLD_COMPLETE") && script.contains("memfold"), "{script}");
        if !is_there(shell) {
            eprintln!("skipped: there is no {shell}");
            continue;
        }
        let dir = scratch();
        let file = dir.path().join("script");
        fs::write(&file, &script).unwrap();
        let checked = output(Command::new(shell).arg(check).arg(&file));
        assert!(checked.status.success(), "{shell}: {}", String::from_utf8_lossy(&checked.stderr));
    }
    assert_eq!(said(&["completions", "tcsh"]).0, Some(2));
}

#[test]
fn options_override_variables_and_variables_the_file_and_show_says_which_line_decided() {
    let runtime = scratch();
    let file = runtime.path().join("memfold.toml");
    let text = "[defaults]\ncold-age = \"40s\"\nmax-cpu = 7\nmax-stall = 0.3\n\n[[rule]]\nprogram = \"python*\"\nmax-cpu = 8\n\n\
                [[rule]]\nprogram = \"perl\"\nmax-cpu = 9\n";
    fs::write(&file, text).unwrap();
    let (mut child, pid) = waiting(runtime.path(), |command| {
        command.env("MEMFOLD_CONFIG", &file).env("MEMFOLD_MAX_STALL", "0.4").args(["run", "--start-at", "0"]);
    });
    let shown = json(memfold(runtime.path()).args(["config", "show", "--json", &pid]));
    let from =
        |key: &str| (shown[key]["value"].as_str().unwrap_or(""), shown[key]["from"].as_str().unwrap_or(""));
    assert_eq!(from("cold-age"), ("40s", &*format!("{}:2", file.display())));
    assert_eq!(from("max-cpu"), ("8", &*format!("{}:8", file.display())));
    assert_eq!(from("max-stall"), ("0.4", "variable MEMFOLD_MAX_STALL"));
    assert_eq!(from("start-at"), ("0", "option --start-at"));
    assert_eq!(from("source"), ("", ""));
    // And so the program itself has it.
    let got = json(memfold(runtime.path()).args(["ctl", &pid, "get", "--json"]));
    assert_eq!(
        (&got["cold_age"], &got["max_cpu"], &got["max_stall"]),
        (&40_000_000_000u64.into(), &80_000.into(), &4_000.into())
    );
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_broken_file_is_said_with_line_and_column_and_keeps_no_program_from_starting() {
    let dir = scratch();
    let file = dir.path().join("memfold.toml");
    let path = file.to_str().unwrap();
    fs::write(&file, "[defaults]\ncold-age \"2s\"\n").unwrap();
    let (code, text) = said(&["config", "check", path]);
    assert_eq!(code, Some(2));
    assert!(text.starts_with(&format!("{path}:2:10: ")) && text.contains("expected `=`"), "{text}");

    fs::write(&file, "[defaults]\ncold-age = \"soon\"\nprofile = \"lean\"\n").unwrap();
    let (code, text) = said(&["config", "check", path]);
    assert_eq!(code, Some(2));
    assert_eq!(
        text,
        format!("{path}:2:12: cold-age = \"soon\": a time such as 500ms, 10s or 5m is needed\n")
    );

    let runtime = scratch();
    let ran = output(memfold(runtime.path()).env("MEMFOLD_CONFIG", path).args([
        "run",
        "--",
        "sh",
        "-c",
        "echo $MEMFOLD_PROFILE$MEMFOLD_COLD_AGE",
    ]));
    assert_eq!((ran.status.code(), ran.stdout), (Some(0), b"lean\n".to_vec()));
    let errors = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(errors.contains(&format!("{path}:2: cold-age = \"soon\"")), "{errors}");

    fs::write(&file, "[defaults]\ncold-age = \"2s\"\n").unwrap();
    let (code, text) = said(&["config", "check", path]);
    assert_eq!((code, text), (Some(0), format!("{path}: 1 settings, every line is understood\n")));
}

#[test]
fn the_example_of_a_file_is_understood() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/memfold.toml");
    let (code, text) = said(&["config", "check", example.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{text}");
}

const HARD_SERVICE: &str = "[Service]\nType=notify\nExecStart=/bin/sleep 1000\nUser=daemon\nPrivateTmp=true\nPrivateDevices=true\n\
    ProtectSystem=strict\nCapabilityBoundingSet=\nMemoryDenyWriteExecute=true\nNoNewPrivileges=true\nRestrictRealtime=true\n\
    RestrictAddressFamilies=AF_INET AF_INET6\nSystemCallFilter=@system-service\nSystemCallFilter=~ @privileged @resources\n\
    NoExecPaths=/\nExecPaths=/bin/sleep /usr/lib /lib\n";

#[test]
fn a_service_gets_a_drop_in_that_systemd_accepts_and_loses_it_again() {
    let root = scratch();
    let units = root.path().join("etc/systemd/system");
    fs::create_dir_all(&units).unwrap();
    fs::write(units.join("hard.service"), HARD_SERVICE).unwrap();
    let service =
        |args: &[&str]| said(&[&["service", "--root", root.path().to_str().unwrap()], args].concat());
    let dropin = units.join("hard.service.d/90-memfold.conf");

    let (code, shown) = service(&["hard", "--dry-run"]);
    assert_eq!(code, Some(0), "{shown}");
    assert!(
        shown.contains("would write") && shown.contains("NotifyAccess=all") && !dropin.exists(),
        "{shown}"
    );

    let (code, written) = service(&["hard.service", "--", "--cold-age", "5s"]);
    assert_eq!(code, Some(0), "{written}");
    let text = fs::read_to_string(&dropin).unwrap();
    assert!(text.contains(" run --same-end --cold-age 5s -- /bin/sleep 1000\n"), "{text}");
    // Said again, it starts from the service and not from what it wrote.
    assert_eq!(service(&["hard.service", "--", "--cold-age", "5s"]).0, Some(0));
    assert_eq!(fs::read_to_string(&dropin).unwrap(), text);

    if is_there("systemd-analyze") {
        // In its own root there is no memfold: the same two files in a directory of their own.
        let verified = output(
            Command::new("systemd-analyze")
                .args(["verify", "--man=no", "--recursive-errors=no"])
                .arg(units.join("hard.service"))
                .env("SYSTEMD_UNIT_PATH", format!("{}:", units.display())),
        );
        let complaints = String::from_utf8_lossy(&verified.stderr).into_owned();
        let ours =
            complaints.lines().filter(|line| line.contains("memfold") || line.contains("hard.service"));
        assert_eq!(ours.collect::<Vec<_>>(), Vec::<&str>::new(), "{complaints}");
    } else {
        eprintln!("skipped: there is no systemd-analyze");
    }

    assert_eq!(service(&["hard", "--undo"]).0, Some(0));
    assert!(!dropin.exists() && !dropin.parent().unwrap().exists());
    assert!(service(&["hard", "--undo"]).1.contains("nothing to undo"));
    assert_eq!(fs::read_dir(&units).unwrap().count(), 1);
}

#[test]
fn a_drop_in_of_somebody_else_stays_and_bad_options_are_refused() {
    let root = scratch();
    let units = root.path().join("etc/systemd/system");
    let dropin = units.join("x.service.d/90-memfold.conf");
    fs::create_dir_all(dropin.parent().unwrap()).unwrap();
    fs::write(units.join("x.service"), "[Service]\nExecStart=/bin/true\n").unwrap();
    fs::write(&dropin, "[Service]\nUser=me\n").unwrap();
    let service =
        |args: &[&str]| said(&[&["service", "--root", root.path().to_str().unwrap()], args].concat());
    for args in [&["x"][..], &["x", "--undo"]] {
        let (code, text) = service(args);
        assert!(code == Some(1) && text.contains("not memfold's"), "{text}");
    }
    assert_eq!(fs::read_to_string(&dropin).unwrap(), "[Service]\nUser=me\n");
    assert_eq!(service(&["x", "--", "--cold-age", "soon"]).0, Some(2));
    assert_eq!(service(&["x", "--", "sleep", "5"]).0, Some(2));
    assert_eq!(service(&["nothing"]).0, Some(1));
}
