//! Patterns about how long blocks and threads live, and who lies beside whom.
//!
//! Invariants: simulated time advances with steps, never with the clock, so that all allocators live through the same
//! hours.

use super::actor::Actor;
use super::slots::{free, table, take, Draw, Plain, Sizes, Slots};
use super::{broken, Loop, Written};

/// Seconds of simulated time in an hour; a tick of [`Aging`] is a second.
const HOUR: u64 = 3600;
/// Blocks that are allocated in a simulated second.
pub(crate) const BLOCKS_A_SECOND: u64 = 40;
/// The longest life of a block, seconds.
const LONGEST: u64 = 6 * HOUR;

/// Blocks that live for seconds (85 of 100), for up to half an hour (10) or for up to six hours (5). From hour to hour the
/// largest size is a 32nd, an 8th, half or all of the job's, so that what one hour leaves between its long-lived blocks does
/// not fit the next.
pub(super) struct Aging {
    /// Blocks by the second in which they end, each holding the address of the next.
    wheel: &'static mut [*mut u8],
    now: u64,
    /// Blocks still to allocate in this second.
    left: u64,
    /// Blocks that end in this second.
    ending: *mut u8,
    draw: Draw,
    least: u64,
    most: u64,
}

impl Aging {
    pub(super) fn new(job: &Loop, number: usize) -> Aging {
        Aging {
            wheel: table(LONGEST as usize + 1),
            now: 0,
            left: BLOCKS_A_SECOND,
            ending: std::ptr::null_mut(),
            draw: Draw::new(job, number),
            least: job.least_bytes as u64,
            most: job.most_bytes as u64,
        }
    }

    fn allocate(&mut self) {
        let (kind, span) = self.draw.two(100, 1 << 32);
        let longest = match kind {
            0..85 => 10,
            85..95 => HOUR / 2,
            _ => LONGEST,
        };
        let life = 1 + ((span * longest) >> 32);
        let most = (self.most >> [5, 3, 1, 0][(self.now / HOUR % 4) as usize]).max(self.least);
        let (_, extra) = self.draw.two(1, most - self.least + 1);
        let block = take((self.least + extra) as usize);
        let end = ((self.now + life) % self.wheel.len() as u64) as usize;
        // SAFETY: a block has 16 bytes at least, and is aligned to a pointer.
        unsafe { block.cast::<*mut u8>().write(self.wheel[end]) };
        self.wheel[end] = block;
    }
}

impl Actor for Aging {
    #[inline]
    fn step(&mut self) -> u64 {
        while self.ending.is_null() && self.left == 0 {
            self.now += 1;
            self.left = BLOCKS_A_SECOND;
            let place = (self.now % self.wheel.len() as u64) as usize;
            self.ending = std::mem::replace(&mut self.wheel[place], std::ptr::null_mut());
        }
        if self.ending.is_null() {
            self.left -= 1;
            self.allocate();
        } else {
            // SAFETY: a block of this list, which holds the address of the next.
            let next = unsafe { self.ending.cast::<*mut u8>().read() };
            free(std::mem::replace(&mut self.ending, next));
        }
        1
    }
}

/// A small block for each thread, allocated one after the other by one thread.
pub(super) fn gifts(job: &Loop) -> Vec<usize> {
    (0..job.threads).map(|_| take(job.least_bytes) as usize).collect()
}

/// Writes into a block before it is replaced.
const WRITES: usize = 64;

/// Writes to a block, frees it and takes the next: slow where two threads' blocks share a cache line.
pub(super) struct Sharing {
    block: *mut u8,
    bytes: usize,
}

impl Sharing {
    pub(super) fn new(job: &Loop, gift: usize) -> Sharing {
        Sharing { block: gift as *mut u8, bytes: job.least_bytes }
    }
}

impl Actor for Sharing {
    const BATCH: u64 = 64;
    const MOST_CALLS: u64 = 2;

    #[inline]
    fn step(&mut self) -> u64 {
        for _ in 0..WRITES {
            // SAFETY: this thread's own block.
            unsafe { self.block.write_volatile(self.block.read_volatile().wrapping_add(1)) };
        }
        free(self.block);
        self.block = take(self.bytes);
        2
    }
}

/// Steps in the life of a thread.
const STEPS: u64 = 500;

/// Starts a thread that runs the mixed loop for a short life, and frees what it leaves.
pub(super) struct Churn {
    address: usize,
    len: usize,
    draw: Draw,
    sizes: Sizes,
}

impl Churn {
    pub(super) fn new(job: &Loop, number: usize) -> Churn {
        let table: &mut [*mut u8] = table(job.slots);
        let (address, len) = (table.as_mut_ptr() as usize, table.len());
        Churn { address, len, draw: Draw::new(job, number), sizes: Sizes::of(job) }
    }

    /// The table, of whoever is alone with it.
    fn table(address: usize, len: usize) -> &'static mut [*mut u8] {
        // SAFETY: mapped by `new` with that length and never unmapped; the thread and its parent take turns.
        unsafe { std::slice::from_raw_parts_mut(address as *mut *mut u8, len) }
    }
}

impl Actor for Churn {
    const BATCH: u64 = 1;
    const MOST_CALLS: u64 = u64::MAX;

    fn step(&mut self) -> u64 {
        let Churn { address, len, draw, sizes } = *self;
        let life = std::thread::spawn(move || {
            let mut slots = Slots::<Plain>::over(Churn::table(address, len), draw, sizes, Written::Ends);
            (0..STEPS).for_each(|_| {
                slots.step();
            });
            slots.draw()
        });
        match life.join() {
            Ok(draw) => self.draw = draw,
            Err(_) => broken("a thread did not end well"),
        }
        let mut operations = STEPS;
        for slot in Churn::table(address, len).iter_mut().filter(|slot| !slot.is_null()) {
            free(std::mem::replace(slot, std::ptr::null_mut()));
            operations += 1;
        }
        operations
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::Pattern;

    #[test]
    fn after_six_simulated_hours_as_many_blocks_end_as_begin() {
        let job = Loop {
            pattern: Pattern::Fragmentation,
            threads: 1,
            slots: 1,
            least_bytes: 16,
            most_bytes: 64,
            written: Written::Ends,
            seed: 1,
        };
        let mut aging = Aging::new(&job, 0);
        let mut steps = 0u64;
        while aging.now < LONGEST {
            aging.step();
            steps += 1;
        }
        // What was allocated and not freed is alive: about 40 a second times the mean life, 720 s.
        let alive = 2 * BLOCKS_A_SECOND * LONGEST - steps;
        assert!((20_000..40_000).contains(&alive), "{alive} blocks are alive");
        let before = (steps, aging.now);
        while aging.now < LONGEST + HOUR {
            aging.step();
            steps += 1;
        }
        let rate = (steps - before.0) as f64 / (aging.now - before.1) as f64;
        assert!((78.0..82.0).contains(&rate), "{rate} steps a second");
    }
}
