//! Atomics and cells that look like the standard library's and are loom's.
//!
//! What it is: what `crate::sync` means to a source file of the pager or the allocator when a model includes it. Each type
//! has the size, the layout and the constant constructor of the one that it stands for; so zeroed memory is a valid
//! value, statics work, and an address may be cast to it. The state that loom keeps lies in a table by address.
//!
//! What it is not: complete. It has the operations that the modelled files use. Values of less than 64 bits may not
//! wrap around.
//!
//! Loom treats `SeqCst` accesses as `AcqRel` and has `SeqCst` fences
//! (<https://docs.rs/loom/0.7.2/loom/#limitations-and-caveats>). So a `SeqCst` access here is one behind a fence, as
//! compilers make it for processors with such fences (Batty et al., "Clarifying and compiling C/C++ concurrency", POPL
//! 2012). That is at least as strong as the access itself.
//!
//! Invariants: everything in the table was made by the model's first thread before it started others, so loom lets every
//! thread access it. It is a spare with value 0 until an address claims it; the claim adds what the memory held.

use crate::weaken::{Site, Weakened};
use core::cell;
pub use core::sync::atomic::Ordering;
use loom::sync::atomic::fence;
use loom::sync::Condvar;
use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;
use std::rc::Rc;

/// A word that loom watches; what it holds is its loom value plus `offset`.
struct Word {
    atomic: loom::sync::atomic::AtomicU64,
    /// Nobody waits for it: notifying it only tells loom that this access and every other one that does so depend on each
    /// other. Of the accesses of a word loom remembers the last one only, so a thread that loads and then stores would
    /// hide an earlier load of another thread, and the order in which the store comes first would not be tried.
    touched: Condvar,
    offset: u64,
}

#[derive(Default)]
struct Table {
    words: HashMap<usize, Rc<Word>>,
    spare_words: Vec<(loom::sync::atomic::AtomicU64, Condvar)>,
    cells: HashMap<usize, Rc<loom::cell::UnsafeCell<()>>>,
    spare_cells: Vec<loom::cell::UnsafeCell<()>>,
}

thread_local! {
    /// Loom runs all threads of a model on one thread of the system.
    static TABLE: RefCell<Table> = RefCell::default();
}

/// The number of the execution at hand, from 1.
static EXECUTION: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);

/// Empties the table and puts spares in it, at the start of each execution.
pub(crate) fn reset(words: usize, cells: usize) {
    EXECUTION.fetch_add(1, Ordering::Relaxed);
    let table = Table {
        spare_words: (0..words).map(|_| Default::default()).collect(),
        spare_cells: (0..cells).map(|_| loom::cell::UnsafeCell::new(())).collect(),
        ..Table::default()
    };
    drop(TABLE.replace(table));
}

fn word(addr: usize, held: u64) -> Rc<Word> {
    TABLE.with_borrow_mut(|table| {
        let Table { words, spare_words, .. } = table;
        let claim = || {
            let (atomic, touched) = spare_words.pop().expect("the model has too few spare words");
            Rc::new(Word { atomic, touched, offset: held })
        };
        words.entry(addr).or_insert_with(claim).clone()
    })
}

fn watched_cell(addr: usize) -> Rc<loom::cell::UnsafeCell<()>> {
    TABLE.with_borrow_mut(|table| {
        let Table { cells, spare_cells, .. } = table;
        let claim = || Rc::new(spare_cells.pop().expect("the model has too few spare cells"));
        cells.entry(addr).or_insert_with(claim).clone()
    })
}

/// Takes and lets go the kernel's lock of the futex at `addr`: what others did before they came here is seen afterwards.
pub(crate) fn pass_bucket(addr: usize) {
    // No atomic lies at an odd address.
    word(addr | 1, 0).atomic.fetch_add(1, Ordering::AcqRel);
}

/// Tells loom of a read of plain memory at `addr`: a race with a write of another thread ends the model.
#[track_caller]
pub fn reads(addr: usize) {
    watched_cell(addr).with(|_| ());
}

/// Uses plain memory at `addr` for a while, in which others may come in: whoever does not wait for its turn is found out.
#[track_caller]
pub fn uses(addr: usize) {
    writes(addr);
    word(addr << 1 | 1, 0).touched.notify_all();
    writes(addr);
}

/// Tells loom of a write to plain memory at `addr`.
#[track_caller]
pub fn writes(addr: usize) {
    watched_cell(addr).with_mut(|_| ());
}

/// The part of an ordering that loom models at the access itself.
fn at_access(order: Ordering, loads: bool, stores: bool) -> Ordering {
    match (order, loads, stores) {
        (Ordering::SeqCst, true, true) => Ordering::AcqRel,
        (Ordering::SeqCst, true, false) => Ordering::Acquire,
        (Ordering::SeqCst, false, _) => Ordering::Release,
        (order, ..) => order,
    }
}

/// Runs an access behind the fence that its ordering asks for.
fn fenced<R>(order: Ordering, access: impl FnOnce() -> R) -> R {
    if order != Ordering::SeqCst {
        return access();
    }
    fence(Ordering::SeqCst);
    access()
}

impl Word {
    fn load(&self, site: Site, order: Ordering) -> u64 {
        let order = site.ordering("load", order);
        self.touched.notify_all();
        let raw = fenced(order, || self.atomic.load(at_access(order, true, false)));
        raw.wrapping_add(self.offset)
    }

    fn store(&self, site: Site, value: u64, order: Ordering) {
        let order = site.ordering("store", order);
        let raw = value.wrapping_sub(self.offset);
        fenced(order, || self.atomic.store(raw, at_access(order, false, true)));
    }

    fn swap(&self, site: Site, value: u64, order: Ordering) -> u64 {
        let raw = value.wrapping_sub(self.offset);
        if site.in_two_steps("swap") {
            let old = self.atomic.load(Ordering::SeqCst);
            self.atomic.store(raw, Ordering::SeqCst);
            return old.wrapping_add(self.offset);
        }
        let order = site.ordering("swap", order);
        fenced(order, || self.atomic.swap(raw, at_access(order, true, true))).wrapping_add(self.offset)
    }

    fn compare_exchange(
        &self,
        site: Site,
        op: &'static str,
        old: u64,
        new: u64,
        order: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        let (raw_old, raw_new) = (old.wrapping_sub(self.offset), new.wrapping_sub(self.offset));
        if site.in_two_steps(op) {
            let found = self.atomic.load(Ordering::SeqCst).wrapping_add(self.offset);
            if found != old {
                return Err(found);
            }
            self.atomic.store(raw_new, Ordering::SeqCst);
            return Ok(found);
        }
        let order = site.ordering(op, order);
        let exchange = || {
            self.atomic.compare_exchange(
                raw_old,
                raw_new,
                at_access(order, true, true),
                at_access(failure, true, false),
            )
        };
        let result = fenced(order, exchange);
        result.map(|raw| raw.wrapping_add(self.offset)).map_err(|raw| raw.wrapping_add(self.offset))
    }

    fn update(&self, site: Site, op: &'static str, order: Ordering, change: impl Fn(u64) -> u64) -> u64 {
        let raw_change = |raw: u64| change(raw.wrapping_add(self.offset)).wrapping_sub(self.offset);
        if site.in_two_steps(op) {
            let raw = self.atomic.load(Ordering::SeqCst);
            self.atomic.store(raw_change(raw), Ordering::SeqCst);
            return raw.wrapping_add(self.offset);
        }
        let order = site.ordering(op, order);
        let raw = fenced(order, || {
            let success = at_access(order, true, true);
            self.atomic.fetch_update(success, Ordering::Relaxed, |raw| Some(raw_change(raw)))
        });
        raw.unwrap_or_else(|raw| raw).wrapping_add(self.offset)
    }

    /// Adds by one access, which `update` is not.
    fn add(&self, site: Site, op: &'static str, value: u64, order: Ordering) -> u64 {
        if site.in_two_steps(op) {
            return self.update(site, op, order, |old| old.wrapping_add(value));
        }
        let order = site.ordering(op, order);
        let raw = fenced(order, || self.atomic.fetch_add(value, at_access(order, true, true)));
        raw.wrapping_add(self.offset)
    }
}

/// A number that loom does not look at. Each execution begins with what it was made with: one that went another way than those before
/// it, with the same switches, has loom wait for ever.
pub struct Hint {
    made_with: u32,
    /// When it was stored to last, and what.
    stored: [core::sync::atomic::AtomicU64; 2],
}

#[allow(missing_docs, reason = "as in `core::sync::atomic`")]
impl Hint {
    pub const fn new(value: u32) -> Hint {
        Hint { made_with: value, stored: [const { core::sync::atomic::AtomicU64::new(0) }; 2] }
    }

    pub fn load(&self, _: Ordering) -> u32 {
        let is_new = self.stored[0].load(Ordering::Relaxed) == EXECUTION.load(Ordering::Relaxed);
        if is_new {
            self.stored[1].load(Ordering::Relaxed) as u32
        } else {
            self.made_with
        }
    }

    pub fn store(&self, value: u32, _: Ordering) {
        self.stored[0].store(EXECUTION.load(Ordering::Relaxed), Ordering::Relaxed);
        self.stored[1].store(value.into(), Ordering::Relaxed);
    }

    pub fn swap(&self, value: u32, _: Ordering) -> u32 {
        let old = self.load(Ordering::Relaxed);
        self.store(value, Ordering::Relaxed);
        old
    }

    pub fn fetch_add(&self, value: u32, _: Ordering) -> u32 {
        self.swap(self.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed)
    }
}

macro_rules! integers {
    ($($(#[$doc:meta])+ $name:ident: $int:ty,)+) => {$(
        $(#[$doc])+
        #[derive(Debug)]
        #[repr(transparent)]
        pub struct $name(cell::UnsafeCell<$int>);

        // SAFETY: the memory is read when its address is claimed, and not touched otherwise; all of a model's threads
        // run on one thread of the system.
        unsafe impl Sync for $name {}

        impl Default for $name {
            fn default() -> Self {
                Self::new(0)
            }
        }

        #[allow(missing_docs, reason = "as in `core::sync::atomic`")]
        impl $name {
            pub const fn new(value: $int) -> Self {
                Self(cell::UnsafeCell::new(value))
            }

            fn word(&self) -> Rc<Word> {
                // SAFETY: nobody writes the memory.
                word(self.0.get() as usize, u64::from(unsafe { *self.0.get() } as u64))
            }

            #[track_caller]
            pub fn load(&self, order: Ordering) -> $int {
                self.word().load(Site(Location::caller()), order) as $int
            }

            #[track_caller]
            pub fn store(&self, value: $int, order: Ordering) {
                self.word().store(Site(Location::caller()), value as u64, order)
            }

            #[track_caller]
            pub fn swap(&self, value: $int, order: Ordering) -> $int {
                self.word().swap(Site(Location::caller()), value as u64, order) as $int
            }

            #[track_caller]
            pub fn compare_exchange(
                &self,
                old: $int,
                new: $int,
                order: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                let site = Site(Location::caller());
                let op = "compare_exchange";
                let result = self.word().compare_exchange(site, op, old as u64, new as u64, order, failure);
                result.map(|value| value as $int).map_err(|value| value as $int)
            }

            /// Never fails spuriously.
            #[track_caller]
            pub fn compare_exchange_weak(
                &self,
                old: $int,
                new: $int,
                order: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                self.compare_exchange(old, new, order, failure)
            }

            #[track_caller]
            pub fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                self.word().add(Site(Location::caller()), "fetch_add", value as u64, order) as $int
            }

            #[track_caller]
            pub fn fetch_sub(&self, value: $int, order: Ordering) -> $int {
                let negative = (value as u64).wrapping_neg();
                self.word().add(Site(Location::caller()), "fetch_sub", negative, order) as $int
            }

            #[track_caller]
            pub fn fetch_or(&self, value: $int, order: Ordering) -> $int {
                let change = |old| old | value as u64;
                self.word().update(Site(Location::caller()), "fetch_or", order, change) as $int
            }

            #[track_caller]
            pub fn fetch_and(&self, value: $int, order: Ordering) -> $int {
                let change = |old| old & value as u64;
                self.word().update(Site(Location::caller()), "fetch_and", order, change) as $int
            }
        }
    )+};
}

integers! {
    /// Stands for `core`'s.
    AtomicU64: u64,
    /// Stands for `core`'s.
    AtomicUsize: usize,
    /// Stands for `core`'s.
    AtomicU32: u32,
    /// Stands for `core`'s.
    AtomicU8: u8,
}

/// Stands for `core`'s.
#[derive(Debug)]
#[repr(transparent)]
pub struct AtomicPtr<T>(AtomicUsize, core::marker::PhantomData<*mut T>);

// SAFETY: as for the integers; what is pointed to is the user's affair, as it is in `core`.
unsafe impl<T> Sync for AtomicPtr<T> {}
// SAFETY: as above.
unsafe impl<T> Send for AtomicPtr<T> {}

#[allow(missing_docs, reason = "as in `core::sync::atomic`")]
impl<T> AtomicPtr<T> {
    /// Only null can be made a number in a constant, and the modelled files start with nothing else.
    pub const fn new(pointer: *mut T) -> Self {
        assert!(pointer.is_null());
        Self(AtomicUsize::new(0), core::marker::PhantomData)
    }

    #[track_caller]
    pub fn load(&self, order: Ordering) -> *mut T {
        self.0.load(order) as *mut T
    }

    #[track_caller]
    pub fn store(&self, pointer: *mut T, order: Ordering) {
        self.0.store(pointer as usize, order)
    }

    #[track_caller]
    pub fn swap(&self, pointer: *mut T, order: Ordering) -> *mut T {
        self.0.swap(pointer as usize, order) as *mut T
    }

    #[track_caller]
    pub fn compare_exchange(
        &self,
        old: *mut T,
        new: *mut T,
        order: Ordering,
        failure: Ordering,
    ) -> Result<*mut T, *mut T> {
        let result = self.0.compare_exchange(old as usize, new as usize, order, failure);
        result.map(|value| value as *mut T).map_err(|value| value as *mut T)
    }

    /// Never fails spuriously.
    #[track_caller]
    pub fn compare_exchange_weak(
        &self,
        old: *mut T,
        new: *mut T,
        order: Ordering,
        failure: Ordering,
    ) -> Result<*mut T, *mut T> {
        self.compare_exchange(old, new, order, failure)
    }

    #[track_caller]
    pub fn fetch_update(
        &self,
        order: Ordering,
        failure: Ordering,
        mut change: impl FnMut(*mut T) -> Option<*mut T>,
    ) -> Result<*mut T, *mut T> {
        let mut old = self.load(failure);
        while let Some(new) = change(old) {
            match self.compare_exchange(old, new, order, failure) {
                Ok(old) => return Ok(old),
                Err(found) => old = found,
            }
        }
        Err(old)
    }
}

/// Stands for `core`'s; loom ends the model where two threads reach it without an order between them.
#[derive(Default)]
#[repr(transparent)]
pub struct Cell<T>(cell::Cell<T>);

#[allow(missing_docs, reason = "as in `core::cell`")]
impl<T> Cell<T> {
    pub const fn new(value: T) -> Self {
        Self(cell::Cell::new(value))
    }

    #[track_caller]
    pub fn set(&self, value: T) {
        writes(self.0.as_ptr() as usize);
        self.0.set(value);
    }

    #[track_caller]
    pub fn replace(&self, value: T) -> T {
        writes(self.0.as_ptr() as usize);
        self.0.replace(value)
    }
}

#[allow(missing_docs, reason = "as in `core::cell`")]
impl<T: Default> Cell<T> {
    #[track_caller]
    pub fn take(&self) -> T {
        self.replace(T::default())
    }
}

#[allow(missing_docs, reason = "as in `core::cell`")]
impl<T: Copy> Cell<T> {
    #[track_caller]
    pub fn get(&self) -> T {
        reads(self.0.as_ptr() as usize);
        self.0.get()
    }
}

/// Stands for `core`'s; asking for the pointer counts as a write.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct UnsafeCell<T>(cell::UnsafeCell<T>);

#[allow(missing_docs, reason = "as in `core::cell`")]
impl<T> UnsafeCell<T> {
    pub const fn new(value: T) -> Self {
        Self(cell::UnsafeCell::new(value))
    }

    #[track_caller]
    pub fn get(&self) -> *mut T {
        writes(self.0.get() as usize);
        self.0.get()
    }
}

/// How often a loop that may sleep looks again before it does: once, as loom tries every order anyhow.
pub const fn spins(_: u32) -> u32 {
    1
}
