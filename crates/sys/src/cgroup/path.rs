//! Paths that are put together without an allocator.

use super::LONGEST;
use crate::file;
use crate::{Errno, Result};
use core::ffi::CStr;

/// The path.
pub(super) struct Path {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Path {
    pub(super) fn new() -> Path {
        Path { bytes: [0; LONGEST], len: 0 }
    }

    pub(super) fn push_byte(&mut self, byte: u8) -> Result<()> {
        // The last byte stays zero.
        if self.len + 1 >= LONGEST {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        self.bytes[self.len] = byte;
        self.len += 1;
        Ok(())
    }

    pub(super) fn push(&mut self, text: core::fmt::Arguments<'_>) -> Result<()> {
        core::fmt::write(self, text).map_err(|_| Errno(libc::ENAMETOOLONG))
    }

    /// Appends a path as `mountinfo` writes it: blanks and backslashes are a backslash and three octal digits.
    pub(super) fn push_escaped(&mut self, mut text: &[u8]) -> Result<()> {
        while let Some((&byte, rest)) = text.split_first() {
            let digits =
                rest.get(..3).filter(|d| byte == b'\\' && d.iter().all(|d| (b'0'..=b'7').contains(d)));
            match digits {
                Some(d) => {
                    self.push_byte(d.iter().fold(0u8, |sum, d| sum.wrapping_mul(8).wrapping_add(d - b'0')))?;
                    text = &rest[3..];
                }
                None => {
                    self.push_byte(byte)?;
                    text = rest;
                }
            }
        }
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Without the slashes at its end, as far as it is longer than `top`.
    pub(super) fn trim(&mut self, top: usize) {
        while self.len > top && self.bytes[self.len - 1] == b'/' {
            self.len -= 1;
        }
    }

    /// To the directory above, if it is longer than `top`. Whether it was.
    pub(super) fn go_up(&mut self, top: usize) -> bool {
        let goes = self.len > top;
        if goes {
            self.len = self.bytes[..self.len].iter().rposition(|&byte| byte == b'/').unwrap_or(top).max(top);
        }
        goes
    }

    /// What `f` makes of the path of a file in this directory; `None` for one that is too long.
    pub(super) fn with<R>(&mut self, name: &str, f: impl FnOnce(&CStr) -> Option<R>) -> Option<R> {
        let end = self.len;
        let pushed = self.push(format_args!("/{name}"));
        let made = pushed.ok().and_then(|()| f(self.as_c_str().ok()?));
        self.len = end;
        made
    }

    /// What a file in this directory holds, without blanks at its ends; as far as `text` has room; `None` where it cannot be read.
    pub(super) fn read<'t>(&mut self, name: &str, text: &'t mut [u8]) -> Option<&'t str> {
        let file = self.with(name, |path| file::open(path, libc::O_RDONLY, 0).ok())?;
        let len = file::pread(file.raw(), text, 0).ok()?;
        Some(core::str::from_utf8(&text[..len]).ok()?.trim())
    }

    pub(super) fn as_c_str(&mut self) -> Result<&CStr> {
        self.bytes[self.len] = 0;
        CStr::from_bytes_until_nul(&self.bytes).map_err(|_| Errno::EINVAL)
    }
}

impl core::fmt::Write for Path {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        text.bytes().try_for_each(|byte| self.push_byte(byte)).map_err(|_| core::fmt::Error)
    }
}
