//! `memfold attach` and `detach` at the moments at which a program is most easily harmed: in odd states of its own, while others stop it, while who attaches is
//! killed. Each goes on as if nothing had been.

use memfold_e2e::agent::{compile, may_attach, memfold_with_agent, rounds, Subject, HARSH};
use memfold_e2e::{scratch, wait_until, LIMIT};
use memfold_sys::thread::agent_name;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

fn is_fine(subject: Subject) {
    let (status, said) = subject.finish();
    assert_eq!((status, said.trim()), (Some(7), "fine"));
}

/// Attaching to it is refused, and said why.
fn is_refused(subject: &Subject, why: &str) {
    let refused = subject.memfold(&["attach", &subject.pid().to_string()]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains(why), "{said}");
}

fn endures(moment: &str) {
    if may_attach() {
        let (_dir, file) = compile("moments.c", &[]);
        let mut subject = Subject::start(Command::new(file).arg(moment));
        subject.endure(rounds(3));
        is_fine(subject);
    }
}

#[test]
fn what_a_program_does_at_sigtrap_stays_though_it_blocks_it() {
    endures("trap");
    endures("ignored");
}

#[test]
fn a_restartable_sequence_that_was_interrupted_is_begun_anew() {
    endures("sequence");
}

#[test]
fn a_wait_for_a_socket_with_a_time_is_not_seen_to_be_interrupted() {
    endures("timeout");
}

#[test]
fn a_signal_handler_on_its_own_stack_goes_on() {
    endures("handler");
}

#[test]
fn a_call_that_waits_with_a_signal_mask_of_its_own_leaves_the_one_before() {
    endures("mask");
}

#[test]
fn a_thread_under_a_filter_of_system_calls_is_never_borrowed() {
    endures("sandbox");
}

#[test]
fn a_program_that_makes_children_by_vfork_all_the_time_endures_it() {
    endures("vfork");
}

#[test]
fn a_program_that_moves_downwards_or_traps_what_is_not_aligned_goes_on() {
    endures("direction");
    endures("alignment");
}

#[test]
fn a_thread_in_code_of_32_bits_is_not_borrowed_there() {
    endures("narrow");
}

#[test]
fn a_thread_whose_calls_go_to_a_handler_is_refused_with_the_reason_and_goes_on_as_before() {
    if !may_attach() {
        return;
    }
    let (_dir, file) = compile("moments.c", &[]);
    let mut subject = Subject::start(Command::new(file).arg("dispatch"));
    subject.tell("does it wait");
    is_refused(&subject, "PR_SET_SYSCALL_USER_DISPATCH");
    subject.tell("does it wait still");
    is_fine(subject);
}

/// The nice value of a thread, and the CPUs that it may run on.
fn scheduled(task: &Path) -> (i32, String) {
    let read = |file: &str| std::fs::read_to_string(task.join(file)).unwrap();
    let (stat, status) = (read("stat"), read("status"));
    // Field 19 of proc_pid_stat(5), of which the third comes first after the name.
    let nice = stat.rsplit(") ").next().unwrap().split(' ').nth(16).unwrap().parse().unwrap();
    let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    (nice, cpus.trim().to_owned())
}

#[test]
fn the_agent_does_not_give_way_as_the_thread_does_that_was_borrowed() {
    if !may_attach() {
        return;
    }
    let (_dir, file) = compile("moments.c", &[]);
    let mut subject = Subject::start(Command::new(file).arg("nice"));
    subject.tell("has it begun");
    subject.attach();
    let tasks = std::fs::read_dir(format!("/proc/{}/task", subject.pid())).unwrap().flatten();
    let tasks: Vec<_> = tasks.map(|task| task.path()).collect();
    let name = |task: &Path| std::fs::read_to_string(task.join("comm")).unwrap().trim_end().to_owned();
    let agents: Vec<_> = tasks.iter().filter(|task| agent_name::is(&name(task))).collect();
    assert!(agents.len() >= 3, "{agents:?}");
    let first = scheduled(&Path::new("/proc").join(format!("{0}/task/{0}", subject.pid())));
    let (nice, cpus): (Vec<_>, Vec<_>) = agents.iter().map(|task| scheduled(task)).unzip();
    assert!(nice.iter().all(|nice| *nice <= first.0), "{nice:?}, and the first thread {}", first.0);
    // One of them may follow the program from CPU to CPU.
    assert!(cpus.contains(&first.1), "{cpus:?}, and the first thread {}", first.1);
    subject.detach();
    is_fine(subject);
}

/// What the kernel makes one mapping of with the agent's memory does not hide that: a second agent would take the first one for the program.
#[test]
fn an_agent_is_found_whatever_the_program_maps_beside_it() {
    if !may_attach() {
        return;
    }
    let (_dir, file) = compile("moments.c", &[]);
    let mut subject = Subject::start(Command::new(file).arg("beside"));
    for _ in 0..rounds(2) {
        subject.attach();
        subject.tell("map");
        is_refused(&subject, "is folded already");
        subject.detach();
        let left = subject.traces();
        assert_eq!((left.agents, left.regions, left.code), (0, 0, 0), "{left:?}");
    }
    is_fine(subject);
}

fn endures_with_io_uring_beside(threads: &str) {
    if may_attach() {
        let (dir, file) = compile("uring.c", &[]);
        let mut subject = Subject::start(Command::new(file).arg(dir.path().join("data")).arg(threads));
        subject.endure(rounds(4));
        is_fine(subject);
    }
}

#[test]
fn a_program_that_has_io_uring_do_its_reading_endures_it() {
    endures_with_io_uring_beside("0");
}

#[test]
fn a_program_that_has_io_uring_do_its_reading_beside_a_hundred_threads_endures_it() {
    endures_with_io_uring_beside("100");
}

#[test]
fn a_program_whose_first_thread_has_ended_is_folded_on_and_detached_from_and_not_attached_to() {
    if !may_attach() {
        return;
    }
    let (_dir, file) = compile("moments.c", &[]);
    let mut subject = Subject::start(Command::new(file).arg("headless"));
    subject.attach();
    wait_until(LIMIT, "something is folded", || subject.folded() > 0);
    subject.tell("end");
    let status = format!("/proc/{}/status", subject.pid());
    let has_ended = || std::fs::read_to_string(&status).is_ok_and(|status| status.contains("State:\tZ"));
    wait_until(LIMIT, "the first thread has ended", has_ended);
    subject.detach();
    is_refused(&subject, "the first thread of process");
    is_fine(subject);
}

fn start(home: &Path, arguments: &[&str]) -> Child {
    let mut command = memfold_with_agent(home);
    command.args(arguments).stderr(Stdio::null()).stdout(Stdio::null());
    command.spawn().expect("memfold can be executed")
}

/// At any of its steps: it takes some tens of milliseconds.
#[test]
fn whoever_attaches_or_detaches_can_be_killed_at_any_moment() {
    if !may_attach() {
        return;
    }
    let (_dir, file) = compile("attached.c", &[]);
    let mut subject = Subject::start(Command::new(file).args(["8", "16"]));
    let (before, home, pid) = (subject.traces(), scratch(), subject.pid().to_string());
    let attach = [["attach"].as_slice(), &HARSH, &[&pid]].concat();
    for round in 0..rounds(16) {
        for arguments in [attach.as_slice(), &["detach", &pid]] {
            let mut child = start(home.path(), arguments);
            std::thread::sleep(Duration::from_millis(round as u64 * 37 % 80));
            child.kill().and_then(|()| child.wait()).expect("it is ours");
            assert!(subject.runs(), "it has ended by itself");
        }
    }
    // Whatever was left is taken from there. The last one's hand may still be at it.
    let done = |arguments: &[&str]| subject.memfold(arguments).status.success();
    wait_until(LIMIT, "it is detached from, or was", || {
        done(&["detach", &pid]) || subject.traces().agents == 0
    });
    wait_until(LIMIT, "it can be attached to", || done(&attach));
    wait_until(LIMIT, "something is folded", || subject.folded() > 0);
    subject.detach();
    wait_until(LIMIT, "nothing of the agent's is left", || subject.traces() == before);
    let (status, said) = subject.finish();
    assert!(status == Some(7) && said.starts_with("fine "), "{said}");
}

#[test]
fn a_program_that_others_stop_and_continue_meanwhile_stays_stopped_until_it_is_continued() {
    if !may_attach() {
        return;
    }
    let (_dir, file) = compile("moments.c", &[]);
    let mut subject = Subject::start(Command::new(file).arg("mask"));
    let (before, over, pid) = (subject.traces(), AtomicBool::new(false), subject.pid());
    let signal = |number| {
        // SAFETY: a signal to a child that is not waited for before the end.
        assert_eq!(unsafe { libc::kill(pid as i32, number) }, 0);
    };
    let is_stopped = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    };
    let (mut attached, mut detached) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                signal(libc::SIGSTOP);
                wait_until(LIMIT, "it is stopped", is_stopped);
                signal(libc::SIGCONT);
                std::thread::sleep(Duration::from_millis(7));
            }
        });
        let number = pid.to_string();
        while detached < rounds(3) {
            // It is refused while the program is stopped.
            attached += usize::from(
                subject.memfold(&[&["attach"], &HARSH[..], &[&number]].concat()).status.success(),
            );
            detached += usize::from(subject.memfold(&["detach", &number]).status.success());
        }
        over.store(true, Relaxed);
    });
    assert!(attached > 0);
    wait_until(LIMIT, "nothing of the agent's is left", || subject.traces() == before);
    assert!(subject.runs());
    is_fine(subject);
}

/// Two at once: one attaches, the other is told why not.
#[test]
fn of_several_that_attach_at_once_one_does() {
    if !may_attach() {
        return;
    }
    let (_dir, file) = compile("attached.c", &[]);
    let subject = Subject::start(Command::new(file).args(["4", "16"]));
    let (before, home, pid) = (subject.traces(), scratch(), subject.pid().to_string());
    for _ in 0..rounds(3) {
        let mut all: Vec<Child> = (0..4).map(|_| start(home.path(), &["attach", &pid])).collect();
        let done = all.iter_mut().map(|child| child.wait().expect("it is ours"));
        assert_eq!(done.filter(std::process::ExitStatus::success).count(), 1);
        subject.detach();
        wait_until(LIMIT, "nothing of the agents' is left", || subject.traces() == before);
    }
    let (status, said) = subject.finish();
    assert!(status == Some(7) && said.starts_with("fine "), "{said}");
}

#[test]
fn how_long_a_program_is_stopped_is_measured_by_its_own_clock() {
    if !may_attach() {
        return;
    }
    let home = scratch();
    let words = ["bench", "attach", "--rounds", "2", "--threads", "4", "--size", "1M", "--json"];
    let output = memfold_with_agent(home.path()).args(words).output().expect("memfold can be executed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(found["schema"], "memfold-bench-attach-1");
    for (what, key) in [("attached", "p50_ns"), ("plain", "p99_ns"), ("borrowed", "longest_ns")] {
        assert!(found[what][key].as_u64().is_some_and(|ns| ns > 0), "{what}: {found}");
    }
}
