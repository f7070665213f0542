//! The allocator and the parts at which the pager's threads meet, under load on real threads, for the sanitizers.
//!
//! What it is: a program for `scripts/sanitize`. Each part guards plain memory, which ThreadSanitizer watches. The threads
//! are libc's own, because the standard library, whose channels and reference counts are built without the sanitizer, would
//! be reported. What it is not: a model; it sees the orders that happen.

// The pager's files ask this crate for the kernel.
extern crate linux as memfold_sys;

/// Declares modules whose files are the pager's.
macro_rules! included {
    ($($path:literal $name:ident,)+) => {$(
        #[allow(dead_code, unused_imports, reason = "the program uses a part of each file")]
        #[path = $path]
        mod $name;
    )+};
}

included! {
    "../../../pager/src/blocks.rs" blocks,
    "../../../pager/src/free_queue.rs" free_queue,
    "../../../pager/src/gate.rs" gate,
    "../../../pager/src/lock.rs" lock,
    "../../../pager/src/fault/prefetch.rs" prefetch,
    "../../../pager/src/sabotage.rs" sabotage,
    "../../../pager/src/slot.rs" slot,
    "../../../pager/src/store.rs" store,
    "../../../pager/src/sync.rs" sync,
    "../../../pager/src/turns.rs" turns,
}

mod allocator;
mod parts;

/// What the store asks of the codecs.
mod codec {
    /// As in the pager.
    pub const MAX_STORED: usize = memfold_sys::PAGE_SIZE * 95 / 100;

    /// As in the pager.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum CodecId {
        Lz4 = 0,
    }

    /// As in the pager.
    pub const DICTIONARIES: usize = 1;

    impl CodecId {
        pub fn is_whole(self) -> bool {
            false
        }

        pub fn from_bits(bits: u64) -> Option<CodecId> {
            (bits == 0).then_some(CodecId::Lz4)
        }

        pub fn bits(self) -> u64 {
            self as u64
        }

        pub fn dictionary(self) -> Option<usize> {
            None
        }
    }
}

/// Runs `body(0)`, `body(1)` and so on in threads of their own and waits for all.
fn together(threads: usize, body: fn(usize)) {
    extern "C" fn start(task: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: the task was boxed for this thread.
        let (body, number) = *unsafe { Box::from_raw(task.cast::<(fn(usize), usize)>()) };
        body(number);
        core::ptr::null_mut()
    }
    let started: Vec<libc::pthread_t> = (0..threads)
        .map(|number| {
            let task = Box::into_raw(Box::new((body, number)));
            let mut thread = 0;
            // SAFETY: the task stays until the thread has taken it.
            let result = unsafe { libc::pthread_create(&mut thread, core::ptr::null(), start, task.cast()) };
            assert_eq!(result, 0, "pthread_create");
            thread
        })
        .collect();
    for thread in started {
        // SAFETY: each thread is joined once.
        assert_eq!(unsafe { libc::pthread_join(thread, core::ptr::null_mut()) }, 0, "pthread_join");
    }
}

fn main() {
    // With `PLANTED_BUG=turn-not-taken`, ThreadSanitizer must find a race.
    sabotage::choose(None);
    for (name, part) in parts::PARTS.iter().chain(allocator::PARTS) {
        part();
        println!("{name}: done");
    }
}
