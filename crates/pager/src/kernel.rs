//! What an engine opens at the kernel, and what the kernel can do.

use crate::staging::Staging;
use sys::file::Fd;
use sys::pagemap::Pagemap;
use sys::uffd::{Features, Modes, Userfaultfd};
use sys::Errno;

/// Descriptors of the pager start here, out of the way of programs that count on low numbers; lower where the limit
/// on descriptors is.
const FIRST_FD: i32 = 700;
/// Room that is left below the limit for all of them, and for a second set in a forked child.
const ROOM: i32 = 12;

pub(crate) fn first_fd() -> i32 {
    match sys::file::descriptor_limit() {
        Some(limit) => FIRST_FD.min(i32::try_from(limit).unwrap_or(i32::MAX) - ROOM).max(3),
        None => FIRST_FD,
    }
}

/// Open descriptors and what they are good for.
pub struct Kernel {
    /// For the program's pages.
    pub uffd: Userfaultfd,
    /// Where pages lie while they are set aside; has a userfaultfd of its own.
    pub staging: Staging,
    /// Tells whether a touch waits to be read at `uffd`.
    pub uffd_info: Fd,
    /// Which pages are there.
    pub pagemap: Pagemap,
    /// `/proc/loadavg`, if it can be read.
    pub loadavg: Option<Fd>,
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

fn open_loadavg() -> Option<Fd> {
    let file = sys::file::open(c"/proc/loadavg", libc::O_RDONLY, 0).ok()?;
    sys::file::dup_above(file.raw(), first_fd()).ok()
}

fn open_info(uffd: &Userfaultfd) -> Result<Fd, (&'static str, Errno)> {
    let info = uffd.open_info().map_err(|e| ("/proc/self/fdinfo cannot be read (is /proc mounted?)", e))?;
    Ok(sys::file::dup_above(info.raw(), first_fd()).unwrap_or(info))
}

fn make_main(device: Option<i32>) -> Result<(Userfaultfd, bool), (&'static str, Errno)> {
    let no_uffd = |e| ("userfaultfd is not permitted", e);
    for (features, tracks_writes) in [(NEEDED | TRACKING, true), (NEEDED, false)] {
        // A failed handshake spoils the descriptor: each try takes a new one.
        let uffd = make_uffd(device).map_err(no_uffd)?;
        if uffd.handshake(features).is_ok() {
            return Ok((uffd.move_above(first_fd()), tracks_writes));
        }
    }
    Err(("the kernel's userfaultfd lacks UFFDIO_MOVE (Linux 6.8 or later has it)", Errno::EINVAL))
}

impl Kernel {
    /// Opens everything. The error names what is missing, in words for people.
    pub fn open(device: Option<i32>) -> Result<Kernel, (&'static str, Errno)> {
        let (uffd, tracks_writes) = make_main(device)?;
        let second = make_uffd(device).map_err(|e| ("userfaultfd is not permitted", e))?;
        let staging = Staging::new(second.move_above(first_fd()))
            .map_err(|e| ("no address space for the staging area", e))?;
        let pagemap = Pagemap::open()
            .map_err(|e| ("/proc/self/pagemap cannot be opened (is /proc mounted?)", e))?
            .move_above(first_fd());
        let uffd_info = open_info(&uffd)?;
        Ok(Kernel { uffd, staging, uffd_info, pagemap, loadavg: open_loadavg(), tracks_writes })
    }

    /// Opens again what a forked child cannot share with its parent.
    pub fn reopen_in_child(&mut self, device: Option<i32>) -> Result<(), (&'static str, Errno)> {
        let (uffd, tracks_writes) = make_main(device)?;
        let second = make_uffd(device).map_err(|e| ("userfaultfd is not permitted", e))?;
        self.staging
            .adopt_in_child(second.move_above(first_fd()))
            .map_err(|e| ("the staging area cannot be registered", e))?;
        self.pagemap = Pagemap::open()
            .map_err(|e| ("/proc/self/pagemap cannot be opened (is /proc mounted?)", e))?
            .move_above(first_fd());
        self.uffd_info = open_info(&uffd)?;
        self.uffd = uffd;
        self.tracks_writes = tracks_writes;
        Ok(())
    }

    /// The numbers of these; −1 for none.
    pub fn descriptors(&self) -> [i32; 5] {
        let loadavg = self.loadavg.as_ref().map_or(-1, Fd::raw);
        [
            self.uffd.raw_fd(),
            self.staging.uffd().raw_fd(),
            self.uffd_info.raw(),
            self.pagemap.raw_fd(),
            loadavg,
        ]
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
