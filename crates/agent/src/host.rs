//! The pager of this process, and what it asks of the process that it is in.

use core::sync::atomic::{AtomicPtr, Ordering::*};
use memfold_pager::control::ControlPage;
use memfold_pager::control_file::ControlDir;
use memfold_pager::mirror::Mapped;
use memfold_pager::plan::Plan;
use memfold_pager::{Engine, Host};
use memfold_sys::table;

/// The pager of this process.
pub static ENGINE: Engine = Engine::new(Host {
    notice,
    open_control,
    own_heap: || true,
    thread_cpu: |_, _| None,
    went_away: |_, _| (),
    decay: || (),
    sampler: None,
});

/// Directory of the control page. Written by the thread that starts the engine, before it does.
pub static CONTROL_DIR: ControlDir = ControlDir::new();

fn open_control(page: &ControlPage) -> Option<Mapped> {
    CONTROL_DIR.make_page(page)
}

/// Where lines for people go until the agent has started; null after that.
pub static STARTING: AtomicPtr<Plan> = AtomicPtr::new(core::ptr::null_mut());

/// A line for people: to who is attaching, or, later, to the program's standard error.
pub fn notice(line: &str) {
    // SAFETY: null or the plan, which stays.
    match unsafe { STARTING.load(Acquire).as_ref() } {
        Some(plan) => plan.text.set(line),
        None => table::say(line),
    }
}
