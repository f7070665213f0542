//! Short texts without allocation: paths below `/proc`, for the most part.

/// Writes into a buffer, whose last byte stays what it was.
pub(crate) struct Writer<'a> {
    to: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    /// Begins at the start of the buffer.
    pub(crate) fn new(to: &'a mut [u8]) -> Writer<'a> {
        Writer { to, len: 0 }
    }
}

impl core::fmt::Write for Writer<'_> {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        let end = self.len + s.len();
        if end >= self.to.len() {
            return Err(core::fmt::Error);
        }
        self.to[self.len..end].copy_from_slice(s.as_bytes());
        self.len = end;
        Ok(())
    }
}
