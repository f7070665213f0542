//! What the threads of a verification share: the options, the stop sign, the models of memory that belongs to nobody in
//! particular, and what was found ([`super::findings`]).

use super::actor::Actor;
use super::area::Area;
use super::blocks::Block;
use super::findings::{lock, Findings, Tags};
use super::tally::Tally;
use super::{Options, Work};
use crate::content::Content;
use anyhow::Result;
use memfold_stats::Rng;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Pages of the memory that is written once, at the start.
const BEDROCK_PAGES: usize = 2048;
/// Pages of the memory that all threads read and write under a lock.
const COMMON_PAGES: usize = 1024;

/// See the module.
pub(super) struct Shared {
    pub options: Options,
    end: Instant,
    /// Set when all threads but the saboteur are done.
    pub stop: AtomicBool,
    /// The threads and what they own; a thread holds its own lock during each operation.
    pub actors: Vec<Mutex<Actor>>,
    /// Written before the threads start, never after.
    pub bedrock: Area,
    /// Read and written by all.
    pub common: RwLock<Area>,
    /// Counted in by all, with no lock.
    pub tally: Tally,
    /// Blocks on their way from the thread that allocated them to the one that will free them.
    pub exchange: Mutex<Vec<Block>>,
    /// One a thread: the actors, then the forker, then the churner.
    pub beats: Vec<Beat>,
    pub findings: Findings,
}

/// How far a thread is, for whoever watches that it does not stand still.
pub(super) struct Beat {
    pub name: String,
    /// Operations finished.
    pub count: AtomicU64,
    pub done: AtomicBool,
    doing: AtomicPtr<u8>,
    doing_len: AtomicUsize,
}

impl Beat {
    fn new(name: String) -> Beat {
        let (count, done) = (AtomicU64::new(0), AtomicBool::new(false));
        Beat { name, count, done, doing: AtomicPtr::default(), doing_len: AtomicUsize::new(0) }
    }

    /// Begins an operation.
    pub fn begin(&self, what: &'static str) {
        self.doing_len.store(0, Relaxed);
        self.doing.store(what.as_ptr().cast_mut(), Relaxed);
        self.doing_len.store(what.len(), Relaxed);
    }

    /// Finishes it.
    pub fn finish(&self) {
        self.count.fetch_add(1, Relaxed);
    }

    /// What was begun last, read while the thread stands still.
    pub fn doing(&self) -> &'static str {
        let (start, len) = (self.doing.load(Relaxed), self.doing_len.load(Relaxed));
        if start.is_null() {
            return "";
        }
        // SAFETY: both halves come from one `&'static str`: the thread that sets them has not moved for a minute.
        unsafe { std::str::from_utf8_unchecked(std::slice::from_raw_parts(start, len)) }
    }
}

impl Shared {
    pub fn new(options: &Options, start: Instant) -> Result<Shared> {
        let content = Content::varied(options.seed);
        let root = Rng::new(options.seed);
        let mut bedrock = Area::map(BEDROCK_PAGES)?;
        let mut common = Area::map(COMMON_PAGES)?;
        // Tags of the shared memory have a thread number that no actor has.
        let mut tags = Tags::new(u64::from(u16::MAX));
        bedrock.write(content, 0..BEDROCK_PAGES, &mut tags);
        common.write(content, 0..COMMON_PAGES, &mut tags);
        let actors = (0..options.threads)
            .map(|number| Ok(Mutex::new(Actor::new(number, root.fork(number as u64))?)))
            .collect::<Result<_>>()?;
        let mut beats: Vec<Beat> =
            (0..options.threads).map(|number| Beat::new(format!("thread {number}"))).collect();
        for (name, work) in [("the forker", Work::Fork), ("the churner", Work::Churn)] {
            let beat = Beat::new(name.into());
            beat.done.store(options.without.contains(&work), Relaxed);
            beats.push(beat);
        }
        Ok(Shared {
            options: options.clone(),
            end: start + Duration::from_secs(options.seconds),
            stop: AtomicBool::new(false),
            actors,
            bedrock,
            common: RwLock::new(common),
            tally: Tally::map()?,
            exchange: Mutex::default(),
            beats,
            findings: Findings::new(content),
        })
    }

    /// Whether a kind of work is to be done.
    pub fn does(&self, work: Work) -> bool {
        !self.options.without.contains(&work)
    }

    /// Whether time is up.
    pub fn over(&self) -> bool {
        Instant::now() >= self.end
    }

    /// The forker's beat.
    pub fn forker(&self) -> &Beat {
        &self.beats[self.options.threads]
    }

    /// The churner's beat.
    pub fn churner(&self) -> &Beat {
        &self.beats[self.options.threads + 1]
    }

    /// Compares everything there is with its model. The threads must be done, or held.
    pub fn check_everything(&self) {
        for actor in &self.actors {
            lock(actor).check(&self.findings);
        }
        self.check_shared(&self.common.read().unwrap_or_else(PoisonError::into_inner));
        for block in lock(&self.exchange).iter() {
            block.check(&self.findings);
        }
        let counted = self.actors.iter().map(|actor| lock(actor).counted).sum();
        self.tally.check(&self.findings, counted);
    }

    /// Compares the memory that nobody owns, except the tally.
    pub fn check_shared(&self, common: &Area) {
        self.bedrock.check(&self.findings, "bedrock", 0..self.bedrock.pages());
        common.check(&self.findings, "common", 0..common.pages());
    }
}
