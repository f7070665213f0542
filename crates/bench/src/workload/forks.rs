//! Forks children that touch memory and end, as servers do that hand each request to a process.

use super::meter::Meter;
use anyhow::{bail, Result};
use memfold_stats::Rng;

/// Runs one worker. A unit is a child from fork to end, and the parent's own work beside it.
pub(super) fn run(meter: &mut Meter<'_>) -> Result<()> {
    let hot = meter.window(0);
    while meter.goes_on() {
        meter.unit(|meter| once(meter, &hot))?;
    }
    Ok(())
}

/// Blocks that a child touches anywhere in the region.
const ANYWHERE: usize = 4;

fn once(meter: &mut Meter<'_>, hot: &[usize]) -> Result<()> {
    let mut rng = Rng::new(meter.rng.next_u64());
    // SAFETY: the child of a threaded process may do little: it touches memory and ends, without a lock or an
    // allocation.
    let child = unsafe { libc::fork() };
    if child < 0 {
        bail!("cannot fork: {}", std::io::Error::last_os_error());
    }
    if child == 0 {
        let mut whole = true;
        for touch in 0..meter.options.touches + ANYWHERE {
            let piece = match touch {
                0..ANYWHERE => meter.pieces.start + rng.below(meter.pieces.len() as u64) as usize,
                _ => hot[rng.below(hot.len() as u64) as usize],
            };
            whole &= meter.ground.is_whole(piece, &mut rng);
        }
        // SAFETY: ends the child at once, without anything of the parent's being run.
        unsafe { libc::_exit(i32::from(!whole)) };
    }
    meter.touch_among(hot);
    let mut status = 0;
    // SAFETY: waits for the child just made; `status` is valid.
    while unsafe { libc::waitpid(child, &mut status, 0) } < 0 {
        let error = std::io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINTR) {
            bail!("cannot wait for a child: {error}");
        }
    }
    if status != 0 {
        bail!(
            "a forked child found memory that was not what its parent had written (wait status {status:#x})"
        );
    }
    Ok(())
}
