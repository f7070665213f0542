//! Processes that are attached to have a tier below memory like those that `memfold run` has started: on a disk, from the start or later. Their children,
//! of which the kernel tells, get every byte of it, and nothing that is memfold's.
//!
//! As root, like [`attach`](../attach.rs).

use memfold_e2e::agent::{compile, counter, may_attach, memfold_with_agent, must, rounds, Subject, HARSH};
use memfold_e2e::dialogue::Dialogue;
use memfold_e2e::redis::Redis;
use memfold_e2e::run::program;
use memfold_e2e::{scratch, wait_until, LIMIT};
use std::process::Command;

/// What is folded goes to a disk at once.
const DISK: [&str; 2] = ["--tier", "disk=/var/tmp,size=1G,after=10ms"];

/// What lies there at least, before anything is done with it.
const MUCH: u64 = 24 << 20;

/// Holds 64 MiB that shrink to a half. Told so it looks at all of it; or forks a child that looks at it while it does so itself, and a child of the child's; or
/// forks one that drops a part, moves another, and looks at the rest. What a child finds its end says.
const HOLDS: &str = r#"
import ctypes, hashlib, mmap, os, random, sys
SIZE, PART = 64 << 20, 8 << 20
libc = ctypes.CDLL(None, use_errno=True)
libc.mremap.restype = ctypes.c_void_p
held = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
random.seed(7)
for at in range(0, SIZE, 4096): held[at:at + 2048] = random.randbytes(2048)
def digest(lo, hi): return hashlib.blake2b(held[lo:hi]).digest()
def parts(order): return [digest(at, at + PART) for at in (range(0, SIZE, PART) if order > 0 else range(SIZE - PART, -1, -PART))]
right = parts(1)
def fine(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
def fork():
    child = os.fork()
    if child == 0:
        grandchild = os.fork()
        ok = parts(-1 if grandchild else 1) == (right[::-1] if grandchild else right)
        os._exit(0 if ok and (not grandchild or fine(grandchild)) else 9)
    return parts(-1) == right[::-1] and fine(child)
def change():
    child = os.fork()
    if child == 0:
        held.madvise(mmap.MADV_DONTNEED, 0, PART)
        base = ctypes.addressof(ctypes.c_char.from_buffer(held))
        to = libc.mremap(ctypes.c_void_p(base + PART), PART, PART, 1 | 2, ctypes.c_void_p(base + (1 << 36)))
        moved = hashlib.blake2b(ctypes.string_at(base + (1 << 36), PART)).digest() if to == base + (1 << 36) else right[1]
        ok = held[:PART] == bytes(PART) and moved == right[1]
        os._exit(0 if ok and [digest(at, at + PART) for at in range(2 * PART, SIZE, PART)] == right[2:] else 9)
    return fine(child)
print('ready', flush=True)
for line in sys.stdin:
    todo = {'look\n': lambda: parts(1) == right, 'fork\n': fork, 'change\n': change}
    if line not in todo: break
    print(line.strip() if todo[line]() else 'wrong', flush=True)
"#;

fn holder() -> Subject {
    Subject::start(Command::new(program("python3", "python3")).args(["-S", "-E", "-c", HOLDS]))
}

fn await_below(subject: &Subject) {
    wait_until(LIMIT, "much of it lies below memory", || subject.counter("tier_bytes") >= MUCH);
}

#[test]
fn children_get_every_byte_of_what_lies_below_memory() {
    if !may_attach() {
        return;
    }
    let mut subject = holder();
    let before = subject.traces();
    for _ in 0..rounds(2) {
        subject.attach_with(&DISK);
        for what in ["look", "fork", "change", "fork"] {
            await_below(&subject);
            subject.tell(what);
        }
        assert_eq!(subject.counter("lost"), 0);
        await_below(&subject);
        subject.detach();
        let now = subject.traces();
        assert_eq!((now.agents, now.descriptors, now.regions), (0, before.descriptors.clone(), 0));
        subject.tell("look");
    }
    subject.finish();
}

#[test]
fn a_tier_can_be_had_later_and_the_program_can_sleep() {
    if !may_attach() {
        return;
    }
    let mut subject = holder();
    let pid = subject.pid().to_string();
    subject.attach();
    let refused = subject.memfold(&["ctl", &pid, "set", "tier", "redis://127.0.0.1:1"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("from the start"));
    assert!(subject.memfold(&["ctl", &pid, "set", "tier", DISK[1]]).status.success());
    assert!(subject.memfold(&["ctl", &pid, "sleep"]).status.success());
    await_below(&subject);
    subject.tell("look");
    assert_eq!(subject.counter("lost"), 0);
    subject.detach();
    subject.tell("look");
    subject.finish();
}

#[test]
fn a_program_with_threads_signals_and_forks_endures_a_disk_beneath_it() {
    if !may_attach() {
        return;
    }
    let (_dir, file) = compile("attached.c", &[]);
    let mut subject = Subject::start(Command::new(file).args(["8", "48"]));
    let mut most = 0;
    for _ in 0..rounds(4) {
        subject.attach_with(&DISK);
        wait_until(LIMIT, "something is folded", || subject.folded() > 0);
        most = most.max(subject.counter("tier_writes"));
        assert_eq!(subject.counter("lost"), 0);
        subject.detach();
        assert!(subject.runs(), "it has ended by itself");
    }
    // What it does not use it has none of: how much went down in between is a matter of its pauses.
    eprintln!("{most} clusters at most");
    let (status, said) = subject.finish();
    assert!(said.starts_with("fine "), "{said}");
    assert_eq!(status, Some(7));
}

#[test]
fn redis_on_a_disk_keeps_every_value_and_saves_all_of_them_from_a_child() {
    if !may_attach() {
        return;
    }
    let (runtime, dir) = (scratch(), scratch());
    let mut redis = Redis::start(dir.path(), |_| {});
    let ask = |redis: &mut Redis, words: &[&str]| String::from_utf8_lossy(&redis.ask(words)).into_owned();
    ask(&mut redis, &["DEBUG", "POPULATE", "120000", "key", "300"]);
    let digest = ask(&mut redis, &["DEBUG", "DIGEST"]);
    let pid = redis.pid().to_string();
    let memfold = |arguments: &[&str]| must(runtime.path(), arguments);
    memfold(&[["attach", &pid].as_slice(), &HARSH, &DISK].concat());
    for _ in 0..rounds(2) {
        memfold(&["ctl", &pid, "sleep"]);
        ask(&mut redis, &["BGSAVE"]);
        // What its parent touches meanwhile the child gets first.
        assert_eq!(ask(&mut redis, &["DEBUG", "DIGEST"]), digest);
        redis.wait_for_save();
    }
    assert_ne!(counter(&memfold(&["stat", "--json", &pid]), "tier_read_bytes"), 0);
    memfold(&["detach", &pid]);
    redis.shut_down();
    let mut again = Redis::start(dir.path(), |_| {});
    assert_eq!(ask(&mut again, &["DEBUG", "DIGEST"]), digest);
    again.shut_down();
}

#[test]
fn a_static_program_has_one_from_its_start_on() {
    if !may_attach() {
        return;
    }
    let runtime = scratch();
    let busybox = program("busybox", "busybox-static");
    // Two million bytes that nobody touches until a line comes.
    let script = "BEGIN { for (i = 0; i < 90000; i++) a[i] = i \" some words \" i * 7; print \"ready\"; fflush(); getline; \
                  for (i = 0; i < 90000; i++) s += length(a[i]); print s }";
    let mut command = memfold_with_agent(runtime.path());
    command.arg("run").args(HARSH).args(DISK).arg("--").arg(&busybox).args(["awk", script]);
    let mut dialogue = Dialogue::start(&mut command);
    assert_eq!(dialogue.hear(), "ready");
    // Before it is attached to there is nothing to tell of.
    let stat = || memfold_with_agent(runtime.path()).args(["stat", "--json"]).output().unwrap();
    let below = || counter(&stat(), "tier_bytes");
    // All of it takes about a mebibyte there.
    wait_until(LIMIT, "some of it lies below memory", || below() > 1 << 19);
    let (status, said) = dialogue.finish("");
    assert_eq!((status.code(), said.trim()), (Some(0), "2043015"));
}
