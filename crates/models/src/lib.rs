//! Models: every order in which threads can meet, tried on the pager's and the allocator's own source files.
//!
//! What it is: this crate includes files of the crates `pager`, `heap` and `arena` as they are, gives them loom's atomics
//! instead of the processor's and a simulated kernel instead of Linux, and runs small scenarios under
//! [loom](https://docs.rs/loom) (after Norris and Demsky, "CDSChecker", OOPSLA 2013): every interleaving with a bounded
//! number of preemptions, and every value that a load may return by the C11 memory model.
//!
//! What runs as it is stands in the lists below. Simulated are the program's memory and `userfaultfd` ([`world`],
//! [`uffd`]), the codecs, the fault thread's loop ([`engine`]), and the address space that the arena cuts up.
//! Extents have four pages here instead of 512, because each page costs every scan of an extent a step.
//!
//! What it is not: a model of the kernel's own races, or of whole programs; the torture is for those.

// Built for tests, the included files would bring their own tests along, which run where the files live.
#![cfg(not(test))]

// The included files ask these crates for the kernel and for address space.
extern crate self as memfold_arena;
extern crate self as memfold_sys;

pub mod explore;
pub mod futex;
pub mod sync;
mod weaken;

pub use linux::{file, pagemap, weak, Errno, Result};

/// As in `sys`.
pub const PAGE_SIZE: usize = 4096;
/// Four, where the pager has 512.
pub const EXTENT_PAGES: usize = 4;
/// As in `sys`.
pub const EXTENT_SIZE: usize = EXTENT_PAGES * PAGE_SIZE;

pub mod thread;

/// The part of `memfold_sys::signal` that the modelled files use: there are no signals.
pub mod signal {
    /// Stands for the guard of blocked signals.
    pub struct Blocked;

    impl Drop for Blocked {
        fn drop(&mut self) {}
    }

    /// Does nothing.
    pub fn block_all() -> Blocked {
        Blocked
    }
}

/// The part of `memfold_sys::time` that the modelled files use: no time passes.
pub mod time {
    pub use linux::time::Nanos;

    /// There is no time in a model.
    pub fn now() -> Nanos {
        Nanos(0)
    }

    /// Lets others run.
    pub fn sleep(_: Nanos) {
        loom::thread::yield_now();
    }
}

#[path = "pager/mem.rs"]
pub mod mem;
#[path = "pager/racing.rs"]
pub mod racing;
#[path = "pager/uffd.rs"]
pub mod uffd;

/// Declares modules whose files are another crate's.
macro_rules! included {
    ($($path:literal $name:ident,)+) => {$(
        #[allow(dead_code, reason = "a model uses a part of each file")]
        #[path = $path]
        pub(crate) mod $name;
    )+};
}

// The pager's.
included! {
    "../../pager/src/activity.rs" activity,
    "../../pager/src/blocks.rs" blocks,
    "../../pager/src/engine/counts.rs" counts,
    "../../pager/src/engine/traffic.rs" traffic,
    "../../pager/src/free_queue.rs" free_queue,
    "../../pager/src/gate.rs" gate,
    "../../pager/src/lock.rs" lock,
    "../../pager/src/retry.rs" retry,
    "../../pager/src/sabotage.rs" sabotage,
    "../../pager/src/slot.rs" slot,
    "../../pager/src/store.rs" store,
    "../../pager/src/text.rs" text,
    "../../pager/src/turns.rs" turns,
}

/// The tables; how extents are found and what they are made of is the model's.
#[path = "pager"]
mod tables {
    included! {
        "../../../pager/src/tables/bitmap.rs" bitmap,
        "../../../pager/src/tables/bounds.rs" bounds,
        "../../../pager/src/tables/entries.rs" entries,
        "../../../pager/src/tables/entry.rs" entry,
        "../../../pager/src/tables/extent.rs" extent,
        "pool.rs" pool,
        "space.rs" space,
    }
}

/// The steps of an eviction; the background thread is the model's.
#[path = "pager"]
mod evict {
    included! {
        "../../../pager/src/evict/laundry.rs" laundry,
        "../../../pager/src/evict/maintenance.rs" maintenance,
        "../../../pager/src/evict/scan.rs" scan,
        "../../../pager/src/evict/set_aside.rs" set_aside,
        "worker.rs" worker,
    }
}

/// How pages come back; the loop of the fault thread is in the model's engine.
#[path = "pager"]
mod fault {
    included! {
        "../../../pager/src/fault/helpers.rs" helpers,
        "../../../pager/src/fault/prefetch.rs" prefetch,
        "../../../pager/src/fault/reason.rs" reason,
        "../../../pager/src/fault/restore.rs" restore,
        "../../../pager/src/fault/run.rs" run,
    }
}

/// What program threads do; the proxy is the model's.
#[path = "pager"]
mod changes {
    included! {
        "../../../pager/src/changes/mappings.rs" mappings,
        "../../../pager/src/changes/pieces.rs" pieces,
        "proxy.rs" proxy,
    }
}

/// The tier below memory; its file, and what hands pages to it, are the model's.
#[allow(dead_code, reason = "a model uses a part of each file")]
mod tier {
    pub const CLUSTER: usize = 16;
    pub const BLOCK: usize = crate::PAGE_SIZE;
    pub const CLUSTER_BYTES: usize = 64 << 10;
    pub const UNSEALED_BYTES: usize = CLUSTER_BYTES - 16;

    pub mod below;
    pub mod lost;
    pub mod remote;

    #[path = "../../../pager/src/tier/arrived.rs"]
    pub mod arrived;
    #[path = "../../../pager/src/tier/bring.rs"]
    pub mod bring;
    #[path = "../../../pager/src/tier/clusters.rs"]
    pub mod clusters;
    #[path = "../../../pager/src/tier/location.rs"]
    pub mod location;
}

// The allocator's.
included! {
    "../../arena/src/kind.rs" kind,
    "../../arena/src/lock.rs" arena_lock,
    "../../arena/src/span.rs" span,
    "../../heap/src/ahead.rs" ahead,
    "../../heap/src/api.rs" api,
    "../../heap/src/away.rs" away,
    "../../heap/src/bin.rs" bin,
    "../../heap/src/depth.rs" depth,
    "../../heap/src/dormant.rs" dormant,
    "../../heap/src/flush.rs" flush,
    "../../heap/src/fork.rs" fork,
    "../../heap/src/span_cache.rs" span_cache,
    "../../heap/src/heap.rs" heap,
    "../../heap/src/large.rs" large,
    "../../heap/src/links.rs" links,
    "../../heap/src/orphans.rs" orphans,
    "../../heap/src/parcel.rs" parcel,
    "../../heap/src/quarantine.rs" quarantine,
    "../../heap/src/refill.rs" refill,
    "../../heap/src/registry.rs" registry,
    "../../heap/src/remote.rs" remote,
    "../../heap/src/spans.rs" spans,
    "../../heap/src/worth.rs" worth,
}

// What stands for the rest of the allocator.
#[path = "heap/address_space.rs"]
mod address_space;
#[path = "heap/checked.rs"]
mod checked;
#[path = "heap/chunk.rs"]
mod chunk;
#[path = "heap/classes.rs"]
mod classes;
#[path = "heap/misuse.rs"]
mod misuse;
#[path = "heap/samples.rs"]
mod samples;
#[path = "heap/sampling.rs"]
mod sampling;
#[path = "heap/settings.rs"]
pub mod settings;
#[path = "heap/slots.rs"]
mod slots;
#[path = "heap/tls.rs"]
mod tls;
#[path = "heap/voids.rs"]
mod voids;

pub use address_space::{
    alloc, alloc_guarded, alloc_movable, clear, fork_prepare, fork_release, free, free_large, is_away,
    lookup, pinned_bytes, resize, trim,
};
pub use arena_lock::Mutex;
pub use settings::Knob;
pub use span::{Domain, Kind, Span};

// What stands for the rest of the pager.
#[path = "pager/codec.rs"]
mod codec;
#[path = "pager/control.rs"]
mod control;
#[path = "pager/engine.rs"]
mod engine;
#[path = "pager/kernel.rs"]
mod kernel;
#[path = "pager/world.rs"]
mod world;

mod scenarios;

/// Every scenario.
pub fn scenarios() -> Vec<explore::Scenario> {
    sabotage::choose(None);
    scenarios::ALL.concat()
}
