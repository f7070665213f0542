//! The thread that does what program threads ask of the userfaultfd.

use super::{Proxy, Request, ABSENT, ASKED, DONE};
use crate::engine::Engine;
use crate::fault::reason::{Outcome, Reason};
use crate::fault::restore::Restorer;
use crate::kernel::Kernel;
use crate::retry::patiently;
use crate::tables::bitmap::PageRange;
use crate::tables::extent::Extent;
use crate::tier::below::Asker;
use core::sync::atomic::Ordering::*;
use memfold_sys::thread::{self, Backoff};
use memfold_sys::{futex, Result, PAGE_SIZE};

impl Proxy {
    fn serve(&self, engine: &'static Engine, kernel: &'static Kernel) {
        let mut restorer = None;
        loop {
            match self.state.load(Acquire) {
                ABSENT => return,
                ASKED => {
                    // SAFETY: the state is `ASKED`.
                    let answer = carry_out(engine, kernel, &mut restorer, unsafe { *self.request.get() });
                    // SAFETY: as above.
                    unsafe { *self.answer.get() = answer };
                    // Unless it was closed meanwhile.
                    let _ = self.state.compare_exchange(ASKED, DONE, AcqRel, Acquire);
                    futex::wake(&self.state, u32::MAX >> 1);
                }
                idle => drop(futex::wait(&self.state, idle, None)),
            }
        }
    }
}

/// The thread's entry; `arg` is the engine's address.
pub extern "C" fn main(arg: usize) {
    // SAFETY: the engine lives for ever.
    let engine: &'static Engine = unsafe { &*(arg as *const Engine) };
    thread::set_name(thread::agent_name::PROXY);
    // Without it the thread keeps rights that it has no use for, which is no reason to stop.
    let _ = thread::drop_capabilities(0);
    if let Some(kernel) = engine.kernel() {
        engine.proxy.serve(engine, kernel);
    }
}

fn carry_out(
    engine: &'static Engine,
    kernel: &'static Kernel,
    restorer: &mut Option<Restorer>,
    request: Request,
) -> Result<()> {
    match request {
        Request::Wake(extent) => {
            kernel.uffd.wake(extent.base(), memfold_sys::EXTENT_SIZE);
            Ok(())
        }
        // What stays registered, for lack of memory, is several mappings to `mremap`, and moves or fails as such.
        Request::LetGo { start, len } => patiently(|| kernel.uffd.unregister(start, len)),
        Request::Arm { start, len } => kernel.uffd.register(start, len, kernel.armed_modes()),
        Request::BringBack { extent, pages } => {
            let restorer = match restorer {
                Some(restorer) => restorer,
                None => restorer.insert(patiently(|| Restorer::new(engine, kernel))?),
            };
            let fetch =
                |page, restorer: &mut Restorer| engine.fetch(Asker::Proxy, page, &mut restorer.arrived);
            bring_extent_back(restorer, extent, pages, fetch);
            restorer.arrived.wipe();
            Ok(())
        }
        Request::Settle => {
            let mut backoff = Backoff::new();
            while kernel.uffd.is_changing() {
                backoff.wait();
            }
            Ok(())
        }
    }
}

/// Brings back what is away of these pages of an extent, whoever else is at it. `fetch` waits for the cluster of the page at an address.
pub(crate) fn bring_extent_back(
    restorer: &mut Restorer,
    extent: &Extent,
    pages: PageRange,
    fetch: impl Fn(usize, &mut Restorer),
) {
    let mut index = pages.lo;
    let mut backoff = Backoff::new();
    while index < pages.hi {
        match restorer.restore(extent, pages.starting_at(index), Reason::Change) {
            Outcome::Done { first, pages } => {
                restorer.kernel.uffd.wake(extent.page_addr(first), pages * PAGE_SIZE);
                index = first + pages;
            }
            Outcome::Resident | Outcome::Gone => index += 1,
            Outcome::InOtherHands | Outcome::TryAgain => backoff.wait(),
            Outcome::Pending => fetch(extent.page_addr(index), restorer),
        }
    }
}
