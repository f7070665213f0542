//! Where the control page of a process is put that nobody started by `memfold run`, so that `memfold stat` and `memfold ctl`
//! find it.
//!
//! Invariants: those of [`memfold_pager::base`] and [`memfold_pager::control_file`]. A directory that was made here goes with the last process that
//! has a page in it, if that ends by `exit`; `memfold stat` clears away what others leave.

use crate::environment::variable;
use memfold_pager::base::{Base, Environment};
use memfold_pager::control::ControlPage;
use memfold_pager::control_file::ControlDir;
use memfold_pager::mirror::Mapped;
use std::path::PathBuf;

/// The directory of this process's page, and of its children's.
static CONTROL_DIR: ControlDir = ControlDir::new();

/// Decides where pages go. To be called once, before another thread of memfold's exists.
pub fn settle() {
    let given = variable("MEMFOLD_CONTROL_DIR").map(PathBuf::from);
    let own = given.is_none();
    if let Some(dir) = given.or_else(make_own).and_then(|dir| dir.into_os_string().into_string().ok()) {
        // SAFETY: `start` succeeds once, and calls this once before it starts anything.
        unsafe { CONTROL_DIR.set(&dir) };
        if own {
            // SAFETY: a function of this library, which `memfold.h` forbids to unload. Without room for it the page is left.
            let _ = unsafe { libc::atexit(leave) };
        }
    }
}

/// Takes the page of a process that ends away: of a run of its own there is nobody who adds it up.
extern "C" fn leave() {
    CONTROL_DIR.remove_page();
}

/// The directory of pages, which [`settle`] has decided on.
pub fn dir() -> &'static ControlDir {
    &CONTROL_DIR
}

/// Makes the file in which others see the calling process's page.
pub fn make_page(page: &ControlPage) -> Option<Mapped> {
    CONTROL_DIR.make_page(page)
}

/// A fresh directory. Nothing if none can be made: the counters are then seen by nobody.
fn make_own() -> Option<PathBuf> {
    let text = |name| variable(name).and_then(|value| value.into_string().ok());
    let (named, session) = (text("MEMFOLD_RUNTIME_DIR"), text("XDG_RUNTIME_DIR"));
    let environment = Environment { named: named.as_deref(), session: session.as_deref() };
    let run = Base::usable(environment).ok()?.make_run().ok()?;
    Some(run.path.as_str().into())
}
