//! The functions that programs call.

use crate::{embedded, maps, Error, Options};
use memfold_pager::config;
use memfold_pager::control::Mode;
use memfold_pager::{Engine, Phase};
use memfold_sys::PAGE_SIZE;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, OnceLock};

/// What the program knows of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Hint {
    /// Nothing in particular; takes [`Hint::Keep`] back.
    Normal = 0,
    /// It will be touched soon: what is folded of it comes back before the call returns.
    WillNeed = 1,
    /// It will not be touched soon: it need not grow cold first. Touching it all the same costs a fault and nothing else.
    DontNeedSoon = 2,
    /// It must stay in memory: what is folded of it comes back before the call returns, and it is not folded again until
    /// [`Hint::Normal`].
    Keep = 3,
}

/// What folding has come to, bytes unless the name says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Stats {
    /// Registered memory that may be folded.
    pub managed_bytes: u64,
    /// Of that, what is compressed and given back to the kernel now.
    pub evicted_bytes: u64,
    /// What the compressed bytes take, with tables and buffers.
    pub overhead_bytes: u64,
    /// Pages that came back from the store since the start.
    pub pages_restored: u64,
    /// Time that the program's threads have waited for the pager, ns.
    pub stall_ns: u64,
    /// Pages whose bytes could not be brought back. Anything but 0 is a defect.
    pub pages_lost: u64,
    /// 1 while the program is folded.
    pub running: u64,
}

/// The engine in the process, once it was started.
static ENGINE: OnceLock<&'static Engine> = OnceLock::new();
/// Held while it is being started.
static STARTING: Mutex<bool> = Mutex::new(false);

fn engine() -> Result<&'static Engine, Error> {
    ENGINE.get().copied().ok_or(Error::NotStarted)
}

/// Gets ready to fold what will be registered. Threads of memfold's own run from the first registration on. Where a daemon is
/// named and none listens, one line on standard error says so, and the process is under its budget from when there is one.
///
/// # Errors
/// It was started before, a variable of the environment or the path of the daemon's socket makes no sense, `libmemfold.so` is preloaded, or this machine or
/// this user cannot fold.
pub fn start(options: &Options) -> Result<(), Error> {
    let mut started = STARTING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if *started {
        return Err(Error::StartedBefore);
    }
    if is_preloaded() {
        return Err(Error::Preloaded);
    }
    let engine = embedded::start(options)?;
    *started = true;
    let _ = ENGINE.set(engine);
    Ok(())
}

fn is_preloaded() -> bool {
    let variable = |name| std::env::var(name).unwrap_or_default();
    config::switch(&variable("MEMFOLD_PAGER")) == Some(true)
        && variable("LD_PRELOAD").contains("libmemfold.so")
}

/// Has the whole pages of a range folded when they are cold. A range may be registered again, also while it is folded;
/// it may be unmapped without being unregistered.
///
/// # Errors
/// There is no whole page in it, or something other than private anonymous memory that can be read and written.
pub fn register(addr: *const u8, len: usize) -> Result<(), Error> {
    let engine = engine()?;
    let (start, end) = whole_pages(addr as usize, len)?;
    maps::check(start, end)?;
    Ok(engine.offer(start, end - start)?)
}

/// Brings the pages of a range back and folds them no more.
///
/// # Errors
/// There is no whole page in it, nothing of it is registered, or there is no memory to bring it back.
pub fn unregister(addr: *const u8, len: usize) -> Result<(), Error> {
    let (engine, start, len) = known(addr, len)?;
    Ok(engine.withdraw(start, len)?)
}

/// Says what the program knows of the whole pages of a range.
///
/// # Errors
/// There is no whole page in it, nothing of it is registered, or there is no memory to bring it back.
pub fn hint(addr: *const u8, len: usize, hint: Hint) -> Result<(), Error> {
    let (engine, start, len) = known(addr, len)?;
    Ok(match hint {
        Hint::Normal => engine.readmit(start, len),
        Hint::WillNeed => engine.will_need(start, len),
        Hint::DontNeedSoon => engine.dont_need_soon(start, len),
        Hint::Keep => engine.exempt(start, len, || Ok(())),
    }?)
}

/// What it has come to so far; all zeros before `start`.
pub fn stats() -> Stats {
    let Ok(engine) = engine() else { return Stats::default() };
    let control = engine.control();
    let mode = Mode::from_u32(control.mode.load(Relaxed));
    Stats {
        managed_bytes: control.managed_bytes.load(Relaxed),
        evicted_bytes: control.evicted_bytes.load(Relaxed),
        overhead_bytes: control.overhead_bytes.load(Relaxed),
        pages_restored: control.pages_restored.load(Relaxed),
        stall_ns: control.stall_ns.load(Relaxed),
        pages_lost: control.pages_lost.load(Relaxed),
        running: u64::from(mode == Mode::Embedded),
    }
}

/// Brings everything back and ends memfold's threads, for good.
///
/// # Errors
/// It was never started.
pub fn stop() -> Result<(), Error> {
    let engine = engine()?;
    if engine.phase() != Phase::Off {
        engine.stop(&"stopped by the program");
    }
    Ok(())
}

/// The whole pages within a range.
fn whole_pages(addr: usize, len: usize) -> Result<(usize, usize), Error> {
    let no_page = Error::NoWholePage { addr, len };
    let end = addr.checked_add(len).ok_or(no_page.clone())? & !(PAGE_SIZE - 1);
    let start = addr.checked_next_multiple_of(PAGE_SIZE).ok_or(no_page.clone())?;
    (start < end).then_some((start, end)).ok_or(no_page)
}

fn known(addr: *const u8, len: usize) -> Result<(&'static Engine, usize, usize), Error> {
    let engine = engine()?;
    let (start, end) = whole_pages(addr as usize, len)?;
    if engine.knows(start, end - start) {
        Ok((engine, start, end - start))
    } else {
        Err(Error::NotRegistered { addr: addr as usize, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pages_count() {
        assert_eq!(whole_pages(4096, 8192), Ok((4096, 12288)));
        assert_eq!(whole_pages(4097, 8192), Ok((8192, 12288)));
        assert!(whole_pages(4097, 8190).is_err());
        assert!(whole_pages(usize::MAX - 10, 100).is_err());
        assert!(whole_pages(4096, 0).is_err());
    }

    #[test]
    fn a_call_before_the_start_is_refused() {
        assert_eq!(register(std::ptr::null(), 1 << 20), Err(Error::NotStarted));
        assert_eq!(stop(), Err(Error::NotStarted));
        assert_eq!(stats(), Stats::default());
    }
}
