//! What `memfold attach` puts into a process, looked at as an attacker would: none of it is ever writable and executable at once, and no other ordinary user
//! reaches the process by it, or the agent in it.
//!
//! As root, to be two users.

use memfold_e2e::agent::{
    agent, compile, install_handshake, may_attach, memfold_with_agent, rounds, Subject, CAP_SYS_PTRACE,
};
use memfold_e2e::cores;
use memfold_e2e::run::{self, copy_program, program};
use memfold_e2e::{installed_for_all, scratch, wait_until, LIMIT};
use memfold_pager::plan::{Plan, MAGIC};
use memfold_stats::Rng;
use memfold_sys::thread::agent_name;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::mem::offset_of;
use std::ops::Range;
use std::os::unix::fs::{chown, FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::Mutex;

/// The user whose program it is.
const NOBODY: u32 = 65_534;
/// The other one, to whom nothing belongs.
const STRANGER: u32 = 61_304;

/// A mapping of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    place: Range<u64>,
    access: String,
    file: String,
}

fn mappings(pid: u32) -> Vec<Mapping> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let mapping = |line: &str| {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let access = words.next()?.to_owned();
        let file = words.nth(3).unwrap_or_default().trim().to_owned();
        Some(Mapping { place: number(start)?..number(end)?, access, file })
    };
    maps.lines().map(|line| mapping(line).unwrap_or_else(|| panic!("no mapping: {line}"))).collect()
}

fn is_writable_code(mapping: &Mapping) -> bool {
    mapping.access.contains('w') && mapping.access.contains('x')
}

/// What was mapped for the agent from outside, and where its first instruction is.
fn region(pid: u32) -> (Range<u64>, u64) {
    let memory = File::open(format!("/proc/{pid}/mem")).expect("root may");
    let word = |at: u64| {
        let mut word = [0; 8];
        memory.read_exact_at(&mut word, at).map(|()| u64::from_le_bytes(word)).unwrap_or(0)
    };
    let begins = |found: &Mapping| found.access.starts_with("rw") && found.file.is_empty();
    let all = mappings(pid);
    let start = all.iter().filter(|found| begins(found)).map(|found| found.place.start);
    let start = start.into_iter().find(|start| word(*start) == MAGIC).expect("it is attached to");
    let len = word(start + offset_of!(Plan, mapped) as u64 + 8);
    (start..start + len, word(start + offset_of!(Plan, entry) as u64))
}

/// Has who polls end, whatever becomes of the test.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Looked at all the time by another thread. It must have seen the agent's memory while that was being filled, which is the moment that matters.
#[test]
fn no_memory_is_ever_writable_and_executable_at_once() {
    if !may_attach() {
        return;
    }
    let (_dir, file) = compile("attached.c", &[]);
    let subject = Subject::start(Command::new(file).args(["4", "16"]));
    let pid = subject.pid();
    assert_eq!(mappings(pid).into_iter().find(is_writable_code), None);
    let (over, faults) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let (len, seen, looks) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| {
            while !over.load(Relaxed) {
                let all = mappings(pid);
                looks.fetch_add(1, Relaxed);
                // In one piece it is before anything of it is executable.
                let whole = |found: &Mapping| {
                    found.place.end - found.place.start == len.load(Relaxed) && found.file.is_empty()
                };
                seen.fetch_add(all.iter().filter(|found| whole(found)).count() as u64, Relaxed);
                faults.lock().unwrap().extend(all.into_iter().filter(is_writable_code));
            }
        });
        let mut round = 0;
        while round < rounds(6) || seen.load(Relaxed) == 0 {
            assert!(round < 400, "never seen while it was filled, in {} looks", looks.load(Relaxed));
            subject.attach();
            if round == 0 {
                wait_until(LIMIT, "something is folded", || subject.folded() > 0);
            }
            let (region, entry) = region(pid);
            len.store(region.end - region.start, Relaxed);
            let all = mappings(pid);
            let text =
                all.iter().find(|found| found.place.contains(&entry)).expect("the agent's text is mapped");
            assert_eq!((text.access.as_str(), text.file.as_str()), ("r-xp", ""), "the agent's text");
            let inside = all.iter().filter(|found| region.contains(&found.place.start));
            let executable: Vec<&Mapping> = inside.filter(|found| found.access.contains('x')).collect();
            assert_eq!(executable, [text], "nothing else in its region is executable");
            subject.detach();
            round += 1;
        }
    });
    let faults = faults.into_inner().unwrap();
    assert!(faults.is_empty(), "writable and executable: {faults:x?}");
    eprintln!("{} looks, {} of them while it was filled", looks.into_inner(), seen.into_inner());
    let (status, said) = subject.finish();
    assert!(status == Some(7) && said.starts_with("fine "), "{said}");
}

/// Forbids itself to make memory executable that was not, as systemd's `MemoryDenyWriteExecute` does it to services, and looks at what it holds.
const CONFINED: &str = r#"
my $held = join '', map { "$_ held " x 64 } 1..16000;
my $sum = unpack '%32C*', $held;
$| = 1;
# PR_SET_MDWE and PR_MDWE_REFUSE_EXEC_GAIN of linux/prctl.h, Linux 6.3.
print syscall(157, 65, 1, 0, 0, 0) ? "not here\n" : "ready\n";
while (my $line = <STDIN>) { print unpack('%32C*', $held) == $sum ? $line : "bytes are lost\n" }
"#;

#[test]
fn a_program_that_may_make_no_memory_executable_is_refused_and_left_as_it_was() {
    if !may_attach() {
        return;
    }
    let mut subject = Subject::start(Command::new(program("perl", "perl")).args(["-e", CONFINED]));
    let before = (mappings(subject.pid()), threads(subject.pid()));
    let refused = subject.memfold(&["attach", &subject.pid().to_string()]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    let line = format!(
        "memfold: process {} may make no memory executable that it has written (PR_SET_MDWE of prctl(2), as `MemoryDenyWriteExecute` of systemd has it, or `execmem` of SELinux): start it with `memfold run`\n",
        subject.pid()
    );
    assert_eq!((refused.status.code(), said), (Some(1), line));
    assert_eq!((mappings(subject.pid()), threads(subject.pid())), before);
    subject.tell("are they there");
    assert_eq!(subject.finish().0, Some(0));
}

/// Gives a program a `/tmp` of its own that nobody answers for.
fn without_answer(command: &mut Command) -> &mut Command {
    let silent = || {
        let done = |done: i32| if done == -1 { Err(io::Error::last_os_error()) } else { Ok(done) };
        // SAFETY: system calls alone, with texts that end.
        unsafe {
            done(libc::unshare(libc::CLONE_NEWNS))?;
            let (nothing, private) = (std::ptr::null(), libc::MS_REC | libc::MS_PRIVATE);
            done(libc::mount(nothing, c"/".as_ptr(), nothing, private, nothing.cast()))?;
            // The program keeps it, and by its number it is found by the mount.
            done(libc::dup2(done(libc::open(c"/dev/fuse".as_ptr(), libc::O_RDWR))?, 9))?;
            let options = c"fd=9,rootmode=40000,user_id=0,group_id=0,allow_other";
            let kind = c"fuse".as_ptr();
            done(libc::mount(kind, c"/tmp".as_ptr(), kind, 0, options.as_ptr().cast())).map(drop)
        }
    };
    // Libraries are looked for where nobody answers, if these tests lie there.
    command.current_dir("/").env_remove("LD_LIBRARY_PATH");
    // SAFETY: what is safe after a fork.
    unsafe { command.pre_exec(silent) }
}

#[test]
fn a_file_system_that_does_not_answer_costs_the_control_page_and_keeps_nobody_from_attaching_and_detaching() {
    if !may_attach() || without_answer(&mut Command::new("/bin/true")).status().is_err() {
        eprintln!("skipped: no FUSE here");
        return;
    }
    let mut command = Command::new(program("perl", "perl"));
    let mut subject = Subject::start(without_answer(command.args(["-e", HOLDS])));
    let (pid, home) = (subject.pid().to_string(), scratch());
    let said = |words: &[&str]| {
        let mut command = memfold_with_agent(home.path());
        let mut running = command.args(words).arg(&pid).stderr(Stdio::piped()).spawn().unwrap();
        let is_over = || running.try_wait().expect("it is ours").is_some();
        wait_until(LIMIT, "memfold has ended", is_over);
        let output = running.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, line) = said(&["attach"]);
    assert!(code == Some(0) && line.contains("its file system does not answer"), "{line}");
    assert_eq!(subject.traces().regions, 1);
    let (code, line) = said(&["detach"]);
    assert!(code == Some(0) && line.contains("is as it was"), "{line}");
    subject.tell("are they there");
    assert_eq!(subject.finish().0, Some(0));
}

/// Secrets in the memory that the core of a program has; before it are registers, of which some may just have been used to copy a page.
fn secrets_in(core: &[u8]) -> usize {
    let word = |at: usize| u64::from_le_bytes(core[at..at + 8].try_into().unwrap());
    // The header's place and number of parts, of 56 bytes each, and of a part its kind (1 is memory) and place (elf(5)).
    let (parts, count) = (word(32) as usize, word(56) as usize & 0xFFFF);
    let memory = (0..count).map(|n| parts + n * 56).find(|&part| word(part) as u32 == 1);
    let start = word(memory.expect("a core has memory") + 8) as usize;
    // In a secret of `moments.c` each word follows from the one before.
    let follows = |at: usize| Rng::new(word(at)).next_u64() == word(at + 8);
    let begins = |&at: &usize| word(at) != 0 && follows(at) && follows(at + 8);
    (start..core.len() - 24).filter(begins).count()
}

/// Secrets in the core of a program that has some, is attached to and dies when they are folded.
fn secrets_in_core(moment: &str) -> usize {
    let (dir, file) = compile("moments.c", &[]);
    let subject = Subject::start(cores::leaving_one(&file).arg(moment).current_dir(dir.path()));
    subject.attach();
    // Those that are compressed, and what is set aside beside them.
    wait_until(LIMIT, "most of it is folded", || subject.counter("evicted") > 1024);
    // SAFETY: signals a child of ours.
    assert_eq!(unsafe { libc::kill(subject.pid() as i32, libc::SIGABRT) }, 0);
    subject.finish();
    secrets_in(&fs::read(cores::one_in(dir.path())).expect("it can be read"))
}

#[test]
fn what_a_program_keeps_from_core_dumps_is_in_none_by_its_agent() {
    if !may_attach() || !cores::are_left_behind() {
        return;
    }
    assert_ne!(secrets_in_core("tells"), 0);
    assert_eq!(secrets_in_core("confides"), 0);
}

fn threads(pid: u32) -> BTreeSet<(u32, String)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let name = |tid: u32| fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
    let tids = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
    tids.map(|tid| (tid, name(tid).trim_end().to_owned())).collect()
}

/// Does something as another user, in a thread of this process that has that user's rights and no others.
fn as_user<R: Send>(user: u32, work: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            // SAFETY: numbers alone. The bare system calls change the calling thread's rights; libc's functions would change those of all threads.
            let done = unsafe {
                [
                    libc::syscall(libc::SYS_setgroups, 0usize, 0usize),
                    libc::syscall(libc::SYS_setresgid, user, user, user),
                    libc::syscall(libc::SYS_setresuid, user, user, user),
                ]
            };
            assert_eq!(done, [0; 3]);
            work()
        });
        other.join().expect("it says what it could do")
    })
}

/// An attempt, and what the kernel answered.
type Attempt = (String, Result<(), i32>);

fn outcome(done: i64) -> Result<(), i32> {
    match done {
        -1 => Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        _ => Ok(()),
    }
}

/// All that the kernel lets a tracer reach of a process and of the agent in it, tried by who calls this. Nothing is changed by it.
fn reach(pid: u32, base: u64, page: &Path, held: &[(u32, i32)]) -> Vec<Attempt> {
    let mut attempts = Vec::new();
    let mut tried = |what: String, result: Result<(), i32>| attempts.push((what, result));
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let mut files: Vec<PathBuf> =
        ["mem", "maps", "smaps", "pagemap", "environ", "auxv"].iter().map(|name| proc.join(name)).collect();
    files.push(page.to_owned());
    files.push(proc.join("root").join(page.strip_prefix("/").expect("a whole path")));
    files.extend(held.iter().map(|(tid, fd)| proc.join(format!("task/{tid}/fd/{fd}"))));
    let why = |error: io::Error| error.raw_os_error().unwrap_or(0);
    for path in files {
        // A userfaultfd cannot be opened so: who hears that has got past the rights.
        let opened = File::open(&path).map(drop).map_err(why);
        let opened = if opened == Err(libc::ENXIO) { Ok(()) } else { opened };
        tried(path.display().to_string(), opened);
    }
    for path in [proc.join("mem"), proc.join("clear_refs"), page.to_owned()] {
        tried(
            format!("write to {}", path.display()),
            File::options().write(true).open(&path).map(drop).map_err(why),
        );
    }
    for path in [proc.join("fd"), proc.join("map_files"), page.parent().expect("a directory").to_owned()] {
        tried(format!("list {}", path.display()), fs::read_dir(&path).map(drop).map_err(why));
    }
    let (mut read, mut same) = ([0u8; 8], MAGIC.to_le_bytes());
    let piece = |bytes: &mut [u8; 8]| libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 8 };
    let (to, from) = (piece(&mut read), piece(&mut same));
    let there = libc::iovec { iov_base: base as *mut libc::c_void, iov_len: 8 };
    // SAFETY: eight bytes of this thread's stack, and eight of the process, to which the same bytes are written that it has there.
    unsafe {
        let pid = pid as i32;
        tried("process_vm_readv".into(), outcome(libc::process_vm_readv(pid, &to, 1, &there, 1, 0) as i64));
        tried(
            "process_vm_writev".into(),
            outcome(libc::process_vm_writev(pid, &from, 1, &there, 1, 0) as i64),
        );
    }
    for (tid, fd) in held {
        /// Of linux/pidfd.h, Linux 6.9: a descriptor of a thread, by whose own table others are found.
        const PIDFD_THREAD: i32 = libc::O_EXCL;
        // SAFETY: numbers alone; what came is closed.
        let result = unsafe {
            let thread = libc::syscall(libc::SYS_pidfd_open, *tid, PIDFD_THREAD);
            if thread < 0 {
                eprintln!("skipped: no descriptors of threads before Linux 6.9");
                continue;
            }
            let copy = libc::syscall(libc::SYS_pidfd_getfd, thread, *fd, 0);
            let result = outcome(copy);
            libc::close(thread as i32);
            libc::close(copy as i32);
            result
        };
        tried(format!("pidfd_getfd of {fd} of thread {tid}"), result);
    }
    attempts
}

/// What would change the process, tried by who may not.
fn change(pid: u32, base: u64) -> Vec<Attempt> {
    let mut attempts = Vec::new();
    for (tid, name) in threads(pid) {
        // SAFETY: seizes, and touches no memory of this process.
        let done = unsafe { libc::ptrace(libc::PTRACE_SEIZE, tid as libc::pid_t, 0usize, 0usize) };
        attempts.push((format!("trace {name}"), outcome(done)));
    }
    let pages = libc::iovec { iov_base: base as *mut libc::c_void, iov_len: 4096 };
    let old = std::ptr::null_mut::<libc::rlimit64>();
    let limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: numbers, one piece and one limit that are there; a page of the process.
    unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        assert!(process >= 0, "anybody may have one");
        let advised = libc::syscall(
            libc::SYS_process_madvise,
            process,
            &raw const pages,
            1usize,
            libc::MADV_PAGEOUT,
            0,
        );
        attempts.push(("process_madvise".into(), outcome(advised)));
        libc::close(process as i32);
        let moved = libc::syscall(libc::SYS_move_pages, pid, 0usize, 0usize, 0usize, 0usize, 0);
        attempts.push(("move_pages".into(), outcome(moved)));
        let limited = libc::prlimit64(pid as i32, libc::RLIMIT_NOFILE, &raw const limit, old);
        attempts.push(("prlimit".into(), outcome(i64::from(limited))));
        attempts.push(("kill".into(), outcome(i64::from(libc::kill(pid as i32, libc::SIGTERM)))));
    }
    attempts
}

/// Holds 12 MiB, and says whether they are there when it is told anything.
const HOLDS: &str = r#"
my $held = join '', map { "$_ held " x 64 } 1..24000;
my $sum = unpack '%32C*', $held;
$| = 1;
print "ready\n";
while (my $line = <STDIN>) { print unpack('%32C*', $held) == $sum ? $line : "bytes are lost\n" }
"#;

#[test]
fn another_ordinary_user_does_nothing_to_a_program_and_nothing_by_its_agent() {
    if !may_attach() {
        return;
    }
    let device = File::options().read(true).write(true).open("/dev/userfaultfd").expect("root may open it");
    // That user has all that `memfold setup` gives its group.
    let (installed, own) = (installed_for_all(), scratch());
    fs::set_permissions(own.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (copy, helper, home) = (own.path().join("agent"), own.path().join("helper"), own.path().join("home"));
    copy_program(&agent(), &copy);
    install_handshake(&helper, STRANGER, CAP_SYS_PTRACE);
    fs::create_dir(&home).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
    chown(&home, Some(STRANGER), Some(STRANGER)).unwrap();
    let mut program = Command::new(program("perl", "perl"));
    program.args(["-e", HOLDS]).current_dir("/").uid(NOBODY).gid(NOBODY);
    let mut subject = Subject::start(&mut program);
    let pid = subject.pid();
    let stranger = |runtime: &Path, words: &[&str]| {
        let mut command = installed.command();
        command.uid(STRANGER).gid(STRANGER).env("MEMFOLD_AGENT", &copy).env("MEMFOLD_HANDSHAKE", &helper);
        command.env("MEMFOLD_RUNTIME_DIR", runtime);
        run::inherit(&mut command, &device);
        let output = command.args(words).output().expect("memfold can be executed");
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    let number = pid.to_string();
    let refused = |runtime: &Path| {
        let untraced = {
            let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
            let remedy = match scope.trim() {
                "" | "0" => {
                    "it belongs to another user, or has rights that this user has not: attach as root".into()
                }
                "1" => "kernel.yama.ptrace_scope is 1: attach as root, or set it to 0".into(),
                scope => format!("kernel.yama.ptrace_scope is {scope}: attach as root"),
            };
            format!("memfold: process {pid} may not be traced by this user (Permission denied): {remedy}\n")
        };
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        let unseen = format!(
            "memfold: process {pid} ({}) belongs to nobody; only its owner and root can see and steer its folding\n",
            name.trim_end()
        );
        for (words, says) in [
            (["attach", &number].as_slice(), untraced.clone()),
            (&["attach", "--dry-run", &number], untraced.clone()),
            (&["attach", "--tier", "disk=/var/tmp", &number], untraced.clone()),
            (&["detach", &number], untraced),
            (&["ctl", &number, "evict"], unseen.clone()),
            (&["ctl", &number, "restore"], unseen.clone()),
            (&["ctl", &number, "pause"], unseen.clone()),
            (&["ctl", &number, "sleep"], unseen.clone()),
            (&["ctl", &number, "why"], unseen.clone()),
            (&["ctl", &number, "set", "cold_age", "1h"], unseen.clone()),
            (&["ctl", &number, "set", "tier", "disk=/var/tmp"], unseen.clone()),
            (&["stat", &number], unseen.clone()),
            (
                &["survey", &number, "--for", "100ms"],
                format!("memfold: process {pid} may not be looked at: Permission denied\n"),
            ),
        ] {
            assert_eq!(stranger(runtime, words), (Some(1), says), "memfold {words:?}");
        }
        let (code, all) = stranger(runtime, &["stat", "--json"]);
        assert_eq!((code, all.trim()), (Some(0), "[]"), "nobody's programs are listed");
    };
    let state = || (mappings(pid), threads(pid), subject.traces());
    let before = state();
    refused(&home);
    assert_eq!(state(), before, "nothing of it has changed");

    subject.attach_with(&["--tier", "disk=/var/tmp,size=1G,after=10ms"]);
    wait_until(LIMIT, "most of it lies on the disk", || {
        subject.counter("evicted_bytes") > 10 << 20 && subject.counter("tier_bytes") > 0
    });
    let (region, _) = region(pid);
    let page =
        mappings(pid).into_iter().find(|found| found.file.contains("/memfold-")).expect("a control page");
    let page = PathBuf::from(page.file);
    // The userfaultfd, and the files that the tier's are.
    let of_agent = threads(pid).into_iter().filter(|(_, name)| agent_name::is(name));
    let mut held = Vec::new();
    for (tid, _) in of_agent {
        for file in fs::read_dir(format!("/proc/{pid}/task/{tid}/fd")).unwrap().flatten() {
            let link = fs::read_link(file.path()).unwrap_or_default();
            if link.as_os_str() == memfold_sys::uffd::LINK || link.starts_with("/var/tmp") {
                held.push((tid, file.file_name().to_str().unwrap().parse().unwrap()));
            }
        }
    }
    assert!(held.len() >= 2, "a userfaultfd and a file: {held:?}");
    // It is all there: root reaches it.
    for (what, result) in reach(pid, region.start, &page, &held) {
        assert_eq!(result, Ok(()), "{what}, as root");
    }
    let (mut program_own, agents, now) = (threads(pid), threads(pid).len(), subject.traces());
    program_own.retain(|(_, name)| !agent_name::is(name));
    let attempts =
        as_user(STRANGER, || [reach(pid, region.start, &page, &held), change(pid, region.start)].concat());
    assert!(attempts.len() > 20, "{attempts:?}");
    for (what, result) in attempts {
        assert!(
            [Err(libc::EPERM), Err(libc::EACCES)].contains(&result),
            "{what}, as another user: {result:?}"
        );
    }
    // By a directory of that user's own, and by the one that the control page lies in.
    refused(&home);
    refused(page.parent().unwrap());
    let after = subject.traces();
    assert_eq!((after.regions, after.code, &after.descriptors), (1, now.code, &now.descriptors));
    assert!(threads(pid).len() >= agents && threads(pid).is_superset(&program_own));
    let output = subject.memfold(&["stat", "--json", &number]);
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        [&rows[0]["mode"], &rows[0]["paused"], &rows[0]["asleep"]],
        [&serde_json::json!("embedded"), &serde_json::json!(false), &serde_json::json!(false)]
    );
    assert_eq!(subject.counter("lost"), 0);
    subject.tell("are they there");
    subject.detach();
    subject.tell("are they there");
    wait_until(LIMIT, "nothing of the agent's is left", || subject.traces() == before.2);
    assert_eq!(subject.finish().0, Some(0));
}
