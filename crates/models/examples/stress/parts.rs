//! The pager's parts.

use crate::codec::CodecId;
use crate::free_queue::FreeQueue;
use crate::gate::{Brake, Gate};
use crate::lock::Mutex;
use crate::prefetch::PrefetchQueue;
use crate::slot::{Apart, Slot};
use crate::store::Stores;
use crate::together;
use crate::turns::Turns;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use memfold_sys::PAGE_SIZE;

/// Names and bodies.
pub const PARTS: &[(&str, fn())] = &[
    ("mutex", mutex),
    ("gate", gate),
    ("brake", brake),
    ("turns", turns),
    ("free queue", free_queue),
    ("prefetch queue", prefetch_queue),
];

const ROUNDS: usize = 20_000;

/// Memory without a protection of its own.
struct Plain<const N: usize>([UnsafeCell<usize>; N]);

// SAFETY: whether what is tested orders the accesses is what the program is about.
unsafe impl<const N: usize> Sync for Plain<N> {}

impl<const N: usize> Plain<N> {
    const fn new() -> Self {
        Plain([const { UnsafeCell::new(0) }; N])
    }

    fn bump(&self, index: usize) {
        // SAFETY: as above.
        unsafe { *self.0[index].get() += 1 };
    }

    fn get(&self, index: usize) -> usize {
        // SAFETY: as above.
        unsafe { *self.0[index].get() }
    }
}

fn mutex() {
    static LOCK: Mutex = Mutex::new(());
    static COUNT: Plain<1> = Plain::new();
    together(4, |_| {
        for _ in 0..ROUNDS {
            let _guard = LOCK.lock();
            COUNT.bump(0);
        }
    });
    assert_eq!(COUNT.get(0), 4 * ROUNDS);
}

fn gate() {
    static GATE: Gate = Gate::new();
    static COUNTS: Plain<3> = Plain::new();
    together(3, |number| {
        for _ in 0..ROUNDS / 4 {
            if number == 2 {
                GATE.close();
                (0..3).for_each(|count| COUNTS.bump(count));
                GATE.open();
            } else {
                let _pass = GATE.pass();
                COUNTS.bump(number);
            }
        }
    });
    assert_eq!(COUNTS.get(0), ROUNDS / 2);
}

fn brake() {
    static BRAKE: Brake = Brake::new();
    static COUNT: Plain<1> = Plain::new();
    together(3, |number| {
        for _ in 0..ROUNDS / 4 {
            if number == 0 {
                BRAKE.unpark();
                COUNT.bump(0);
                BRAKE.park();
            } else {
                BRAKE.hold();
                let _ = COUNT.get(0);
                BRAKE.let_go();
            }
        }
    });
}

fn turns() {
    static TURNS: Turns = Turns::new();
    static COUNTS: Plain<2> = Plain::new();
    together(3, |number| {
        for _ in 0..ROUNDS / 4 {
            if number == 2 {
                TURNS.begin_read();
                TURNS.wait_for_movers(|| false, || false);
                (0..2).for_each(|count| COUNTS.bump(count));
                // Whoever does not wait for the end comes in now.
                std::thread::yield_now();
                TURNS.end_read();
            } else if let Some(_turn) = TURNS.try_move() {
                std::thread::yield_now();
                COUNTS.bump(number);
            }
        }
    });
}

fn free_queue() {
    static QUEUE: FreeQueue = FreeQueue::new();
    static SLOTS: [AtomicUsize; 2000] = [const { AtomicUsize::new(0) }; 2000];
    let mut store = Stores::new();
    for (n, place) in SLOTS.iter().enumerate() {
        let slot = store
            .put((n + 1) * PAGE_SIZE, CodecId::Lz4, &[7; 100], Apart::default())
            .expect("memory for the store");
        place.store(slot.payload() as usize, Relaxed);
    }
    static DRAINED: AtomicUsize = AtomicUsize::new(0);
    static STORE: StoreCell = StoreCell(UnsafeCell::new(None));
    // SAFETY: no thread has begun.
    unsafe { *STORE.0.get() = Some(store) };
    together(3, |number| match number {
        2 => {
            // SAFETY: this thread alone uses it until it has ended.
            let store = unsafe { &mut *STORE.0.get() }.as_mut().expect("set above");
            while DRAINED.load(Relaxed) < SLOTS.len() {
                DRAINED.fetch_add(store.drain(&QUEUE), Relaxed);
            }
        }
        _ => {
            for place in SLOTS.iter().skip(number).step_by(2) {
                // SAFETY: each slot is given up once.
                unsafe { QUEUE.push(Slot::from_payload(place.load(Relaxed) as u64)) };
            }
        }
    });
}

/// A store that one thread after the other uses.
struct StoreCell(UnsafeCell<Option<Stores>>);

// SAFETY: see above.
unsafe impl Sync for StoreCell {}

fn prefetch_queue() {
    static QUEUE: PrefetchQueue = PrefetchQueue::new();
    static SENT: Plain<1> = Plain::new();
    together(2, |number| {
        let mut n = 0;
        while n < ROUNDS {
            if number == 0 {
                n += usize::from(QUEUE.put((n + 1) * PAGE_SIZE, 1));
            } else if let Some((page, _)) = QUEUE.take() {
                n += 1;
                assert_eq!(page, n * PAGE_SIZE);
                SENT.bump(0);
            }
        }
    });
    assert_eq!(SENT.get(0), ROUNDS);
}
