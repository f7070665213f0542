//! The looks at the end of each interval, and what is written of them.

use super::{Recording, ASKED, DONE, PIECE};
use crate::engine::{Engine, Phase};
use crate::evict::worker::Worker;
use crate::shared_text::SharedText;
use crate::tables::bitmap::PageSet;
use crate::tables::extent::Extent;
use core::sync::atomic::Ordering::*;
use memfold_sys::time::{self, Nanos};
use memfold_sys::{futex, thread, Errno, Result, PAGE_SIZE};

/// How long a program that ends waits for what it touched last to be written.
const LAST_LOOK: Nanos = Nanos::from_secs(2);

/// How often it looks meanwhile whether there is anybody to do it.
const LAST_LOOK_EVERY: Nanos = Nanos::from_millis(10);

impl Engine {
    /// Has the program recorded instead of folded, from the engine's start on: `EVERY:BEGAN:PID:PATH` says how long an
    /// interval is and when the first began (`CLOCK_MONOTONIC`), both in ns, whose child is recorded, and into which file.
    /// `None` where that is not what the text says, or there is no heap for it; `Some(false)`, and nothing is changed, in any other process.
    pub fn record(&self, text: &str) -> Option<bool> {
        let mut parts = text.splitn(4, ':');
        let (every, began) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let recorder = parts.next()?.parse().ok()?;
        let path = parts.next().filter(|path| path.len() <= SharedText::<64>::MOST)?;
        if every == 0 || path.is_empty() || !self.has_own_heap() {
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
        let Some(extent) = extent.try_lock() else { return Ok(()) };
        let number = match extent.number.load(Relaxed) {
            0 if recording.stayed.try_reserve(1).is_err() => return Err(Errno::ENOMEM),
            0 => {
                recording.stayed.push(PageSet::EMPTY);
                extent.number.store(recording.stayed.len() as u32, Relaxed);
                recording.stayed.len() - 1
            }
            number => number as usize - 1,
        };
        let (view, written) = self.view(&extent);
        let view = view.minus(&extent.away_pages());
        let touched = view.minus(&recording.stayed[number]).or(&view.and(&written));
        let mut result = Ok(());
        let first = (extent.base() / PAGE_SIZE) as u64;
        for page in touched.pages() {
            if recording.piece.len() == PIECE {
                result = result.and(self.write_piece(recording));
            }
            if recording.piece.is_empty() {
                recording.piece.extend([interval, 0]);
            }
            recording.piece.push(first + page as u64);
        }
        if !last {
            self.set_aside_any(&extent, &view, false);
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
        let host = Host {
            notice: |_| {},
            open_control: |_| None,
            own_heap: || true,
            decay: || {},
            thread_cpu: |_, _| None,
            went_away: |_, _| {},
            sampler: None,
        };
        let engine = Engine::new(host);
        let parent = thread::parent_pid();
        for nonsense in ["", "on", "0:1:2:/a", "5:1:2", "5:1:2:", "5:-1:2:/a"] {
            assert_eq!(engine.record(nonsense), None, "{nonsense}");
        }
        assert_eq!(engine.record(&std::format!("5:1:{parent}:/{}", "a".repeat(511))), None);
        assert_eq!(engine.record(&std::format!("5:1:{}:/a", parent + 1)), Some(false));
        assert!(!engine.errand.is_on());
        let heapless = Engine::new(Host { own_heap: || false, ..host });
        assert_eq!(heapless.record(&std::format!("5:7:{parent}:/a:b")), None);
        assert_eq!(engine.record(&std::format!("5:7:{parent}:/a:b")), Some(true));
        let mut buffer = [0; 512];
        assert_eq!(engine.errand.path.read(&mut buffer), "/a:b");
        assert_eq!(engine.errand.interval_at(Nanos(13)), (1, Nanos(17)));
    }
}
