//! The thread's own heap, in a model.

use crate::heap::Heap;
use std::cell::Cell;

pub(crate) static EMPTY: Heap = Heap::sentinel();
pub(crate) static EXITED: Heap = Heap::sentinel();
pub(crate) static REFUSED: Heap = Heap::sentinel();

loom::thread_local! {
    static HEAP: Cell<&'static Heap> = Cell::new(&EMPTY);
}

pub(crate) fn get() -> &'static Heap {
    HEAP.with(Cell::get)
}

pub(crate) fn set(heap: &'static Heap) {
    HEAP.with(|cell| cell.set(heap));
}
