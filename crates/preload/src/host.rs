//! The pager of this process, and what it asks of the program that it is in.

use crate::notice::{say_once, CONTROL_DIR};
use crate::statistics;
use core::sync::atomic::{AtomicBool, AtomicIsize, Ordering::*};
use memfold_pager::control::ControlPage;
use memfold_pager::mirror::Mapped;
use memfold_pager::own_heap::OwnHeap;
use memfold_pager::samples::{Part, Sampler, Show};
use memfold_pager::{Engine, Host, ReadCpu};
use memfold_sys::Result;

/// The pager of this process.
pub static ENGINE: Engine = Engine::new(Host {
    notice: say_once,
    open_control,
    own_heap: || true,
    thread_cpu,
    decay,
    went_away: memfold_heap::went_away,
    sampler: Some(&SAMPLER),
});

/// The allocator of this library, which the pager asks for samples.
static SAMPLER: Sampler = Sampler { sample, each: each_sample };

/// Has so many bytes be between two samples of the heap in the mean. False if there is no memory for it.
pub fn sample(mean: u64) -> bool {
    memfold_heap::sample(mean as usize, memfold_unwind::own_module())
}

fn each_sample(show: Show<'_>) -> Result<()> {
    let all = memfold_heap::summary();
    show(Part::Head(all.mean as u64, all.since, all.missed))?;
    let (mut at, mut calls) = (0, [0; memfold_unwind::MOST_CALLS]);
    while let Some((number, len)) = memfold_heap::stack_from(&mut at, &mut calls) {
        show(Part::Stack(number, &calls[..len]))?;
    }
    let (mut at, mut some) = (0, [memfold_heap::Sample::NONE; 64]);
    loop {
        match memfold_heap::samples_from(&mut at, &mut some) {
            0 => return Ok(()),
            count => some[..count]
                .iter()
                .try_for_each(|found| show(Part::Block(found.block, found.size, found.stack, found.born)))?,
        }
    }
}

/// What allocates in this library, which is the pager's background thread; programs get their memory from `heap`.
#[global_allocator]
static HEAP: OwnHeap = OwnHeap;

/// Whether the pager is asked for: the functions that programs call for their mappings look here first.
pub static PAGER: AtomicBool = AtomicBool::new(false);

/// The pager, if it was asked for.
#[inline]
pub fn pager() -> Option<&'static Engine> {
    PAGER.load(Relaxed).then_some(&ENGINE)
}

/// The part of a limit of resident memory that may be free blocks.
const FREE_SHARE: u64 = 16;

/// Gives back memory that the allocator has kept for nothing, and says now and then what it holds.
fn decay() {
    let limit = if ENGINE.is_limited() { ENGINE.limit() / FREE_SHARE } else { u64::MAX };
    memfold_arena::settings::set_ceiling(limit as usize);
    memfold_arena::decay();
    statistics::publish_if_due(&ENGINE);
}

/// Where libc keeps each thread's `struct rseq`, from the thread pointer on (glibc 2.35); 0 if it does not.
static RSEQ_OFFSET: AtomicIsize = AtomicIsize::new(0);

memfold_sys::weak! {
    /// How far it is from there, an `isize`.
    rseq_offset = "__rseq_offset"
}
memfold_sys::weak! {
    /// How long it is, a `u32`; 0 where there is none.
    rseq_size = "__rseq_size"
}

/// Looks for it, before the program has other threads.
pub fn find_rseq() {
    let (offset, size) = (rseq_offset().cast::<isize>(), rseq_size().cast::<u32>());
    // SAFETY: variables of these types, constant once the program runs.
    if !offset.is_null() && !size.is_null() && unsafe { *size } != 0 {
        // SAFETY: as above.
        RSEQ_OFFSET.store(unsafe { *offset }, Relaxed);
    }
}

/// Has the word read in which the kernel writes the CPU on which a thread runs: one of the thread's `struct rseq` (rseq(2)).
fn thread_cpu(tid: u32, read: ReadCpu<'_>) -> Option<u32> {
    /// Offset of `cpu_id` in it.
    const CPU_ID: usize = 4;
    let offset = RSEQ_OFFSET.load(Relaxed);
    if offset == 0 {
        return None;
    }
    memfold_heap::with_thread_pointer_of(tid, |pointer| read(pointer.wrapping_add_signed(offset) + CPU_ID))
}

fn open_control(page: &ControlPage) -> Option<Mapped> {
    CONTROL_DIR.make_page(page)
}
