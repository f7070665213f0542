//! Recording which pages are touched in each interval, for a trace (`memfold record`).
//!
//! At the end of an interval every managed page in view is set aside, whole. What is in view at the end of the next one was
//! touched in it, read or written, by whichever thread or system call; of what could not be set aside (pinned, shared with a
//! forked child) only writes are seen. Nothing is compressed.
//!
//! What it is not: the trace. The file has little-endian words of eight bytes, piece by piece: the number of an interval, how
//! many pages follow, and their numbers (address divided by 4096). `memfold record` makes a trace of it.
//!
//! Invariants: one process writes to the file, which the recorder made for it, the direct child of the recorder, and only while that lives; it is opened for each
//! interval, so that the program finds no descriptor that is not its own. A recording that cannot be written stops the pager,
//! never the program.

use crate::bitmap::PageSet;
use crate::control::SharedText;
use crate::control_file::FilePath;
use crate::engine::{Engine, Phase};
use crate::extent::Extent;
use crate::worker::Worker;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use memfold_sys::signal::quietly;
use memfold_sys::time::{self, Nanos};
use memfold_sys::{file, futex, thread, Errno, Result, PAGE_SIZE};

/// How long a program that ends waits for what it touched last to be written.
const LAST_LOOK: Nanos = Nanos::from_secs(2);
/// How often it looks meanwhile whether there is anybody to do it.
const LAST_LOOK_EVERY: Nanos = Nanos::from_millis(10);
/// Words of a piece, its head included.
const PIECE: usize = 8192;

/// What [`Errand::last`] can be.
const NOT_YET: u32 = 0;
const ASKED: u32 = 1;
const DONE: u32 = 2;

/// What the engine is to record.
pub(crate) struct Errand {
    /// Length of an interval, ns; 0 to record nothing.
    every: AtomicU64,
    /// When the first one began, `CLOCK_MONOTONIC`.
    began: AtomicU64,
    /// The recorder's process, and its file.
    recorder: AtomicU32,
    path: SharedText<64>,
    /// The program is ending and waits for a last look.
    last: AtomicU32,
}

impl Errand {
    /// Nothing.
    pub(crate) const fn new() -> Errand {
        Errand {
            every: AtomicU64::new(0),
            began: AtomicU64::new(0),
            recorder: AtomicU32::new(0),
            path: SharedText::new(),
            last: AtomicU32::new(NOT_YET),
        }
    }

    /// Whether there is anything to record.
    pub(crate) fn is_on(&self) -> bool {
        self.every.load(Relaxed) != 0
    }

    /// The number of the interval at hand, and when it ends.
    fn interval_at(&self, now: Nanos) -> (u64, Nanos) {
        let began = Nanos(self.began.load(Relaxed));
        let every = self.every.load(Relaxed).max(1);
        let begun = now.since(began).0 / every;
        (begun, began + Nanos((begun + 1).saturating_mul(every)))
    }

    fn file_path(&self) -> Option<FilePath> {
        FilePath::of(self.path.read(&mut [0; 512]))
    }

    /// Whether the recorder still lives. Of one that was killed the file is removed: nobody reads it.
    fn has_recorder(&self) -> bool {
        let lives = thread::parent_pid() == self.recorder.load(Relaxed);
        if let Some(path) = self.file_path().filter(|_| !lives) {
            let _ = file::remove(path.as_c_str());
        }
        lives
    }

    fn append(&self, bytes: &[u8]) -> Result<()> {
        let path = self.file_path().ok_or(Errno::EINVAL)?;
        let (dir, name) = path.parent()?;
        let file = dir.open_own_file(name.as_c_str(), libc::O_WRONLY | libc::O_APPEND)?;
        quietly(|| file::write_all(file.raw(), bytes))
    }

    /// A forked child is not recorded.
    pub(crate) fn forget_in_child(&self) {
        self.every.store(0, Relaxed);
    }
}

/// A recording under way.
pub(crate) struct Recording {
    /// When the interval at hand ends.
    due: Nanos,
    /// By the extents' numbers: pages that were in view after the last look, because they could not be set aside.
    stayed: Vec<PageSet>,
    piece: Vec<u64>,
}

impl Recording {
    fn new(due: Nanos) -> Option<Recording> {
        // A program is not ended for lack of memory: nothing is pushed beyond this room.
        let mut piece = Vec::new();
        piece.try_reserve_exact(PIECE).ok()?;
        Some(Recording { due, stayed: Vec::new(), piece })
    }

    /// Until the end of the interval.
    pub(crate) fn pause(&self, now: Nanos) -> Nanos {
        self.due.since(now)
    }
}

impl Engine {
    /// Has the program recorded instead of folded, from the engine's start on: `EVERY:BEGAN:PID:PATH` says how long an
    /// interval is and when the first began (`CLOCK_MONOTONIC`), both in ns, whose child is recorded, and into which file.
    /// `None` where that is not what the text says; `Some(false)`, and nothing is changed, in any other process.
    pub fn record(&self, text: &str) -> Option<bool> {
        let mut parts = text.splitn(4, ':');
        let (every, began) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let recorder = parts.next()?.parse().ok()?;
        let path = parts.next().filter(|path| path.len() <= SharedText::<64>::MOST)?;
        if every == 0 || path.is_empty() {
            return None;
        }
        if recorder != thread::parent_pid() {
            return Some(false);
        }
        self.errand.recorder.store(recorder, Relaxed);
        self.errand.path.set(path);
        self.errand.began.store(began, Relaxed);
        self.errand.every.store(every, Relaxed);
        Some(true)
    }

    /// Has written down what was touched in the interval that the end of the program cuts short. By a thread of the program,
    /// with no lock held.
    pub fn record_the_end(&self) {
        let errand = &self.errand;
        if !errand.is_on() || self.control().paused.load(Relaxed) != 0 {
            return;
        }
        errand.last.store(ASKED, Release);
        self.ring();
        let began = time::now();
        while errand.last.load(Acquire) == ASKED
            && matches!(self.phase(), Phase::Starting | Phase::Running)
            && time::now().since(began) < LAST_LOOK
        {
            let _ = futex::wait(&errand.last, ASKED, Some(LAST_LOOK_EVERY));
        }
    }
}

impl Worker {
    /// Begins what the engine is to record.
    pub(crate) fn take_up_recording(&mut self) {
        let (_, due) = self.engine.errand.interval_at(self.now);
        self.recording = Recording::new(due);
        if self.recording.is_none() {
            self.end_recording("no memory for a recording");
        }
    }

    /// Does what is due. Returns whether there is more to do at once.
    pub(crate) fn record(&mut self) -> bool {
        let engine = self.engine;
        let last = engine.errand.last.load(Acquire) == ASKED;
        let Some(mut recording) = self.recording.take_if(|recording| last || self.now >= recording.due)
        else {
            return false;
        };
        let (begun, due) = engine.errand.interval_at(self.now);
        // At the end of an interval the next one has begun.
        let interval = if last { begun } else { begun.saturating_sub(1) };
        let mut result = if engine.errand.has_recorder() { Ok(()) } else { Err(Errno::ESRCH) };
        for extent in engine.space().all() {
            if result.is_ok() && !extent.managed.load().is_empty() {
                result = self.note(&mut recording, extent, interval, last);
                self.stay_responsive();
            }
        }
        if result.is_ok() {
            result = self.write_piece(&mut recording);
        }
        recording.due = if last { Nanos(u64::MAX) } else { due };
        self.recording = Some(recording);
        if last {
            engine.errand.last.store(DONE, Release);
            futex::wake(&engine.errand.last, u32::MAX >> 1);
        }
        if let Err(error) = result {
            self.end_recording(error.name());
        }
        false
    }

    /// Notes which pages of an extent were touched since the last look, and sets them aside unless it is the last.
    fn note(&mut self, recording: &mut Recording, extent: &Extent, interval: u64, last: bool) -> Result<()> {
        let Some(_guard) = extent.lock.try_lock() else { return Ok(()) };
        let number = match extent.number.load(Relaxed) {
            0 if recording.stayed.try_reserve(1).is_err() => return Err(Errno::ENOMEM),
            0 => {
                recording.stayed.push(PageSet::EMPTY);
                extent.number.store(recording.stayed.len() as u32, Relaxed);
                recording.stayed.len() - 1
            }
            number => number as usize - 1,
        };
        let (view, written) = self.view(extent);
        let view = view.minus(&extent.away_pages());
        let touched = view.minus(&recording.stayed[number]).or(&view.and(&written));
        let mut result = Ok(());
        let first = (extent.base() / PAGE_SIZE) as u64;
        for (lo, hi) in touched.runs() {
            for page in lo..hi {
                if recording.piece.len() == PIECE {
                    result = result.and(self.write_piece(recording));
                }
                if recording.piece.is_empty() {
                    recording.piece.extend([interval, 0]);
                }
                recording.piece.push(first + page as u64);
            }
        }
        if !last {
            self.set_aside_any(extent, &view, false);
            recording.stayed[number] = view.minus(&extent.away_pages());
        }
        result
    }

    /// Adds the piece to the file. It is empty afterwards, written or not.
    fn write_piece(&self, recording: &mut Recording) -> Result<()> {
        let piece = &mut recording.piece;
        if piece.is_empty() {
            return Ok(());
        }
        piece[1] = piece.len() as u64 - 2;
        piece.iter_mut().for_each(|word| *word = word.to_le());
        // SAFETY: the words' own bytes.
        let bytes = unsafe { core::slice::from_raw_parts(piece.as_ptr().cast::<u8>(), piece.len() * 8) };
        let result = self.engine.errand.append(bytes);
        piece.clear();
        result
    }

    /// The program goes on alone.
    fn end_recording(&mut self, why: &'static str) {
        let mut line = crate::Line::new();
        line.push("memfold: the recording ends here: ");
        line.push(why);
        self.engine.notify(line.as_str());
        self.engine.set_stop_reason(&"the recording could not be written");
        self.engine.change_phase(Phase::Running, Phase::Stopping);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Host;

    #[test]
    fn only_the_recorders_own_child_is_recorded_and_nonsense_is_refused() {
        let host = Host { notice: |_| {}, open_control: |_| None, decay: || {}, thread_cpu: |_| None };
        let engine = Engine::new(host);
        let parent = thread::parent_pid();
        for nonsense in ["", "on", "0:1:2:/a", "5:1:2", "5:1:2:", "5:-1:2:/a"] {
            assert_eq!(engine.record(nonsense), None, "{nonsense}");
        }
        assert_eq!(engine.record(&std::format!("5:1:{parent}:/{}", "a".repeat(511))), None);
        assert_eq!(engine.record(&std::format!("5:1:{}:/a", parent + 1)), Some(false));
        assert!(!engine.errand.is_on());
        assert_eq!(engine.record(&std::format!("5:7:{parent}:/a:b")), Some(true));
        let mut buffer = [0; 512];
        assert_eq!(engine.errand.path.read(&mut buffer), "/a:b");
        assert_eq!(engine.errand.interval_at(Nanos(13)), (1, Nanos(17)));
    }
}
