//! What the arena promises the heap and the pager, through its public functions.
//!
//! The arena is one for the process, so each test looks only at what it made itself.

use crate::*;
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::Mutex as Exclusive;
use std::vec::Vec;

/// Tests that count resident pages or set hooks take turns.
static TURN: Exclusive<()> = Exclusive::new(());

fn fill(span: &Span, value: u8) {
    // SAFETY: the span is the test's.
    unsafe { (span.start() as *mut u8).write_bytes(value, span.bytes()) }
}

fn holds(span: &Span, pages: usize, value: u8) -> bool {
    // SAFETY: the span is the test's.
    let bytes = unsafe { core::slice::from_raw_parts(span.start() as *const u8, pages * PAGE_SIZE) };
    bytes.iter().all(|byte| *byte == value)
}

/// How many pages of a range have a frame.
fn resident(addr: usize, pages: usize) -> usize {
    let mut map = std::vec![0u8; pages];
    // SAFETY: the map has a byte for each page.
    let result = unsafe { libc::mincore(addr as *mut libc::c_void, pages * PAGE_SIZE, map.as_mut_ptr()) };
    if result != 0 {
        return 0;
    }
    map.iter().filter(|byte| **byte & 1 != 0).count()
}

/// Whether `body` returns true in a forked child, which uses the arena only.
fn in_child(body: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `body` and exits at once.
    let pid = unsafe {
        fork_prepare();
        let pid = libc::fork();
        fork_release(pid == 0);
        pid
    };
    if pid == 0 {
        // A panic must not leave the child.
        let right = std::panic::catch_unwind(core::panic::AssertUnwindSafe(body)).unwrap_or(false);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    let mut status = -1;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    status == 0
}

#[test]
fn spans_are_disjoint_found_from_every_page_and_zero_when_they_say_so() {
    let _turn = TURN.lock().unwrap();
    let spans: Vec<_> =
        (1..200).map(|n| alloc(Domain::Managed, 1 + n * 7 % 90, PAGE_SIZE, Kind::Blocks).unwrap()).collect();
    for (n, span) in spans.iter().enumerate() {
        assert!(!span.zero() || holds(span, span.pages(), 0));
        for page in 0..span.pages() {
            assert!(lookup(span.start() + page * PAGE_SIZE).unwrap().is(span));
        }
        fill(span, n as u8);
    }
    for (n, span) in spans.iter().enumerate() {
        assert!(holds(span, span.pages(), n as u8));
        free(span, span.pages());
    }
}

#[test]
fn a_span_made_of_pages_that_were_used_before_does_not_claim_to_be_zero() {
    let _turn = TURN.lock().unwrap();
    for _ in 0..50 {
        let span = alloc(Domain::Pinned, 300, PAGE_SIZE, Kind::Large).unwrap();
        assert!(!span.zero() || holds(span, 300, 0));
        fill(span, 0xee);
        free(span, 300);
    }
}

#[test]
fn trimming_takes_the_frames_of_free_runs_and_leaves_those_of_others() {
    let _turn = TURN.lock().unwrap();
    let kept = alloc(Domain::Managed, 40, PAGE_SIZE, Kind::Large).unwrap();
    let freed = alloc(Domain::Managed, 40, PAGE_SIZE, Kind::Large).unwrap();
    fill(kept, 1);
    fill(freed, 2);
    let addr = freed.start();
    free(freed, 40);
    trim(0);
    assert!(holds(kept, 40, 1));
    assert_eq!(resident(kept.start(), 40), 40);
    // Another test may have been given part of the run meanwhile, but not all of it.
    assert!(resident(addr, 40) < 40);
    free(kept, 40);
}

#[test]
fn long_blocks_tell_whether_the_next_have_huge_pages_whatever_becomes_of_other_memory() {
    let _turn = TURN.lock().unwrap();
    let pages = 8 * memfold_sys::EXTENT_PAGES;
    // Small memory that is given and not touched, as the sample that it is judged by may have.
    let small = alloc(Domain::Managed, 200, PAGE_SIZE, Kind::Large).unwrap();
    let first = alloc(Domain::Managed, pages, PAGE_SIZE, Kind::Large).unwrap();
    assert_eq!(density::is_high_of_long(), Some(false));
    fill(first, 1);
    assert_eq!(density::is_high_of_long(), Some(true));
    free(first, pages);
    trim(0);
    assert_eq!(density::is_high_of_long(), Some(true), "what was told is remembered");
    free(small, 0);
}

/// Whether a resize to more pages could move the block instead of copying it.
fn is_movable(span: &Span) -> bool {
    span.chunk.get().is_some_and(|chunk| chunk.dedicated.get())
}

#[test]
fn a_block_with_a_chunk_to_itself_moves_with_its_bytes() {
    let _turn = TURN.lock().unwrap();
    let span = alloc(Domain::Managed, SHARED_PAGES + 1, PAGE_SIZE, Kind::Large).unwrap();
    assert!(is_movable(span) && span.zero());
    // SAFETY: the span is the test's.
    unsafe { (span.start() as *mut u64).write(42) };
    for pages in [SHARED_PAGES * 9, SHARED_PAGES * 2, 10, SHARED_PAGES * 4] {
        assert!(resize(span, pages));
        assert_eq!(span.pages(), pages);
        assert!(lookup(span.start()).unwrap().is(span));
        // SAFETY: the span is the test's, and its first and last word lie in it.
        unsafe {
            assert_eq!((span.start() as *const u64).read(), 42);
            ((span.end() - 8) as *mut u64).write(7);
        }
    }
    free(span, span.pages());
}

/// Whether a byte can be read, asked of the kernel.
fn is_readable(addr: usize) -> bool {
    let mut pipe = [0; 2];
    // SAFETY: the kernel reads the byte, or says that it cannot.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        let written = libc::write(pipe[1], addr as *const libc::c_void, 1);
        pipe.iter().for_each(|fd| assert_eq!(libc::close(*fd), 0));
        written == 1
    }
}

#[test]
fn a_guarded_block_cannot_be_touched_beyond_its_ends_nor_after_it_was_freed_and_serves_again_late() {
    let _turn = TURN.lock().unwrap();
    let pages = (1 << 20) / PAGE_SIZE;
    let first = alloc_guarded(pages, PAGE_SIZE).unwrap();
    let start = first.start();
    fill(first, 1);
    for beyond in [start - 1, start - (1 << 20), first.end(), first.end() + (1 << 20) - 1] {
        assert!(!is_readable(beyond), "{:#x} of {start:#x}", beyond);
    }
    free(first, pages);
    assert!(!is_readable(start));
    assert!(lookup(start).is_some_and(|span| span.start() == start && span.kind() == Kind::Free));
    let mut rounds = 0;
    loop {
        let span = alloc_guarded(pages, PAGE_SIZE).unwrap();
        assert!(span.zero() && holds(span, pages, 0));
        let again = span.start() == start;
        fill(span, 2);
        free(span, pages);
        if again {
            break;
        }
        rounds += 1;
        assert!(rounds < 1000, "its address never serves again");
    }
    assert!(rounds >= 32, "{rounds} MiB were freed before its address served again");
    trim(0);
}

#[test]
fn a_guarded_block_grows_and_shrinks_where_it_is_and_cannot_be_touched_beyond_its_new_end() {
    let _turn = TURN.lock().unwrap();
    let span = alloc_guarded(20, PAGE_SIZE).unwrap();
    let start = span.start();
    fill(span, 1);
    for pages in [30, 10, 25] {
        let before = span.pages().min(pages);
        assert!(resize(span, pages) && (span.start(), span.pages()) == (start, pages));
        assert!(holds(span, before, 1) && is_readable(span.end() - 1) && !is_readable(span.end()));
        let mut rest = span.start() + before * PAGE_SIZE..span.end();
        // SAFETY: the span's own bytes.
        let is_zero = rest.all(|at| unsafe { (at as *const u8).read() } == 0);
        assert!(is_zero, "what it lost and got again is not zero");
        fill(span, 1);
    }
    assert!(!resize(span, 1 << 20) && span.pages() == 25, "there is no room for 4 GiB");
    free(span, 25);
    assert!(!is_readable(start));
}

#[test]
fn addresses_that_can_never_be_touched_are_found() {
    let _turn = TURN.lock().unwrap();
    let span = alloc_untouchable(memfold_sys::EXTENT_PAGES).unwrap();
    assert!(lookup(span.start() + span.bytes() / 2).is_some_and(|found| found.is(span)));
    assert!(!is_readable(span.start()) && !is_readable(span.end() - 1));
}

#[test]
fn with_checks_a_span_has_a_guard_within_a_mib_of_either_side() {
    let _turn = TURN.lock().unwrap();
    assert!(in_child(|| {
        settings::set(Knob::Check, 1);
        settings::set(Knob::Guard, 1);
        start_afresh();
        let mut bad = 0;
        for _ in 0..200 {
            let Some(span) = alloc(Domain::Managed, 16, PAGE_SIZE, Kind::Blocks) else { break };
            let reaches = |step: isize| {
                let pages = (1..=(1 << 20) / PAGE_SIZE as isize).map(|page| page * PAGE_SIZE as isize * step);
                pages.map(|by| span.start().wrapping_add_signed(by)).all(is_readable)
            };
            bad += i32::from(!is_readable(span.start()) || reaches(1) || reaches(-1));
            let mut listed = false;
            for_each_span(Domain::Managed, |found| listed |= found.is(span));
            bad += i32::from(!listed);
        }
        bad == 0
    }));
}

#[test]
fn spans_come_and_go_between_two_chunks_of_those_that_are_looked_through() {
    let _turn = TURN.lock().unwrap();
    let full = || alloc(Domain::Pinned, SHARED_PAGES, PAGE_SIZE, Kind::Large).expect("a chunk full");
    let (kept, mut gone) = ([(); 4].map(|()| full()), Vec::new());
    let (mut place, mut seen) = (None, [0; 4]);
    loop {
        let mut count = |span: &Span| {
            kept.iter().zip(&mut seen).for_each(|(kept, seen)| *seen += i32::from(kept.is(span)));
        };
        let Some(next) = for_each_span_after(Domain::Pinned, place, &mut count) else { break };
        // None of the arena's locks is held here.
        place = Some(next);
        gone.push(full());
        if gone.len() > 2 {
            free(gone.remove(0), 0);
        }
        trim(0);
    }
    kept.into_iter().chain(gone).for_each(|span| free(span, 0));
    assert_eq!(seen, [1; 4]);
}

#[test]
fn what_the_kernel_was_lent_is_lent_once_and_not_taken_for_zero() {
    let _turn = TURN.lock().unwrap();
    assert!(in_child(|| {
        settings::set(Knob::Decommit, settings::Decommit::Free as u64);
        let span = alloc(Domain::Pinned, 4096 + 1, PAGE_SIZE, Kind::Large).unwrap();
        fill(span, 7);
        // What stays keeps the chunk.
        resize(span, 1);
        let (chunk, start) = (span.chunk.get().unwrap(), span.end());
        let mut right = true;
        for huge in [false, true] {
            // So that whole extents go, where a run is partly lent already.
            chunk.huge.set(huge);
            let dirty = || pool::pool(Domain::Pinned).lock().runs.dirty_pages;
            for _ in 0..4 {
                let before = dirty();
                let gone = supply::purge(Domain::Pinned, before - before.min(300));
                right &= before > 0 && dirty() + gone == before;
            }
        }
        supply::purge(Domain::Pinned, 0);
        right &= pool::pool(Domain::Pinned).lock().runs.dirty_pages == 0;
        right &= chunk.count_dirty(start, 4096) == 0;
        let again = alloc(Domain::Pinned, 4096, PAGE_SIZE, Kind::Large).unwrap();
        right && again.start() == start && !again.zero()
    }));
}

#[test]
fn a_chunk_is_reported_before_anybody_can_be_handed_out_a_part_of_it() {
    /// How many were reported, and how many of those were in the list by then.
    static REPORTED: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    static HOOKS: Hooks = Hooks {
        mapped: |base, _| {
            REPORTED[0].fetch_add(1, SeqCst);
            for_each_managed(|listed, _| {
                REPORTED[1].fetch_add(usize::from(listed == base), SeqCst);
            });
        },
        ..PLAIN
    };
    let _turn = TURN.lock().unwrap();
    assert!(in_child(|| {
        set_hooks(&HOOKS);
        while REPORTED[0].load(SeqCst) < 3 {
            alloc(Domain::Managed, SHARED_PAGES, PAGE_SIZE, Kind::Blocks).unwrap();
        }
        REPORTED[1].load(SeqCst) == 0
    }));
}

#[test]
fn a_span_is_made_zero_without_a_frame_for_what_is_so_already() {
    let _turn = TURN.lock().unwrap();
    let written = 100;
    let span = alloc(Domain::Pinned, SHARED_PAGES, PAGE_SIZE, Kind::Large).unwrap();
    // SAFETY: the span is the test's.
    unsafe { (span.start() as *mut u8).write_bytes(0xa5, written * PAGE_SIZE) };
    free(span, written);
    let mut spans = Vec::new();
    let again = loop {
        let next = alloc(Domain::Pinned, SHARED_PAGES, PAGE_SIZE, Kind::Large).unwrap();
        match next.zero() {
            true => spans.push(next),
            false => break next,
        }
    };
    let bytes = again.bytes() - 1000;
    clear(again, bytes);
    // Other tests may have written to more of it.
    let (frames, written) = (resident(again.start(), again.pages()), again.dirty.get() as usize);
    assert!(frames <= written && written < SHARED_PAGES, "{frames} are resident of {written} written to");
    // SAFETY: as above.
    let found = unsafe { core::slice::from_raw_parts(again.start() as *const u8, bytes) };
    assert!(found.iter().all(|byte| *byte == 0));
    spans.into_iter().chain([again]).for_each(|span| free(span, SHARED_PAGES));
}

/// Bytes of address space that the process has mapped, read without allocating.
fn address_space() -> u64 {
    let mut text = [0u8; 32];
    // SAFETY: the buffer is as long as the call is told.
    unsafe {
        let fd = libc::open(c"/proc/self/statm".as_ptr(), libc::O_RDONLY);
        libc::read(fd, text.as_mut_ptr().cast(), text.len());
        libc::close(fd);
    }
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |pages, digit| pages * 10 + u64::from(digit - b'0')) * PAGE_SIZE as u64
}

#[test]
fn a_limit_on_address_space_refuses_large_requests_and_still_serves_small_ones() {
    let _turn = TURN.lock().unwrap();
    assert!(in_child(|| {
        let bytes = address_space() + (1 << 30);
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
        // SAFETY: limits this child.
        unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) };
        let huge = alloc(Domain::Managed, (2 << 30) / PAGE_SIZE, PAGE_SIZE, Kind::Large).is_none();
        let mut served = 0;
        while served < 40_000 && alloc(Domain::Managed, 16, PAGE_SIZE, Kind::Blocks).is_some() {
            served += 1;
        }
        // Of 1 GiB, records and chunk alignment take a little.
        huge && served * 16 * PAGE_SIZE > 900 << 20
    }));
}

#[test]
fn hooks_see_every_chunk_discard_move_and_unmapping_of_managed_memory_and_none_of_pinned() {
    static SEEN: Exclusive<Vec<(&str, usize, usize)>> = Exclusive::new(Vec::new());
    static HOOKS: Hooks = Hooks {
        mapped: |base, len| SEEN.lock().unwrap().push(("mapped", base, len)),
        discard: |addr, len| {
            SEEN.lock().unwrap().push(("discard", addr, len));
            // SAFETY: the arena discards free runs only.
            unsafe { memfold_sys::mem::madvise(addr, len, libc::MADV_DONTNEED) }
        },
        unmap: |base, len| {
            SEEN.lock().unwrap().push(("unmap", base, len));
            // SAFETY: the arena unmaps free chunks only.
            unsafe { memfold_sys::mem::munmap(base, len) }
        },
        guard: |addr, len| {
            SEEN.lock().unwrap().push(("guard", addr, len));
            // SAFETY: nobody was given an address in the range.
            unsafe { memfold_sys::mem::mprotect(addr, len, libc::PROT_NONE) }
        },
        unguard: |addr, len| {
            SEEN.lock().unwrap().push(("unguard", addr, len));
            // SAFETY: as above.
            unsafe { memfold_sys::mem::mprotect(addr, len, libc::PROT_READ | libc::PROT_WRITE) }
        },
        is_away: |_, _| false,
        remap: |old, old_len, new_len| {
            SEEN.lock().unwrap().push(("remap", old, new_len));
            plain_remap(old, old_len, new_len)
        },
    };
    let saw = |what: &str, addr: usize| {
        SEEN.lock().unwrap().iter().any(|(w, base, len)| *w == what && (*base..base + len).contains(&addr))
    };
    let _turn = TURN.lock().unwrap();
    set_hooks(&HOOKS);
    let big = alloc(Domain::Managed, SHARED_PAGES * 2, PAGE_SIZE, Kind::Large).unwrap();
    let first = big.start();
    assert!(saw("mapped", first));
    let mut listed = false;
    for_each_managed(|base, len| listed |= (base..base + len).contains(&first));
    assert!(listed);
    assert!(resize(big, SHARED_PAGES * 3));
    assert!(saw("remap", first));
    let last = big.start();
    free(big, 1);
    assert!(saw("unmap", last));

    let keeper = alloc(Domain::Managed, 1, PAGE_SIZE, Kind::Large).unwrap();
    let freed = alloc(Domain::Managed, 50, PAGE_SIZE, Kind::Large).unwrap();
    fill(freed, 1);
    let addr = freed.start();
    free(freed, 50);
    trim(0);
    assert!(saw("discard", addr) || saw("unmap", addr));
    free(keeper, 1);

    let guarded = alloc_guarded(3, PAGE_SIZE).unwrap();
    let (start, before) = (guarded.start(), guarded.start() - PAGE_SIZE);
    assert!(saw("guard", before) && saw("guard", guarded.end()) && saw("unguard", start));
    SEEN.lock().unwrap().clear();
    free(guarded, 3);
    assert!(saw("discard", start) && saw("guard", start) && !saw("unmap", start));
    trim(0);
    assert!(saw("unmap", start));

    let pinned = alloc(Domain::Pinned, SHARED_PAGES * 2, PAGE_SIZE, Kind::Large).unwrap();
    let addr = pinned.start();
    for_each_managed(|base, len| assert!(!(base..base + len).contains(&addr)));
    // The address may have been managed memory's before.
    SEEN.lock().unwrap().retain(|(_, base, len)| !(*base..base + len).contains(&addr));
    free(pinned, 1);
    assert!(!saw("unmap", addr));
    let pinned = alloc(Domain::Pinned, SHARED_PAGES * 2, PAGE_SIZE, Kind::Large).unwrap();
    let addr = pinned.start();
    SEEN.lock().unwrap().clear();
    assert!(resize(pinned, SHARED_PAGES * 3));
    assert!(!saw("remap", addr));
    free(pinned, 1);
}

#[test]
fn a_block_of_many_megabytes_serves_again_with_its_pages() {
    let _turn = TURN.lock().unwrap();
    let mib = |count: usize| (count << 20) / PAGE_SIZE;
    let first = alloc(Domain::Pinned, mib(25), PAGE_SIZE, Kind::Large).unwrap();
    fill(first, 1);
    free(first, first.pages());
    let second = alloc(Domain::Pinned, mib(20), PAGE_SIZE, Kind::Large).unwrap();
    assert_eq!(resident(second.start(), second.pages()), second.pages());
    assert!(!second.zero(), "it holds what the first one held");
    free(second, second.pages());
    trim(0);
}

#[test]
fn a_ceiling_has_what_is_free_go_at_once() {
    let _turn = TURN.lock().unwrap();
    let span = |pages| {
        let span = alloc(Domain::Pinned, pages, PAGE_SIZE, Kind::Large).unwrap();
        fill(span, 1);
        span
    };
    let (early, late, shortened) = (span(2000), span(2000), span(2000));
    let (first, second) = (early.start(), late.start());
    free(early, 2000);
    assert_eq!(resident(first, 2000), 2000);
    settings::set_ceiling(1000 * PAGE_SIZE);
    decay();
    assert_eq!(resident(first, 2000), 1000, "what was free before");
    free(late, 2000);
    assert!(resident(first, 2000) + resident(second, 2000) <= 1000);
    assert!(resize(shortened, 1));
    assert!(resident(shortened.start(), 2000) <= 1001, "of a block that is shorter now");
    free(shortened, 1);
    settings::set_ceiling(usize::MAX);
}

#[test]
fn a_block_that_grows_has_a_chunk_to_itself_and_is_never_copied() {
    let _turn = TURN.lock().unwrap();
    let span = alloc_movable(Domain::Managed, MOVABLE_PAGES + 1).unwrap();
    assert!(is_movable(span) && resize(span, MOVABLE_PAGES * 3));
    free(span, 0);
    let short = alloc_movable(Domain::Managed, 20).unwrap();
    assert!(!is_movable(short));
    free(short, 0);
}

#[test]
fn what_is_left_alone_goes_back_down_to_a_small_share() {
    let _turn = TURN.lock().unwrap();
    let blocks: Vec<_> =
        (0..40).map(|_| alloc(Domain::Pinned, 48, PAGE_SIZE, Kind::Large).unwrap()).collect();
    blocks.iter().for_each(|span| fill(span, 1));
    let (first, pages) = (blocks[0].start(), 48);
    blocks.into_iter().for_each(|span| free(span, 48));
    assert_eq!(resident(first, pages), pages, "7.5 MiB may stay while the program is busy");
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert!(decay() > 0);
    assert_eq!(resident(first, pages), 0);
}
