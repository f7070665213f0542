//! Requests from outside, through the mailbox on the control page.
//!
//! Invariants: every request is answered, with 0 or an error number; what it brings is validated like any other input.

use crate::config::Setting;
use crate::control::Command;
use crate::engine::Phase;
use crate::evict::worker::Worker;
use core::sync::atomic::Ordering::*;
use memfold_sys::{time, EXTENT_PAGES};

impl Worker {
    /// Carries out what was asked for since the last look.
    pub(crate) fn answer_requests(&mut self) {
        self.engine.hear_requests();
        let mailbox = &self.engine.control().mailbox;
        let asked = mailbox.asked.load(Relaxed);
        if asked == mailbox.answered.load(Relaxed) {
            return;
        }
        // Who asks has all memory in mind that there is.
        self.adopt_young(true);
        self.discover();
        let argument = mailbox.argument.load(Relaxed);
        let value = mailbox.value.load(Relaxed);
        let error = match mailbox.command.load(Relaxed) {
            c if c == Command::Set as u32 => self.change_setting(argument, value),
            c if c == Command::Pause as u32 => self.set_paused(1),
            c if c == Command::Resume as u32 => self.set_paused(0),
            c if c == Command::Stop as u32 => {
                // Nobody could ask for what is sampled any more.
                let _ = self.sample_heap(0);
                self.engine.change_phase(Phase::Running, Phase::Stopping);
                0
            }
            c if c == Command::Restore as u32 => {
                self.restore_all();
                0
            }
            c if c == Command::Evict as u32 => {
                self.evict_all();
                0
            }
            c if c == Command::Sleep as u32 => {
                self.go_to_sleep();
                0
            }
            c if c == Command::Wake as u32 => {
                self.wake_up();
                0
            }
            c if c == Command::Policy as u32 => self.change_policy(),
            c if c == Command::Log as u32 => self.change_log(),
            c if c == Command::Tier as u32 => self.change_tier().err().map_or(0, |error| error.0 as u32),
            c if c == Command::Pass as u32 => self.pass_on_request(value),
            c if c == Command::Inventory as u32 => {
                self.take_inventory().err().map_or(0, |error| error.0 as u32)
            }
            c if c == Command::Heat as u32 => self.write_heat(value).err().map_or(0, |error| error.0 as u32),
            c if c == Command::Samples as u32 => {
                self.write_samples(value).err().map_or(0, |error| error.0 as u32)
            }
            c if c == Command::Steps as u32 => {
                self.stamp_steps(argument, value).err().map_or(0, |error| error.0 as u32)
            }
            _ => libc::EINVAL as u32,
        };
        self.now = time::now();
        self.count();
        mailbox.error.store(error, Relaxed);
        // Who is shown the answer is shown the error, and the counters as they are after the command.
        mailbox.answered.store(asked, Relaxed);
        self.engine.show_control();
    }

    /// Brings everything back; below a limit as much as there is room for, since what comes above it has to go again at once.
    fn restore_all(&mut self) {
        for extent in self.engine.space().all() {
            if self.engine.room.left() < EXTENT_PAGES as u64 {
                return;
            }
            self.bring_all(extent, true);
        }
    }

    fn change_setting(&self, index: u64, value: u64) -> u32 {
        let Some(setting) = Setting::from_index(index) else { return libc::EINVAL as u32 };
        let (least, most) = setting.range();
        if value < least || value > most {
            return libc::ERANGE as u32;
        }
        let sampled = if setting == Setting::HeapSample { self.sample_heap(value) } else { Ok(()) };
        if let Err(error) = sampled {
            return error.0 as u32;
        }
        self.engine.set_setting(setting, value);
        0
    }

    fn set_paused(&self, paused: u32) -> u32 {
        self.engine.control().paused.store(paused, Relaxed);
        0
    }
}
