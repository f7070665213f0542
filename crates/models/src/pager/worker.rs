//! The background thread's state, in a model.

use crate::activity::Activity;
use crate::tables::bitmap::{PageRange, PageSet};
use crate::tables::extent::Extent;
use crate::codec::{Codecs, Page};
use crate::engine::Engine;
use crate::kernel::Kernel;
use crate::mem;
use crate::fault::reason::Reason;
use crate::fault::restore::Restorer;
use crate::store::Stores;
use memfold_policy::effort::Gains;
use memfold_sys::time::Nanos;
use memfold_sys::PAGE_SIZE;

/// No time passes, so nothing is left over for long.
pub(crate) const LEFTOVERS: Nanos = Nanos(400_000_000);

/// The fields that the modelled files use.
pub struct Worker {
    pub(crate) engine: &'static Engine,
    pub(crate) kernel: &'static Kernel,
    pub(crate) store: Box<Stores>,
    pub(crate) packing: Packing,
    pub(crate) restorer: Restorer,
    pub(crate) now: Nanos,
    pub(crate) upkeep: Upkeep,
    pub(crate) eviction: Eviction,
    pub(crate) census: Census,
}

/// As in the pager, without learning.
pub struct Packing {
    pub(crate) codecs: Codecs,
    pub(crate) gains: Gains,
    pub(crate) gains_at_once: Gains,
    pub(crate) compressed: u64,
    pub(crate) buffer: &'static mut Page,
    pub(crate) page: &'static mut Page,
    pub(crate) unforked: bool,
}

/// As in the pager.
pub struct Upkeep {
    pub(crate) copies_since: Nanos,
}

/// As in the pager, without a policy.
pub struct Eviction {
    pub(crate) short_of_memory: bool,
    pub(crate) put_off: bool,
}

/// As in the pager.
pub struct Census {
    pub(crate) scattered: u64,
}

impl Worker {
    /// With an empty store.
    pub fn new(engine: &'static Engine) -> Worker {
        let page = || {
            let page = mem::map_scratch(PAGE_SIZE, 0).expect("a model's memory does not run out");
            // SAFETY: a page that nobody else has, until the execution is over.
            unsafe { &mut *(page as *mut Page) }
        };
        Worker {
            engine,
            kernel: engine.kernel,
            store: Box::new(Stores::new()),
            packing: Packing {
                codecs: Codecs::new().expect("a model's codecs need nothing"),
                gains: Gains::new(),
                gains_at_once: Gains::new(),
                compressed: 0,
                buffer: page(),
                page: page(),
                unforked: false,
            },
            restorer: Restorer::new(engine, engine.kernel).expect("a model's memory does not run out"),
            now: Nanos(0),
            upkeep: Upkeep { copies_since: Nanos(0) },
            eviction: Eviction { short_of_memory: false, put_off: false },
            census: Census { scattered: 0 },
        }
    }

    /// Time does not pass.
    pub(crate) fn enter(&mut self, activity: Activity) -> Activity {
        activity
    }

    /// Pages go with little effort first, so that there is more to be done.
    pub(crate) fn effort(&self) -> memfold_policy::effort::Effort {
        memfold_policy::effort::Effort::Least
    }

    /// There is always time for more.
    pub(crate) fn may_compress_again(&self) -> bool {
        true
    }

    /// Nothing is learnt.
    pub(crate) fn learn_if_due(&mut self) {}

    /// Hence nothing to forget.
    pub(crate) fn drop_dictionaries(&mut self) {}

    /// Nor to compress with.
    pub(crate) fn dictionary(&self) -> Option<(u8, &'static crate::codec::Dictionary)> {
        None
    }

    /// There is nothing below memory.
    pub(crate) fn takes_whole(&self, _: &Extent) -> bool {
        false
    }

    /// Nothing is on its way anywhere.
    pub(crate) fn note_stored(&mut self, _: &Extent, _: usize) {}

    /// Nor is anything ever old.
    pub(crate) fn note_young(&self, _: &Extent, _: &PageSet) {}

    /// Every change is announced, so that mappings may be cut.
    pub(crate) fn keep_uncut(&self, _: &Extent, _: &PageSet) {}

    /// Nothing is more urgent.
    pub(crate) fn interrupted(&mut self) -> bool {
        false
    }

    /// Brings a page back ahead of a touch, as the pager's `serve_prefetch` does.
    pub(crate) fn go_ahead(&mut self, index: usize) {
        let extent = self.engine.space.0;
        self.restorer.restore(extent, PageRange::one(index), Reason::Ahead);
    }
}
