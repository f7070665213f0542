//! The allocator: blocks that go from thread to thread while threads come and go.

use crate::together;
use core::sync::atomic::{AtomicUsize, Ordering::AcqRel};

/// Names and bodies.
pub const PARTS: &[(&str, fn())] = &[("allocator", allocator)];

const THREADS: usize = 4;
const GENERATIONS: usize = 30;
const ROUNDS: usize = 4_000;

/// Where a thread leaves a block for another, and takes what it finds there.
static MAILBOXES: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

/// Sizes of every kind: small, medium, whole pages, a chunk of its own now and then.
const SIZES: [usize; 8] = [16, 40, 500, 2_000, 9_000, 70_000, 24, 128];

fn allocator() {
    for _ in 0..GENERATIONS {
        together(THREADS, churn);
    }
    for mailbox in &MAILBOXES {
        free(mailbox.swap(0, AcqRel));
    }
}

fn churn(number: usize) {
    let mut random = number as u64 + 1;
    for _ in 0..ROUNDS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let size = SIZES[(random >> 40) as usize % SIZES.len()];
        let block = memfold_heap::malloc(size) as usize;
        assert!(block != 0);
        // SAFETY: the block has so many bytes, and they are this thread's.
        unsafe {
            (block as *mut usize).write(size ^ block);
            (block as *mut u8).add(size - 1).write(1);
        }
        free(MAILBOXES[(random >> 50) as usize % MAILBOXES.len()].swap(block, AcqRel));
    }
}

/// Frees a block that any thread filled; 0 is none.
fn free(block: usize) {
    if block == 0 {
        return;
    }
    // SAFETY: blocks have at least 16 bytes; the mailbox handed this one over.
    unsafe {
        let size = (block as *const usize).read() ^ block;
        assert!(SIZES.contains(&size), "the block is another's");
        memfold_heap::free(block as *mut u8);
    }
}
