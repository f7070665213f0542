//! Maps memory, writes every page, reads it back and unmaps it, beside a region that is seldom used.

use super::meter::Meter;
use anyhow::{bail, Result};
use memfold_sys::PAGE_SIZE;

/// Runs one worker. A unit is one mapping from birth to end.
pub(super) fn run(meter: &mut Meter<'_>) -> Result<()> {
    let len = meter.options.churn_bytes.next_multiple_of(PAGE_SIZE);
    let mut wrong = 0;
    while meter.goes_on() {
        wrong += meter.unit(|meter| {
            meter.touch_rarely();
            once(len, meter.registers)
        })?;
    }
    if wrong > 0 {
        bail!("{wrong} pages of fresh mappings did not hold what had just been written");
    }
    Ok(())
}

/// The life of one mapping, which is registered with the library where that folds the workload; how many of its pages were wrong.
fn once(len: usize, registers: bool) -> Result<usize> {
    let base = super::map(len)?;
    if registers {
        memfold_client::register(base as *const u8, len)?;
    }
    let word = |page: usize| (base + page * PAGE_SIZE) as *mut u64;
    for page in 0..len / PAGE_SIZE {
        // SAFETY: within the mapping just made. Volatile: the touch is the point.
        unsafe { word(page).write_volatile(page as u64 + 1) };
    }
    // SAFETY: as above.
    let wrong =
        (0..len / PAGE_SIZE).filter(|&page| unsafe { word(page).read_volatile() } != page as u64 + 1).count();
    if registers {
        memfold_client::unregister(base as *const u8, len)?;
    }
    // SAFETY: the mapping just made, which nobody uses any more.
    unsafe { libc::munmap(base as *mut libc::c_void, len) };
    Ok(wrong)
}
