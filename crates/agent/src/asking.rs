//! A userfaultfd that reports forks, for a process that has not the right to ask the kernel for that (CAP_SYS_PTRACE): who attaches has it.
//!
//! The agent makes the userfaultfd, which is of this process's memory alone, by the device that it is handed, and hands it over for the handshake.
//!
//! What it is not: a way to a right. The process gets the userfaultfd, and nothing else.

use memfold_pager::plan::{Plan, NO_TRACKING, TRACKING};
use memfold_pager::Made;
use memfold_sys::file::Fd;
use memfold_sys::handing::{hand_over, pair, take_over};
use memfold_sys::time::Nanos;
use memfold_sys::uffd::Userfaultfd;

/// How long who attaches may take.
const PATIENCE: Nanos = Nanos::from_secs(20);

/// Asks; to be called by the thread that starts the engine, which has left the program's descriptor table.
pub fn ask(plan: &Plan) -> Result<Made, &'static str> {
    const SILENT: &str = "who attaches does not make the handshake of the userfaultfd";
    let (own, theirs) = pair().map_err(|_| "no socket to ask for reports of forks")?;
    plan.wait_at(theirs.raw());
    let (_, device) = take_over(own.raw(), PATIENCE).map_err(|_| SILENT)?;
    let by_device = device.as_ref().map(Fd::raw).map(Userfaultfd::from_device);
    let made = by_device.unwrap_or_else(Userfaultfd::open);
    let uffd =
        made.map_err(|_| "userfaultfd is not permitted to this process, and there is no /dev/userfaultfd")?;
    hand_over(own.raw(), 0, Some(uffd.raw_fd())).map_err(|_| SILENT)?;
    match take_over(own.raw(), PATIENCE) {
        Ok((tracks, _)) if [TRACKING, NO_TRACKING].contains(&tracks) => {
            Ok((uffd.into_raw_fd(), tracks == TRACKING))
        }
        _ => Err(SILENT),
    }
}
