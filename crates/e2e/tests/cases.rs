//! Hard cases: what programs do that memory management by somebody else may break, each in a test of its own.
//!
//! The programs are in `c/cases`. A case holds plainly, or it is the test that is wrong; and folded, with its memory
//! evicted when it matters: the program waits until `mincore` no longer finds nine tenths of it, and fails otherwise. (The
//! counter of evicted pages tells of those that are stored already, and most cases end sooner.)

use memfold_bench::launch::Folding;
use memfold_e2e::run::{
    copy_program, counters, harsh, harsh_with, inherit, modes, program, run_folded, run_plain,
};
use memfold_e2e::{command_line, preload_library, LIMIT};
use memfold_pager::config::Setting;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{chown, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

#[path = "cases/machine.rs"]
mod machine;

/// The case that runs `memfold` itself, which no other needs.
const CORES: &str = "folded_pages_are_put_back";

/// A program of `c/cases`, compiled once.
fn build(theme: &str) -> PathBuf {
    static BUILT: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("case-{theme}"));
    let mut built = BUILT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if !built.iter().any(|name| name == theme) {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/cases");
        let cpp = sources.join(format!("{theme}.cpp"));
        let (name, package, source) = if cpp.exists() {
            ("g++", "g++", cpp)
        } else {
            ("cc", "gcc", sources.join(format!("{theme}.c")))
        };
        let mut compiler = Command::new(program(name, package));
        compiler.arg(source);
        compile(compiler, &out);
        built.push(theme.to_owned());
    }
    out
}

fn compile(mut compiler: Command, out: &Path) {
    // What it defines of libc's takes the place of libc's for all libraries.
    compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-rdynamic", "-o"]).arg(out);
    run_plain(compiler, LIMIT).expect_success("the compiler");
}

/// The case, ready to be run.
fn command(executable: &Path, case: &str, way: &str) -> Command {
    let mut command = Command::new(executable);
    // Scratch files of the cases stay on a disk.
    command.args([case, way]).current_dir(env!("CARGO_TARGET_TMPDIR"));
    if case == CORES {
        command.env("TESTED", command_line::executable());
    }
    command
}

/// That pages were evicted the program has made sure of, or it would not have ended with 0.
fn expect_nothing_lost(folding: &Folding, case: &str) {
    let all = counters(folding);
    assert!(!all.is_empty(), "{case}: no process was folded");
    assert!(all.iter().all(|c| c.pages.lost == 0), "{case}: pages were lost");
}

/// Runs the case plainly, then folded with the settings, and makes sure that it holds.
fn holds_with(theme: &str, case: &str, folding: &Folding) -> String {
    let executable = build(theme);
    run_plain(command(&executable, case, "plain"), LIMIT).expect_success(&format!("{case}, plain"));
    let outcome = run_folded(command(&executable, case, "folded"), folding, LIMIT);
    let stderr = outcome.expect_success(&format!("{case}, folded")).stderr;
    expect_nothing_lost(folding, case);
    stderr
}

/// The same under the hardest eviction there is; the program is told nothing.
fn holds(theme: &str, case: &str) {
    assert_eq!(holds_with(theme, case, &harsh()), "", "{case}: a program that can be folded is told nothing");
}

/// The same, and why the pager stopped in the end.
fn stops(theme: &str, case: &str, why: &str) {
    let folding = harsh();
    assert_eq!(holds_with(theme, case, &folding), "");
    let reasons = modes(&folding);
    assert!(reasons.iter().any(|(_, reason)| reason.contains(why)), "{case}: {reasons:?}");
}

/// A test for each case that must hold.
macro_rules! cases {
    ($($theme:ident { $($case:ident),* $(,)? })*) => {$(mod $theme {
        $(#[test] fn $case() { super::holds(stringify!($theme), stringify!($case)) })*
    })*};
}

cases! {
    signals {
        handler_faults,
        handler_faults_on_an_alternate_stack,
        segv_handler_is_a_write_barrier,
        handlers_leave_by_a_jump,
        threads_are_cancelled_in_faults,
        suspended_and_resumed,
        a_stack_that_is_away,
        a_handler_forks,
    }
    touched {
        a_stream_on_two_pages,
        a_stream_that_another_thread_has,
        values_of_another_thread,
        a_number_for_the_child,
        a_stack_of_another_thread,
    }
    endings {
        a_mutex_of_a_thread_that_ends,
        mutexes_of_a_process_that_is_killed,
        a_mutex_of_a_process_that_executes,
        a_number_that_is_cleared,
    }
    clock {
        time_stands_still,
    }
    limits {
        address_space_runs_out,
        mappings_run_out,
        mappings_run_out_beside_one_that_is_cut,
        descriptors_run_out,
    }
    calls {
        read_write_and_vectors,
        sockets,
        futexes,
        futexes_that_are_written,
        structures_that_are_not_there,
        direct_transfers,
        registered_buffers,
    }
    clones {
        copies_of_all,
        copies_that_share_descriptors,
        copies_that_share_directories,
        copies_that_are_waited_for,
        a_bare_copy_that_shares_descriptors,
        descriptors_are_unshared,
        threads_past_libc,
        threads_with_descriptors_of_their_own,
        shared_memory_that_is_waited_for,
        no_descriptor_is_seen,
        nobody_is_left_to_serve,
        ends_by_returning_from_clone,
        ends_by_the_exit_of_a_thread,
        ends_by_the_exit_of_the_last_thread,
        ends_by_a_signal,
    }
    secrets {
        core_dumps,
        children,
        children_past_libc,
        memory_that_stays,
    }
    cores {
        folded_pages_are_put_back,
    }
    children {
        a_child_gets_threads,
        a_child_is_killed,
        a_parent_is_killed,
        fork_beside_threads,
        fork_in_a_fork,
        other_ways,
        handlers_that_touch_memory,
        libraries_come_and_go,
        threads_come_and_go,
    }
    neighbours {
        read_from_outside,
        read_by_a_debugger,
        a_userfaultfd_of_its_own,
        pages_that_it_moves_away,
        advice_to_swap_and_to_populate,
        a_page_that_is_tampered_with,
        without_huge_pages,
        huge_pages_asked_for,
        huge_pages_made,
    }
    mappings {
        moved_to_a_place_of_choice,
        moved_in_a_child,
        moved_without_memory,
        unmapped_stays_unmapped,
        grown_in_a_child,
        parts_of_a_long_reservation,
        many_small_pieces,
        a_heap_of_small_mappings,
        a_heap_of_its_own,
        what_comes_after_a_heap,
    }
    exceptions {
        unwound,
        thrown_again_when_cold,
    }
}

#[test]
fn a_signal_to_each_thread() {
    stops("signals", "a_signal_to_each_thread", "signal to each of its threads");
}

#[test]
fn copies_on_another_stack() {
    let case = "copies_on_another_stack";
    if cfg!(target_arch = "x86_64") {
        stops("clones", case, "on another stack");
    } else {
        eprintln!("{case}: skipped, since return addresses are not on the stack here");
    }
}

#[test]
fn all_memory_is_locked() {
    stops("limits", "all_memory_is_locked", "mlockall");
}

/// Processes that share memory, and for which nobody waits.
mod sharing {
    use super::stops;

    #[test]
    fn shared_memory() {
        stops("clones", "shared_memory", "shares its memory");
    }

    #[test]
    fn shared_memory_that_outlives() {
        stops("clones", "shared_memory_that_outlives", "shares its memory");
    }
}

/// Programs that confine themselves.
mod sandbox {
    use super::*;

    #[test]
    fn seccomp_by_prctl() {
        stops("sandbox", "seccomp_by_prctl", "seccomp");
    }

    #[test]
    fn seccomp_of_all_threads() {
        stops("sandbox", "seccomp_of_all_threads", "seccomp");
    }

    #[test]
    fn seccomp_is_asked_about() {
        super::holds("sandbox", "seccomp_is_asked_about");
    }

    #[test]
    fn seccomp_in_a_child_of_vfork() {
        super::holds("sandbox", "seccomp_in_a_child_of_vfork");
    }

    #[test]
    fn seccomp_is_refused() {
        stops("sandbox", "seccomp_is_refused", "seccomp");
    }

    #[test]
    fn landlock() {
        stops("sandbox", "landlock", "landlock");
    }

    #[test]
    fn root_directory() {
        stops("sandbox", "root_directory", "chroot");
    }

    #[test]
    fn root_directory_by_libcs_handle() {
        stops("sandbox", "root_directory_by_libcs_handle", "chroot");
    }

    #[test]
    fn another_namespace() {
        super::holds("sandbox", "another_namespace");
    }

    #[test]
    fn another_user() {
        becomes_another("another_user", &harsh());
    }

    #[test]
    fn another_user_by_number() {
        becomes_another("another_user_by_number", &harsh());
    }

    #[test]
    fn another_user_at_first() {
        becomes_another("another_user_at_first", &harsh().set(Setting::StartAt, "4M"));
    }

    #[test]
    fn another_user_amid_threads() {
        becomes_another("another_user_amid_threads", &harsh());
    }

    #[test]
    fn another_user_again_and_again() {
        let folding = harsh();
        becomes_another("another_user_again_and_again", &folding);
        let reasons = modes(&folding);
        assert!(
            !memfold_e2e::is_root() || reasons.iter().any(|(_, why)| why.contains("another user")),
            "{reasons:?}"
        );
    }

    /// The case holds with the device inherited, by which another user may go on, and the program is told nothing but of its children.
    fn becomes_another(case: &str, folding: &Folding) {
        let executable = build("sandbox");
        run_plain(command(&executable, case, "plain"), LIMIT).expect_success(&format!("{case}, plain"));
        let device = OpenOptions::new().read(true).write(true).open("/dev/userfaultfd");
        let device = device.expect("root may open it, and who has run `memfold setup`");
        let mut folded = command(&executable, case, "folded");
        inherit(&mut folded, &device);
        let stderr = run_folded(folded, folding, LIMIT).expect_success(&format!("{case}, folded")).stderr;
        let of_children = |line: &str| line.contains("closed to a process that became another user");
        assert!(stderr.lines().all(of_children), "{case}: {stderr}");
        expect_nothing_lost(folding, case);
    }
}

/// Has the case hold for a user who has no other process, which takes root. The lines that are told on standard error.
fn told_to_a_lonely_user(case: &str, user: u32) -> Option<Vec<String>> {
    if !memfold_e2e::is_root() {
        eprintln!("{case}: skipped, since only root can become a user without processes");
        return None;
    }
    let _alone = memfold_e2e::machine::alone_with(&format!("user-{user}"));
    let home = tempfile::tempdir().expect("temporary files can be made");
    let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    let (library, executable) = (home.path().join("libmemfold.so"), home.path().join("limits"));
    for (from, to) in [(preload_library(), &library), (build("limits"), &executable)] {
        copy_program(&from, to);
        open(to);
    }
    open(home.path());
    let folding = harsh_with(&library);
    chown(folding.control_dir(), Some(user), Some(user)).unwrap();
    let device =
        OpenOptions::new().read(true).write(true).open("/dev/userfaultfd").expect("root may open it");
    let mut command = command(&executable, case, "folded");
    command.uid(user).gid(user).current_dir("/");
    inherit(&mut command, &device);
    let outcome = run_folded(command, &folding, LIMIT).expect_success(case);
    expect_nothing_lost(&folding, case);
    Some(outcome.stderr.lines().map(str::to_owned).collect())
}

/// What a child is told that may have no thread.
const NO_THREAD: &str = "no thread for the pager in a forked child: EAGAIN";

/// The same, and a child is told that it may have no thread.
fn child_without_threads_goes_on(case: &str, user: u32) {
    let Some(lines) = told_to_a_lonely_user(case, user) else { return };
    assert!(
        matches!(&lines[..], [line] if line.contains(NO_THREAD)),
        "{case}: one line was expected: {lines:?}"
    );
}

#[test]
fn a_child_that_may_have_no_thread_goes_on_plainly() {
    child_without_threads_goes_on("a_child_may_have_no_thread", 61_234);
}

#[test]
fn a_child_that_may_have_no_thread_goes_on_without_what_was_going_past_libc() {
    let lines = told_to_a_lonely_user("a_child_may_have_no_thread_while_memory_goes", 61_238);
    let other = lines.unwrap_or_default().into_iter().find(|line| !line.contains(NO_THREAD));
    assert_eq!(other, None);
}

#[test]
fn a_child_that_may_have_one_thread_goes_on_plainly() {
    child_without_threads_goes_on("a_child_may_have_one_thread", 61_235);
}

#[test]
fn a_child_that_may_have_two_threads_goes_on_plainly() {
    child_without_threads_goes_on("a_child_may_have_two_threads", 61_236);
}

#[test]
fn a_child_of_a_process_that_cannot_be_dumped_has_every_byte() {
    let told = told_to_a_lonely_user("a_process_that_cannot_be_dumped_forks", 61_237);
    // The child may have ended before its pager tries to start.
    let lines = told.unwrap_or_default();
    assert!(lines.len() <= 1 && lines.iter().all(|line| line.contains("PR_SET_DUMPABLE")), "{lines:?}");
}

#[test]
fn a_library_that_is_bound_deeply_frees_forks_and_loads_as_plainly() {
    let (case, out) = ("a_library_that_is_bound_deeply", Path::new(env!("CARGO_TARGET_TMPDIR")));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/cases/loading.c");
    let library = |part: &str, path: &Path| {
        let mut compiler = Command::new(program("cc", "gcc"));
        compiler.arg(part).args(["-shared", "-fPIC", "-Wl,-rpath,$ORIGIN/inner"]).arg(&source);
        compile(compiler, path);
    };
    fs::create_dir_all(out.join("inner")).expect("our own directory");
    library("-DPLUGIN", &out.join("libcase-plugin.so"));
    library("-DINNER", &out.join("inner/libcase-inner.so"));
    holds("loading", case);
}

#[test]
fn a_library_whose_constructor_waits_for_a_thread_is_loaded() {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libcase-waiting.so");
    let mut compiler = Command::new(program("cc", "gcc"));
    compiler.args(["-DWAITING", "-shared", "-fPIC"]);
    compiler.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("c/cases/loading.c"));
    compile(compiler, &out);
    holds("loading", "a_library_that_waits_for_a_thread");
}

#[test]
fn what_a_program_starts_is_folded_unless_it_is_not_to_follow() {
    let mentions = |follow: &str| {
        let mut shell = Command::new(program("sh", "dash"));
        shell.args(["-c", "env; true"]);
        let folding = harsh().variable("MEMFOLD_FOLLOW", follow);
        let outcome = run_folded(shell, &folding, LIMIT).expect_success("sh");
        String::from_utf8(outcome.stdout).expect("text").lines().any(|line| {
            line.starts_with("MEMFOLD_PAGER=")
                || line.starts_with("LD_PRELOAD=") && line.contains("libmemfold")
        })
    };
    assert!(mentions("on"));
    assert!(!mentions("off"));
}
