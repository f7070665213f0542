//! What the threads share of the tier below memory, in a model: a file that is a list, and no jobs. What hands a page down is [`sink`].

use crate::engine::{Children, Engine};
use crate::evict::worker::Worker;
use crate::sync::{AtomicU32, Ordering::*};
use crate::tables::entry::Entry;
use crate::tier::arrived::{Arrived, Writer};
use crate::tier::clusters::{Clusters, Place};
use crate::tier::location::{Berth, Location};
use crate::tier::remote::Remote;
use crate::tier::{BLOCK, CLUSTER_BYTES};
use crate::world::enter;
use core::sync::atomic::AtomicU64;
use memfold_sys::{Errno, Result};
use std::cell::RefCell;
use std::collections::VecDeque;

/// The fields and the calls that the modelled files use.
pub struct Below {
    pub clusters: Table,
    pub pages: AtomicU64,
    pub files: Files,
    wanted: loom::sync::Mutex<VecDeque<usize>>,
    file: RefCell<Vec<(Place, Vec<u8>)>>,
    /// Clusters written so far.
    written: AtomicU64,
    /// 1 once nothing more will be wanted.
    over: AtomicU32,
}

/// Of the files, what is not the model's list.
pub struct Files {
    pub remote: Remote,
}

impl Files {
    /// There is no network.
    pub fn are_on_disk(&self) -> bool {
        true
    }
}

/// The table, which lasts for one execution.
pub struct Table(&'static Clusters);

impl std::ops::Deref for Table {
    type Target = Clusters;

    fn deref(&self) -> &Clusters {
        self.0
    }
}

impl Below {
    pub fn new(clusters: &'static Clusters) -> Below {
        Below {
            clusters: Table(clusters),
            pages: AtomicU64::new(0),
            files: Files { remote: Remote },
            wanted: loom::sync::Mutex::new(VecDeque::new()),
            file: RefCell::default(),
            written: AtomicU64::new(0),
            over: AtomicU32::new(0),
        }
    }

    /// As in the pager, with a queue that is never full.
    pub fn want(&self, page: usize) -> bool {
        if !crate::sabotage::planted(crate::sabotage::Bug::WantedForgotten) {
            self.wanted.lock().expect("nobody panics with the lock").push_back(page);
        }
        true
    }

    /// No fork waits here, and no child is owed anything.
    pub fn restoring<R>(&self, _: &Children, restore: impl FnOnce() -> R) -> Option<R> {
        Some(restore())
    }

    pub fn be_over(&self) {
        self.over.store(1, Release);
    }

    pub fn is_over(&self) -> bool {
        self.over.load(Acquire) != 0
    }

    pub fn take_wanted(&self) -> Option<usize> {
        self.wanted.lock().expect("nobody panics with the lock").pop_front()
    }

    /// As in the pager, without a seal: what was written at a place is found as it was, until something else is.
    pub fn fetch(&self, cluster: u32, arrived: &mut Arrived) -> Result<bool> {
        if arrived.is(cluster, &self.clusters) {
            return Ok(false);
        }
        let (place, len) = self.clusters.read(cluster, |place| {
            let bytes = enter(|_| {
                let file = self.file.borrow();
                file.iter().rev().find(|(at, _)| *at == place).map(|(_, bytes)| bytes.clone())
            });
            let bytes = bytes.ok_or(Errno(libc::EBADMSG))?;
            arrived.room(place)?[..bytes.len()].copy_from_slice(&bytes);
            // The disk takes long.
            enter(|_| ());
            Ok(bytes.len())
        })?;
        arrived.accept(cluster, place, len).then_some(true).ok_or(Errno(libc::EBADMSG))
    }
}

/// Has the cluster of page 0 move, as `compact.rs` does: written anew first, then its place is another, then nothing lies where it lay.
pub fn relocate(engine: &'static Engine) {
    let below = engine.below().expect("the scenario has a tier");
    let entry = engine.space.0.entries().expect("made at the start")[0].load();
    let Some(berth) = Location::below(entry) else { return };
    let Some(from) = below.clusters.wanted(berth.cluster) else { return };
    let number = below.written.fetch_add(1, Relaxed);
    let to = Place::new(0, number as usize, from.blocks(), number as u32);
    enter(|_| {
        let mut file = below.file.borrow_mut();
        if let Some((_, bytes)) = file.iter().find(|(at, _)| *at == from).cloned() {
            file.push((to, bytes));
        }
    });
    if !crate::sabotage::planted(crate::sabotage::Bug::MoveUntold) {
        below.clusters.relocate(berth.cluster, to);
    }
    enter(|_| below.file.borrow_mut().retain(|(at, _)| *at != from));
}

/// Hands page 0 of the extent down, as `demote.rs` does: written first, then its entry is swapped, then its slot is free. Whether it went.
pub fn sink(engine: &'static Engine, worker: &mut Worker) -> bool {
    let below = engine.below().expect("the scenario has a tier");
    let entry = &engine.space.0.entries().expect("made at the start")[0];
    let old = entry.load();
    let Some(slot) = Location::memory(old).filter(|_| !old.is_busy()) else { return false };
    let mut bytes = vec![0; CLUSTER_BYTES];
    let mut writer = Writer::new(&mut bytes);
    // SAFETY: this is the background thread, and an entry named the slot a moment ago.
    let Some((codec, len)) = (unsafe { slot.copy(writer.room()) }) else { return false };
    writer.add(codec, len);
    let (pages, len) = writer.size();
    let number = below.written.fetch_add(1, Relaxed);
    let place = Place::new(0, number as usize, len.div_ceil(BLOCK), number as u32);
    let cluster = below.clusters.take(&engine.tables.pool).expect("a model's memory does not run out");
    bytes.truncate(len);
    enter(|_| below.file.borrow_mut().push((place, bytes)));
    below.clusters.fill(cluster, place, pages, 0);
    let down: Entry = Location::Below(Berth { cluster, page: 0 }).entry();
    let went = entry.transition(old, down);
    if went {
        // SAFETY: no entry names it any more, and it is in no queue.
        unsafe { worker.store.free(slot) };
    } else {
        below.clusters.drop_page(cluster, 0);
    }
    // What nobody wants any more may be used for the next.
    below.clusters.take_done(|number, _, _| below.clusters.give_back(number));
    went
}
