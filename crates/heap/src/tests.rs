//! What the allocator promises, tried from outside: through its functions only.

use crate::*;
use memfold_sys::PAGE_SIZE;
use proptest::prelude::*;
use std::sync::mpsc;
use std::thread;
use std::vec::Vec;

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

/// Runs `body` in a forked child and says whether it returned true.
pub(crate) fn in_child(body: impl FnOnce() -> bool) -> bool {
    fork_prepare();
    // SAFETY: the child runs `body`, which uses this allocator only, and exits without running anything else.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        fork_child();
        let code = if body() { 0 } else { 1 };
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    fork_parent();
    let mut status = -1;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    status == 0
}

#[test]
fn no_block_of_a_span_from_before_the_checks_serves_after_them() {
    assert!(in_child(|| {
        // Of a thread that is gone, whose heap waits for another with free blocks in its spans; and of this one.
        let take = || (0..200).map(|_| malloc(100) as usize).collect::<Vec<_>>();
        let of_another = thread::spawn(move || {
            let (kept, freed) = (take(), take());
            freed.iter().for_each(|block| release(*block as *mut u8));
            kept
        });
        let before: Vec<_> = of_another.join().into_iter().flatten().chain(take()).collect();
        harden(0x5555_1234_9abc_def1, report);
        before.iter().for_each(|block| release(*block as *mut u8));
        let from = |blocks: &[usize]| blocks.iter().all(|block| !before.contains(block));
        let others: Vec<_> = (0..4)
            .map(|_| thread::spawn(move || (0..5000).map(|_| malloc(100) as usize).collect::<Vec<_>>()))
            .collect();
        let own: Vec<_> = (0..5000).map(|_| malloc(100) as usize).collect();
        from(&own) && others.into_iter().all(|other| other.join().is_ok_and(|blocks| from(&blocks)))
    }));
}

#[test]
fn a_block_from_before_the_checks_is_not_at_hand_after_them() {
    let class = classes::of(100);
    let is_at_hand = || tls::get().bin(class).has_some();
    assert!(in_child(|| {
        let block = malloc(100);
        harden(1, |_, _, _| ());
        let own = malloc(100);
        release(block);
        let right = !is_at_hand();
        release(own);
        right && !is_at_hand()
    }));
}

/// How many pages the kernel has put before the calling thread.
fn faults() -> i64 {
    // SAFETY: numbers, which may be zero, and which the call fills in.
    unsafe {
        let mut usage = core::mem::zeroed::<libc::rusage>();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
        usage.ru_minflt
    }
}

#[test]
fn a_page_of_checked_blocks_is_not_read_before_it_is_written_to() {
    assert!(in_child(|| {
        harden(7, report);
        let before = faults();
        let blocks: Vec<_> = (0..10_000).map(|_| malloc(1000)).collect();
        let (fresh, pages) = (faults() - before, (10_000 * 1008 / PAGE_SIZE) as i64);
        blocks.into_iter().for_each(release);
        if fresh > pages * 3 / 2 {
            std::eprintln!("{fresh} faults for {pages} pages");
        }
        fresh <= pages * 3 / 2
    }));
}

/// What a report must say for the child of [`is_caught`] to end as it should.
static EXPECTED: std::sync::OnceLock<&str> = std::sync::OnceLock::new();

/// Ends the process by 0 if this is what was expected to be found.
fn report(what: &str, _: usize, _: usize) {
    let expected = EXPECTED.get().is_some_and(|expected| what.contains(expected));
    if !expected {
        std::eprintln!("reported instead: {what}");
    }
    // SAFETY: ends the child at once.
    unsafe { libc::_exit(if expected { 0 } else { 2 }) };
}

/// Whether `misuse`, in a child whose blocks are checked, ends the child with a report that says so.
fn is_caught(said: &'static str, misuse: impl FnOnce()) -> bool {
    in_child(|| {
        let _ = EXPECTED.set(said);
        harden(0x1234_5678_9abc_def1, report);
        misuse();
        false
    })
}

fn write(block: *mut u8, offset: isize) {
    // SAFETY: none; that is what is tested.
    unsafe { *block.offset(offset) ^= 0x41 };
}

const KINDS: [usize; 9] = [1, 8, 9, 24, 100, 1000, 4096, 20_000, 60_000];

#[test]
fn a_byte_behind_a_block_that_was_written_to_is_found_when_the_block_is_freed() {
    for size in KINDS.into_iter().chain([65_530, 100_000]) {
        for beyond in [0, 7, 31] {
            let at = size as isize + beyond;
            if size > classes::LARGEST - 64 && at >= size.next_multiple_of(4096) as isize {
                // A page that cannot be touched.
                continue;
            }
            let caught = is_caught("behind its end", || {
                let block = malloc(size);
                write(block, at);
                release(block);
            });
            assert!(caught, "{at} of {size}");
        }
    }
}

#[test]
fn a_byte_before_a_block_that_was_written_to_is_found() {
    for size in KINDS {
        for before in [1, 8, 32] {
            // The one before it may be free, none at all, or a block: then what lies further before is that one's.
            for others in if before <= 8 { &[0, 300][..] } else { &[0] } {
                let caught = is_caught("a block was written to", || {
                    let blocks: Vec<_> = (0..*others).map(|_| malloc(size)).collect();
                    let block = malloc(size);
                    write(block, -before);
                    release(block);
                    blocks.into_iter().for_each(release);
                });
                assert!(caught, "{before} before {size}, {others} others");
            }
        }
    }
}

#[test]
fn a_block_that_is_freed_twice_is_found_however_late_and_whoever_does_it() {
    const SAID: &str = "a block was freed twice";
    for size in KINDS.into_iter().chain([0, 100_000, 3 << 20]) {
        let twice = |between: fn(usize)| {
            is_caught(SAID, || {
                let block = malloc(size);
                release(block);
                between(size);
                release(block);
            })
        };
        assert!(twice(|_| {}), "{size}");
        assert!(twice(|size| release(malloc(size))), "{size}, another between");
        assert!(twice(|size| (0..20).for_each(|_| release(malloc(size)))), "{size}, more between");
    }
    assert!(is_caught(SAID, || {
        let block = malloc(100) as usize;
        release(block as *mut u8);
        let _ = thread::spawn(move || release(block as *mut u8)).join();
    }));
}

/// Ends the process by 0 if it is known who allocated and who freed the block.
fn report_with_trace(_: &str, address: usize, _: usize) {
    let known = |freed| trace_of(address, freed, &mut [0; 128]) > 3;
    // SAFETY: ends the child at once.
    unsafe { libc::_exit(if known(false) && known(true) { 0 } else { 2 }) };
}

#[test]
fn of_a_block_that_was_freed_twice_it_is_known_who_allocated_and_who_freed_it() {
    for size in [24, 1000, 60_000, 200_000] {
        assert!(
            in_child(|| {
                memfold_unwind::find_loader();
                harden(0x1234_5678_9abc_def1, report_with_trace);
                assert!(trace(0..0));
                let block = malloc(size);
                let mut calls = [0; 128];
                // While it is live nobody freed it.
                let (allocated, freed) =
                    (trace_of(block as usize, false, &mut calls), trace_of(block as usize, true, &mut calls));
                assert!(allocated > 3 && freed == 0);
                (0..20).for_each(|_| release(malloc(size)));
                release(block);
                release(block);
                false
            }),
            "{size}"
        );
    }
}

#[test]
fn an_address_that_is_no_block_is_found_when_it_is_freed_or_resized() {
    let on_stack = [0u8; 64];
    let in_library = on_stack.as_ptr().cast_mut().wrapping_add(16);
    static DATA: [u8; 64] = [1; 64];
    for (name, address) in [
        ("stack", in_library),
        ("one", core::ptr::without_provenance_mut(1)),
        ("data", DATA.as_ptr().cast_mut()),
    ] {
        assert!(is_caught("an address that is no block was freed", || release(address)), "{name}");
        assert!(
            is_caught("an address that is no block was resized", || assert!(resize(address, 10).is_null())),
            "{name}"
        );
    }
    for size in KINDS {
        let caught =
            is_caught("not the start of a block was freed", || release(malloc(size).wrapping_add(8)));
        assert!(caught, "{size}");
    }
    for offset in [8, 4096] {
        let caught = is_caught("is no block was freed", || release(malloc(200_000).wrapping_add(offset)));
        assert!(caught, "{offset}");
    }
    // One from before the checks.
    let block = malloc(100);
    assert!(is_caught("not the start of a block was freed", || release(block.wrapping_add(4))));
    release(block);
}

#[test]
fn a_freed_block_that_was_written_to_is_found_before_it_serves_again() {
    for size in KINDS {
        for at in [0, size / 2, size - 1] {
            if size > slots::WHOLE && at > 0 {
                // Of long slots the ends are looked at.
                continue;
            }
            let caught = is_caught("a freed", || {
                let block = malloc(size);
                release(block);
                write(block, at as isize);
                (0..400_000).for_each(|_| release(malloc(size)));
            });
            assert!(caught, "{at} of {size}");
        }
    }
}

#[test]
fn a_freed_block_holds_nothing_and_does_not_serve_again_soon() {
    assert!(in_child(|| {
        harden(7, report);
        KINDS[..7].iter().all(|size| {
            let block = malloc(*size);
            fill(block, *size, 1);
            release(block);
            // SAFETY: the slot is mapped; nobody else uses it.
            let bytes = unsafe { core::slice::from_raw_parts(block, *size) };
            let wiped = bytes.iter().all(|byte| *byte == 0);
            let count = ((128 << 10) / size).min(1000);
            wiped
                && (0..count).all(|_| {
                    let other = malloc(*size);
                    release(other);
                    other != block
                })
        })
    }));
}

#[test]
fn a_block_of_no_bytes_has_an_address_of_its_own_and_nothing_at_it() {
    assert!(in_child(|| {
        harden(7, report);
        let blocks: Vec<_> = (0..10_000).map(|_| malloc(0)).collect();
        let mut sorted = blocks.clone();
        sorted.sort();
        sorted.dedup();
        let apart = sorted.len() == blocks.len() && blocks.iter().all(|block| usable(*block) == 0);
        let grown = resize(blocks[0], 100);
        fill(grown, 100, 3);
        release(grown);
        blocks[1..].iter().for_each(|block| release(*block));
        apart
    }));
    let mut pipe = [0; 2];
    assert!(in_child(|| {
        harden(7, report);
        let block = malloc(0);
        // SAFETY: the kernel reads the byte, or says that it cannot.
        unsafe { libc::pipe(pipe.as_mut_ptr()) == 0 && libc::write(pipe[1], block.cast(), 1) == -1 }
    }));
}

#[test]
fn checked_blocks_keep_their_bytes_while_threads_pass_them_on() {
    assert!(in_child(|| {
        harden(0x5555_1234_9abc_def1, report);
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..3).map(|_| mpsc::channel::<(usize, usize, u8)>()).unzip();
        let threads: Vec<_> = receivers
            .into_iter()
            .enumerate()
            .map(|(number, receiver)| {
                let next = senders[(number + 1) % 3].clone();
                thread::spawn(move || {
                    let mut live: Vec<(usize, usize, u8)> = Vec::new();
                    let mut state = 77 + number as u64;
                    for _ in 0..30_000 {
                        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        let draw = (state >> 33) as usize;
                        let size = [draw % 40, draw % 1000, draw % 9000, draw % 70_000][draw / 7 % 4];
                        match draw / 64 % 8 {
                            0..=3 => {
                                let block =
                                    if draw.is_multiple_of(5) { aligned(64, size) } else { malloc(size) };
                                fill(block, size, draw as u8);
                                live.push((block as usize, size, draw as u8));
                            }
                            4 if !live.is_empty() => {
                                let (block, old, tag) = live.swap_remove(draw % live.len());
                                if size == 0 || !holds(block as *mut u8, old, tag) {
                                    live.push((block, old, tag));
                                    continue;
                                }
                                let block = resize(block as *mut u8, size);
                                if !holds(block, old.min(size), tag) {
                                    return false;
                                }
                                fill(block, size, tag);
                                live.push((block as usize, size, tag));
                            }
                            5 if !live.is_empty() => {
                                let _ = next.send(live.swap_remove(draw % live.len()));
                            }
                            _ => {
                                let mine = (!live.is_empty()).then(|| live.swap_remove(draw % live.len()));
                                for (block, size, tag) in receiver.try_recv().ok().into_iter().chain(mine) {
                                    if !holds(block as *mut u8, size, tag) {
                                        return false;
                                    }
                                    release(block as *mut u8);
                                }
                            }
                        }
                    }
                    drop(next);
                    live.into_iter().chain(receiver.try_iter()).all(|(block, size, tag)| {
                        let right = holds(block as *mut u8, size, tag);
                        release(block as *mut u8);
                        right
                    })
                })
            })
            .collect();
        drop(senders);
        threads.into_iter().all(|thread| thread.join().is_ok_and(|right| right))
    }));
}

#[test]
fn a_child_of_a_checked_process_uses_and_frees_what_its_parent_had() {
    assert!(in_child(|| {
        harden(0x5555_1234_9abc_def1, report);
        let blocks: Vec<_> = (0..2000)
            .map(|number| {
                let size = number * 37 % 3000;
                let block = malloc(size);
                fill(block, size, number as u8);
                (block, size, number as u8)
            })
            .collect();
        let theirs = thread::spawn(|| (0..500).map(|_| malloc(48) as usize).collect::<Vec<_>>()).join();
        in_child(|| {
            theirs.unwrap_or_default().into_iter().for_each(|block| release(block as *mut u8));
            let kept = blocks.iter().all(|(block, size, tag)| {
                let kept = holds(*block, *size, *tag);
                release(*block);
                kept
            });
            (0..20_000).for_each(|number| release(malloc(number % 3000)));
            kept
        })
    }));
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
