//! Reading the environment without allocating.

use core::ffi::{c_char, CStr};

/// The strings of an environment, up to the null pointer that ends it.
#[derive(Clone, Copy)]
pub struct Environment {
    strings: *mut *mut c_char,
}

impl Environment {
    /// The environment at `strings`.
    ///
    /// # Safety
    /// `strings` is null or points to pointers to strings, the last one null, that stay while this is used.
    pub unsafe fn new(strings: *mut *mut c_char) -> Environment {
        Environment { strings }
    }

    fn all(self) -> impl Iterator<Item = *mut *mut c_char> {
        let mut at = self.strings;
        core::iter::from_fn(move || {
            // SAFETY: `at` has not passed the null pointer that ends the list.
            if at.is_null() || unsafe { *at }.is_null() {
                return None;
            }
            let this = at;
            // SAFETY: the list goes on to its null pointer.
            at = unsafe { at.add(1) };
            Some(this)
        })
    }

    /// The value of a variable, if it is set and UTF-8.
    pub fn get(self, name: &str) -> Option<&'static str> {
        self.all().find_map(|entry| {
            // SAFETY: a string of the environment, which lives as long as the process.
            let text = unsafe { CStr::from_ptr(*entry) }.to_str().ok()?;
            text.strip_prefix(name)?.strip_prefix('=')
        })
    }

    /// Removes every variable whose name satisfies `which`.
    ///
    /// # Safety
    /// No other thread uses the environment.
    pub unsafe fn remove(self, which: impl Fn(&[u8]) -> bool) {
        let mut keep = self.strings;
        for entry in self.all() {
            // SAFETY: as above; `keep` never passes `entry`.
            unsafe {
                let text = CStr::from_ptr(*entry).to_bytes();
                let name = text.split(|&b| b == b'=').next().unwrap_or(text);
                if !which(name) {
                    *keep = *entry;
                    keep = keep.add(1);
                }
            }
        }
        if !keep.is_null() {
            // SAFETY: at or before the end of the list.
            unsafe { *keep = core::ptr::null_mut() };
        }
    }

    /// Cuts this library out of `LD_PRELOAD`, in place, so that what is executed from now on runs without it. A list that becomes empty stays
    /// as an empty value. Whether it was there.
    ///
    /// # Safety
    /// No other thread uses the environment.
    pub unsafe fn end_preloading(self) -> bool {
        const NAME: &[u8] = b"LD_PRELOAD=";
        let mut cut = false;
        for entry in self.all() {
            // SAFETY: the bytes of the string are the process's own and writable.
            let bytes = unsafe {
                let len = CStr::from_ptr(*entry).to_bytes().len();
                core::slice::from_raw_parts_mut((*entry).cast::<u8>(), len)
            };
            if !bytes.starts_with(NAME) {
                continue;
            }
            let (mut write, mut read) = (NAME.len(), NAME.len());
            while read < bytes.len() {
                let end = bytes[read..]
                    .iter()
                    .position(|b| matches!(b, b':' | b' '))
                    .map_or(bytes.len(), |n| read + n);
                let ours = bytes[read..end].ends_with(b"libmemfold.so");
                cut |= ours;
                if end > read && !ours {
                    if write > NAME.len() {
                        bytes[write] = b':';
                        write += 1;
                    }
                    bytes.copy_within(read..end, write);
                    write += end - read;
                }
                read = end + 1;
            }
            if write < bytes.len() {
                bytes[write] = 0;
            }
        }
        cut
    }
}
