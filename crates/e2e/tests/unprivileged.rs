//! Ordinary users: without userfaultfd a program runs plainly and one line says why; with an inherited descriptor of
//! `/dev/userfaultfd` it is folded like root's.
//!
//! Run as root the programs run as user 65534; run as anybody else, as that user.

use memfold_bench::launch::Folding;
use memfold_e2e::run::{self, program, Outcome};
use memfold_e2e::{is_root, LIMIT};
use memfold_pager::control::Mode;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

const NOBODY: u32 = 65534;
const DEVICE: &str = "/dev/userfaultfd";

const SCRIPT: &str = "\
import hashlib, sys, time
data = [(str(i) * 40).encode() for i in range(200000)]
time.sleep(1.0)
print(hashlib.sha256(b''.join(data)).hexdigest())
sys.exit(7)
";

/// The library where the other user can read it, and the harshest folding with a control directory that is theirs.
fn folding() -> (TempDir, Folding) {
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let library: PathBuf = home.path().join("libmemfold.so");
    fs::copy(memfold_e2e::preload_library(), &library).unwrap();
    fs::set_permissions(&library, fs::Permissions::from_mode(0o755)).unwrap();
    let folding = run::harsh_with(&library);
    if is_root() {
        let path = CString::new(folding.control_dir().as_os_str().as_bytes()).unwrap();
        // SAFETY: a valid path.
        let given = unsafe { libc::chown(path.as_ptr(), NOBODY, NOBODY) };
        assert_eq!(given, 0, "the control directory can be given away");
    }
    (home, folding)
}

fn script() -> Command {
    let mut command = Command::new(program("python3", "python3"));
    command.arg("-c").arg(SCRIPT).current_dir("/");
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

fn expect_same(folded: &Outcome) {
    let plain = run::run_plain(script(), LIMIT);
    assert_eq!(plain.status.code(), Some(7), "plain: {}", plain.stderr);
    assert_eq!(folded.status.code(), Some(7), "{}\n{}", folded.status, folded.stderr);
    assert_eq!(folded.stdout, plain.stdout);
}

/// Whether a user like the script's may use userfaultfd without being handed a descriptor.
fn permitted_anyway() -> bool {
    let sysctl = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
    let device = if is_root() {
        fs::metadata(DEVICE).is_ok_and(|file| file.permissions().mode() & 0o006 == 0o006)
    } else {
        OpenOptions::new().read(true).write(true).open(DEVICE).is_ok()
    };
    sysctl.trim() == "1" || device
}

#[test]
fn without_userfaultfd_a_program_runs_plainly_and_one_line_says_why() {
    let (_home, folding) = folding();
    let folded = run::run_folded(script(), &folding, LIMIT);
    expect_same(&folded);
    if permitted_anyway() {
        run::expect_evictions(&folding, "python3, permitted to everybody here");
        return;
    }
    let lines: Vec<&str> = folded.stderr.lines().collect();
    assert_eq!(lines.len(), 1, "one line was expected on stderr: {:?}", folded.stderr);
    assert!(lines[0].contains("memfold") && lines[0].contains("userfaultfd"), "{}", lines[0]);
    assert!(run::counters(&folding).iter().all(|c| c.pages.evicted == 0));
    assert!(run::modes(&folding).iter().all(|(mode, _)| *mode == Mode::Off));
    assert!(
        run::modes(&folding).iter().all(|(_, reason)| !reason.is_empty()),
        "the control page gives no reason"
    );
}

#[test]
fn with_an_inherited_device_an_ordinary_user_is_folded() {
    let device: File = OpenOptions::new().read(true).write(true).open(DEVICE).unwrap_or_else(|error| {
        panic!(
            "{DEVICE}: {error}. Run the tests as root, or `memfold setup` once as root and be in its group"
        )
    });
    let (_home, folding) = folding();
    let mut command = script();
    run::inherit(&mut command, &device);
    let folded = run::run_folded(command, &folding, LIMIT);
    expect_same(&folded);
    assert_eq!(folded.stderr, "");
    run::expect_evictions(&folding, "python3 as an ordinary user");
}
