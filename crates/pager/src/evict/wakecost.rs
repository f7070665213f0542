//! What a fault takes beside the fault thread's own work, and beside what that thread finds out of each (`waits.rs`), measured
//! when the engine starts.

use crate::engine::Agent;
use crate::evict::worker::Worker;
use core::sync::atomic::Ordering::*;
use memfold_sys::thread::{self, CpuSet};
use memfold_sys::time;
use memfold_sys::uffd::Modes;
use memfold_sys::{mem, PAGE_SIZE};

/// Most that is added to a fault for entering the kernel and two wake-ups on one CPU, ns. More than that was
/// something else.
const WAKE_COST_MOST: u64 = 12_000;

/// What entering the kernel by a fault and leaving it takes where it could not be measured, ns.
const ENTRY_COST_USUAL: u64 = 1_000;

impl Worker {
    /// Measures what a fault takes beside the fault thread's own work, by touching pages of our own from the fault
    /// thread's CPU: where it runs when it follows the program.
    pub(crate) fn measure_wake_cost(&mut self) {
        let usual = CpuSet::of_current_thread();
        let fault = self.engine.tid(Agent::Fault);
        let (Ok(usual), Some(fault)) = (usual, fault) else { return };
        if let Some(cpu) = thread::current_cpu().filter(|&cpu| usual.contains(cpu)) {
            let _ = (CpuSet::only(cpu).apply(), CpuSet::only(cpu).apply_to(fault));
        }
        self.time_own_faults();
        let _ = (usual.apply(), usual.apply_to(fault));
    }

    fn time_own_faults(&mut self) {
        const TRIES: usize = 16;
        let Ok(base) = mem::map_own(TRIES * PAGE_SIZE, 0) else { return };
        let mut costs = [0u64; TRIES];
        let (mut entries, mut found) = ([0u64; TRIES], 0);
        if self.kernel.uffd.register(base, TRIES * PAGE_SIZE, Modes::MISSING).is_ok() {
            for (n, cost) in costs.iter_mut().enumerate() {
                self.engine.latency.last_outside.store(0, Relaxed);
                let began = time::now();
                // SAFETY: our own page; the fault thread serves it like any first touch.
                unsafe { core::ptr::read_volatile((base + n * PAGE_SIZE) as *const u8) };
                *cost =
                    time::now().since(began).0.saturating_sub(self.engine.latency.last_service.load(Relaxed));
                // That of the wake-up before, and of this touch until its message was read.
                let outside = self.engine.latency.last_outside.load(Relaxed);
                if outside != 0 {
                    entries[found] = cost.saturating_sub(outside);
                    found += 1;
                }
            }
        }
        // The least: what is more was the wait for a CPU, which may be free when the program faults.
        let least = costs.iter().copied().min().unwrap_or(0).min(WAKE_COST_MOST);
        self.engine.latency.wake_cost.store(least, Relaxed);
        let entries = &mut entries[..found];
        entries.sort_unstable();
        let entry = entries.get(found / 2).map_or(ENTRY_COST_USUAL, |&median| median);
        self.engine.latency.entry_cost.store(entry.min(least), Relaxed);
        // Unregistered first: unmapping a registered range would be reported.
        let _ = self.kernel.uffd.unregister(base, TRIES * PAGE_SIZE);
        // SAFETY: our own pages, no longer needed.
        let _ = unsafe { mem::munmap(base, TRIES * PAGE_SIZE) };
        let control = self.engine.control();
        control.faults_zero.store(0, Relaxed);
    }
}
