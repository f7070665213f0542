//! The core of the demo, as an unprivileged user who was given the userfaultfd device and nothing else:
//! a real redis-server folds, keeps serving, and every value comes back.

use serde_json::Value;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;

#[test]
fn redis_folds_for_an_unprivileged_user_and_every_value_comes_back() {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/userfaultfd")
        .expect("this test opens /dev/userfaultfd: run it as root, or after `memfold setup`");
    let unprivileged = memfold_e2e::installed_for_all();
    let mut command = unprivileged.command();
    command.args(["demo", "--json", "--records", "40000", "--cold-age", "1s"]);
    command.env("MEMFOLD_RUNTIME_DIR", unprivileged.home()).env("TMPDIR", unprivileged.home());
    let fd = device.as_raw_fd();
    command.env("MEMFOLD_UFFD_FD", fd.to_string());
    // SAFETY: fcntl is async-signal-safe, and the closure allocates nothing.
    unsafe {
        command.pre_exec(move || match libc::fcntl(fd, libc::F_SETFD, 0) {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        })
    };
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("the demo prints JSON");
    assert_eq!(report["verified"]["values"], 40_000);
    assert_eq!(report["verified"]["folded_different"], 0);
    assert_eq!(report["pages"]["lost"], 0);
    assert!(report["pages"]["evicted"].as_u64() > Some(0), "nothing was folded: {report}");
    assert!(report["pages"]["restored"].as_u64() > Some(0), "nothing was read back from the store: {report}");
}
