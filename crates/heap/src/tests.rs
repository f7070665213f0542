//! What the allocator promises, tried from outside: through its functions only.

use crate::*;
use memfold_sys::PAGE_SIZE;
use proptest::prelude::*;
use std::sync::mpsc;
use std::thread;
use std::vec::Vec;

mod checked;

/// Fills a block with bytes that depend on its tag.
pub(crate) fn fill(ptr: *mut u8, len: usize, tag: u8) {
    // SAFETY: the tests pass blocks of at least `len` bytes.
    let bytes = unsafe { core::slice::from_raw_parts_mut(ptr, len) };
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = tag ^ (index as u8).wrapping_mul(31);
    }
}

/// Whether a block still holds what [`fill`] wrote.
pub(crate) fn holds(ptr: *const u8, len: usize, tag: u8) -> bool {
    // SAFETY: the tests pass blocks of at least `len` bytes.
    let bytes = unsafe { core::slice::from_raw_parts(ptr, len) };
    bytes.iter().enumerate().all(|(index, byte)| *byte == tag ^ (index as u8).wrapping_mul(31))
}

pub(crate) fn release(ptr: *mut u8) {
    // SAFETY: the tests free each block once.
    unsafe { free(ptr) }
}

fn usable(ptr: *mut u8) -> usize {
    // SAFETY: the tests pass live blocks.
    unsafe { usable_size(ptr) }
}

fn resize(ptr: *mut u8, size: usize) -> *mut u8 {
    // SAFETY: the tests use only the result afterwards.
    unsafe { realloc(ptr, size) }
}

#[test]
fn every_size_up_to_1_mib_gets_an_aligned_block_with_bounded_waste() {
    let sizes = (0..=70_000).chain((70_000..=1 << 20).step_by(997));
    for size in sizes {
        let block = malloc(size);
        assert!(!block.is_null());
        assert_eq!(block as usize % 16, 0, "{size}");
        let waste = usable(block).checked_sub(size).expect("a block shorter than asked");
        let bound = if size <= 128 { 16 } else { usable(block) / 8 };
        assert!(waste <= bound, "{size} wastes {waste}");
        release(block);
    }
}

/// The pages that blocks lie on.
fn pages(blocks: &[(*mut u8, usize)]) -> std::collections::BTreeSet<usize> {
    let pages = |&(block, size): &(*mut u8, usize)| {
        (block as usize / PAGE_SIZE)..=((block as usize + size.max(1) - 1) / PAGE_SIZE)
    };
    blocks.iter().flat_map(pages).collect()
}

#[test]
fn cold_blocks_share_no_page_with_others_however_both_come_and_go() {
    const SIZES: [usize; 6] = [0, 16, 100, 700, 5000, 40_000];
    let (mut hot, mut cold) = (Vec::new(), Vec::new());
    for round in 0..20_000usize {
        let size = SIZES[round % SIZES.len()];
        let (of_which, block) = match round / 7 % 2 {
            0 => (&mut hot, malloc(size)),
            _ => (&mut cold, aligned_cold(0, size)),
        };
        assert!(!block.is_null());
        fill(block, size, round as u8);
        of_which.push((block, size, round as u8));
        if round % 3 == 0 {
            let freed: Vec<_> = [&mut hot, &mut cold]
                .into_iter()
                .filter(|blocks| blocks.len() > 500)
                .map(|blocks| blocks.swap_remove(round * 7919 % blocks.len()))
                .collect();
            for (block, size, tag) in freed {
                assert!(holds(block, size, tag));
                // By this thread, or by another that then allocates.
                if round % 2 == 0 {
                    release(block);
                } else {
                    let block = block as usize;
                    thread::scope(|scope| {
                        scope.spawn(move || release(block as *mut u8));
                    });
                }
            }
        }
    }
    let plain = |blocks: &[(*mut u8, usize, u8)]| -> Vec<(*mut u8, usize)> {
        blocks.iter().map(|&(block, size, _)| (block, size)).collect()
    };
    assert!(pages(&plain(&hot)).is_disjoint(&pages(&plain(&cold))));
    for (block, size, tag) in hot.into_iter().chain(cold) {
        assert!(holds(block, size, tag));
        release(block);
    }
}

#[test]
fn what_a_thread_frees_of_cold_blocks_is_not_handed_out_by_malloc() {
    for size in [48, 200, 3000] {
        let cold: Vec<usize> = (0..200).map(|_| aligned_cold(16, size) as usize).collect();
        // A span with none left may serve for anything.
        // In no order: the cold heaps of several threads take turns.
        let is_kept = |index: &usize| ((index * 0x9E37_79B1) >> 16).is_multiple_of(8);
        let (kept, freed): (Vec<_>, Vec<_>) = (0..200).partition(is_kept);
        freed.iter().for_each(|&index| release(cold[index] as *mut u8));
        let hot: Vec<*mut u8> = (0..400).map(|_| malloc(size)).collect();
        assert!(hot.iter().all(|&block| !cold.contains(&(block as usize))), "{size}");
        // They serve as cold ones again, once what the thread gathered was sent, and the cold heap that they are of has nothing else: the other tests'
        // threads have such heaps, too.
        trim(0);
        let freed: std::collections::BTreeSet<usize> = freed.iter().map(|&index| cold[index]).collect();
        let mut again = Vec::new();
        while !again.last().is_some_and(|&block| freed.contains(&(block as usize))) {
            assert!(again.len() < 1 << 20, "{size}");
            again.push(aligned_cold(16, size));
        }
        let kept = kept.into_iter().map(|index| cold[index] as *mut u8);
        hot.into_iter().chain(again).chain(kept).for_each(release);
    }
}

#[test]
fn a_cold_block_is_aligned_and_a_long_one_is_like_any_other() {
    for align in [0, 1, 16, 64, 512, PAGE_SIZE, 4 * PAGE_SIZE] {
        for size in [0, 1, 24, 900, 9000, 65_536, 65_537, 1 << 20] {
            let block = aligned_cold(align, size);
            assert!(!block.is_null() && (block as usize).is_multiple_of(align.max(16)), "{align} {size}");
            assert!(usable(block) >= size);
            fill(block, size, 9);
            assert!(holds(block, size, 9));
            release(block);
        }
    }
    assert!(aligned_cold(16, usize::MAX).is_null());
}

#[test]
fn cold_blocks_of_many_threads_keep_their_bytes_across_forks() {
    let work = |seed: usize| {
        let mut live = Vec::new();
        for round in 0..4000usize {
            let size = 16 + (round * 31 + seed * 57) % 2000;
            let block = if round % 2 == 0 { aligned_cold(16, size) } else { malloc(size) };
            fill(block, size, (round ^ seed) as u8);
            live.push((block, size, (round ^ seed) as u8));
            if live.len() > 200 {
                let (block, size, tag) = live.swap_remove(round * 7919 % live.len());
                assert!(holds(block, size, tag));
                release(block);
            }
        }
        live.into_iter().all(|(block, size, tag)| {
            let whole = holds(block, size, tag);
            release(block);
            whole
        })
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|seed| scope.spawn(move || work(seed))).collect();
        for _ in 0..10 {
            assert!(in_child(|| work(9)));
        }
        assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
    });
}

#[test]
fn a_request_of_zero_bytes_gets_a_block_of_its_own() {
    let (a, b) = (malloc(0), malloc(0));
    assert!(!a.is_null() && !b.is_null() && a != b);
    release(a);
    release(b);
}

#[test]
fn requests_beyond_ptrdiff_max_and_products_that_overflow_are_refused() {
    assert!(malloc(MAX_REQUEST + 1).is_null());
    assert!(malloc(usize::MAX).is_null());
    assert!(calloc(usize::MAX / 2, 3).is_null());
    assert!(aligned(1 << 40, usize::MAX - 100).is_null());
    let block = malloc(100);
    assert!(resize(block, MAX_REQUEST + 1).is_null());
    fill(block, 100, 1);
    release(block);
}

#[test]
fn addresses_of_other_allocators_are_left_alone() {
    let mut other = [0u8; 64];
    let inside = other.as_mut_ptr().wrapping_add(16);
    release(inside);
    release(core::ptr::null_mut());
    assert_eq!(usable(inside), 0);
    assert!(resize(inside, 32).is_null());
    assert!(!is_ours(inside));
}

#[test]
fn calloc_gives_zeros_even_where_others_wrote() {
    for round in 0..3 {
        for size in [1, 24, 500, 2049, 5000, 40_000, 70_000, 300_000, 3_000_000] {
            let blocks: Vec<_> = (0..4).map(|_| calloc(size, 1)).collect();
            for block in &blocks {
                // SAFETY: the block has `size` bytes.
                let bytes = unsafe { core::slice::from_raw_parts(*block, size) };
                assert!(bytes.iter().all(|byte| *byte == 0), "{size} in round {round}");
                fill(*block, usable(*block), 0xa5);
            }
            blocks.into_iter().for_each(release);
        }
    }
}

#[test]
fn every_alignment_up_to_4_mib_is_kept_at_every_kind_of_size() {
    for shift in 0..=22 {
        for size in [0, 1, 17, 300, 4096, 5000, 33_000, 100_000, 3 << 20, 20 << 20] {
            let block = aligned(1 << shift, size);
            assert!(!block.is_null());
            assert_eq!(block as usize % (1 << shift), 0, "{size} at 2^{shift}");
            assert!(usable(block) >= size);
            // SAFETY: first and last byte of the block.
            unsafe {
                block.write(1);
                block.add(size.saturating_sub(1)).write(2);
            }
            release(block);
        }
    }
}

#[test]
fn a_block_grown_and_shrunk_through_every_kind_keeps_its_bytes() {
    let sizes = [10, 200, 5_000, 60_000, 100_000, 90_000, 9 << 20, 20 << 20, 70 << 20, 17 << 20, 70_000, 30];
    let mut block = malloc(1);
    let mut len = 1;
    fill(block, 1, 7);
    for size in sizes {
        block = resize(block, size);
        assert!(!block.is_null());
        assert!(usable(block) >= size);
        assert!(holds(block, len.min(size), 7), "from {len} to {size}");
        fill(block, size, 7);
        len = size;
    }
    release(block);
}

#[test]
fn blocks_allocated_under_a_guard_are_pinned_and_others_are_not() {
    let domain = |block: *mut u8| memfold_arena::lookup(block as usize).unwrap().domain();
    for size in [1, 100, 3000, 50_000, 1 << 20, 40 << 20] {
        let outside = malloc(size);
        let guard = pinned();
        let inside = malloc(size);
        // Freed under the guard, a managed block must not come back as a pinned one.
        release(outside);
        let again = malloc(size);
        drop(guard);
        let after = malloc(size);
        assert_eq!(domain(inside), memfold_arena::Domain::Pinned, "{size}");
        assert_eq!(domain(again), memfold_arena::Domain::Pinned, "{size}");
        assert_eq!(domain(after), memfold_arena::Domain::Managed, "{size}");
        [inside, again, after].into_iter().for_each(release);
        let reused = malloc(size);
        assert_eq!(domain(reused), memfold_arena::Domain::Managed, "{size}");
        release(reused);
    }
}

#[test]
fn blocks_freed_by_another_thread_come_back_to_the_one_that_allocates() {
    let (send, receive) = mpsc::sync_channel::<usize>(1000);
    let consumer = thread::spawn(move || {
        for block in receive {
            assert!(holds(block as *const u8, 1000, 3));
            release(block as *mut u8);
        }
    });
    let mut seen = std::collections::HashSet::new();
    for _ in 0..200_000 {
        let block = malloc(1000);
        fill(block, 1000, 3);
        seen.insert(block as usize);
        send.send(block as usize).unwrap();
    }
    drop(send);
    consumer.join().unwrap();
    assert!(seen.len() < 20_000, "{} different blocks for at most 1000 in flight", seen.len());
}

#[test]
fn blocks_of_mixed_sizes_and_of_one_size_by_turns_keep_their_bytes_and_come_back_from_another_thread() {
    let (send, receive) = mpsc::sync_channel::<(usize, usize)>(1000);
    let consumer = thread::spawn(move || {
        for (block, size) in receive {
            assert!(holds(block as *const u8, size, size as u8));
            release(block as *mut u8);
        }
    });
    let mut seen = std::collections::HashSet::new();
    // Longer than a thread does without runs where they do not pay.
    const TURN: usize = 10_000;
    let mut state = 77u64;
    for number in 0..12 * TURN {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let is_mixed = (number / TURN).is_multiple_of(2);
        let size = if is_mixed { 64 + (state >> 33) as usize % 4000 } else { 64 };
        let block = malloc(size);
        fill(block, size, size as u8);
        seen.insert(block as usize);
        send.send((block as usize, size)).unwrap();
    }
    drop(send);
    consumer.join().unwrap();
    assert!(seen.len() < 20_000, "{} different blocks for at most 1000 in flight", seen.len());
}

#[test]
fn what_a_thread_frees_of_another_is_its_own_to_use_but_not_where_it_must_be_pinned_nor_within_a_cache_line()
{
    // More than a bin keeps, so that some goes back to the thread that allocated it.
    const BLOCKS: usize = 500;
    for (size, kept) in [(48, false), (64, true), (1000, true)] {
        let theirs: Vec<usize> = (0..BLOCKS).map(|_| malloc(size) as usize).collect();
        let freed = theirs.clone();
        let checks = thread::spawn(move || {
            freed.iter().for_each(|&block| release(block as *mut u8));
            let pinned = pinned();
            let inside = malloc(size);
            drop(pinned);
            let own: Vec<*mut u8> = (0..BLOCKS).map(|_| malloc(size)).collect();
            let met = own.iter().filter(|&&block| freed.contains(&(block as usize))).count();
            let pinned_met = freed.contains(&(inside as usize));
            own.iter().chain([&inside]).for_each(|&block| release(block));
            (met, pinned_met)
        });
        let (met, pinned_met) = checks.join().unwrap();
        assert_eq!(met > 0, kept, "blocks of {size} bytes");
        assert!(met <= 64, "a bin kept {met} blocks of {size} bytes");
        assert!(!pinned_met, "memory that may be evicted was handed out as pinned");
        let again: Vec<*mut u8> = (0..2 * BLOCKS).map(|_| malloc(size)).collect();
        for (tag, &block) in again.iter().enumerate() {
            fill(block, size, tag as u8);
        }
        assert!(
            again.iter().enumerate().all(|(tag, &block)| holds(block, size, tag as u8)),
            "handed out twice"
        );
        assert!(theirs.iter().filter(|&&block| again.contains(&(block as *mut u8))).count() > BLOCKS / 2);
        again.into_iter().for_each(release);
    }
}

#[test]
fn threads_that_come_and_go_leave_their_memory_to_others() {
    let churn = || {
        for _ in 0..300 {
            let blocks = thread::spawn(|| {
                let blocks: Vec<usize> = (0..500).map(|n| malloc(16 + n) as usize).collect();
                blocks.iter().for_each(|block| fill(*block as *mut u8, 16, 9));
                blocks
            });
            for block in blocks.join().unwrap() {
                assert!(holds(block as *const u8, 16, 9));
                release(block as *mut u8);
            }
        }
    };
    churn();
    let before = memfold_arena::COUNTERS.record_bytes.get();
    churn();
    let grown = memfold_arena::COUNTERS.record_bytes.get() - before;
    assert!(grown < 1 << 20, "300 threads, one at a time, cost {grown} bytes of records");
}

/// Bytes of blocks that somebody uses.
fn used_bytes() -> usize {
    stats::used_bytes(&stats::classes())
}

/// A thread that allocates so many blocks of 1000 bytes, and ends.
fn blocks_of_a_thread_that_is_gone(count: usize) -> Vec<usize> {
    thread::spawn(move || (0..count).map(|_| malloc(1000) as usize).collect()).join().unwrap()
}

#[test]
fn a_thread_has_its_heap_while_destructors_of_other_keys_run() {
    use core::sync::atomic::{AtomicU32, Ordering::SeqCst};
    /// How often it ran, and how often the thread had a heap.
    static RUNS: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];
    extern "C" fn destroy(block: *mut libc::c_void) {
        let has_heap = !registry::is_sentinel(tls::get());
        RUNS[0].fetch_add(1, SeqCst);
        RUNS[1].fetch_add(u32::from(has_heap), SeqCst);
        release(block.cast());
    }
    release(malloc(100));
    let mut key = 0;
    // SAFETY: the function stays, and has the right type.
    assert_eq!(unsafe { libc::pthread_key_create(&mut key, Some(destroy)) }, 0);
    for _ in 0..10 {
        // SAFETY: the key exists.
        let thread = move || unsafe { libc::pthread_setspecific(key, malloc(100).cast()) };
        assert_eq!(thread::spawn(thread).join().unwrap(), 0);
    }
    assert_eq!(RUNS.each_ref().map(|runs| runs.load(SeqCst)), [10, 10]);
}

#[test]
fn what_a_thread_that_ends_frees_of_others_that_are_gone_is_given_back() {
    assert!(in_child(|| {
        let before = used_bytes();
        let blocks = blocks_of_a_thread_that_is_gone(32_000);
        let own = tls::get();
        // As it is when the last destructors run.
        tls::set(&tls::EXITED);
        blocks.into_iter().for_each(|block| release(block as *mut u8));
        tls::set(own);
        let left = used_bytes().saturating_sub(before);
        if left > 8 << 20 {
            std::eprintln!("{left} bytes were left");
        }
        left <= 8 << 20
    }));
}

#[test]
fn what_is_freed_of_many_threads_that_are_gone_is_given_back_however_many_they_are() {
    const THREADS: usize = 400;
    assert!(in_child(|| {
        let before = used_bytes();
        // All at once, so that each has a heap of its own.
        let all = std::sync::Arc::new(std::sync::Barrier::new(THREADS));
        let one = |_| {
            let all = all.clone();
            thread::spawn(move || {
                let blocks: Vec<usize> = (0..400).map(|_| malloc(1000) as usize).collect();
                all.wait();
                blocks
            })
        };
        let threads: Vec<_> = (0..THREADS).map(one).collect();
        let blocks: Vec<Vec<usize>> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        for at in 0..400 {
            blocks.iter().for_each(|blocks| release(blocks[at] as *mut u8));
        }
        let left = used_bytes().saturating_sub(before);
        if left > 32 << 20 {
            std::eprintln!("{left} bytes were left");
        }
        left <= 32 << 20
    }));
}

#[test]
fn a_thread_that_is_gone_is_not_found_by_its_number_whoever_has_its_heap() {
    let tid = thread::spawn(|| {
        release(malloc(100));
        memfold_sys::thread::current_tid()
    });
    let tid = tid.join().unwrap();
    let mut heaps = Vec::with_capacity(1000);
    while let Some(heap) = registry::pop_idle(memfold_arena::Domain::Managed) {
        heaps.push(heap);
    }
    let found = with_thread_pointer_of(tid, Some);
    heaps.into_iter().for_each(registry::put_idle);
    assert_eq!(found, None);
}

/// Runs `body` in a forked child and says whether it returned true.
pub(crate) fn in_child(body: impl FnOnce() -> bool) -> bool {
    in_child_after(|| {}, body)
}

/// The same, and `first` when the fork is prepared.
fn in_child_after(first: impl FnOnce(), body: impl FnOnce() -> bool) -> bool {
    fork_prepare();
    first();
    // SAFETY: the child runs `body`, which uses this allocator only, and exits without running anything else.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        fork_child();
        // A panic must not leave the child.
        let right = std::panic::catch_unwind(core::panic::AssertUnwindSafe(body)).unwrap_or(false);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    fork_parent();
    let mut status = -1;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    status == 0
}

#[test]
fn a_fork_that_a_signal_handler_interrupts_and_forks_too_leaves_each_child_its_heap_and_no_lock() {
    let before = malloc(100);
    let own = tls::get();
    let goes_on = || {
        // Who waits for a lock that nobody has waits for ever.
        // SAFETY: ends the child some time.
        unsafe { libc::alarm(60) };
        let (small, large) = (malloc(100), malloc(3 << 20));
        let right = !small.is_null() && !large.is_null() && tls::get().is(own);
        [before, small, large].into_iter().for_each(release);
        registry::tidy_idle();
        right && own.state.load(core::sync::atomic::Ordering::Relaxed) == heap::State::InUse as u8
    };
    let mut of_handler = false;
    let of_interrupted = in_child_after(|| of_handler = in_child(goes_on), goes_on);
    assert!(of_handler && of_interrupted, "{of_handler} {of_interrupted}");
    release(before);
}

#[test]
fn a_forked_child_allocates_and_frees_while_other_threads_of_the_parent_were_busy() {
    let stop = std::sync::Arc::new(core::sync::atomic::AtomicBool::new(false));
    let kept: Vec<Vec<usize>> = (0..3)
        .map(|_| {
            thread::spawn(|| {
                let blocks: Vec<usize> = (0..2000).map(|n| malloc(16 + n % 3000) as usize).collect();
                blocks.iter().for_each(|block| fill(*block as *mut u8, 16, 5));
                blocks
            })
        })
        .map(|thread| thread.join().unwrap())
        .collect();
    let (send, receive) = mpsc::channel();
    let busy: Vec<_> = (0..2u8)
        .map(|tag| {
            let (stop, send) = (stop.clone(), send.clone());
            thread::spawn(move || {
                let mine: Vec<usize> = (0..1000).map(|n| malloc(16 + n * 3) as usize).collect();
                mine.iter().for_each(|block| fill(*block as *mut u8, 16, tag));
                send.send(mine).unwrap();
                let mut slots = [core::ptr::null_mut(); 64];
                let mut turn = 0usize;
                while !stop.load(core::sync::atomic::Ordering::Relaxed) {
                    turn = turn.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let slot = &mut slots[turn >> 58];
                    release(*slot);
                    *slot = malloc(turn >> 40 & 0xfff);
                }
                slots.into_iter().for_each(release);
            })
        })
        .collect();
    let theirs: Vec<Vec<usize>> = (0..2).map(|_| receive.recv().unwrap()).collect();
    for round in 0..20 {
        let ok = in_child(|| {
            let mut ok = true;
            // Not only the dead threads' blocks: those of threads that run in the parent at this moment.
            for block in kept.iter().chain(&theirs).flatten() {
                release(*block as *mut u8);
            }
            let mut blocks = [core::ptr::null_mut::<u8>(); 4000];
            for (n, block) in blocks.iter_mut().enumerate() {
                *block = malloc(16 + n % 3000);
                ok &= !block.is_null();
                fill(*block, 16 + n % 3000, n as u8);
            }
            for (n, block) in blocks.iter().enumerate() {
                ok &= holds(*block, 16 + n % 3000, n as u8);
                release(*block);
            }
            ok
        });
        assert!(ok, "the child of round {round} failed");
    }
    stop.store(true, core::sync::atomic::Ordering::Relaxed);
    busy.into_iter().for_each(|thread| thread.join().unwrap());
    kept.into_iter().chain(theirs).flatten().for_each(|block| release(block as *mut u8));
}

/// Thread-local variables for another thread: a copy of the calling thread's, but for its heap where that is to be `fresh`.
#[cfg(target_arch = "x86_64")]
fn thread_variables(memory: &mut [u8; 16384], fresh: bool) -> usize {
    // Behind the thread pointer lies libc's record of the thread, before it the variables.
    const BEFORE: usize = 8192;
    const BEHIND: usize = 2048;
    let own = memfold_sys::thread::pointer();
    let copy = (memory.as_mut_ptr() as usize + BEFORE).next_multiple_of(64);
    let heap = tls::get();
    if fresh {
        tls::set(&tls::EMPTY);
    }
    // SAFETY: so many bytes before and behind its pointer are the thread's, and the copy lies in `memory`.
    unsafe {
        core::ptr::copy_nonoverlapping(
            (own - BEFORE) as *const u8,
            (copy - BEFORE) as *mut u8,
            BEFORE + BEHIND,
        );
        (copy as *mut usize).write(copy);
    }
    tls::set(heap);
    copy
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_child_with_another_thread_pointer_allocates_and_frees() {
    for fresh in [false, true] {
        let before = malloc(100);
        fill(before, 100, 7);
        let mut memory = [0; 16384];
        let variables = thread_variables(&mut memory, fresh);
        fork_prepare();
        let flags = libc::CLONE_SETTLS | libc::SIGCHLD;
        // SAFETY: the child, which has a copy of this stack, uses this allocator only and exits.
        let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, variables) };
        if pid == 0 {
            // Who waits for a lock that nobody has waits for ever.
            // SAFETY: ends the child some time.
            unsafe { libc::alarm(60) };
            fork_child();
            let (other, again) = (malloc(100), malloc(3 << 20));
            fill(other, 100, 9);
            let right = holds(before, 100, 7) && other != before && !again.is_null();
            [before, other, again].into_iter().for_each(release);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        fork_parent();
        let mut status = -1;
        // SAFETY: waits for our own child.
        unsafe { libc::waitpid(pid as i32, &mut status, 0) };
        assert_eq!(status, 0, "fresh variables: {fresh}");
        release(before);
    }
}

#[test]
fn a_child_uses_again_what_it_frees_of_its_parents_other_threads() {
    let (send, receive) = mpsc::channel();
    let (done, wait) = mpsc::channel::<()>();
    let owner = thread::spawn(move || {
        send.send((0..50_000).map(|_| malloc(1008) as usize).collect::<Vec<_>>()).unwrap();
        wait.recv().unwrap();
    });
    let blocks = receive.recv().unwrap();
    let ok = in_child(|| {
        blocks.iter().for_each(|block| release(*block as *mut u8));
        let before = memfold_arena::COUNTERS.mapped_bytes.get();
        let all = (0..45_000).all(|_| !malloc(1008).is_null());
        // What other tests have made of the free memory may leave one chunk too few, which is 8 MiB.
        all && memfold_arena::COUNTERS.mapped_bytes.get() < before + (16 << 20)
    });
    assert!(ok, "45 MB were freed in the child, and 45 MB more mapped");
    done.send(()).unwrap();
    owner.join().unwrap();
    blocks.into_iter().for_each(|block| release(block as *mut u8));
}

#[derive(Clone, Debug)]
enum Act {
    Malloc(usize),
    Calloc(usize),
    Aligned(u32, usize),
    Free(usize),
    Resize(usize, usize),
    Trim,
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 0..2100usize, 3 => 2000..70_000usize, 1 => 60_000..3_000_000usize]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => size().prop_map(Act::Malloc),
        1 => size().prop_map(Act::Calloc),
        1 => (0..16u32, size()).prop_map(|(shift, size)| Act::Aligned(shift, size)),
        4 => any::<usize>().prop_map(Act::Free),
        2 => (any::<usize>(), size()).prop_map(|(which, size)| Act::Resize(which, size)),
        1 => Just(Act::Trim),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn live_blocks_never_overlap_and_keep_their_bytes(acts in prop::collection::vec(act(), 1..200)) {
        let mut live: Vec<(*mut u8, usize, u8)> = Vec::new();
        for (turn, act) in acts.into_iter().enumerate() {
            let tag = turn as u8;
            let fresh = match act {
                Act::Malloc(size) => Some((malloc(size), size)),
                Act::Calloc(size) => {
                    let block = calloc(1, size);
                    // SAFETY: the block has `size` bytes.
                    let bytes = unsafe { core::slice::from_raw_parts(block, size) };
                    prop_assert!(bytes.iter().all(|b| *b == 0));
                    Some((block, size))
                }
                Act::Aligned(shift, size) => {
                    let block = aligned(1 << shift, size);
                    prop_assert_eq!(block as usize % (1 << shift), 0);
                    Some((block, size))
                }
                Act::Free(which) if !live.is_empty() => {
                    let (block, size, tag) = live.swap_remove(which % live.len());
                    prop_assert!(holds(block, size, tag));
                    release(block);
                    None
                }
                Act::Resize(which, size) if !live.is_empty() && size > 0 => {
                    let (block, old, tag) = live.swap_remove(which % live.len());
                    let block = resize(block, size);
                    prop_assert!(holds(block, old.min(size), tag));
                    Some((block, size))
                }
                Act::Trim => {
                    trim(0);
                    None
                }
                _ => None,
            };
            if let Some((block, size)) = fresh {
                prop_assert!(!block.is_null() && usable(block) >= size);
                let range = block as usize..block as usize + usable(block);
                for (other, _, _) in &live {
                    let end = *other as usize + usable(*other);
                    prop_assert!(range.end <= *other as usize || end <= range.start);
                }
                fill(block, size, tag);
                live.push((block, size, tag));
            }
        }
        for (block, size, tag) in live {
            prop_assert!(holds(block, size, tag));
            release(block);
        }
    }
}
