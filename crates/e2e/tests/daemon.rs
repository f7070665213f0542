//! `memfold daemon` as a person starts and ends it.

use memfold_e2e::command_line::{memfold, scratch};
use memfold_e2e::{wait_until, LIMIT};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};

fn start(home: &Path, socket: &Path) -> Child {
    let mut command = memfold(home);
    command.args(["daemon", "--socket"]).arg(socket);
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_daemon_listens_alone_until_it_is_told_to_end() {
    let home = scratch();
    let socket = home.path().join("daemon.sock");
    let mut daemon = start(home.path(), &socket);
    wait_until(LIMIT, "it listens", || socket.exists());
    let second = start(home.path(), &socket).wait_with_output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("another daemon listens there"), "{said}");
    // SAFETY: a child of ours that was not waited for.
    unsafe { libc::kill(daemon.id() as i32, libc::SIGTERM) };
    assert!(daemon.wait().unwrap().success());
    assert!(!socket.exists());
    // One that was killed leaves its socket, which is no hindrance.
    let mut killed = start(home.path(), &socket);
    wait_until(LIMIT, "it listens", || socket.exists());
    killed.kill().unwrap();
    killed.wait().unwrap();
    let mut next = start(home.path(), &socket);
    wait_until(LIMIT, "it listens again", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
    next.kill().unwrap();
    next.wait().unwrap();
}

#[test]
fn what_the_daemon_cannot_do_is_named_and_ends_with_2() {
    let home = scratch();
    let say = |args: &[&str]| {
        let output = memfold(home.path()).arg("daemon").args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(say(&["--budget", "some"]).contains("4M or more"));
    assert!(say(&["--metrics", "0.0.0.0:9273"]).contains("loopback"));
    // Over TCP, either a token that nobody else can read or an open door.
    let port = ["--metrics", "127.0.0.1:0"];
    assert!(say(&port).contains("--metrics-token") && say(&["--metrics", "0"]).contains("--metrics-open"));
    let token = home.path().join("token");
    std::fs::write(&token, "0123456789abcdef").unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o644)).unwrap();
    let name = token.to_str().unwrap();
    let said = say(&[&port[..], &["--metrics-token", name]].concat());
    assert!(said.contains(name) && said.contains("mode 644"), "{said}");
    say(&[&port[..], &["--metrics-token", name, "--metrics-open"]].concat());
    say(&["--metrics-token", name]);
    assert!(say(&["--socket", &"x".repeat(200)]).contains("107 bytes"));
}

#[test]
fn every_source_that_can_be_had_knows_most_of_what_is_cold() {
    let home = scratch();
    let mut command = memfold(home.path());
    command.args(["bench", "sources", "--source", "writes,probe", "--region", "16M", "--duration", "3s"]);
    let out = home.path().join("out");
    let output = command.args(["--cold-age", "300ms", "--json", "--out"]).arg(&out).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["sources"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert!(row["unsupported"].is_null(), "{row}");
        // What is in use is a fifth: a source that knew nothing would name it cold as often as not.
        assert!(row["precision"].as_f64().unwrap() > 0.5, "{row}");
        assert!(row["recall"].as_f64().unwrap() > 0.0, "{row}");
    }
    let written = |name: &str| std::fs::read_to_string(out.join(name)).unwrap();
    assert_eq!(written("sources.csv").lines().count(), 3, "a head and two sources");
    assert!(written("manifest.json").contains("kernel") && written("result.json").contains("\"precision\""));
}
