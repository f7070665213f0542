//! What program threads ask of the userfaultfd, in a model: they do it themselves. That the one who serves is another thread, who is
//! waited for, makes no order that is not among those tried.

use crate::tables::bitmap::PageRange;
use crate::engine::Engine;
use crate::tables::extent::Extent;
use crate::fault::reason::{Outcome, Reason};
use crate::fault::restore::Restorer;
use crate::thread::Backoff;
use crate::tier::bring::fetch;
use memfold_sys::{Result, EXTENT_SIZE, PAGE_SIZE};
use std::sync::OnceLock;

/// As in the pager.
#[derive(Default)]
pub struct Proxy(OnceLock<&'static Engine>);

impl Proxy {
    /// Serves this engine.
    pub fn open(&self, engine: &'static Engine) {
        assert!(self.0.set(engine).is_ok(), "one engine");
    }

    fn engine(&self) -> &'static Engine {
        self.0.get().expect("opened with the engine")
    }

    pub fn wake(&self, extent: &'static Extent) {
        self.engine().kernel.uffd.wake(extent.base(), EXTENT_SIZE);
    }

    pub fn let_go(&self, start: usize, len: usize) -> Result<()> {
        self.engine().kernel.uffd.unregister(start, len)
    }

    pub fn bring_back(&self, extent: &'static Extent, pages: PageRange) -> Result<()> {
        let engine = self.engine();
        let mut restorer = Restorer::new(engine, engine.kernel)?;
        let (mut index, mut backoff) = (pages.lo, Backoff::new());
        while index < pages.hi {
            match restorer.restore(extent, pages.starting_at(index), Reason::Change) {
                Outcome::Done { first, pages } => {
                    engine.kernel.uffd.wake(extent.page_addr(first), pages * PAGE_SIZE);
                    index = first + pages;
                }
                Outcome::Resident | Outcome::Gone => index += 1,
                Outcome::InOtherHands | Outcome::TryAgain => backoff.wait(),
                Outcome::Pending => {
                    let below = engine.below().expect("where something is pending");
                    fetch(engine, below, extent.page_addr(index), &mut restorer.arrived);
                }
            }
        }
        Ok(())
    }

    pub fn settle(&self) {
        let mut backoff = Backoff::new();
        while self.engine().kernel.uffd.is_changing() {
            backoff.wait();
        }
    }
}
