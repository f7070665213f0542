//! Attacks on what memfold should not believe. Most take root, to be two users; without it a test says so and does nothing.

use memfold_e2e::run::program;
use memfold_e2e::{installed_for_all, is_root, memfold, preload_library, scratch, wait_until, LIMIT};
use std::fs::{self, Permissions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{chown, FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A user to whom nothing here belongs.
const STRANGER: u32 = 61_302;

fn may_be_two_users() -> bool {
    let root = is_root();
    if !root {
        eprintln!("skipped: only root can be two users");
    }
    root
}

/// A directory that everybody can look into, and one in it that nobody but root can.
fn scene() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let private = dir.path().join("private");
    fs::create_dir(&private).unwrap();
    fs::set_permissions(&private, Permissions::from_mode(0o700)).unwrap();
    (dir, private)
}

fn entries(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().count()
}

/// A program that is linked with the library, which everybody may read.
fn linked(dir: &Path) -> PathBuf {
    let (executable, library) = (dir.join("linked"), dir.join("libmemfold.so"));
    fs::copy(preload_library(), &library).unwrap();
    fs::set_permissions(&library, Permissions::from_mode(0o755)).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/linked.c");
    let mut compiler = Command::new(program("cc", "gcc"));
    compiler
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-fno-builtin-malloc", "-o"])
        .arg(&executable)
        .arg(source);
    let status = compiler.arg(&library).arg(format!("-Wl,-rpath,{}", dir.display())).status().unwrap();
    assert!(status.success());
    executable
}

fn run(command: &mut Command, control_dir: &Path) -> Output {
    command.env("MEMFOLD_PAGER", "on").env("MEMFOLD_CONTROL_DIR", control_dir).env("MEMFOLD_START_AT", "0");
    command.env("MEMFOLD_STATS", "1").output().unwrap()
}

#[test]
fn a_library_that_another_user_can_change_is_not_used() {
    if !may_be_two_users() {
        return;
    }
    let (dir, _) = scene();
    let library = dir.path().join("libmemfold.so");
    fs::copy(preload_library(), &library).unwrap();
    let runtime = scratch();
    let run = || {
        let mut command = memfold(runtime.path());
        let output =
            command.args(["run", "--quiet", "--", "/bin/echo", "ran"]).env("MEMFOLD_LIB", &library).output();
        let output = output.unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr),
        )
    };
    assert_eq!(run(), (Some(0), "ran\n".to_owned()));
    let refused = |why: &str| {
        let (code, said) = run();
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(library.to_str().unwrap()) && said.contains(why), "{said}");
    };
    chown(&library, Some(STRANGER), None).unwrap();
    refused(&format!("belongs to user {STRANGER}"));
    chown(&library, Some(0), None).unwrap();
    chown(dir.path(), Some(STRANGER), None).unwrap();
    refused(&format!("belongs to user {STRANGER}"));
    chown(dir.path(), Some(0), None).unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
    refused("writable by everybody");
}

#[test]
fn a_set_user_id_program_that_links_the_library_believes_nothing_of_the_environment() {
    if !may_be_two_users() {
        return;
    }
    let (dir, private) = scene();
    let executable = linked(dir.path());
    fs::set_permissions(&executable, Permissions::from_mode(0o4755)).unwrap();
    let output = run(Command::new(&executable).uid(STRANGER).gid(STRANGER).current_dir("/"), &private);
    let said = String::from_utf8_lossy(&output.stdout);
    if said.starts_with(&STRANGER.to_string()) {
        eprintln!("skipped: the file system gives no program its owner's rights");
        return;
    }
    assert_eq!(said, "0 1\n");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(entries(&private), 0, "it made files of root's where another user said");
    // Started by root itself it does what it is told.
    let output = run(&mut Command::new(&executable), &private);
    assert!(output.status.success() && !output.stderr.is_empty() && entries(&private) == 1, "{output:?}");
}

/// Puts something at a path.
type Make = fn(&Path);

/// Another user to whom nothing here belongs, who has memfold's own directory taken away.
const VICTIM: u32 = 61_303;

/// Removes what tests leave in `/tmp` under the names of users of their own.
struct Swept(&'static str);

impl Swept {
    fn names(&self) -> Vec<PathBuf> {
        let names = fs::read_dir("/tmp").unwrap().flatten().map(|entry| entry.path());
        names.filter(|path| path.to_string_lossy().starts_with(self.0)).collect()
    }
}

impl Drop for Swept {
    fn drop(&mut self) {
        for path in self.names() {
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
        }
    }
}

/// A launcher that ends with the test, and its program with it.
struct Launcher(Child);

impl Drop for Launcher {
    fn drop(&mut self) {
        // Passed on to the program.
        // SAFETY: a system call without memory.
        let _ = unsafe { libc::kill(self.0.id() as i32, libc::SIGTERM) };
        let _ = self.0.wait();
    }
}

/// `memfold` for all users, run by this one, who has no session.
fn as_user(installed: &memfold_e2e::command_line::Installed, user: u32) -> Command {
    let mut command = installed.command();
    command.uid(user).gid(user);
    command
}

fn as_root(installed: &memfold_e2e::command_line::Installed) -> Command {
    as_user(installed, 0)
}

fn end(pid: u64) {
    // SAFETY: a system call without memory.
    assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGTERM) }, 0);
}

fn folded(mut stat: Command) -> Vec<u64> {
    let output = stat.args(["stat", "--json"]).output().unwrap();
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    rows.as_array().unwrap().iter().filter_map(|row| row["pid"].as_u64()).collect()
}

#[test]
fn another_user_who_has_taken_the_directorys_name_prevents_nothing() {
    if !may_be_two_users() {
        return;
    }
    let installed = installed_for_all();
    let swept = Swept("/tmp/memfold-61303");
    let taken = Path::new("/tmp/memfold-61303");
    let theirs: [(&str, Make); 3] = [
        ("a directory", |path| fs::create_dir(path).unwrap()),
        ("a file", |path| fs::write(path, b"").unwrap()),
        ("a link", |path| std::os::unix::fs::symlink("/nonexistent", path).unwrap()),
    ];
    for (what, make) in theirs {
        make(taken);
        std::os::unix::fs::lchown(taken, Some(STRANGER), Some(STRANGER)).unwrap();
        let mut command = as_user(&installed, VICTIM);
        command.args(["run", "--", "/bin/sleep", "600"]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut launcher = Launcher(command.spawn().unwrap());
        let found = || folded(as_user(&installed, VICTIM));
        wait_until(LIMIT, what, || found().len() == 1);
        // Root finds it too, by what the process has mapped.
        assert!(folded(as_root(&installed)).contains(&found()[0]), "{what}");
        end(found()[0]);
        let status = launcher.0.wait().unwrap();
        let mut said = String::new();
        launcher.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(!said.contains("no directory"), "{what}: {status}: {said}");
        // A second one uses the same, and nothing of a run is left in it.
        assert_eq!(
            as_user(&installed, VICTIM).args(["run", "--", "/bin/true"]).status().unwrap().code(),
            Some(0)
        );
        let names = swept.names();
        assert_eq!(names.len(), 2, "{names:?}");
        let ours = names.iter().find(|path| *path != taken).unwrap();
        let meta = fs::symlink_metadata(ours).unwrap();
        assert_eq!((meta.uid(), meta.mode() & 0o777, entries(ours)), (VICTIM, 0o700, 0));
        drop(Swept(swept.0));
    }
}

#[test]
fn root_with_another_users_environment_makes_nothing_among_that_users_files() {
    if !may_be_two_users() {
        return;
    }
    let (dir, _) = scene();
    let theirs = dir.path().join("session");
    fs::create_dir(&theirs).unwrap();
    fs::set_permissions(&theirs, Permissions::from_mode(0o700)).unwrap();
    chown(&theirs, Some(STRANGER), Some(STRANGER)).unwrap();
    let runtime = scratch();
    // The session's directory: the next one is taken.
    let mut command = memfold(runtime.path());
    command.env_remove("MEMFOLD_RUNTIME_DIR").env("XDG_RUNTIME_DIR", &theirs);
    let output = command.args(["run", "--", "/bin/echo", "ran"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"ran\n"[..]), "{said}");
    assert!(!said.contains("no directory") && entries(&theirs) == 0, "{said}");
    // One that was named: refused, and named, be it theirs or in theirs.
    let own = theirs.join("own");
    fs::create_dir(&own).unwrap();
    fs::set_permissions(&own, Permissions::from_mode(0o700)).unwrap();
    let within = theirs.join("new");
    for named in [&theirs, &own, &within] {
        let output = memfold(named).args(["run", "--", "/bin/echo", "ran"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(2), &b""[..]), "{said}");
        assert!(said.contains(theirs.to_str().unwrap()), "{said}");
        assert!(said.contains(&format!("belongs to user {STRANGER}")), "{said}");
    }
    assert!(entries(&own) == 0 && !within.exists());
    // The library's own: the program runs, and makes nothing there.
    for dir in [&theirs, &own, &within] {
        let mut command = Command::new("/bin/true");
        command
            .env("LD_PRELOAD", preload_library())
            .env("MEMFOLD_PAGER", "on")
            .env("MEMFOLD_CONTROL_DIR", dir);
        assert!(command.status().unwrap().success());
    }
    assert!(entries(&own) == 0 && !within.exists() && entries(&theirs) == 1);
}

#[test]
fn a_directory_that_everybody_can_swap_is_refused() {
    let dir = scratch();
    let open = dir.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
    let own = open.join("own");
    let run = || {
        let output = memfold(&own).args(["run", "--", "/bin/echo", "ran"]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = run();
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains(&format!("{} is open to others (mode 777)", open.display())), "{said}");
    fs::set_permissions(&open, Permissions::from_mode(0o1777)).unwrap();
    assert_eq!(run().0, Some(0));
}

#[test]
fn what_another_user_put_where_a_file_is_to_be_is_neither_followed_nor_written_to() {
    if !may_be_two_users() {
        return;
    }
    let (dir, private) = scene();
    let shared = dir.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, Permissions::from_mode(0o1777)).unwrap();
    let (link, file, pipe) = (shared.join("link"), shared.join("file"), shared.join("pipe"));
    let victim = private.join("victim");
    fs::write(&victim, b"bytes").unwrap();
    std::os::unix::fs::symlink(&victim, &link).unwrap();
    fs::write(&file, b"").unwrap();
    make_pipe(&pipe);
    for path in [&link, &file, &pipe] {
        std::os::unix::fs::lchown(path, Some(STRANGER), Some(STRANGER)).unwrap();
    }
    let runtime = scratch();
    for path in [&link, &file, &pipe] {
        let path = path.to_str().unwrap();
        for options in
            [["run", "--summary", path, "--", "/bin/true"], ["record", "--out", path, "--", "/bin/true"]]
        {
            let output = memfold(runtime.path()).args(options).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{options:?}: {said}");
            assert!(said.contains(path) && said.contains("another user's"), "{said}");
        }
    }
    assert_eq!(fs::read(&victim).unwrap(), b"bytes");
    assert_eq!(fs::metadata(&file).unwrap().len(), 0);
    // One's own link is followed, there as anywhere.
    let own = shared.join("own");
    std::os::unix::fs::symlink(private.join("summary"), &own).unwrap();
    let options = ["run", "--quiet", "--summary", own.to_str().unwrap(), "--", "/bin/true"];
    assert!(memfold(runtime.path()).args(options).status().unwrap().success());
    assert!(fs::read_to_string(private.join("summary")).unwrap().contains("memfold-summary"));
}

/// Runs a command to its end, which must come by itself. Returns its exit code and what it said.
fn ends(command: &mut Command, what: &str) -> (i32, String) {
    let dir = scratch();
    let said = fs::File::create(dir.path().join("said")).unwrap();
    command.stdin(Stdio::null()).stdout(said.try_clone().unwrap()).stderr(said);
    let mut child = Launcher(command.spawn().unwrap());
    let mut status = None;
    wait_until(LIMIT, what, || {
        status = child.0.try_wait().unwrap();
        status.is_some()
    });
    let said = fs::read_to_string(dir.path().join("said")).unwrap();
    let code = status.unwrap().code();
    (code.unwrap_or_else(|| panic!("{what}: ended by a signal, {:?}: {said}", status.unwrap())), said)
}

/// The bytes of a page of this process that folds, with `filler` for whatever else it says.
fn page_bytes(filler: u64) -> Vec<u8> {
    use memfold_pager::control::{ControlPage, Mode, CONTROL_LEN, MAGIC, VERSION};
    use std::sync::atomic::Ordering::Relaxed;
    let mut words = vec![filler; CONTROL_LEN / 8];
    // SAFETY: as long as a page and aligned like one, any bytes are one, and nothing else uses them meanwhile.
    let page = unsafe { &*words.as_mut_ptr().cast::<ControlPage>() };
    page.magic.store(MAGIC, Relaxed);
    page.version.store(VERSION, Relaxed);
    page.pid.store(std::process::id(), Relaxed);
    page.mode.store(Mode::Embedded as u32, Relaxed);
    page.started_ns.store(memfold_sys::time::now().0, Relaxed);
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// A page in use, as its lock says.
fn write_page(path: &Path, bytes: &[u8]) -> fs::File {
    fs::write(path, bytes).unwrap();
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    memfold_sys::file::lock_shared(file.as_raw_fd()).unwrap();
    file
}

fn make_pipe(path: &Path) {
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: a valid path.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
}

#[test]
fn a_page_or_a_directory_that_was_tampered_with_ends_neither_stat_nor_ctl() {
    let runtime = scratch();
    let pid = std::process::id().to_string();
    let run = runtime.path().join(format!("run-{pid}-{:x}", memfold_sys::time::now().0));
    let page = run.join(&pid);
    let look = |what: &str| {
        for options in
            [&["stat"][..], &["stat", "--json"], &["stat", "--alloc"], &["stat", "--alloc", "--json"]]
        {
            let (code, said) = ends(memfold(runtime.path()).args(options), what);
            assert_eq!(code, 0, "{what}: {options:?}: {said}");
        }
        for options in
            [&["stat", &pid][..], &["ctl", &pid, "get"], &["ctl", &pid, "evict", "--timeout", "10ms"]]
        {
            let (code, said) = ends(memfold(runtime.path()).args(options), what);
            assert!(code <= 1, "{what}: {options:?}: {code}: {said}");
        }
    };
    let afresh = || {
        let _ = fs::remove_dir_all(&run).or_else(|_| fs::remove_file(&run));
        fs::create_dir(&run).unwrap();
    };
    let whole = page_bytes(0);
    let lengths = [0, 1, 7, 8, 12, 4095, 4096, whole.len() - 1, whole.len(), whole.len() + 1, 1 << 20];
    for filler in [0, 1, u64::MAX, 0x5555_5555_5555_5555, 1 << 63] {
        for length in lengths {
            afresh();
            let mut bytes = page_bytes(filler);
            bytes.resize(length, 0xAA);
            let _kept = write_page(&page, &bytes);
            look(&format!("{length} bytes, the rest {filler:#x}"));
        }
    }
    let instead: [(&str, Make); 6] = [
        ("a pipe", make_pipe),
        ("a directory", |path| fs::create_dir(path).unwrap()),
        ("a link to nothing", |path| std::os::unix::fs::symlink("/nonexistent", path).unwrap()),
        ("a link to a device", |path| std::os::unix::fs::symlink("/dev/zero", path).unwrap()),
        ("a socket", |path| drop(std::os::unix::net::UnixListener::bind(path).unwrap())),
        ("a file", |path| fs::write(path, b"bytes").unwrap()),
    ];
    for (what, make) in instead {
        afresh();
        make(&page);
        look(&format!("{what} in place of the page"));
        let _ = fs::remove_dir_all(&run);
        make(&run);
        look(&format!("{what} in place of the directory"));
        let _ = fs::remove_dir_all(&run).or_else(|_| fs::remove_file(&run));
    }
    // While it is asked.
    afresh();
    let kept = write_page(&page, &whole);
    let mut command = memfold(runtime.path());
    command.args(["ctl", &pid, "evict", "--timeout", "50s"]);
    let cutter = std::thread::spawn(move || {
        let asked = || {
            let mut word = [0; 4];
            let at = memfold_pager::control::MAILBOX.0
                + std::mem::offset_of!(memfold_pager::control::Mailbox, asked) as u64;
            kept.read_exact_at(&mut word, at).unwrap();
            u32::from_ne_bytes(word) != 0
        };
        wait_until(LIMIT, "it asks", asked);
        kept.set_len(0).unwrap();
    });
    let (code, said) = ends(&mut command, "a page that is cut short while it is asked");
    cutter.join().unwrap();
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("cut short"), "{said}");
}

/// Runs a script in a mount namespace of its own, in which `/etc`, `/var/lib` and the device are copies.
fn beside_the_system(script: &str) -> Option<Output> {
    let dir = scratch();
    let whole = format!(
        "set -e; cd {dir}; mkdir lib local; cp -a /etc etc; cp -a /dev/userfaultfd device || exit 77
         mkdir -p etc/udev/rules.d etc/security/limits.d; chown 0:0 device; chmod 600 device
         mount --make-rprivate / && mount --bind etc /etc && mount --bind lib /var/lib && mount --bind local /usr/local/lib && mount --bind device /dev/userfaultfd || exit 77
         command -v groupadd usermod > /dev/null || exit 77
         export MEMFOLD_HANDSHAKE={handshake}
         memfold() {{ {memfold} \"$@\"; }}
         {script}",
        dir = dir.path().display(),
        memfold = memfold_e2e::command_line::executable().display(),
        handshake = memfold_e2e::agent::agent().with_file_name("memfold-handshake").display(),
    );
    let output = Command::new("unshare").args(["--mount", "sh", "-c", &whole]).output().ok()?;
    if output.status.code() == Some(77) {
        eprintln!("skipped: no mount namespace, no device or no groupadd here");
        return None;
    }
    Some(output)
}

#[test]
fn setup_says_whom_it_lets_in_and_removing_it_leaves_everything_as_it_was() {
    if !may_be_two_users() {
        return;
    }
    // Copies that groupadd and its kin keep of what they change are theirs.
    let script = "all() { find etc lib local ! -name '*-' -type f -printf '%p %m %U %G %l ' -exec cksum {} ';' | sort; stat -c '%a %u %g' device; }
        all > before; memfold setup --user nobody; memfold setup
        grep -q SUBSYSTEM /etc/udev/rules.d/60-memfold.rules; stat -c 'device %a %G' /dev/userfaultfd; find lib -type f
        stat -c 'handshake %a %U %G' local/memfold-setup/*; chmod 755 local/memfold-setup/*; memfold setup
        stat -c 'again %a %U %G' local/memfold-setup/*; memfold setup --remove; all > after; diff before after && echo same; find lib local";
    let Some(output) = beside_the_system(script) else { return };
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{errors}");
    let lines = "members of the group memfold may open /dev/userfaultfd, and fold their own programs: nobody
nothing to change
device 660 memfold
lib/memfold/setup.json
handshake 750 root memfold
again 750 root memfold
no group of setup's may open /dev/userfaultfd (user 0, group 0, mode 600)
same";
    for line in lines.lines() {
        assert!(said.contains(line), "{line}: {said}{errors}");
    }
    assert!(said.ends_with("same\nlib\nlocal\n"), "{said}{errors}");
}

#[test]
fn setup_believes_no_memory_that_another_user_can_change() {
    if !may_be_two_users() {
        return;
    }
    let script = format!(
        "mkdir /var/lib/memfold; chown {STRANGER} /var/lib/memfold; echo bytes > victim; ln -s $PWD/victim /var/lib/memfold/setup.json
         memfold setup && exit 1; memfold setup --remove && exit 1; cat victim; ls /etc/udev/rules.d | grep memfold && exit 1
         grep memfold /etc/group && exit 1; stat -c 'device %a %g' /dev/userfaultfd"
    );
    let Some(output) = beside_the_system(&script) else { return };
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{errors}");
    assert!(said.ends_with("bytes\ndevice 600 0\n"), "{said}{errors}");
    assert!(errors.contains(&format!("belongs to user {STRANGER}")), "{errors}");
}

#[test]
fn the_systems_unit_leaves_the_daemon_little() {
    let dir = tempfile::tempdir().unwrap();
    let unit = dir.path().join("memfold-daemon@tester.service");
    let text = include_str!("../../../contrib/systemd/memfold-daemon@.service");
    // What is started must be there.
    fs::write(&unit, text.replace("@PREFIX@/bin/memfold", "/bin/true")).unwrap();
    // In tenths: at most 2.0 of the 10.0 of a service that may do everything.
    let analysis = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--no-pager", "--threshold=20"])
        .arg(&unit)
        .output();
    match analysis {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout)),
        Err(error) => eprintln!("skipped: systemd-analyze: {error}"),
    }
}
