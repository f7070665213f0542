//! Finding the program's memory where nobody tells of it: in a process that an agent was put into.
//!
//! Mappings are read from `/proc/self/smaps` now and then, as that tells what the program has asked for each. What is private, anonymous, readable and
//! writable is managed, but for what somebody else wrote to without being able to wait: the kernel, when a thread of glibc's ends, in what that keeps of the
//! thread (`clear_child_tid`, robust futexes).
//!
//! What was dropped (`MADV_DONTNEED`, `MADV_FREE`): the kernel reports that before it does so, and not when it has. In between, pages that are there have
//! contents that are about to go, and must not be kept by being evicted. So they are not managed, until each was seen to be gone. What comes after that is written
//! after the call began, and may be kept.
//!
//! What it is not: what no byte depends on being right. A mapping that is no longer what it was found to be the kernel refuses to register or to move from, or reports.
//!
//! Invariants: a mover's turn, so that no report is acted on, while pages become managed. Background thread only, but for [`Engine::await_drop`].

use crate::engine::huge::HugeWish;
use crate::engine::Engine;
use crate::evict::scan::read_range;
use crate::evict::uncut::Stretch;
use crate::evict::worker::Worker;
use crate::kernel::Kernel;
use crate::maps::{Kind, Lines, Mapping};
use crate::sabotage::fault_point;
use crate::tables::bitmap::{PageRange, PageSet};
use crate::tables::extent::{Extent, DROPPED};
use crate::tables::space::LIMIT;
use core::sync::atomic::Ordering::*;
use memfold_sys::pagemap::{Categories, Query};
use memfold_sys::time::{self, Nanos};
use memfold_sys::{life, mem, thread, Result, EXTENT_SIZE, PAGE_SIZE};

/// Mappings shorter than this are small, and left alone.
const SMALL: usize = 64 << 10;
/// Longer ones are reservations.
const LONGEST: usize = 1 << 40;
/// The shortest and the longest pause between two looks.
const PAUSE: (Nanos, Nanos) = (Nanos::from_millis(20), Nanos::from_millis(2000));
/// A look takes at most one part in so many of the time...
const SHARE: u64 = 200;
/// ...but there is one twice in a cold age, if that is not shorter than this: what is registered goes by what was found ([`crate::evict::uncut`]).
const OFTEN: Nanos = Nanos::from_millis(200);
/// Around the list of robust futexes there is what glibc keeps of a thread: less than a page before it, and less than one behind.
const AROUND_LIST: usize = PAGE_SIZE;

impl Engine {
    /// The kernel is about to drop what pages hold, or has just done so. Those that are there are managed no more until they were seen to be gone. By the fault thread,
    /// in its turn.
    pub(crate) fn await_drop(&self, kernel: &Kernel, extent: &Extent, pages: &PageSet) {
        // Where it cannot be told, all may be there.
        let there = held(kernel, extent, pages).unwrap_or(PageSet::ALL);
        let waits = there.and(pages).and(&extent.managed.load());
        if fault_point!(DropNotAwaited: waits.is_empty(), else true) {
            return;
        }
        extent.flags.fetch_or(DROPPED, Relaxed);
        extent.dropping.insert(&waits);
        self.set_managed(extent, &waits, false);
        self.traffic.note_dropping();
    }

    /// Manages again what was dropped of an extent, as far as it is gone. Whether that is all. In a turn of the fault thread's, or of a mover's who has the
    /// extent locked.
    pub(crate) fn release_dropped(&self, kernel: &Kernel, extent: &Extent) -> bool {
        let waits = extent.dropping.load();
        let Ok(there) = held(kernel, extent, &waits) else { return false };
        let gone = waits.minus(&there);
        extent.dropping.remove(&gone);
        self.set_managed(extent, &gone, true);
        gone == waits
    }
}

/// The pages of those given that hold anything, in memory or in swap.
fn held(kernel: &Kernel, extent: &Extent, pages: &PageSet) -> Result<PageSet> {
    let mut there = PageSet::EMPTY;
    for which in [Categories::PRESENT, Categories::SWAPPED] {
        let query = Query { all: which, none: Categories::empty(), report: which, protect: false };
        for run in pages.runs() {
            read_range(kernel, extent, run, &query, |pages, _| there = there.or(&pages))?;
        }
    }
    Ok(there)
}

impl Worker {
    /// Looks for the program's memory if it is time to, and for what was dropped meanwhile.
    pub(crate) fn discover_if_due(&mut self) {
        if !self.engine.traffic.goes_by_reports() {
            return;
        }
        self.release_dropped();
        if self.now >= self.upkeep.next_discovery {
            self.discover();
        }
    }

    /// Looks for it now.
    pub(crate) fn discover(&mut self) {
        if !self.engine.traffic.goes_by_reports() {
            return;
        }
        let began = time::now();
        self.spare_threads();
        // Where mappings cannot be read, what is managed stays so.
        let _ = self.find_mappings();
        self.now = time::now();
        let pause = Nanos(self.cold_age() / 4).clamp(PAUSE.0, PAUSE.1);
        let in_share = Nanos(self.now.since(began).0 * SHARE).min(OFTEN.max(Nanos(self.cold_age() / 2)));
        self.upkeep.next_discovery = self.now + pause.max(in_share);
    }

    /// Leaves alone what glibc keeps of each thread.
    fn spare_threads(&mut self) {
        let (engine, agents) = (self.engine, thread::agents());
        let _ = life::for_each_thread(|tid| {
            let list = (!agents.contains(&tid)).then(|| thread::robust_list(tid)).flatten();
            let Some(list) = list else { return };
            let start = (list - AROUND_LIST.min(list)) & !(PAGE_SIZE - 1);
            let end = (list + AROUND_LIST).next_multiple_of(PAGE_SIZE);
            for base in (start & !(EXTENT_SIZE - 1)..end.min(LIMIT)).step_by(EXTENT_SIZE) {
                if let Ok(extent) = engine.space().find_or_make(base, &engine.tables.pool) {
                    extent.left_alone.insert(&extent.clip(start, end).set());
                }
            }
        });
    }

    /// Reads all mappings, and brings the tables in line.
    fn find_mappings(&mut self) -> Result<()> {
        let (mut lines, mut at, mut piece) = (Lines::new(), 0, [0; 4096]);
        let mut found = Found::default();
        let mut stretch = Stretch::default();
        let (mut mapping, mut held) = (None, 0);
        loop {
            let len = self.engine.link.gauges.read_advice(&mut piece, at)?;
            if len == 0 {
                break;
            }
            at += len as u64;
            for byte in &piece[..len] {
                let Some(line) = lines.push_raw(*byte) else { continue };
                if let Some(flags) = line.strip_prefix(b"VmFlags:") {
                    if let Some(mapping) = mapping.take() {
                        if self.find(&mut found, &mapping, flags) {
                            self.stretch(&mut stretch, &mapping, flags, held);
                        }
                    }
                } else if let Some(size) =
                    [b"Rss:".as_slice(), b"Swap:"].iter().find_map(|name| line.strip_prefix(*name))
                {
                    held += kilobytes(size) << 10;
                } else if line.first().is_some_and(|byte| !byte.is_ascii_uppercase()) {
                    // All other lines begin with a name.
                    (mapping, held) = (Mapping::of(line), 0);
                }
            }
        }
        self.settle_until(&mut found, LIMIT);
        self.judge(&mut stretch);
        Ok(())
    }

    /// Whether the mapping may be managed, which is noted of its pages.
    fn find(&mut self, found: &mut Found, mapping: &Mapping, flags: &[u8]) -> bool {
        // A part of a mapping that was cut by registering others.
        let (start, len) = (mapping.start, mapping.end - mapping.start);
        let known = self.engine.is_anonymous(start, len) || self.engine.lies_beside_known(start, len);
        let verdict = Verdict::of(mapping, flags, known, self.engine.huge_wish());
        if verdict == Verdict::Other {
            return false;
        }
        let undumped = has(flags, &[b"dd"]);
        let end = mapping.end.min(LIMIT);
        let mut at = mapping.start;
        while at < end {
            let base = at & !(EXTENT_SIZE - 1);
            if found.base != base {
                self.settle_until(found, base);
                found.base = base;
            }
            let stop = end.min(base + EXTENT_SIZE);
            let pages = PageRange::new((at - base) / PAGE_SIZE, (stop - base) / PAGE_SIZE).set();
            match verdict {
                Verdict::Plain => {
                    found.plain = found.plain.or(&pages);
                    if undumped {
                        found.undumped = found.undumped.or(&pages);
                    }
                }
                Verdict::Kept => found.kept = found.kept.or(&pages),
                Verdict::Other => {}
            }
            at = stop;
        }
        verdict == Verdict::Plain
    }

    /// Brings the tables in line with what was found of the extent at hand, and of those behind it and before `base`, where nothing was found.
    fn settle_until(&mut self, found: &mut Found, base: usize) {
        let done = found.base;
        if !found.plain.is_empty() || !found.kept.is_empty() {
            // Without tables the memory is simply not managed.
            if let Ok(extent) = self.engine.space().find_or_make(done, &self.engine.tables.pool) {
                self.settle(extent, found);
            }
            found.next = done + EXTENT_SIZE;
        }
        let engine = self.engine;
        for extent in engine.space().existing(found.next, base) {
            self.settle(extent, &Found::default());
        }
        *found = Found { next: base.max(found.next), ..Found::default() };
    }

    /// The pages of the extent that may be managed are these; those that are `kept` whole by the program's wish come back.
    fn settle(&mut self, extent: &'static Extent, found: &Found) {
        let (engine, Found { plain, kept, .. }) = (self.engine, found);
        let before = extent.managed.load();
        if plain.is_empty() && before.is_empty() {
            return;
        }
        // What is in other hands is looked at the next time.
        let Some(mut locked) = extent.try_lock() else { return };
        let Some(turn) = engine.traffic.turns.try_move() else { return };
        let wanted = plain.minus(&extent.left_alone.load()).minus(&extent.dropping.load());
        let (added, removed) = (wanted.minus(&before), before.minus(&wanted));
        if before.is_empty() && !added.is_empty() {
            locked.age().forget();
            extent.flags.fetch_and(!DROPPED, Relaxed);
            extent.waits_for.store(0, Relaxed);
        }
        let undumped = extent.undumped.load();
        let (hidden, shown) = (found.undumped.minus(&undumped), undumped.minus(&found.undumped).and(plain));
        for (pages, kept) in [(&hidden, true), (&shown, false)] {
            if !pages.is_empty() {
                engine.keep_from_dumps(&locked, pages, kept);
            }
        }
        if !added.is_empty() {
            extent.anonymous.insert(&added);
            engine.set_managed(extent, &added.minus(&extent.left_alone.load()), true);
        }
        if !removed.is_empty() {
            engine.set_managed(extent, &removed, false);
        }
        drop(turn);
        for run in added.runs() {
            engine.keep_pages_small(extent.page_addr(run.lo), run.bytes());
        }
        if engine.room.is_kept() {
            self.arm(&locked, &added);
        }
        drop(locked);
        // What was evicted before the program said so lies where dumps have it.
        if !kept.or(&hidden).and(&extent.away_pages()).is_empty() {
            self.bring_all(extent, false);
        }
    }

    /// Manages again what was dropped, as far as it was seen to be gone.
    fn release_dropped(&mut self) {
        let engine = self.engine;
        if !engine.traffic.take_dropping() {
            return;
        }
        for extent in engine.space().all().filter(|extent| !extent.dropping.load().is_empty()) {
            let released = extent.try_lock().is_some_and(|_locked| {
                let turn = engine.traffic.turns.try_move();
                turn.is_some_and(|_turn| engine.release_dropped(self.kernel, extent))
            });
            if !released {
                engine.traffic.note_dropping();
            }
        }
    }
}

/// The number of a line of smaps, behind its name.
fn kilobytes(line: &[u8]) -> usize {
    let digits = line.iter().skip_while(|byte| **byte == b' ').take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, digit| number * 10 + usize::from(digit - b'0'))
}

/// What was found of an extent so far.
#[derive(Default)]
struct Found {
    /// The extent.
    base: usize,
    /// Pages that may be managed.
    plain: PageSet,
    /// Of these the ones that no core dump has.
    undumped: PageSet,
    /// Pages that the program wants to stay as they are.
    kept: PageSet,
    /// Extents before this address are in line.
    next: usize,
}

/// What a mapping is to the pager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// It may be managed.
    Plain,
    /// It might, if the program had not asked for something that eviction could not honour.
    Kept,
    /// It may not.
    Other,
}

impl Verdict {
    /// `flags` are those that the kernel gives it, of two letters each; `known` that it, or what it lies beside, is managed or was. What is done about `huge` pages
    /// that the program asks for.
    fn of(mapping: &Mapping, flags: &[u8], known: bool, huge: HugeWish) -> Verdict {
        let len = mapping.end - mapping.start;
        let small = len < SMALL && mapping.kind != Kind::Heap && !known || len > LONGEST;
        let own = mapping.own || mem::own_bytes(mapping.start, mapping.end) != 0;
        if !matches!(mapping.kind, Kind::Anonymous | Kind::Heap) || !mapping.plain || small || own {
            return Verdict::Other;
        }
        if has(flags, &[b"gd", b"sh", b"ss", b"io", b"pf", b"ht", b"mm", b"dp"]) {
            // A stack that grows, shared, a shadow stack, a device's; droppable.
            return Verdict::Other;
        }
        // Locked; to be wiped in children; huge pages wanted.
        if has(flags, &[b"lo", b"wf"]) || huge == HugeWish::LeftAlone && has(flags, &[b"hg"]) {
            return Verdict::Kept;
        }
        Verdict::Plain
    }
}

/// Whether one of these is among the flags that the kernel gives a mapping.
fn has(flags: &[u8], wanted: &[&[u8]]) -> bool {
    flags.split(|byte| *byte == b' ').any(|flag| wanted.contains(&flag))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(line: &[u8], flags: &[u8]) -> Verdict {
        Verdict::of(&Mapping::of(line).unwrap(), flags, false, HugeWish::LeftAlone)
    }

    #[test]
    fn what_is_plain_memory_is_managed_and_what_the_program_wants_kept_is_not() {
        let anonymous = b"7f0000000000-7f0000021000 rw-p 00000000 00:00 0 ";
        assert_eq!(verdict(anonymous, b" rd wr mr mw me ac sd "), Verdict::Plain);
        assert_eq!(verdict(anonymous, b" rd wr mr mw me ac dd "), Verdict::Plain);
        for kept in [b" rd wr lo ", b" rd wr hg ", b" rd wr wf "] {
            assert_eq!(verdict(anonymous, kept), Verdict::Kept);
        }
        for wish in [HugeWish::Granted, HugeWish::Declined] {
            let mapping = Mapping::of(anonymous).unwrap();
            assert_eq!(Verdict::of(&mapping, b" rd wr hg mg sd ", false, wish), Verdict::Plain);
        }
        assert_eq!(verdict(anonymous, b" rd wr mr mw me gd ac "), Verdict::Other);
        for other in [
            b"7f0000000000-7f0000021000 rwxp 00000000 00:00 0 ".as_slice(),
            b"7f0000000000-7f0000021000 rw-s 00000000 00:00 0 ",
            b"7f0000000000-7f0000021000 ---p 00000000 00:00 0 ",
            b"7f0000000000-7f0000001000 rw-p 00000000 00:00 0 ",
            b"7f0000000000-7f0000021000 rw-p 00000000 00:00 0    [stack]",
            b"7f0000000000-7f0000021000 rw-p 00000000 00:00 0    [anon:memfold staging]",
            b"7f0000000000-7f0000021000 rw-p 00000000 08:01 7    /bin/x",
        ] {
            assert_eq!(verdict(other, b" rd wr "), Verdict::Other);
        }
        assert_eq!(
            verdict(b"55d000000000-55d000001000 rw-p 00000000 00:00 0    [heap]", b" rd wr "),
            Verdict::Plain
        );
    }
}
