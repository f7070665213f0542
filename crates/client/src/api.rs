//! The functions that programs call.

use crate::served::{self, Op, Served};
use crate::{embedded, maps, Error, Options};
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

/// Who folds this process.
#[derive(Clone, Copy)]
enum Backend {
    /// The engine in the process.
    Embedded(&'static Engine),
    /// The daemon, with an agent in the process.
    Daemon(Served),
}

static BACKEND: OnceLock<Backend> = OnceLock::new();
/// Held while it is being started.
static STARTING: Mutex<bool> = Mutex::new(false);

fn backend() -> Result<Backend, Error> {
    BACKEND.get().copied().ok_or(Error::NotStarted)
}

/// Gets ready to fold what will be registered. Threads of memfold's own run from the first registration on.
///
/// # Errors
/// It was started before, a variable of the environment makes no sense, `libmemfold.so` is preloaded, or this machine or
/// this user cannot fold.
pub fn start(options: &Options) -> Result<(), Error> {
    let mut started = STARTING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if *started {
        return Err(Error::StartedBefore);
    }
    if is_preloaded() {
        return Err(Error::Preloaded);
    }
    let backend = match options.daemon_path() {
        Some(path) => Backend::Daemon(served::start(options, &path)?),
        None => Backend::Embedded(embedded::start(options)?),
    };
    *started = true;
    let _ = BACKEND.set(backend);
    Ok(())
}

fn is_preloaded() -> bool {
    let variable = |name| std::env::var(name).unwrap_or_default();
    variable("MEMFOLD_PAGER") == "on" && variable("LD_PRELOAD").contains("libmemfold.so")
}

/// Has the whole pages of a range folded when they are cold. A range may be registered again, also while it is folded;
/// it may be unmapped without being unregistered, but not where the daemon folds the program: there it must be unregistered
/// before it is unmapped, remapped, protected or dropped by `madvise`.
///
/// # Errors
/// There is no whole page in it, or something other than private anonymous memory that can be read and written.
pub fn register(addr: *const u8, len: usize) -> Result<(), Error> {
    let backend = backend()?;
    let (start, end) = whole_pages(addr as usize, len)?;
    maps::check(start, end)?;
    match backend {
        Backend::Embedded(engine) => Ok(engine.offer(start, end - start)?),
        Backend::Daemon(served) => served.ask(Op::Register, start, end - start),
    }
}

/// Brings the pages of a range back and folds them no more.
///
/// # Errors
/// There is no whole page in it, nothing of it is registered, or there is no memory to bring it back.
pub fn unregister(addr: *const u8, len: usize) -> Result<(), Error> {
    match known(addr, len)? {
        (Backend::Embedded(engine), start, len) => Ok(engine.withdraw(start, len)?),
        (Backend::Daemon(served), start, len) => served.ask(Op::Unregister, start, len),
    }
}

/// Says what the program knows of the whole pages of a range.
///
/// # Errors
/// There is no whole page in it, nothing of it is registered, or there is no memory to bring it back.
pub fn hint(addr: *const u8, len: usize, hint: Hint) -> Result<(), Error> {
    let (backend, start, len) = known(addr, len)?;
    match (backend, hint) {
        (Backend::Embedded(engine), Hint::Normal) => Ok(engine.readmit(start, len)?),
        (Backend::Embedded(engine), Hint::WillNeed) => Ok(engine.will_need(start, len)?),
        (Backend::Embedded(engine), Hint::DontNeedSoon) => Ok(engine.dont_need_soon(start, len)?),
        (Backend::Embedded(engine), Hint::Keep) => Ok(engine.exempt(start, len, || Ok(()))?),
        (Backend::Daemon(served), Hint::Normal) => served.ask(Op::Normal, start, len),
        (Backend::Daemon(served), Hint::WillNeed) => served.ask(Op::WillNeed, start, len),
        (Backend::Daemon(served), Hint::DontNeedSoon) => served.ask(Op::DontNeedSoon, start, len),
        (Backend::Daemon(served), Hint::Keep) => served.ask(Op::Keep, start, len),
    }
}

/// What it has come to so far; all zeros before `start`.
pub fn stats() -> Stats {
    let control = match backend() {
        Ok(Backend::Embedded(engine)) => engine.control(),
        Ok(Backend::Daemon(served)) => served.control(),
        Err(_) => return Stats::default(),
    };
    let mode = Mode::from_u32(control.mode.load(Relaxed));
    Stats {
        managed_bytes: control.managed_bytes.load(Relaxed),
        evicted_bytes: control.evicted_bytes.load(Relaxed),
        overhead_bytes: control.overhead_bytes.load(Relaxed),
        pages_restored: control.pages_restored.load(Relaxed),
        stall_ns: control.stall_ns.load(Relaxed),
        pages_lost: control.pages_lost.load(Relaxed),
        running: u64::from(matches!(mode, Mode::Embedded | Mode::Daemon)),
    }
}

/// Brings everything back and ends memfold's threads, for good.
///
/// # Errors
/// It was never started.
pub fn stop() -> Result<(), Error> {
    match backend()? {
        Backend::Embedded(engine) if engine.phase() == Phase::Off => Ok(()),
        Backend::Embedded(engine) => {
            engine.stop(&"stopped by the program");
            Ok(())
        }
        Backend::Daemon(served) if served.control().mode.load(Relaxed) == Mode::Off as u32 => Ok(()),
        Backend::Daemon(served) => served.ask(Op::Stop, 0, 0),
    }
}

/// The whole pages within a range.
fn whole_pages(addr: usize, len: usize) -> Result<(usize, usize), Error> {
    let no_page = Error::NoWholePage { addr, len };
    let end = addr.checked_add(len).ok_or(no_page.clone())? & !(PAGE_SIZE - 1);
    let start = addr.checked_next_multiple_of(PAGE_SIZE).ok_or(no_page.clone())?;
    (start < end).then_some((start, end)).ok_or(no_page)
}

fn known(addr: *const u8, len: usize) -> Result<(Backend, usize, usize), Error> {
    let backend = backend()?;
    let (start, end) = whole_pages(addr as usize, len)?;
    match backend {
        Backend::Embedded(engine) if !engine.knows(start, end - start) => {
            Err(Error::NotRegistered { addr: addr as usize, len })
        }
        _ => Ok((backend, start, end - start)),
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
