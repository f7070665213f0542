//! What others see of the engine: its counters, and where observers answer.

use crate::control::ControlPage;
use crate::control_file::ControlDir;
use crate::mirror::{Mapped, Mirror};
use core::sync::atomic::{AtomicPtr, Ordering::*};

/// The display.
pub(crate) struct Display {
    /// The counters, in memory of the engine's own.
    page: AtomicPtr<ControlPage>,
    /// What copies them to where others see them.
    mirror: Mirror,
    /// Where observers report what is touched; null for nowhere.
    reports: AtomicPtr<ControlDir>,
}

impl Display {
    /// There is no page yet.
    pub const fn new() -> Display {
        Display {
            page: AtomicPtr::new(core::ptr::null_mut()),
            mirror: Mirror::new(),
            reports: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// The counters. After [`Display::begin`].
    pub fn page(&self) -> &'static ControlPage {
        // SAFETY: set before the engine does anything, and pages stay mapped for ever.
        unsafe { &*self.page.load(Acquire) }
    }

    /// Counts on this page from now on, which nobody else sees.
    pub fn begin(&self, page: &'static ControlPage) {
        self.mirror.set(None);
        self.page.store(page as *const ControlPage as *mut ControlPage, Release);
    }

    /// Whether anybody else sees the counters.
    pub fn is_seen(&self) -> bool {
        self.mirror.is_set()
    }

    /// Has them seen there, or nowhere.
    pub fn set_mapped(&self, mapped: Option<Mapped>) {
        self.mirror.set(mapped);
    }

    /// Shows the counters as they are now.
    pub fn show(&self) {
        self.mirror.show(self.page());
    }

    /// Takes in what others ask for.
    pub fn hear(&self) {
        self.mirror.hear(self.page());
    }

    /// Names the directory in which observers report.
    pub fn hear_reports_in(&self, dir: &'static ControlDir) {
        self.reports.store(dir as *const ControlDir as *mut ControlDir, Release);
    }

    /// That directory.
    pub fn reports(&self) -> Option<&'static ControlDir> {
        // SAFETY: null, or what was given, which is for ever.
        unsafe { self.reports.load(Acquire).as_ref() }
    }
}
