//! What was asked of the engine: before it starts by the launcher, later by requests.

use crate::config::Setting;
use crate::engine::huge::HugePages;
use crate::shared_text::SharedText;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// The options.
pub(crate) struct Options {
    settings: [AtomicU64; Setting::COUNT],
    /// The policy; empty for `age`.
    pub policy: SharedText<16>,
    /// The file that passes of a page daemon are logged to; empty for none.
    pub log: SharedText<64>,
    /// The socket of the daemon under whose budget the process wants to be; empty for none.
    pub daemon: SharedText<16>,
    /// The tier below memory, as [`crate::tier::choice::Choice`] reads it; empty for none.
    pub tier: SharedText<64>,
    /// 1 where what comes back or is given up is overwritten at once, and not within a second.
    pub wipes: AtomicU32,
    /// Whether managed memory may have huge pages.
    pub huge_pages: HugePages,
    /// The limit on resident memory that follows from the control groups', bytes; `u64::MAX` while none is kept.
    pub group_limit: AtomicU64,
}

impl Options {
    /// Nothing was asked.
    pub const fn new() -> Options {
        Options {
            settings: [const { AtomicU64::new(0) }; Setting::COUNT],
            policy: SharedText::new(),
            log: SharedText::new(),
            daemon: SharedText::new(),
            tier: SharedText::new(),
            wipes: AtomicU32::new(0),
            huge_pages: HugePages::new(),
            group_limit: AtomicU64::new(u64::MAX),
        }
    }

    /// The value of a setting.
    pub fn get(&self, setting: Setting) -> u64 {
        self.settings[setting as usize].load(Relaxed)
    }

    /// Changes it, to a value within its range.
    pub fn set(&self, setting: Setting, value: u64) {
        self.settings[setting as usize].store(value, Relaxed);
    }
}
