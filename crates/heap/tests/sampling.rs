//! Sampled blocks: what the samples say of what is live, whoever allocates and frees it.
//!
//! Sampling is the process's, so one test at a time.

use memfold_heap::*;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{mpsc, Mutex, MutexGuard};
use std::thread;

static ALONE: Mutex<()> = Mutex::new(());

/// Samples with that mean until it is dropped.
struct Sampling(usize, #[allow(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Sampling {
    fn begin(mean: usize) -> Sampling {
        let alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        assert!(sample(mean, 0..0));
        Sampling(mean, alone)
    }

    /// What the samples stand for, bytes, by stack.
    fn bytes(&self) -> HashMap<u32, f64> {
        let mut found = HashMap::new();
        for sample in live() {
            let chance = 1.0 - (-(sample.size as f64) / self.0 as f64).exp();
            *found.entry(sample.stack).or_default() += sample.size as f64 / chance;
        }
        found
    }

    fn sum(&self) -> f64 {
        self.bytes().values().sum()
    }
}

impl Drop for Sampling {
    fn drop(&mut self) {
        sample(0, 0..0);
    }
}

fn live() -> Vec<Sample> {
    let (mut at, mut found) = (0, Vec::new());
    let mut some = [Sample::NONE; 50];
    loop {
        match samples_from(&mut at, &mut some) {
            0 => return found,
            count => found.extend_from_slice(&some[..count]),
        }
    }
}

fn release(block: usize) {
    // SAFETY: the tests free each block once.
    unsafe { free(block as *mut u8) }
}

fn near(found: f64, expected: usize, part: f64) {
    let expected = expected as f64;
    assert!((found - expected).abs() <= expected * part, "{found} where {expected} are live");
}

#[inline(never)]
fn small(count: usize) -> Vec<usize> {
    (0..count).map(|_| malloc(200) as usize).collect()
}

#[inline(never)]
fn middling(count: usize) -> Vec<usize> {
    (0..count).map(|_| malloc(5000) as usize).collect()
}

#[inline(never)]
fn large(count: usize) -> Vec<usize> {
    (0..count).map(|_| malloc(200 << 10) as usize).collect()
}

#[test]
fn samples_stand_for_what_is_live_by_the_code_that_allocated_it() {
    let sampling = Sampling::begin(8 << 10);
    let blocks = [small(60_000), middling(3_000), large(100)];
    let sizes = [208 * 60_000, 5120 * 3_000, (200 << 10) * 100];
    near(sampling.sum(), sizes.iter().sum(), 0.08);
    let mut by_stack: Vec<f64> = sampling.bytes().into_values().collect();
    by_stack.sort_by(f64::total_cmp);
    // Three places, and what the vectors of this test take lies elsewhere.
    assert!(by_stack.len() >= 3, "{by_stack:?}");
    let mut sorted = sizes;
    sorted.sort_unstable();
    for (found, expected) in by_stack[by_stack.len() - 3..].iter().zip(sorted) {
        near(*found, expected, 0.15);
    }
    let (mut at, mut calls, mut stacks) = (0, [0; 128], Vec::new());
    while let Some((number, len)) = stack_from(&mut at, &mut calls) {
        assert!(len > 5, "{number}: {:x?}", &calls[..len]);
        stacks.push(number);
    }
    assert!(live().iter().all(|sample| stacks.contains(&sample.stack)));
    blocks.into_iter().flatten().for_each(release);
    assert_eq!((sampling.sum(), summary().live, summary().missed), (0.0, 0, 0));
}

#[test]
fn blocks_that_served_before_are_sampled_like_fresh_ones() {
    let mut sampling = Sampling::begin(0);
    // On one thread, whose bins and spans are full of free blocks when sampling begins.
    small(20_000).into_iter().for_each(release);
    sampling.0 = 4 << 10;
    assert!(sample(sampling.0, 0..0));
    let blocks = small(20_000);
    near(sampling.sum(), 208 * 20_000, 0.1);
    // Of each pair one is freed at once, so that the same blocks come and go through the bin.
    let pairs: Vec<usize> = (0..20_000)
        .map(|_| {
            let (gone, kept) = (malloc(200), malloc(200));
            release(gone as usize);
            kept as usize
        })
        .collect();
    near(sampling.sum(), 208 * 40_000, 0.1);
    blocks.into_iter().chain(pairs).for_each(release);
    assert_eq!(summary().live, 0);
}

#[test]
fn a_block_that_another_thread_frees_is_no_longer_live_though_that_thread_never_took_part() {
    let sampling = Sampling::begin(1 << 10);
    let (send, receive) = mpsc::channel::<Vec<usize>>();
    let other = thread::spawn(move || {
        let mut freed = 0;
        for blocks in receive {
            freed += blocks.len();
            blocks.into_iter().for_each(release);
        }
        freed
    });
    for _ in 0..20 {
        send.send(small(1_000)).unwrap();
        send.send(large(3)).unwrap();
    }
    drop(send);
    assert_eq!(other.join().unwrap(), 20 * 1_003);
    assert_eq!((sampling.sum(), summary().live), (0.0, 0));
}

#[test]
fn a_block_that_is_resized_stays_the_one_that_it_was() {
    let sampling = Sampling::begin(1);
    let mut block = malloc(20 << 20);
    for size in [24 << 20, 100 << 20, 300 << 20, 70 << 20, 80 << 10] {
        // SAFETY: only the result is used afterwards.
        block = unsafe { realloc(block, size) };
        let found: Vec<Sample> = live().into_iter().filter(|sample| sample.size > 64 << 10).collect();
        assert_eq!(found.len(), 1, "{size}");
        assert_eq!((found[0].block, found[0].size), (block as usize, size.next_multiple_of(4096)));
    }
    release(block as usize);
    assert!(live().iter().all(|sample| sample.size <= 64 << 10));
    drop(sampling);
}

#[test]
fn no_byte_changes_and_nothing_is_left_when_sampling_comes_and_goes_under_threads() {
    let sampling = Sampling::begin(4 << 10);
    let (done, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (send, receive) = mpsc::channel::<(usize, usize)>();
    let receive = Mutex::new(receive);
    let work = |seed: usize, send: mpsc::Sender<(usize, usize)>| {
        let mut state = seed as u64;
        let mut mine: Vec<(usize, usize)> = Vec::new();
        for round in 0..60_000usize {
            rounds.fetch_add(1, Relaxed);
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let draw = (state >> 33) as usize;
            let size = 16 + [draw % 60, draw % 900, draw % 9000, draw % 90_000][draw / 7 % 4];
            if draw.is_multiple_of(2) || mine.is_empty() {
                let block = malloc(size);
                // SAFETY: a block of that length.
                unsafe {
                    block.cast::<usize>().write(size);
                    block.add(size - 8).cast::<usize>().write_unaligned(size);
                }
                mine.push((block as usize, size));
            } else {
                let (block, size) = mine.swap_remove(draw / 2 % mine.len());
                // SAFETY: as above, and nobody else has the block.
                let ends = unsafe {
                    ((block as *const usize).read(), ((block + size - 8) as *const usize).read_unaligned())
                };
                assert!(ends.0 == size && (size < 24 || ends.1 == size), "{round}: {ends:?} for {size}");
                match draw % 3 {
                    0 => send.send((block, size)).unwrap(),
                    _ => release(block),
                }
            }
            if draw.is_multiple_of(5) {
                let other = receive.lock().unwrap().try_recv();
                other.into_iter().for_each(|(block, _)| release(block));
            }
        }
        mine.into_iter().for_each(|(block, _)| release(block));
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (1..4)
            .map(|seed| {
                let send = send.clone();
                let work = &work;
                scope.spawn(move || work(seed, send))
            })
            .collect();
        scope.spawn(|| {
            for mean in [0usize, 512, 4096, 0, 100, 65_536].into_iter().cycle() {
                if done.load(Relaxed) {
                    break;
                }
                assert!(sample(mean, 0..0));
                live();
                // Some hundred times in all: the tables' lock is not fair, and the others have to come to it.
                let next = rounds.load(Relaxed) + 500;
                while rounds.load(Relaxed) < next && !done.load(Relaxed) {
                    thread::yield_now();
                }
            }
        });
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        done.store(true, Relaxed);
    });
    drop(send);
    receive.into_inner().unwrap().into_iter().for_each(|(block, _)| release(block));
    sample(512, 0..0);
    assert_eq!(summary().live, 0);
    drop(sampling);
}

#[test]
fn a_forked_child_has_the_samples_and_frees_what_its_parent_allocated() {
    let sampling = Sampling::begin(1 << 10);
    let blocks = small(2_000);
    let before = summary().live;
    assert!(before > 100);
    fork_prepare();
    // SAFETY: the child calls the allocator and `_exit` alone.
    let child = unsafe { libc::fork() };
    if child == 0 {
        fork_child();
        let kept = summary().live == before;
        blocks.iter().copied().for_each(release);
        let none = summary().live == 0;
        let again = (0..5_000).map(|_| malloc(200) as usize).filter(|block| *block != 0).count();
        let some = summary().live > 100;
        // SAFETY: ends the child without what the test harness would do.
        unsafe { libc::_exit(i32::from(!(kept && none && again == 5_000 && some))) }
    }
    fork_parent();
    let mut status = 0;
    // SAFETY: our child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child found something else");
    blocks.into_iter().for_each(release);
    assert_eq!(summary().live, 0);
    drop(sampling);
}
