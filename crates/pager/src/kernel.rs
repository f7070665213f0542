//! What an engine opens at the kernel, and what the kernel can do.

use crate::sabotage::fault_point;
use crate::staging::Staging;
use core::mem::forget;
use memfold_sys::file::Fd;
use memfold_sys::life::Life;
use memfold_sys::pagemap::Pagemap;
use memfold_sys::pin::Pin;
use memfold_sys::uffd::{Features, Modes, Userfaultfd};
use memfold_sys::Errno;

/// Open descriptors, in the table of the agents, and what they are good for.
pub struct Kernel {
    /// For the program's pages.
    pub uffd: Userfaultfd,
    /// Where pages lie while they are set aside; has a userfaultfd of its own.
    pub staging: Staging,
    /// Tells whether a touch waits to be read at `uffd`.
    pub uffd_info: Fd,
    /// Which pages are there.
    pub pagemap: Pagemap,
    /// Tells when the program has ended.
    pub life: Life,
    /// Keeps `uffd` open for as long as anybody uses the program's memory.
    pin: Option<Pin>,
    /// Whether writes can be tracked.
    pub tracks_writes: bool,
}

/// Features without which the pager does not run.
const NEEDED: Features = Features::MOVE
    .union(Features::THREAD_ID)
    .union(Features::EVENT_REMAP)
    .union(Features::EVENT_REMOVE)
    .union(Features::EVENT_UNMAP);
/// Features that it uses if they are there.
const TRACKING: Features =
    Features::PAGEFAULT_FLAG_WP.union(Features::WP_UNPOPULATED).union(Features::WP_ASYNC);

/// A userfaultfd by the best way that this process has.
pub fn make_uffd(device: Option<i32>) -> Result<Userfaultfd, Errno> {
    if let Some(fd) = device {
        if let Ok(uffd) = Userfaultfd::from_device(fd) {
            return Ok(uffd);
        }
    }
    Userfaultfd::open()
}

/// What is missing, in words for people, and why.
pub type Missing = (&'static str, Errno);

/// By which forks are reported.
fn forks() -> Features {
    fault_point!(ForksNotAskedFor: Features::EVENT_FORK, else Features::empty())
}

/// What a userfaultfd is asked for by which forks are reported, where who has the right to that makes the handshake for this process; and
/// whether it can track writes. `available` is all that the kernel has; `None` where that is too little.
pub fn features_with_forks(available: Features) -> Option<(Features, bool)> {
    let needed = NEEDED | forks();
    let tracks_writes = available.contains(TRACKING);
    let wanted = if tracks_writes { needed | TRACKING } else { needed };
    available.contains(needed).then_some((wanted, tracks_writes))
}

/// A userfaultfd of which the handshake is made, by its number in the table of the calling thread, which gives it up; and whether it can track writes.
pub type Made = (i32, bool);

/// What is missing where forks cannot be reported.
const NO_FORKS: &str = "forks are reported to who has CAP_SYS_PTRACE alone, and this process has not";

fn make_main(device: Option<i32>, more: Features) -> Result<(Userfaultfd, bool), Missing> {
    let no_uffd = |e| ("userfaultfd is not permitted", e);
    for (features, tracks_writes) in [(NEEDED | TRACKING | more, true), (NEEDED | more, false)] {
        // A failed handshake spoils the descriptor: each try takes a new one.
        let uffd = make_uffd(device).map_err(no_uffd)?;
        match uffd.handshake(features) {
            Ok(_) => return Ok((uffd, tracks_writes)),
            Err(Errno::EPERM) => return Err((NO_FORKS, Errno::EPERM)),
            Err(_) => {}
        }
    }
    Err(("the kernel's userfaultfd lacks UFFDIO_MOVE (Linux 6.8 or later has it)", Errno::EINVAL))
}

fn make_second(device: Option<i32>) -> Result<Userfaultfd, Missing> {
    make_uffd(device).map_err(|e| ("userfaultfd is not permitted", e))
}

const NO_PIN: &str = "neither io_uring nor asynchronous I/O is permitted, to keep the userfaultfd open";

fn no_pagemap(error: Errno) -> Missing {
    let what = match error {
        // It belongs to root in a process that cannot be dumped, as one that has been somebody else (PR_SET_DUMPABLE in prctl(2)).
        Errno(libc::EACCES) => {
            "/proc/thread-self/pagemap is closed to a process that became another user, or has PR_SET_DUMPABLE at 0"
        }
        _ => "/proc/thread-self/pagemap cannot be opened (is /proc mounted?)",
    };
    (what, error)
}

/// What is opened in a forked child as in any other process.
struct Rest {
    uffd_info: Fd,
    pagemap: Pagemap,
    life: Life,
}

impl Rest {
    fn open(uffd: &Userfaultfd, pagemap: Option<Pagemap>) -> Result<Rest, Missing> {
        let of_proc = |what| move |error| (what, error);
        Ok(Rest {
            uffd_info: uffd
                .open_info()
                .map_err(of_proc("/proc/thread-self/fdinfo cannot be read (is /proc mounted?)"))?,
            pagemap: match pagemap {
                Some(pagemap) => pagemap,
                None => Pagemap::open().map_err(no_pagemap)?,
            },
            life: Life::watch().map_err(of_proc("/proc/self/statm cannot be opened (is /proc mounted?)"))?,
        })
    }
}

/// Has the program's memory keep the userfaultfd open.
fn pin(uffd: &Userfaultfd) -> Result<Option<Pin>, Missing> {
    fault_point!(NotPinned: Pin::new(uffd.raw_fd()).map(Some).map_err(|e| (NO_PIN, e)), else Ok(None))
}

impl Kernel {
    /// Opens everything. The error names what is missing, in words for people. `by_reports` says that nobody but the kernel tells of changes: then it
    /// must tell of forks too, and what is set aside moves by the same userfaultfd ([`crate::staging`]). One that is `made` already is such. The page map is
    /// opened where it is not handed over.
    pub fn open(
        device: Option<i32>,
        by_reports: bool,
        made: Option<Made>,
        pagemap: Option<Pagemap>,
    ) -> Result<Kernel, Missing> {
        let more = if by_reports { forks() } else { Features::empty() };
        let (uffd, tracks_writes) = match made {
            // SAFETY: it is ours from here on, by the contract of `Made`.
            Some((number, tracks_writes)) => (unsafe { Userfaultfd::handed_over(number) }, tracks_writes),
            None => make_main(device, more)?,
        };
        let second = if by_reports { None } else { Some(make_second(device)?) };
        let staging = Staging::new(second).map_err(|e| ("no address space for the staging area", e))?;
        let Rest { uffd_info, pagemap, life } = Rest::open(&uffd, pagemap)?;
        let pin = pin(&uffd)?;
        Ok(Kernel { uffd, staging, uffd_info, pagemap, life, pin, tracks_writes })
    }

    /// Opens again what a forked child cannot share with its parent. What was open there is not open here: the numbers may be
    /// those of the program's own files. Returns what is missing where nothing keeps the userfaultfd open: then it is to be used for a moment only.
    pub fn reopen_in_child(&mut self, device: Option<i32>) -> Result<Option<Missing>, Missing> {
        let (uffd, tracks_writes) = make_main(device, Features::empty())?;
        self.staging
            .adopt_in_child(make_second(device)?)
            .map_err(|e| ("the staging area cannot be registered", e))?;
        let rest = Rest::open(&uffd, None)?;
        forget(core::mem::replace(&mut self.uffd, uffd));
        forget(core::mem::replace(&mut self.uffd_info, rest.uffd_info));
        forget(core::mem::replace(&mut self.pagemap, rest.pagemap));
        forget(core::mem::replace(&mut self.life, rest.life));
        let (pin, missing) = match pin(&self.uffd) {
            Ok(pin) => (pin, None),
            Err(missing) => (None, Some(missing)),
        };
        forget(core::mem::replace(&mut self.pin, pin));
        self.tracks_writes = tracks_writes;
        Ok(missing)
    }

    /// Gives up what a forked child has of it that needs nothing of it: address space, and no descriptors.
    pub fn forget_in_child(self) {
        let Kernel { uffd, staging, uffd_info, pagemap, life, pin, tracks_writes: _ } = self;
        staging.forget_in_child();
        forget((uffd, uffd_info, pagemap, life, pin));
    }

    /// What a range is registered for while pages of it may be away.
    pub fn armed_modes(&self) -> Modes {
        if self.tracks_writes {
            Modes::MISSING | Modes::WP
        } else {
            Modes::MISSING
        }
    }
}
