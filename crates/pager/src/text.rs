//! A line of text without allocation.

use core::fmt;

/// A line of up to 255 bytes.
pub type Line = Text<255>;

/// Up to `MOST` bytes; what does not fit is cut.
pub struct Text<const MOST: usize> {
    bytes: [u8; MOST],
    len: usize,
}

impl<const MOST: usize> Default for Text<MOST> {
    fn default() -> Self {
        Text::new()
    }
}

impl<const MOST: usize> Text<MOST> {
    /// An empty text.
    pub const fn new() -> Text<MOST> {
        Text { bytes: [0; MOST], len: 0 }
    }

    /// Adds text.
    pub fn push(&mut self, text: &str) {
        let room = self.bytes.len() - self.len;
        let mut n = text.len().min(room);
        while !text.is_char_boundary(n) {
            n -= 1;
        }
        self.bytes[self.len..self.len + n].copy_from_slice(&text.as_bytes()[..n]);
        self.len += n;
    }

    /// The text so far.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.len]).unwrap_or("")
    }
}

impl<const MOST: usize> fmt::Write for Text<MOST> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;

    #[test]
    fn a_long_line_is_cut_at_a_whole_character() {
        let mut line = Line::new();
        line.push(&"é".repeat(200));
        assert_eq!(line.as_str(), String::from("é").repeat(127));
    }
}
