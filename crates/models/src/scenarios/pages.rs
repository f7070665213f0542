//! Scenarios of the life of a page: program threads, the background thread, and threads that change mappings.

use crate::codec::DENSE;
use crate::engine::Engine;
use crate::evict::worker::Worker;
use crate::explore::{keep, spawn, Scenario};
use crate::fault::prefetch::PrefetchQueue;
use crate::fault::reason::Reason;
use crate::fault::restore::Restorer;
use crate::slot::Apart;
use crate::tables::bitmap::{PageRange, PageSet};
use crate::tables::entry::{AtomicEntry, Entry, State};
use crate::tables::extent::Extent;
use crate::tier::below::{relocate, sink};
use crate::tier::bring::bring;
use crate::world::{content, enter, page_index, Content, BASE, ZERO};
use core::sync::atomic::Ordering::SeqCst;
use loom::thread::JoinHandle;
use memfold_sys::PAGE_SIZE;

const SPARES: (usize, usize) = (48, 24);

/// The scenarios of this file.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "page-leaves-and-is-touched",
        preemptions: 4,
        spares: SPARES,
        body: leaves_and_is_touched,
    },
    Scenario { name: "page-touched-by-two", preemptions: 2, spares: SPARES, body: touched_by_two },
    Scenario {
        name: "page-touched-while-brought-ahead",
        preemptions: 4,
        spares: SPARES,
        body: brought_ahead,
    },
    Scenario { name: "page-that-does-not-shrink", preemptions: 4, spares: SPARES, body: does_not_shrink },
    Scenario {
        name: "page-dropped-while-it-leaves",
        preemptions: 3,
        spares: SPARES,
        body: dropped_while_leaving,
    },
    Scenario {
        name: "page-dropped-while-touched",
        preemptions: 3,
        spares: SPARES,
        body: dropped_while_touched,
    },
    Scenario {
        name: "page-unmapped-while-touched",
        preemptions: 2,
        spares: SPARES,
        body: unmapped_while_touched,
    },
    Scenario {
        name: "page-dropped-while-brought-ahead",
        preemptions: 3,
        spares: SPARES,
        body: dropped_while_ahead,
    },
    Scenario {
        name: "page-mapped-over-while-foreseen",
        preemptions: 3,
        spares: SPARES,
        body: mapped_over_while_foreseen,
    },
    Scenario { name: "slot-read-while-recompressed", preemptions: 4, spares: SPARES, body: recompressed },
    Scenario { name: "pending-page-is-touched", preemptions: 4, spares: SPARES, body: pending_touched },
    Scenario {
        name: "pending-page-is-touched-by-two",
        preemptions: 2,
        spares: SPARES,
        body: pending_touched_by_two,
    },
    Scenario { name: "pending-page-is-dropped", preemptions: 2, spares: SPARES, body: pending_dropped },
    Scenario {
        name: "page-goes-down-and-is-touched",
        preemptions: 2,
        spares: SPARES,
        body: goes_down_and_is_touched,
    },
    Scenario {
        name: "pending-page-moves-and-is-touched",
        preemptions: 2,
        spares: SPARES,
        body: moves_and_is_touched,
    },
    Scenario { name: "slot-read-while-compacted", preemptions: 2, spares: SPARES, body: compacted },
];

/// The tag of the page that the scenarios are about: page 0.
const TAG: u64 = 0x1111;
const TAG2: u64 = 0x2222;

fn page(tag: u64) -> (&'static Engine, &'static Extent) {
    let engine = Engine::make();
    enter(|world| world.pages[0] = Some(content(tag)));
    (engine, engine.space.0)
}

fn entry(extent: &Extent) -> &'static AtomicEntry {
    &extent.entries().expect("made at the start")[0]
}

/// As the background thread does for an extent that is due.
fn set_aside(worker: &mut Worker, extent: &Extent) {
    if let Some(extent) = extent.try_lock() {
        worker.set_aside(&extent, &PageSet::range(0, 1), false);
    }
}

/// The page is in the store before the threads begin.
fn stored(engine: &'static Engine) -> Worker {
    let mut worker = Worker::new(engine);
    let extent = engine.space.0;
    set_aside(&mut worker, extent);
    worker.launder(extent, &PageSet::ALL);
    assert_eq!(entry(extent).load().state(), State::Stored);
    worker
}

/// Maps something else in the page's place, in the call that unmaps it.
fn map_over(engine: &'static Engine) {
    let mapped = engine.unmap(BASE, PAGE_SIZE, || {
        enter(|world| {
            world.pages[0] = Some(content(TAG2));
            world.armed[0] = false;
        });
        Ok(())
    });
    assert_eq!(mapped, Ok(()));
}

fn reader(number: u32, engine: &'static Engine) -> JoinHandle<Content> {
    spawn(number, move || engine.touch(0, None))
}

fn end<R>(thread: JoinHandle<R>) -> R {
    thread.join().expect("loom ends the process instead")
}

/// What must hold once all threads have ended: the page reads as it should, and the counts are right.
fn finally(engine: &'static Engine, expected: Content) {
    assert_eq!(engine.touch(0, None), expected, "the last touch");
    let extent = engine.space.0;
    assert_eq!(entry(extent).load(), Entry::RESIDENT);
    assert_eq!(extent.away.load(SeqCst), 1, "pages away, one of which no thread touched");
}

fn leaves_and_is_touched() {
    let (engine, extent) = page(TAG);
    let background = spawn(2, move || {
        let mut worker = Worker::new(engine);
        set_aside(&mut worker, extent);
        worker.launder(extent, &PageSet::ALL);
    });
    assert_eq!(engine.touch(0, None), content(TAG));
    assert_eq!(engine.touch(0, Some(content(TAG2))), content(TAG));
    end(background);
    finally(engine, content(TAG2));
}

fn touched_by_two() {
    let (engine, extent) = page(TAG);
    let background = spawn(2, move || {
        let mut worker = Worker::new(engine);
        set_aside(&mut worker, extent);
        worker.launder(extent, &PageSet::ALL);
    });
    let other = reader(3, engine);
    assert_eq!(engine.touch(0, Some(content(TAG2))), content(TAG));
    let found = end(other);
    assert!(found == content(TAG) || found == content(TAG2), "{found:x?}");
    end(background);
    finally(engine, content(TAG2));
}

fn brought_ahead() {
    let (engine, _) = page(TAG);
    let mut worker = stored(engine);
    let background = spawn(2, move || worker.go_ahead(0));
    assert_eq!(engine.touch(0, None), content(TAG));
    end(background);
    finally(engine, content(TAG));
}

fn does_not_shrink() {
    let (engine, extent) = page(DENSE);
    let background = spawn(2, move || {
        let mut worker = Worker::new(engine);
        set_aside(&mut worker, extent);
        worker.launder(extent, &PageSet::ALL);
    });
    assert_eq!(engine.touch(0, None), content(DENSE));
    end(background);
    finally(engine, content(DENSE));
}

/// Drops the page through libc, as `madvise(MADV_DONTNEED)` does.
fn drop_page(engine: &'static Engine) {
    let dropped = engine.drop_contents(BASE, PAGE_SIZE, || {
        enter(|world| world.pages[0] = None);
        Ok(())
    });
    assert_eq!(dropped, Ok(()));
}

fn dropped_while_leaving() {
    let (engine, extent) = page(TAG);
    let background = spawn(2, move || {
        let mut worker = Worker::new(engine);
        set_aside(&mut worker, extent);
        worker.launder(extent, &PageSet::ALL);
    });
    drop_page(engine);
    assert_eq!(engine.touch(0, None), ZERO, "a dropped page reads as zeros");
    assert_eq!(engine.touch(0, Some(content(TAG2))), ZERO);
    end(background);
    finally(engine, content(TAG2));
}

fn dropped_while_touched() {
    let (engine, _) = page(TAG);
    drop(stored(engine));
    let other = reader(2, engine);
    drop_page(engine);
    let found = end(other);
    assert!(found == content(TAG) || found == ZERO, "{found:x?}");
    assert_eq!(engine.touch(0, None), ZERO, "a dropped page reads as zeros");
    finally(engine, ZERO);
}

fn dropped_while_ahead() {
    let (engine, _) = page(TAG);
    let mut worker = stored(engine);
    let background = spawn(2, move || worker.go_ahead(0));
    let other = reader(3, engine);
    drop_page(engine);
    let found = end(other);
    assert!(found == content(TAG) || found == ZERO, "{found:x?}");
    end(background);
    assert_eq!(engine.touch(0, None), ZERO, "a dropped page reads as zeros");
    finally(engine, ZERO);
}

fn unmapped_while_touched() {
    let (engine, extent) = page(TAG);
    let mut worker = stored(engine);
    let background = spawn(2, move || {
        worker.go_ahead(0);
        set_aside(&mut worker, extent);
    });
    let other = reader(3, engine);
    // Something else is mapped there in the same call, and what was evicted must not come back into it.
    map_over(engine);
    // Who slept at the old mapping finds the other one.
    engine.kernel.uffd.wake(BASE, PAGE_SIZE);
    assert_eq!(engine.touch(0, None), content(TAG2));
    let found = end(other);
    assert!(found == content(TAG) || found == content(TAG2), "{found:x?}");
    end(background);
    finally(engine, content(TAG2));
}

/// A group names the page, of which nothing else is known; a helper takes the request at any time from then on.
fn mapped_over_while_foreseen() {
    let (engine, extent) = page(TAG);
    let mut worker = stored(engine);
    let queue = keep(PrefetchQueue::new());
    assert!(queue.put(BASE, 1));
    let helper = spawn(2, move || {
        let mut restorer = Restorer::new(engine, engine.kernel).expect("a model's memory does not run out");
        while let Some((page, pages)) = queue.take() {
            restorer.restore(extent, PageRange::from(page_index(page), pages), Reason::Ahead);
        }
    });
    map_over(engine);
    // What is there now goes away too, and may be what is brought.
    set_aside(&mut worker, extent);
    worker.launder(extent, &PageSet::ALL);
    assert_eq!(engine.touch(0, None), content(TAG2), "what was mapped over came back");
    end(helper);
    finally(engine, content(TAG2));
}

fn recompressed() {
    let (engine, extent) = page(TAG);
    let mut worker = stored(engine);
    // What is given up is overwritten at once, also while it is copied.
    engine.options.wipes.store(1, SeqCst);
    let background = spawn(2, move || {
        worker.recompress(extent);
        worker.compact_store();
    });
    assert_eq!(engine.touch(0, None), content(TAG));
    end(background);
    finally(engine, content(TAG));
}

fn compacted() {
    let (engine, extent) = page(TAG);
    let mut worker = stored(engine);
    engine.options.wipes.store(1, SeqCst);
    // Four blocks, full with eight slots each; only the page is left in the first, and two slots in each of the others.
    let put = |worker: &mut Worker, n: usize, byte: u8| {
        let page = BASE + (64 + n) * PAGE_SIZE;
        let codec = crate::codec::CodecId::Lz4;
        worker.store.put(page, codec, &[byte; 3800], Apart::default()).expect("the segment is large")
    };
    let rest: Vec<_> = (0..31).map(|n| put(&mut worker, n, 0)).collect();
    for (_, slot) in rest.into_iter().enumerate().filter(|(n, _)| *n < 7 || (n - 7) % 8 >= 2) {
        // SAFETY: no page entry ever named it.
        unsafe { worker.store.free(slot) };
    }
    let background = spawn(2, move || {
        worker.compact_store();
        // What the compaction emptied is used again.
        for n in 32..64 {
            put(&mut worker, n, 0xFF);
        }
        set_aside(&mut worker, extent);
        worker.launder(extent, &PageSet::ALL);
        worker.compact_store();
    });
    assert_eq!(engine.touch(0, None), content(TAG));
    end(background);
    finally(engine, content(TAG));
}

/// The thread of the tier: brings back whatever is wanted, until it is told that nothing more will be.
fn tier(number: u32, engine: &'static Engine) -> JoinHandle<()> {
    spawn(number, move || {
        let below = engine.below().expect("there is one");
        let mut restorer = Restorer::new(engine, engine.kernel).expect("a model's memory does not run out");
        loop {
            // Told before the queue is looked at, so that the last page is seen.
            let over = below.is_over();
            match below.take_wanted() {
                Some(page) => drop(bring(engine, engine.kernel, below, &mut restorer, page, 1, || ())),
                None if over => return,
                None => loom::thread::yield_now(),
            }
        }
    })
}

fn end_tier(engine: &'static Engine, tier: JoinHandle<()>) {
    engine.below().expect("there is one").be_over();
    end(tier);
}

/// The page is below memory before the threads begin.
fn below(engine: &'static Engine) -> Worker {
    let mut worker = stored(engine);
    assert!(sink(engine, &mut worker), "it lies in memory");
    worker
}

fn pending_touched() {
    let (engine, _) = page(TAG);
    drop(below(engine));
    let tier = tier(2, engine);
    assert_eq!(engine.touch(0, Some(content(TAG2))), content(TAG));
    end_tier(engine, tier);
    finally(engine, content(TAG2));
}

fn pending_touched_by_two() {
    let (engine, _) = page(TAG);
    drop(below(engine));
    let (tier, other) = (tier(2, engine), reader(3, engine));
    assert_eq!(engine.touch(0, None), content(TAG));
    assert_eq!(end(other), content(TAG));
    end_tier(engine, tier);
    finally(engine, content(TAG));
}

fn pending_dropped() {
    let (engine, _) = page(TAG);
    drop(below(engine));
    let (tier, other) = (tier(2, engine), reader(3, engine));
    drop_page(engine);
    let found = end(other);
    assert!(found == content(TAG) || found == ZERO, "{found:x?}");
    end_tier(engine, tier);
    assert_eq!(engine.touch(0, None), ZERO, "a dropped page reads as zeros");
    finally(engine, ZERO);
}

fn moves_and_is_touched() {
    let (engine, _) = page(TAG);
    drop(below(engine));
    let tier = tier(2, engine);
    let background = spawn(3, move || relocate(engine));
    assert_eq!(engine.touch(0, None), content(TAG));
    end(background);
    end_tier(engine, tier);
    finally(engine, content(TAG));
}

fn goes_down_and_is_touched() {
    let (engine, _) = page(TAG);
    let mut worker = stored(engine);
    let tier = tier(2, engine);
    let background = spawn(3, move || {
        sink(engine, &mut worker);
    });
    assert_eq!(engine.touch(0, Some(content(TAG2))), content(TAG));
    end(background);
    end_tier(engine, tier);
    finally(engine, content(TAG2));
}
