//! What is promised of checked blocks: what is misused is found, and what is used well keeps its bytes. Each test has a child of its own, as
//! checks cannot be turned off again.

use super::*;
use core::sync::atomic::Ordering::Relaxed;

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
#[test]
fn a_large_block_that_another_thread_frees_at_the_same_moment_is_found() {
    use core::sync::atomic::AtomicPtr;
    use memfold_arena::{Hooks, PLAIN};
    /// What is freed once more, as if by another thread, while the first free has the kernel drop its pages.
    static BLOCK: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
    static HOOKS: Hooks = Hooks {
        discard: |addr, len| {
            release(BLOCK.swap(core::ptr::null_mut(), Relaxed));
            (PLAIN.discard)(addr, len)
        },
        ..PLAIN
    };
    assert!(is_caught("a block was freed twice", || {
        memfold_arena::set_hooks(&HOOKS);
        memfold_arena::settings::set(memfold_arena::Knob::Guard, 1);
        let block = malloc(3 << 20);
        BLOCK.store(block, Relaxed);
        release(block);
    }));
}

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
fn checked_blocks_of_threads_that_are_gone_are_given_back_by_who_frees_them() {
    assert!(in_child(|| {
        harden(0x5555_1234_9abc_def1, report);
        // The heap of the thread that frees is another.
        release(malloc(100));
        let before = used_bytes();
        let blocks = blocks_of_a_thread_that_is_gone(64_000);
        blocks.into_iter().for_each(|block| release(block as *mut u8));
        let left = used_bytes().saturating_sub(before);
        if left > 16 << 20 {
            std::eprintln!("{left} bytes were left");
        }
        left <= 16 << 20
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
fn a_table_that_was_written_over_is_found_before_a_block_is_handed_out() {
    for over in [0, 0xff] {
        let caught = is_caught("the allocator's own records", || {
            let block = malloc(100);
            let span = memfold_arena::lookup(block as usize).expect("a block's span");
            span.states().iter().for_each(|state| state.store(over, Relaxed));
            (0..1000).for_each(|_| _ = malloc(100));
        });
        assert!(caught, "{over:#x}");
    }
}
