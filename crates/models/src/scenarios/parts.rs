//! Scenarios of the small parts that threads meet at: mutex, gate, brake, turns and queues.

use crate::arena_lock;
use crate::explore::{keep, spawn, Scenario};
use crate::fault::helpers::Helpers;
use crate::fault::prefetch::PrefetchQueue;
use crate::free_queue::FreeQueue;
use crate::gate::{Brake, Gate};
use crate::lock::Mutex;
use crate::slot::{Apart, Slot};
use crate::store::Stores;
use crate::sync::{uses, AtomicU32, Ordering::SeqCst};
use crate::turns::Turns;
use memfold_sys::PAGE_SIZE;

const SPARES: (usize, usize) = (16, 8);

/// The scenarios of this file.
pub const SCENARIOS: &[Scenario] = &[
    Scenario { name: "pager-mutex", preemptions: 3, spares: SPARES, body: pager_mutex },
    Scenario { name: "arena-mutex", preemptions: 3, spares: SPARES, body: arena_mutex },
    Scenario { name: "gate", preemptions: 2, spares: SPARES, body: gate },
    Scenario { name: "gate-closed-by-two", preemptions: 2, spares: SPARES, body: gate_closed_by_two },
    Scenario { name: "brake", preemptions: 4, spares: SPARES, body: brake },
    Scenario { name: "turns", preemptions: 2, spares: SPARES, body: turns },
    Scenario { name: "turns-in-touch", preemptions: 2, spares: SPARES, body: turns_in_touch },
    Scenario { name: "turns-behind-touch", preemptions: 2, spares: SPARES, body: turns_behind_touch },
    Scenario { name: "helpers", preemptions: 2, spares: SPARES, body: helpers },
    Scenario { name: "free-queue", preemptions: 3, spares: SPARES, body: free_queue },
    Scenario { name: "prefetch-queue", preemptions: 3, spares: SPARES, body: prefetch_queue },
    Scenario { name: "prefetch-by-two", preemptions: 2, spares: SPARES, body: prefetch_by_two },
];

/// Addresses that stand for plain memory.
const PLAIN: usize = 1;
const OTHER: usize = 2;

fn pager_mutex() {
    let lock = keep(Mutex::new(()));
    let others: Vec<_> = (2..4)
        .map(|number| {
            spawn(number, || {
                let _guard = lock.lock();
                uses(PLAIN);
            })
        })
        .collect();
    if let Some(_guard) = lock.try_lock() {
        uses(PLAIN);
    }
    others.into_iter().for_each(|thread| thread.join().expect("loom ends the process instead"));
    uses(PLAIN);
}

fn arena_mutex() {
    // Looking at what the mutex holds counts as a write.
    let lock = keep(arena_lock::Mutex::new(0));
    let others: Vec<_> = (2..4).map(|number| spawn(number, || *lock.lock() += 1)).collect();
    *lock.lock() += 1;
    others.into_iter().for_each(|thread| thread.join().expect("loom ends the process instead"));
    assert_eq!(*lock.lock(), 3, "increments under the lock");
}

fn gate() {
    let gate = keep(Gate::new());
    let inside = spawn(2, || {
        let _pass = gate.pass();
        uses(PLAIN);
    });
    let other = spawn(3, || {
        let _pass = gate.pass();
        uses(OTHER);
    });
    gate.close();
    // Nobody is inside: what they did is done, or comes after.
    uses(PLAIN);
    uses(OTHER);
    gate.open();
    inside.join().expect("loom ends the process instead");
    other.join().expect("loom ends the process instead");
}

/// A thread that forks and the pager's, which ends.
fn gate_closed_by_two() {
    let gate = keep(Gate::new());
    let inside = spawn(2, || {
        let _pass = gate.pass();
        uses(PLAIN);
    });
    let other = spawn(3, || {
        gate.close();
        uses(OTHER);
        gate.open();
    });
    gate.close();
    uses(PLAIN);
    gate.open();
    inside.join().expect("loom ends the process instead");
    other.join().expect("loom ends the process instead");
}

fn brake() {
    let brake = keep(Brake::new());
    let worker = spawn(2, || {
        for _ in 0..2 {
            brake.unpark();
            uses(PLAIN);
            brake.park();
        }
    });
    brake.hold();
    uses(PLAIN);
    brake.let_go();
    worker.join().expect("loom ends the process instead");
}

fn turns() {
    let turns = keep(Turns::new());
    let mover = spawn(2, || {
        if let Some(_turn) = turns.try_move() {
            uses(PLAIN);
        }
    });
    let forker = spawn(3, || {
        turns.wait_for_reader();
    });
    turns.begin_read();
    turns.wait_for_movers(|| false, || false);
    uses(PLAIN);
    turns.end_read();
    mover.join().expect("loom ends the process instead");
    forker.join().expect("loom ends the process instead");
}

fn turns_in_touch() {
    let turns = keep(Turns::new());
    let mover = spawn(2, || {
        if let Some(_turn) = turns.try_move() {
            uses(PLAIN);
        }
    });
    turns.begin_read();
    turns.wait_for_movers(|| true, || false);
    turns.serve_touch();
    // A report comes in the middle of it.
    assert!(turns.leave_touch(), "a touch was being served");
    turns.wait_for_movers(|| false, || false);
    uses(PLAIN);
    turns.serve_touch();
    turns.end_read();
    mover.join().expect("loom ends the process instead");
}

/// A touch, behind which a report waits, is over before it is read.
fn turns_behind_touch() {
    struct World {
        turns: Turns,
        touch: AtomicU32,
    }
    let world = keep(World { turns: Turns::new(), touch: AtomicU32::new(1) });
    let mover = spawn(2, || {
        if let Some(_turn) = world.turns.try_move() {
            uses(PLAIN);
        }
    });
    let signal = spawn(3, || world.touch.store(0, SeqCst));
    world.turns.begin_read();
    world.turns.wait_for_movers(|| world.touch.load(SeqCst) != 0, || true);
    if world.touch.load(SeqCst) != 0 {
        world.turns.serve_touch();
    } else {
        uses(PLAIN);
    }
    world.turns.end_read();
    mover.join().expect("loom ends the process instead");
    signal.join().expect("loom ends the process instead");
}

fn helpers() {
    struct World {
        helpers: Helpers,
        forking: AtomicU32,
    }
    let world = keep(World { helpers: Helpers::new(), forking: AtomicU32::new(0) });
    let others: Vec<_> = [(2, PLAIN), (3, OTHER)]
        .map(|(number, place)| {
            spawn(number, move || {
                if let Some(_work) = world.helpers.begin(|| world.forking.load(SeqCst) != 0) {
                    uses(place);
                }
            })
        })
        .into();
    world.forking.store(1, SeqCst);
    world.helpers.wait_for_work();
    // Nobody has anything in hand: what they did is done, or comes after.
    uses(PLAIN);
    uses(OTHER);
    world.forking.store(0, SeqCst);
    others.into_iter().for_each(|thread| thread.join().expect("loom ends the process instead"));
}

fn free_queue() {
    crate::mem::reset();
    let mut store = Box::new(Stores::new());
    let mut slot = |n: usize| -> Slot {
        store
            .put(n * PAGE_SIZE, crate::codec::CodecId::Lz4, &[0; 100], Apart::default())
            .expect("the segment is large")
    };
    let (first, second) = (slot(1), slot(2));
    let queue = keep(FreeQueue::new());
    let others = [(2, first), (3, second)].map(|(number, slot)| {
        spawn(number, move || {
            // SAFETY: no entry ever named it.
            unsafe { queue.push(slot) }
        })
    });
    let early = store.drain(queue);
    others.into_iter().for_each(|thread| thread.join().expect("loom ends the process instead"));
    assert_eq!(early + store.drain(queue), 2, "slots drained");
    assert_eq!(store.usage().data, 0);
}

fn prefetch_queue() {
    let queue = keep(PrefetchQueue::new());
    let producer = spawn(2, || {
        assert!(queue.put(PAGE_SIZE, 1) && queue.put(2 * PAGE_SIZE, 2));
    });
    let mut expected = 1;
    for _ in 0..2 {
        if let Some(request) = queue.take() {
            assert_eq!(request, (expected * PAGE_SIZE, expected), "requests come whole and in order");
            expected += 1;
        }
    }
    producer.join().expect("loom ends the process instead");
    while let Some(request) = queue.take() {
        assert_eq!(request, (expected * PAGE_SIZE, expected));
        expected += 1;
    }
    assert_eq!(expected, 3);
}

fn prefetch_by_two() {
    let queue = keep(PrefetchQueue::new());
    let take = || {
        let mut sum = 0;
        while let Some((page, pages)) = queue.take() {
            assert_eq!(page, pages * PAGE_SIZE, "requests come whole");
            sum += pages;
        }
        sum
    };
    let other = spawn(2, take);
    assert!(queue.put(PAGE_SIZE, 1) && queue.put(2 * PAGE_SIZE, 2));
    let own = take();
    let others = other.join().expect("loom ends the process instead");
    assert_eq!(own + others + take(), 3, "each request was taken once");
}
