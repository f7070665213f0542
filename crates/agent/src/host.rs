//! The pager of this process, and what it asks of the process that it is in.

use crate::life;
use memfold_pager::control::ControlPage;
use memfold_pager::control_file::ControlDir;
use memfold_pager::mirror::Mapped;
use memfold_pager::{Engine, Host};

/// The pager of this process.
pub static ENGINE: Engine =
    Engine::new(Host { notice: life::notice, open_control, own_heap: || true, thread_cpu: |_| None, decay: || () });

/// Directory of the control page. Written by the thread that starts the engine, before it does.
pub static CONTROL_DIR: ControlDir = ControlDir::new();

fn open_control(page: &ControlPage) -> Option<Mapped> {
    CONTROL_DIR.make_page(page)
}
