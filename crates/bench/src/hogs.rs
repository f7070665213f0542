//! Threads that want a whole CPU each, to see what waits behind them.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::thread::{sleep, JoinHandle};
use std::time::Duration;

/// Running hogs; stopped when dropped.
#[derive(Debug)]
pub struct Hogs {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Hogs {
    /// Starts `count` hogs and gives the scheduler time to spread them.
    pub fn start(count: usize) -> Hogs {
        let stop = Arc::new(AtomicBool::new(false));
        let hog = |stop: Arc<AtomicBool>| {
            let mut state = 1u64;
            while !stop.load(Relaxed) {
                // Plain arithmetic: a spin-wait hint would let a hypervisor take the CPU away.
                for _ in 0..10_000 {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                }
                std::hint::black_box(state);
            }
        };
        let threads = (0..count)
            .map(|_| {
                let stop = Arc::clone(&stop);
                std::thread::spawn(move || hog(stop))
            })
            .collect();
        if count > 0 {
            sleep(Duration::from_millis(50));
        }
        Hogs { stop, threads }
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            // A hog cannot fail; a panic of one has been reported already.
            let _ = thread.join();
        }
    }
}
