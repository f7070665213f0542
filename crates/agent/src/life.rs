//! How the agent begins and ends.
//!
//! Invariants: the thread that does either is scheduled as the program's first one is, whoever it was borrowed from, and so are those that it makes; it has left the program's descriptor table before it opens anything, and is known as an agent; the plan's status is
//! the last thing that it says.

use crate::asking;
use crate::host::{notice, CONTROL_DIR, ENGINE, STARTING};
use core::sync::atomic::{AtomicU32, Ordering::*};
use memfold_pager::plan::{Plan, Status};
use memfold_pager::sabotage::{self, planted, Bug};
use memfold_pager::{Nonsense, Phase};
use memfold_sys::{mem, table, thread};

/// Why the engine is stopped by [`end`].
static DETACHED: &str = "detached";

/// 1 once the engine has its tables; what came no further has nothing to stop.
static PREPARED: AtomicU32 = AtomicU32::new(0);

/// Begins to fold the process.
pub fn start(plan: &'static Plan) {
    thread::adopt(plan.stack as usize);
    thread::be_scheduled_as_first();
    mem::keep_from_children();
    STARTING.store(plan as *const Plan as *mut Plan, Release);
    let status = match begin(plan) {
        Ok(()) => Status::Running,
        Err(why) => {
            if let Some(why) = why {
                plan.text.set(why);
            }
            Status::Failed
        }
    };
    STARTING.store(core::ptr::null_mut(), Release);
    thread::disown(plan.stack as usize);
    plan.tell(status);
}

/// An error without text has said its own.
fn begin(plan: &'static Plan) -> Result<(), Option<&'static str>> {
    let [start, len] = plan.mapped;
    mem::keep_range_from_children(start as usize, len as usize);
    mem::note_own(start as usize, len as usize);
    let [constant, bytes] = plan.constant;
    // SAFETY: nothing writes there, once the addresses in it are those of this place.
    let _ = unsafe { mem::mprotect(constant as usize, bytes as usize, libc::PROT_READ) };
    if cfg!(feature = "sabotage") {
        sabotage::choose(plan.get("PLANTED_BUG").map(str::as_bytes));
    }
    if planted(Bug::DescriptorLeaked) {
        let device = memfold_sys::uffd::Userfaultfd::open();
        core::mem::forget(device);
    }
    table::leave([]).map_err(|_| Some("no descriptor table of the agent's own"))?;
    ENGINE.go_by_reports();
    if plan.helped != 0 {
        ENGINE.use_made(asking::ask(plan)?);
    }
    let config = ENGINE.be_told(|name| plan.get(name), complain);
    if let Some(socket) = plan.get("MEMFOLD_BUDGET_OF") {
        ENGINE.obey_daemon(socket);
    }
    if let Some(dir) = plan.get("MEMFOLD_CONTROL_DIR") {
        // SAFETY: the engine has no thread yet.
        unsafe { CONTROL_DIR.set(dir) };
        ENGINE.hear_reports_in(&CONTROL_DIR);
    }
    ENGINE.prepare(&config).map_err(|_| Some("no memory for the pager's tables"))?;
    PREPARED.store(1, Release);
    ENGINE.be_told_of_tier(|name| plan.get(name));
    ENGINE.publish_control();
    ENGINE.enable();
    while ENGINE.phase() == Phase::Starting {
        ENGINE.wait_for_start();
    }
    match ENGINE.phase() {
        Phase::Off | Phase::Idle => Err(None),
        _ => Ok(()),
    }
}

fn complain(nonsense: Nonsense<'_>) {
    use core::fmt::Write;
    let mut line = memfold_pager::Line::new();
    let _ = write!(line, "ignoring {}={}: it takes {}", nonsense.variable, nonsense.text, nonsense.allowed);
    notice(line.as_str());
}

/// Brings everything back, ends the agent's threads, and gives up all memory but what was mapped for the agent from outside.
pub fn end(plan: &'static Plan) {
    let [start, len] = plan.mapped;
    thread::adopt(plan.stack as usize);
    thread::be_scheduled_as_first();
    let left = table::leave([]).is_ok();
    if PREPARED.load(Acquire) != 0 {
        ENGINE.stop(&DETACHED);
    }
    if left {
        CONTROL_DIR.remove_page();
    }
    thread::disown(plan.stack as usize);
    // SAFETY: the engine is off and its threads have ended: nobody uses memory of the agent's but this thread, whose stack and text are the plan's.
    unsafe { mem::give_up_own((start as usize, (start + len) as usize)) };
    plan.tell(Status::Ended);
}
