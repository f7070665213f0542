//! Scenarios of blocks that one thread allocates and another frees, and of heaps that change hands.

use crate::explore::{spawn, Scenario};
use crate::heap::Heap;
use crate::span::Domain;
use crate::{address_space, api, away, flush, registry, remote, tls};
use memfold_sys::sync::uses;
use memfold_sys::PAGE_SIZE;
use std::cell::RefCell;

const SPARES: (usize, usize) = (64, 640);

/// The scenarios of this file.
pub const SCENARIOS: &[Scenario] = &[
    Scenario { name: "block-freed-by-another", preemptions: 3, spares: SPARES, body: freed_by_another },
    Scenario {
        name: "blocks-freed-by-two-others",
        preemptions: 2,
        spares: SPARES,
        body: freed_by_two_others,
    },
    Scenario { name: "heap-handed-over", preemptions: 2, spares: SPARES, body: heap_handed_over },
    Scenario { name: "span-changes-hands", preemptions: 3, spares: SPARES, body: span_changes_hands },
    Scenario { name: "pages-go-away", preemptions: 3, spares: SPARES, body: pages_go_away },
    Scenario {
        name: "pages-go-away-from-a-span-that-changes-hands",
        preemptions: 3,
        spares: SPARES,
        body: pages_go_away_while_their_span_changes_hands,
    },
    Scenario { name: "pages-go-away-from-two", preemptions: 2, spares: SPARES, body: pages_go_away_from_two },
];

thread_local! {
    /// Blocks in the program's hands.
    static LIVE: RefCell<Vec<usize>> = RefCell::default();
}

fn begin() {
    address_space::reset();
    LIVE.take();
    thread_begins();
}

/// What a thread's first allocation does.
fn thread_begins() -> &'static Heap {
    let heap = registry::acquire(Domain::Managed).expect("a model's memory does not run out");
    tls::set(heap);
    heap
}

/// What a thread's exit does.
fn thread_ends() {
    let heap = tls::get();
    tls::set(&tls::EXITED);
    registry::release(heap);
}

/// Frees as a thread that has given its heap up already: one block at a time.
fn free_at_exit(block: usize) {
    tls::set(&tls::EXITED);
    free(block);
}

/// A block, in nobody else's hands, and used by nobody who did not hand it over.
fn malloc() -> usize {
    let block = api::malloc(16) as usize;
    assert!(block != 0);
    LIVE.with_borrow_mut(|live| {
        assert!(!live.contains(&block), "a block was handed out twice");
        live.push(block);
    });
    uses(block + 64);
    block
}

fn free(block: usize) {
    uses(block + 64);
    LIVE.with_borrow_mut(|live| live.retain(|other| *other != block));
    // SAFETY: the scenarios free each block once.
    unsafe { api::free(block as *mut u8) }
}

/// Nothing was lost: when all threads have ended and every block was freed, all spans are free. Leaves no heap in the idle
/// list, which outlives the execution.
fn finally(heaps: usize) {
    thread_ends();
    let idle: Vec<&Heap> = (0..heaps)
        .map(|_| registry::acquire(Domain::Managed).expect("a model's memory does not run out"))
        .collect();
    // Blocks may be on their way from heap to heap.
    for _ in 0..2 {
        for heap in &idle {
            remote::drain(heap, None);
            flush::flush_all(heap);
        }
    }
    assert!(LIVE.with_borrow(Vec::is_empty));
    assert_eq!(address_space::handed_out(), 0, "spans that nobody can reach");
}

fn freed_by_another() {
    begin();
    let (first, second) = (malloc(), malloc());
    let other = spawn(2, move || {
        thread_begins();
        free(first);
        free(second);
        thread_ends();
    });
    let again = [malloc(), malloc()];
    again.into_iter().for_each(free);
    other.join().expect("loom ends the process instead");
    finally(2);
}

fn freed_by_two_others() {
    begin();
    let blocks = [malloc(), malloc()];
    let others =
        [(2, blocks[0]), (3, blocks[1])].map(|(number, block)| spawn(number, move || free_at_exit(block)));
    let again = malloc();
    free(again);
    others.into_iter().for_each(|thread| thread.join().expect("loom ends the process instead"));
    finally(1);
}

fn heap_handed_over() {
    begin();
    let block = malloc();
    // Frees into a heap that its thread leaves, and that another takes up.
    let other = spawn(2, move || free_at_exit(block));
    let successor = spawn(3, || {
        thread_begins();
        let own = malloc();
        free(own);
        thread_ends();
    });
    thread_ends();
    other.join().expect("loom ends the process instead");
    successor.join().expect("loom ends the process instead");
    thread_begins();
    finally(2);
}

fn span_changes_hands() {
    begin();
    let (first, second) = (malloc(), malloc());
    thread_ends();
    // The heap is idle, and its span has no free block until one of these arrives.
    let other = spawn(2, move || {
        free_at_exit(first);
        free_at_exit(second);
    });
    // Its heap is another, so it looks for spans in the idle one.
    let heap = registry::acquire(Domain::Pinned).expect("a model's memory does not run out");
    heap.domain.set(Domain::Managed);
    tls::set(heap);
    let own = [malloc(), malloc()];
    own.into_iter().for_each(free);
    other.join().expect("loom ends the process instead");
    finally(2);
}

fn pages_go_away_while_their_span_changes_hands() {
    begin();
    let (first, second) = (malloc(), malloc());
    free(first);
    thread_ends();
    let heap = registry::acquire(Domain::Pinned).expect("a model's memory does not run out");
    heap.domain.set(Domain::Managed);
    tls::set(heap);
    let pager = page_goes_away(second);
    // It takes the idle heap's span, with the block that is free, for its own.
    let again = malloc();
    pager.join().expect("loom ends the process instead");
    assert!(heap.has(address_space::lookup(again).expect("a block's span")), "it is another's again");
    address_space::send_away(false);
    free(again);
    free(second);
    finally(2);
}

/// The pager says of the page with a block that it is away, and who asks is told so until the thread that is returned has ended.
fn page_goes_away(block: usize) -> loom::thread::JoinHandle<()> {
    address_space::send_away(true);
    let page = address_space::lookup(block).expect("a block's span").start();
    spawn(4, move || away::went_away(page, PAGE_SIZE))
}

fn pages_go_away() {
    begin();
    let blocks = [malloc(), malloc()];
    let pager = page_goes_away(blocks[0]);
    free(blocks[0]);
    let again = [malloc(), malloc()];
    free(blocks[1]);
    again.into_iter().for_each(free);
    pager.join().expect("loom ends the process instead");
    // Some are dormant, in whichever order they were freed.
    let more = [malloc(), malloc()];
    address_space::send_away(false);
    more.into_iter().for_each(free);
    finally(1);
}

fn pages_go_away_from_two() {
    begin();
    let blocks = [malloc(), malloc()];
    let pager = page_goes_away(blocks[0]);
    let other = spawn(2, move || {
        thread_begins();
        free(blocks[1]);
        thread_ends();
    });
    free(blocks[0]);
    let again = malloc();
    pager.join().expect("loom ends the process instead");
    other.join().expect("loom ends the process instead");
    free(again);
    finally(2);
}
