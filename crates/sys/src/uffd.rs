//! `userfaultfd(2)`: being told of touches to absent pages, and putting pages there.
//!
//! Numbers and structures are those of `linux/userfaultfd.h` as of Linux 6.18; `UFFDIO_MOVE` needs 6.8,
//! `WP_ASYNC` 6.7.

use crate::call::{Errno, Result};
use crate::file::Fd;
use crate::inject::{self, Failure, Point};
use crate::{file, syscall};
use bitflags::bitflags;

bitflags! {
    /// What a userfaultfd can be asked for when it is opened.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Features: u64 {
        /// Write-protect faults are marked as such.
        const PAGEFAULT_FLAG_WP = 1 << 0;
        /// `fork` is reported; needs CAP_SYS_PTRACE.
        const EVENT_FORK = 1 << 1;
        /// `mremap` is reported.
        const EVENT_REMAP = 1 << 2;
        /// `MADV_DONTNEED` and its like are reported.
        const EVENT_REMOVE = 1 << 3;
        /// `munmap` is reported.
        const EVENT_UNMAP = 1 << 6;
        /// Faults raise SIGBUS instead of a message.
        const SIGBUS = 1 << 7;
        /// A fault names its thread.
        const THREAD_ID = 1 << 8;
        /// Write protection of pages that are not there yet.
        const WP_UNPOPULATED = 1 << 13;
        /// Write protection that the kernel lifts by itself; `PAGEMAP_SCAN` reads what was written.
        const WP_ASYNC = 1 << 15;
        /// `UFFDIO_MOVE`.
        const MOVE = 1 << 16;
    }
}

bitflags! {
    /// What a range is registered for.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Modes: u64 {
        /// Touches of absent pages.
        const MISSING = 1 << 0;
        /// Writes to write-protected pages.
        const WP = 1 << 1;
    }
}

/// One message of a userfaultfd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A thread touched an absent page and sleeps.
    Fault {
        /// The page's address.
        page: usize,
        /// Whether it was a write.
        write: bool,
        /// The thread, 0 if unknown.
        tid: u32,
    },
    /// The range `from..from+len` was moved to `to`.
    Remap {
        /// Old start.
        from: usize,
        /// New start.
        to: usize,
        /// Bytes.
        len: usize,
    },
    /// The contents of the range are about to be dropped.
    Remove {
        /// First byte.
        start: usize,
        /// Byte after the last.
        end: usize,
    },
    /// The range was unmapped.
    Unmap {
        /// First byte.
        start: usize,
        /// Byte after the last.
        end: usize,
    },
    /// A child with a copy of the memory was forked, and has what is registered registered with a userfaultfd of its own, by this number in the reader's
    /// descriptor table. Whoever reads this has it to close ([`Userfaultfd::handed_over`]).
    Fork {
        /// The number.
        child: i32,
    },
    /// A message that nobody asked for.
    Unknown(u8),
}

/// The number of a report of a fork.
const FORK: u8 = 0x13;

/// A message as the kernel writes it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct RawMessage {
    event: u8,
    reserved: [u8; 7],
    words: [u64; 3],
}

impl RawMessage {
    /// What it says.
    pub fn event(&self) -> Event {
        let [a, b, c] = self.words.map(|w| w as usize);
        match self.event {
            0x12 => Event::Fault {
                page: b & !(crate::PAGE_SIZE - 1),
                write: a & 1 != 0,
                tid: self.words[2] as u32,
            },
            FORK => Event::Fork { child: self.words[0] as i32 },
            0x14 => Event::Remap { from: a, to: b, len: c },
            0x15 => Event::Remove { start: a, end: b },
            0x16 => Event::Unmap { start: a, end: b },
            other => Event::Unknown(other),
        }
    }
}

/// How far a copying or moving call came: bytes done, and the error of the first page not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Bytes done, a multiple of the page size.
    pub done: usize,
    /// Why it stopped, if it did. `EAGAIN` with `done > 0` only says that it stopped: ask again at the
    /// page after the last to learn why.
    pub error: Option<Errno>,
}

/// An open userfaultfd of this process.
#[derive(Debug)]
pub struct Userfaultfd {
    fd: Fd,
}

#[repr(C)]
struct Range {
    start: u64,
    len: u64,
}

const fn iowr(number: u32, size: u32) -> u32 {
    (3 << 30) | (size << 16) | (0xAA << 8) | number
}
const fn ior(number: u32, size: u32) -> u32 {
    (2 << 30) | (size << 16) | (0xAA << 8) | number
}

/// What `/proc` calls an open one.
pub const LINK: &str = "anon_inode:[userfaultfd]";

/// Whether an open file is one, whoever made it.
fn is_one(fd: &Fd) -> bool {
    let (mut path, mut link) = ([0u8; 48], [0u8; LINK.len() + 1]);
    let mut out = crate::text::Writer::new(&mut path);
    // Leaves the last byte zero. The calling thread may have another table than the main one.
    let _ = core::fmt::write(&mut out, format_args!("/proc/thread-self/fd/{}", fd.raw()));
    // SAFETY: a path, and room for as much as is said.
    let len = unsafe {
        syscall!(readlinkat, libc::AT_FDCWD, path.as_ptr() as usize, link.as_mut_ptr() as usize, link.len())
    };
    len.is_ok_and(|len| &link[..len] == LINK.as_bytes())
}

const IOC_NEW: u32 = 0xAA << 8;
const IOC_API: u32 = iowr(0x3F, 24);
const IOC_REGISTER: u32 = iowr(0x00, 32);
const IOC_UNREGISTER: u32 = ior(0x01, 16);
const IOC_WAKE: u32 = ior(0x02, 16);
const IOC_COPY: u32 = iowr(0x03, 40);
const IOC_ZEROPAGE: u32 = iowr(0x04, 32);
const IOC_MOVE: u32 = iowr(0x05, 40);

const API_VERSION: u64 = 0xAA;
const MODE_DONTWAKE: u64 = 1 << 0;
const MOVE_ALLOW_SRC_HOLES: u64 = 1 << 1;

/// Not blocking, because `poll` is not for blocking userfaultfds.
const FLAGS: i32 = libc::O_CLOEXEC | libc::O_NONBLOCK;

/// The device through which an unprivileged process may make userfaultfds that also see the kernel's touches.
pub const DEVICE: &core::ffi::CStr = c"/dev/userfaultfd";

impl Userfaultfd {
    /// Makes one through an open descriptor of [`DEVICE`].
    pub fn from_device(device: i32) -> Result<Userfaultfd> {
        // SAFETY: no memory involved.
        let fd = unsafe { syscall!(ioctl, device, IOC_NEW, FLAGS) }?;
        // SAFETY: the kernel just made the descriptor for us.
        Ok(Userfaultfd { fd: unsafe { Fd::from_raw(fd as i32) } })
    }

    /// Makes one by opening [`DEVICE`], else by the system call (CAP_SYS_PTRACE, or
    /// `vm.unprivileged_userfaultfd=1`). Returns the error of the system call if neither works.
    pub fn open() -> Result<Userfaultfd> {
        if let Ok(device) = file::open(DEVICE, libc::O_RDWR, 0) {
            if let Ok(uffd) = Userfaultfd::from_device(device.raw()) {
                return Ok(uffd);
            }
        }
        Userfaultfd::from_system_call()
    }

    /// Makes one by the system call alone.
    pub fn from_system_call() -> Result<Userfaultfd> {
        // SAFETY: no memory involved.
        let fd = unsafe { syscall!(userfaultfd, FLAGS) }?;
        // SAFETY: the kernel just made the descriptor for us.
        Ok(Userfaultfd { fd: unsafe { Fd::from_raw(fd as i32) } })
    }

    /// One that is open: that of a forked child, of which a report told ([`Event::Fork`]), or what another process has handed over.
    ///
    /// # Safety
    /// The number comes from there, once, and is that of a userfaultfd.
    pub unsafe fn handed_over(number: i32) -> Userfaultfd {
        // SAFETY: the kernel made the descriptor for who got the number.
        Userfaultfd { fd: unsafe { Fd::from_raw(number) } }
    }

    /// One that came from another process, which may have sent anything. `EBADF` if it is none.
    pub fn taken_over(came: Fd) -> Result<Userfaultfd> {
        if is_one(&came) {
            Ok(Userfaultfd { fd: came })
        } else {
            Err(Errno(libc::EBADF))
        }
    }

    /// The descriptor's number.
    pub fn raw_fd(&self) -> i32 {
        self.fd.raw()
    }

    /// Gives up ownership: the number.
    pub fn into_raw_fd(self) -> i32 {
        self.fd.into_raw()
    }

    fn ioctl<T>(&self, request: u32, arg: &mut T) -> Result<usize> {
        // SAFETY: `arg` is the structure that `request` names; the addresses in it are covered by the
        // contracts of the callers.
        unsafe { syscall!(ioctl, self.fd.raw(), request, arg as *mut T as usize) }
    }

    /// Asks for features; must come first, once. Fails with `EINVAL` where one is unknown and with
    /// `EPERM` where one is not allowed. Returns all that the kernel has.
    pub fn handshake(&self, features: Features) -> Result<Features> {
        let mut arg = [API_VERSION, features.bits(), 0];
        self.ioctl(IOC_API, &mut arg)?;
        Ok(Features::from_bits_retain(arg[1]))
    }

    /// Registers a range, or changes the modes of a registered one. Holes are skipped.
    pub fn register(&self, start: usize, len: usize, modes: Modes) -> Result<()> {
        if let Some(error) = inject::error(Point::Register) {
            return Err(error);
        }
        let mut arg = [start as u64, len as u64, modes.bits(), 0];
        self.ioctl(IOC_REGISTER, &mut arg).map(drop)
    }

    /// Lets a range go and wakes every thread that sleeps on it.
    pub fn unregister(&self, start: usize, len: usize) -> Result<()> {
        if let Some(error) = inject::error(Point::Unregister) {
            return Err(error);
        }
        self.ioctl(IOC_UNREGISTER, &mut Range { start: start as u64, len: len as u64 }).map(drop)
    }

    /// Wakes the threads that sleep on a range; they touch it again.
    pub fn wake(&self, start: usize, len: usize) {
        if inject::failure(Point::Wake).is_some() {
            let _ = self.ioctl(IOC_WAKE, &mut Range { start: start as u64, len: len as u64 });
        }
        // The call fails only for a bad range, and then nobody sleeps there.
        let _ = self.ioctl(IOC_WAKE, &mut Range { start: start as u64, len: len as u64 });
    }

    fn transfer(&self, request: u32, dst: usize, src: usize, len: usize, mode: u64) -> Progress {
        let point = if request == IOC_COPY { Point::Copy } else { Point::Move };
        let part = match inject::failure(point) {
            // The last two are a tier's.
            None | Some(Failure::Flipped | Failure::Slow) => {
                return self.transfer_all(request, dst, src, len, mode)
            }
            Some(Failure::Short) => inject::part_of(len),
            Some(Failure::Error(error)) => return Progress { done: 0, error: Some(error) },
            Some(Failure::Unseen) => {
                let progress = self.transfer_all(request, dst, src, len, mode);
                let error = progress.error.or(Some(Errno::EEXIST));
                return Progress { done: if progress.error.is_none() { 0 } else { progress.done }, error };
            }
        };
        let Some(part) = part else { return Progress { done: 0, error: Some(Errno::EAGAIN) } };
        let progress = self.transfer_all(request, dst, src, part, mode);
        Progress { error: progress.error.or(Some(Errno::EAGAIN)), ..progress }
    }

    fn transfer_all(&self, request: u32, dst: usize, src: usize, len: usize, mode: u64) -> Progress {
        let mut arg = [dst as u64, src as u64, len as u64, mode, 0];
        match self.ioctl(request, &mut arg) {
            Ok(_) => Progress { done: len, error: None },
            // The kernel leaves the bytes done in the last field, or the negated error.
            Err(e) => Progress { done: usize::try_from(arg[4] as i64).unwrap_or(0), error: Some(e) },
        }
    }

    /// Puts a copy of `src..src+len` at the absent pages of `dst..dst+len`, each atomically, without
    /// waking who sleeps on them.
    ///
    /// # Safety
    /// `src` must be readable for `len` bytes; the pages of `dst` must belong to bytes that the program
    /// expects there.
    pub unsafe fn copy(&self, dst: usize, src: usize, len: usize) -> Progress {
        self.transfer(IOC_COPY, dst, src, len, MODE_DONTWAKE)
    }

    /// Puts zeros at the absent pages of a range without waking who sleeps on them.
    pub fn zero(&self, start: usize, len: usize) -> Progress {
        if let Some(error) = inject::error(Point::Zero) {
            return Progress { done: 0, error: Some(error) };
        }
        let mut arg = [start as u64, len as u64, MODE_DONTWAKE, 0];
        match self.ioctl(IOC_ZEROPAGE, &mut arg) {
            Ok(_) => Progress { done: len, error: None },
            Err(e) => Progress { done: usize::try_from(arg[3] as i64).unwrap_or(0), error: Some(e) },
        }
    }

    /// Moves the pages of `src..src+len` to the absent pages of `dst..dst+len`, each atomically, without
    /// copying and without waking. `dst` must be registered with this userfaultfd; absent pages of `src`
    /// count as done.
    ///
    /// # Safety
    /// `src` loses its pages: whoever touches it must be prepared for that, and `dst` must be where the
    /// program, or the pager's tables, expect them.
    pub unsafe fn move_pages(&self, dst: usize, src: usize, len: usize) -> Progress {
        self.transfer(IOC_MOVE, dst, src, len, MODE_DONTWAKE | MOVE_ALLOW_SRC_HOLES)
    }

    /// Like [`Userfaultfd::move_pages`] for one page that must be there: `ENOENT` if it is not.
    ///
    /// # Safety
    /// As for [`Userfaultfd::move_pages`].
    pub unsafe fn move_present(&self, dst: usize, src: usize, len: usize) -> Progress {
        self.transfer(IOC_MOVE, dst, src, len, MODE_DONTWAKE)
    }

    /// Sleeps until there is a message, or a signal.
    pub fn wait(&self) {
        self.poll(None);
    }

    /// Sleeps until there is a message, a signal, or for that long; whether there is a message.
    pub fn wait_for(&self, time: crate::time::Nanos) -> bool {
        self.poll(Some(time.to_timespec()))
    }

    /// Whether there is a message now.
    pub fn has_message(&self) -> bool {
        self.poll(Some(libc::timespec { tv_sec: 0, tv_nsec: 0 }))
    }

    fn poll(&self, timeout: Option<libc::timespec>) -> bool {
        let mut poll = libc::pollfd { fd: self.fd.raw(), events: libc::POLLIN, revents: 0 };
        let timeout = timeout.as_ref().map_or(0, |time| time as *const libc::timespec as usize);
        // SAFETY: one valid structure, a valid time or none, and no signal mask.
        let ready = unsafe {
            syscall!(ppoll, &mut poll as *mut libc::pollfd as usize, 1usize, timeout, 0usize, 0usize)
        };
        ready == Ok(1)
    }

    /// Reads one message: a touch if there is any, else the oldest report. `EAGAIN` if there is none.
    pub fn read(&self) -> Result<RawMessage> {
        if let Some(error) = inject::error(Point::Read) {
            return Err(error);
        }
        let mut message = RawMessage::default();
        // SAFETY: the message is plain words that any bytes may fill.
        unsafe { syscall!(read, self.fd.raw(), &raw mut message as usize, size_of::<RawMessage>()) }?;
        Ok(message)
    }

    /// Whether a thread is in the middle of a change of which the report was not read yet, or was read so recently that the
    /// thread has not gone on: from before the kernel changes the mapping until then.
    pub fn is_changing(&self) -> bool {
        // A copy of nothing is refused, but only after the kernel has looked whether it may copy at all.
        let mut nothing = [0u64; 5];
        self.ioctl(IOC_COPY, &mut nothing) == Err(Errno::EAGAIN)
    }

    /// Opens what tells whether a touch waits to be read ([`touch_waits`]).
    pub fn open_info(&self) -> Result<Fd> {
        let mut path = [0u8; 48];
        let mut out = crate::text::Writer::new(&mut path);
        // Leaves the last byte zero. The calling thread may have another table than the main one.
        let _ = core::fmt::write(&mut out, format_args!("/proc/thread-self/fdinfo/{}", self.fd.raw()));
        let path = core::ffi::CStr::from_bytes_until_nul(&path).map_err(|_| Errno::EINVAL)?;
        file::open(path, libc::O_RDONLY, 0)
    }
}

/// Whether a touch waits to be read at the userfaultfd of which `info` was opened: then the next message is one, and not
/// a report. False if that cannot be told.
pub fn touch_waits(info: &Fd) -> bool {
    let mut text = [0u8; 512];
    let Ok(len) = file::pread(info.raw(), &mut text, 0) else { return false };
    const KEY: &[u8] = b"\npending:\t";
    let text = &text[..len];
    let Some(at) = text.windows(KEY.len()).position(|w| w == KEY) else { return false };
    text.get(at + KEY.len()).is_some_and(|digit| (b'1'..=b'9').contains(digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_userfaultfd_is_told_from_other_files() {
        let null = file::open(c"/dev/null", libc::O_RDONLY, 0).unwrap();
        assert_eq!(Userfaultfd::taken_over(null).err(), Some(Errno(libc::EBADF)));
        // SAFETY: no memory involved, and the kernel just made the descriptor for us.
        let other = unsafe { Fd::from_raw(syscall!(eventfd2, 0, 0).unwrap() as i32) };
        assert!(Userfaultfd::taken_over(other).is_err());
        let uffd = Userfaultfd::open().expect("root may, and who has run `memfold setup`");
        assert!(Userfaultfd::taken_over(uffd.fd).is_ok());
    }
    use crate::{mem, PAGE_SIZE};
    use std::thread;

    #[test]
    fn a_page_moved_away_comes_back_on_touch() {
        let uffd = Userfaultfd::open().expect("userfaultfd is permitted to root");
        uffd.handshake(Features::MOVE | Features::THREAD_ID).expect("Linux 6.8 or later");
        let program = mem::map_anonymous(0, PAGE_SIZE, 0).unwrap();
        let staging = mem::map_anonymous(0, PAGE_SIZE, 0).unwrap();
        // SAFETY: both pages were just mapped.
        unsafe { *(program as *mut u64) = 42 };
        uffd.register(program, PAGE_SIZE, Modes::MISSING).unwrap();
        uffd.register(staging, PAGE_SIZE, Modes::WP).unwrap();
        // SAFETY: nobody touches the page but the thread below.
        assert_eq!(unsafe { uffd.move_pages(staging, program, PAGE_SIZE) }.error, None);
        // SAFETY: the read sleeps until the page is back.
        let reader = thread::spawn(move || unsafe { *(program as *const u64) });
        uffd.wait();
        let info = uffd.open_info().unwrap();
        assert!(touch_waits(&info) && uffd.has_message());
        let message = uffd.read().unwrap().event();
        assert!(matches!(message, Event::Fault { page, write: false, tid } if page == program && tid != 0));
        assert!(!touch_waits(&info) && !uffd.has_message());
        assert_eq!(uffd.read().map(|message| message.event()), Err(Errno::EAGAIN));
        // SAFETY: gives the page back where the reader expects it.
        assert_eq!(unsafe { uffd.move_present(program, staging, PAGE_SIZE) }.error, None);
        uffd.wake(program, PAGE_SIZE);
        assert_eq!(reader.join().unwrap(), 42);
    }
}
