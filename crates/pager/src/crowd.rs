//! Whether as many threads want to run as there are CPUs.
//!
//! The fault thread needs real-time priority when they do: it would wait for a time slice like everybody else.
//! When a CPU is idle, real-time priority does harm: the scheduler then sends the program's thread, when it is woken, away
//! from the CPU on which the fault thread still runs, to an idle one that must be woken by an interrupt.

use crate::engine::Engine;
use core::sync::atomic::Ordering::*;
use sys::file::{self, Fd};
use sys::thread::CpuSet;

/// Samples of the number of runnable threads.
pub struct Crowd {
    /// CPUs that this process may use.
    cpus: u32,
    /// Moving average of the runnable threads beside ourselves, in sixteenths.
    runnable: u32,
}

impl Crowd {
    /// Nothing sampled yet.
    pub fn new() -> Crowd {
        let cpus = CpuSet::of_current_thread().map_or(1, |set| set.len());
        Crowd { cpus, runnable: 16 * cpus }
    }

    /// Takes a sample, from `/proc/loadavg` (proc_loadavg(5)): the field `running/all`. Where it cannot be read, the machine
    /// counts as crowded.
    pub fn look(&mut self, engine: &Engine, loadavg: Option<&Fd>) {
        let mut text = [0u8; 64];
        let len = loadavg.and_then(|file| file::pread(file.raw(), &mut text, 0).ok());
        let sample = len.and_then(|len| running(&text[..len]));
        // This thread is running too.
        let others = sample.map_or(u32::MAX / 64, |running| running.saturating_sub(1));
        self.runnable = (self.runnable * 3 + others.min(1 << 16) * 16) / 4;
        // No CPU is idle; a quarter of one must be for the crowd to end.
        let free = if engine.contended.load(Relaxed) == 0 { 2 } else { 4 };
        let crowded = self.runnable + free > 16 * self.cpus;
        engine.contended.store(u32::from(crowded), Relaxed);
    }
}

/// The number before the slash in the fourth field.
fn running(loadavg: &[u8]) -> Option<u32> {
    let field = loadavg.split(|&b| b == b' ').nth(3)?;
    let digits = field.split(|&b| b == b'/').next()?;
    core::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_running_threads_is_found() {
        assert_eq!(running(b"0.57 1.10 2.71 3/120 4711\n"), Some(3));
        assert_eq!(running(b"0.57 1.10"), None);
        assert_eq!(running(b""), None);
    }
}
