//! The constructor: reads the options, joins heap and pager, and lets the pager start when there is work.
//!
//! It runs before the constructors of all other libraries, on the program's only thread.

use crate::environment::Environment;
use crate::host::{find_rseq, pager, sample, ENGINE, PAGER};
use crate::notice::{complain, say_once, CONTROL_DIR, QUIET};
use crate::{
    allocator, clock, fork, loading, lookup, mapping, real, sanitizer, statistics, syscall, valgrind,
};
use core::ffi::{c_char, c_int};
use core::sync::atomic::Ordering::*;
use memfold_pager::config::{self, is_quiet, Setting};
use memfold_pager::{Nonsense, Phase};
use memfold_sys::{mem, thread};

#[used]
#[link_section = ".init_array"]
static CONSTRUCTOR: extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) = construct;

#[used]
#[link_section = ".fini_array"]
static DESTRUCTOR: extern "C" fn() = destruct;

extern "C" fn construct(_argc: c_int, argv: *mut *mut c_char, envp: *mut *mut c_char) {
    // With rights that whoever started the program has not, nothing of the environment is believed.
    let strings = if thread::process_has_more_rights() { core::ptr::null_mut() } else { envp };
    // SAFETY: the environment that the dynamic loader hands to constructors, or none.
    let environment = unsafe { Environment::new(strings) };
    QUIET.store(environment.get("MEMFOLD_QUIET").is_some_and(is_quiet), Relaxed);
    if let Some(dir) = environment.get("MEMFOLD_CONTROL_DIR") {
        // SAFETY: constructors run before any other thread exists.
        unsafe { CONTROL_DIR.set(dir) };
    }
    lookup::find();
    loading::find();
    real::find();
    clock::find();
    sanitizer::step_aside(argv, envp, environment);
    // Both have an allocator of their own in libc's place.
    if !sanitizer::has_this_program() && !valgrind::has_this_program() {
        lookup::answer();
    }
    fork::register();
    allocator::configure(environment);
    if switch(environment, "MEMFOLD_STATS", false) {
        statistics::print_at_exit();
    }
    if switch(environment, "MEMFOLD_PAGER", false) && !records_another(environment) {
        start_pager(environment);
    }
    if !switch(environment, "MEMFOLD_FOLLOW", true) {
        stop_following(environment);
    }
}

/// What the variable of a switch says; the default where it says nothing, or what is neither on nor off.
fn switch(environment: Environment, variable: &str, default: bool) -> bool {
    let Some(text) = environment.get(variable).filter(|text| !text.is_empty()) else { return default };
    config::switch(text).unwrap_or_else(|| {
        complain(variable, text, "`on` or `off`");
        default
    })
}

extern "C" fn destruct() {
    memfold_heap::look_back();
    statistics::at_exit();
    if pager().is_some() {
        ENGINE.record_the_end();
        statistics::publish(&ENGINE.control().alloc);
        ENGINE.control().exited.store(1, Relaxed);
        ENGINE.show_control();
    }
}

/// Has the program recorded, where it is the one that is to be; true in the programs that it starts, which run plainly.
fn records_another(environment: Environment) -> bool {
    let Some(text) = environment.get("MEMFOLD_RECORD") else { return false };
    let recorded = ENGINE.record(text);
    if recorded.is_none() {
        complain("MEMFOLD_RECORD", text, "what `memfold record` gives it");
    }
    recorded != Some(true)
}

fn start_pager(environment: Environment) {
    if valgrind::has_this_program() {
        say_once(
            "memfold: not folding this program: it runs inside Valgrind, which lets one thread run at a time",
        );
        return;
    }
    find_rseq();
    if cfg!(feature = "sabotage") {
        memfold_pager::sabotage::choose(environment.get("PLANTED_BUG").map(str::as_bytes));
    }
    let config = ENGINE.be_told(|name| environment.get(name), complain_of);
    if let Some(socket) = environment.get("MEMFOLD_BUDGET_OF").filter(|socket| !ENGINE.obey_daemon(socket)) {
        complain("MEMFOLD_BUDGET_OF", socket, "the path of a daemon's socket");
    }
    if environment.get("MEMFOLD_CONTROL_DIR").is_some() {
        ENGINE.hear_reports_in(&CONTROL_DIR);
    }
    if let Some(fd) = environment.get("MEMFOLD_UFFD_FD").and_then(|v| v.parse::<i32>().ok()) {
        ENGINE.use_device(fd);
    }
    if ENGINE.prepare(&config).is_err() {
        say_once("memfold: not folding this program: no memory for the pager's tables");
        return;
    }
    let mean = ENGINE.setting(Setting::HeapSample);
    if mean > 0 && !sample(mean) {
        say_once("memfold: the heap is not sampled: no memory for the tables");
    }
    ENGINE.be_told_of_tier(|name| environment.get(name));
    ENGINE.publish_control();
    PAGER.store(true, Release);
    syscall::route();
    memfold_arena::set_hooks(&HOOKS);
    memfold_arena::for_each_managed(|base, len| ENGINE.mapped(base, len));
    ENGINE.enable();
}

/// What the allocator's arena tells the pager.
static HOOKS: memfold_arena::Hooks = memfold_arena::Hooks {
    mapped: |base, len| {
        ENGINE.mapped(base, len);
        // Once the pager runs, its background thread does so, and nobody waits for it.
        if ENGINE.phase() != Phase::Running {
            statistics::publish_if_due(&ENGINE);
        }
    },
    discard: |addr, len| {
        // SAFETY: the arena gives up what the range holds.
        ENGINE.drop_contents(addr, len, || unsafe { mem::madvise(addr, len, libc::MADV_DONTNEED) })
    },
    unmap: |addr, len| {
        // SAFETY: the arena gives up the range.
        ENGINE.unmap(addr, len, || unsafe { mem::munmap(addr, len) })
    },
    guard: |addr, len| {
        // SAFETY: the arena gave no address in the range to anybody.
        ENGINE.protect(addr, len, false, || unsafe { mem::mprotect(addr, len, libc::PROT_NONE) })
    },
    unguard: |addr, len| {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: as above.
        ENGINE.protect(addr, len, true, || unsafe { mem::mprotect(addr, len, access) })
    },
    remap: |addr, len, new_len| mapping::remap_managed(&ENGINE, addr, len, new_len),
    is_away: |addr, len| ENGINE.is_away(addr, len),
};

fn complain_of(nonsense: Nonsense<'_>) {
    complain(nonsense.variable, nonsense.text, nonsense.allowed);
}

/// Children of this program run without memfold.
fn stop_following(environment: Environment) {
    // SAFETY: constructors run before any other thread exists.
    unsafe {
        environment.remove(|name| name.starts_with(b"MEMFOLD_"));
        environment.end_preloading();
    }
}
