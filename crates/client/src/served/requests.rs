//! What the agent is asked for: by the program's own threads, who wait for it, and through the control page.

use super::agent::{Agent, Link};
use super::mail::Op;
use super::region::set;
use memfold_daemon::channel::REGIONS;
use memfold_pager::config::Setting;
use memfold_pager::control::{Command, Mode};
use memfold_sys::thread::Backoff;
use memfold_sys::time::Nanos;
use memfold_sys::{Errno, Result, EXTENT_PAGES, PAGE_SIZE};
use std::sync::atomic::Ordering::*;

impl Agent {
    /// Does what a thread of the program waits for.
    pub fn answer_program(&mut self) {
        let mail = self.mail;
        let Some((op, addr, len)) = mail.request() else { return };
        let result = match op {
            Op::Register => self.register(addr, len / PAGE_SIZE),
            // Not counted: a program may fork a thousand times a second.
            Op::Freeze => {
                self.frozen = true;
                self.bring_all();
                return mail.answer(0);
            }
            Op::Thaw => {
                self.frozen = false;
                return mail.answer(0);
            }
            Op::Stop => {
                self.stop();
                Ok(())
            }
            Op::Unregister | Op::Normal | Op::WillNeed | Op::DontNeedSoon | Op::Keep => {
                self.on_range(op, addr, len)
            }
        };
        match op {
            Op::Register | Op::Unregister => self.count_ranges(),
            _ => self.count(),
        }
        mail.answer(result.err().map_or(0, |errno| errno.0 as u32));
    }

    fn register(&mut self, base: usize, pages: usize) -> Result<()> {
        let end = base + pages * PAGE_SIZE;
        if self.regions.iter().any(|r| r.exists() && r.base <= base && end <= r.addr(r.pages)) {
            return self.on_range(Op::Normal, base, pages * PAGE_SIZE);
        }
        if self.regions.iter().any(|r| r.exists() && r.base < end && base < r.addr(r.pages)) {
            return Err(Errno::EEXIST);
        }
        let n = self.regions.iter().position(|r| !r.exists()).ok_or(Errno(libc::ENOSPC))?;
        let first = self.free_entries(pages).ok_or(Errno(libc::ENOSPC))?;
        self.channel.populate_entries(first, pages)?;
        self.regions[n].make(base, pages, first, &self.staging)?;
        let shared = &self.channel.header().regions[n];
        shared.generation.fetch_add(1, SeqCst);
        shared.base.store(base as u64, SeqCst);
        shared.pages.store(pages as u64, SeqCst);
        shared.first.store(first as u64, SeqCst);
        shared.generation.fetch_add(1, SeqCst);
        self.control.ranges_added.fetch_add(1, Relaxed);
        Ok(())
    }

    /// The first of so many entries in a row that no region has.
    fn free_entries(&self, pages: usize) -> Option<usize> {
        let mut at = 0;
        while at + pages <= self.channel.pages() {
            let taken =
                self.regions.iter().filter(|r| r.exists() && r.first < at + pages && at < r.first + r.pages);
            match taken.map(|r| r.first + r.pages).max() {
                Some(end) => at = end,
                None => return Some(at),
            }
        }
        None
    }

    fn on_range(&mut self, op: Op, addr: usize, len: usize) -> Result<()> {
        let mut known = false;
        for n in 0..REGIONS {
            let (base, pages) = (self.regions[n].base, self.regions[n].pages);
            let (lo, hi) = (addr.max(base), (addr + len).min(base + pages * PAGE_SIZE));
            if base == 0 || lo >= hi {
                continue;
            }
            known = true;
            let (lo, hi) = ((lo - base) / PAGE_SIZE, (hi - base) / PAGE_SIZE);
            match op {
                Op::Unregister if lo == 0 && hi == pages => self.forget(n),
                _ => self.tell(op, n, lo, hi),
            }
        }
        known.then_some(()).ok_or(Errno::ENOENT)
    }

    fn tell(&mut self, op: Op, region: usize, lo: usize, hi: usize) {
        let now = self.now;
        for page in lo..hi {
            let piece = self.regions[region].piece(page / EXTENT_PAGES);
            let n = page % EXTENT_PAGES;
            match op {
                Op::DontNeedSoon => set(&mut piece.soon, n, true),
                Op::WillNeed => piece.age.watched(now),
                Op::Normal => set(&mut piece.kept, n, false),
                _ => set(&mut piece.kept, n, true),
            }
            if !matches!(op, Op::DontNeedSoon) {
                set(&mut piece.soon, n, false);
            }
        }
        if matches!(op, Op::WillNeed | Op::Keep | Op::Unregister) {
            self.bring_range(region, lo, hi);
        }
        if op == Op::Unregister {
            // It may be unmapped now, and something else be mapped there.
            let _ = self.uffd.unregister(self.regions[region].addr(lo), (hi - lo) * PAGE_SIZE);
        }
    }

    /// Gives a region up.
    fn forget(&mut self, region: usize) {
        let pages = self.regions[region].pages;
        self.bring_range(region, 0, pages);
        let shared = &self.channel.header().regions[region];
        shared.generation.fetch_add(1, SeqCst);
        shared.base.store(0, SeqCst);
        shared.pages.store(0, SeqCst);
        shared.generation.fetch_add(1, SeqCst);
        // Whoever found the region before is done with the entry, or sees that it is gone.
        for page in 0..pages {
            let mut backoff = Backoff::new();
            while self.regions[region].entry(&self.channel, page).is_busy() {
                backoff.wait();
                self.look(Nanos(0));
            }
            self.take_back_slot(region, page);
        }
        let _ = self.uffd.unregister(self.regions[region].base, pages * PAGE_SIZE);
        self.regions[region].end();
        self.control.ranges_removed.fetch_add(1, Relaxed);
    }

    pub fn bring_all(&mut self) {
        for region in 0..REGIONS {
            self.bring_range(region, 0, self.regions[region].pages);
        }
    }

    fn stop(&mut self) {
        for region in 0..REGIONS {
            if self.regions[region].exists() {
                self.forget(region);
            }
        }
        self.control.mode.store(Mode::Off as u32, Release);
        self.control.reason.set("stopped by the program");
        self.mirror.show(self.control);
        self.link = Link::Alone(Nanos(u64::MAX));
        self.ended = true;
    }

    pub fn answer_mailbox(&mut self) {
        self.mirror.hear(self.control);
        let mailbox = &self.control.mailbox;
        let asked = mailbox.asked.load(Relaxed);
        if asked == mailbox.answered.load(Relaxed) {
            return;
        }
        let (argument, value) = (mailbox.argument.load(Relaxed), mailbox.value.load(Relaxed));
        let error = match mailbox.command.load(Relaxed) {
            c if c == Command::Set as u32 => self.change_setting(argument, value),
            c if c == Command::Pause as u32 => {
                self.control.paused.store(1, Relaxed);
                0
            }
            c if c == Command::Resume as u32 => {
                self.control.paused.store(0, Relaxed);
                0
            }
            c if c == Command::Restore as u32 => {
                self.bring_all();
                0
            }
            c if c == Command::Evict as u32 => {
                for n in 0..REGIONS {
                    self.tell(Op::DontNeedSoon, n, 0, self.regions[n].pages);
                }
                0
            }
            c if c == Command::Stop as u32 => {
                self.stop();
                0
            }
            _ => libc::EINVAL as u32,
        };
        self.count();
        mailbox.error.store(error, Relaxed);
        mailbox.answered.store(asked, Relaxed);
        self.mirror.show(self.control);
    }

    fn change_setting(&mut self, index: u64, value: u64) -> u32 {
        let Some(setting) = Setting::from_index(index) else { return libc::EINVAL as u32 };
        let (least, most) = setting.range();
        if value < least || value > most {
            return libc::ERANGE as u32;
        }
        self.config.set(setting, value);
        self.control.settings[setting as usize].store(value, Relaxed);
        0
    }
}
