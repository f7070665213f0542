//! Has the fault thread stamp touches for who asks for that, and hands out what it has stamped ([`crate::fault::stamps`]).

use crate::evict::worker::Worker;
use crate::fault::stamps::{Stamps, MOST, PREFIX};
use crate::text::Line;
use core::fmt::Write;
use memfold_sys::signal::quietly;
use memfold_sys::{file, Errno, Result};

/// Rows that are written by one call.
const PIECE: usize = 64;

impl Worker {
    /// With a number of touches, has the fault thread stamp so many. With 0, ends that, and writes what there is to the file of that number.
    pub(crate) fn stamp_steps(&mut self, touches: u64, number: u64) -> Result<()> {
        if touches > MOST {
            return Err(Errno(libc::ERANGE));
        }
        let room = &self.engine.stamps;
        let rows = room.take();
        self.engine.traffic.turns.wait_for_reader();
        let written = if touches == 0 { self.write_stamps(rows, number) } else { Ok(()) };
        room.give_back(rows);
        written?;
        if touches == 0 {
            return Ok(());
        }
        room.make(touches as usize)
    }

    fn write_stamps(&mut self, rows: *const Stamps, number: u64) -> Result<()> {
        if rows.is_null() {
            return Err(Errno(libc::ENODATA));
        }
        let mut prefix = Line::new();
        let _ = write!(prefix, "{PREFIX}{number}-");
        let dir = self.engine.display.reports().ok_or(Errno::ENOENT)?;
        let file = dir.open_beside(prefix.as_str(), libc::O_WRONLY | libc::O_APPEND)?;
        // SAFETY: the caller has taken them, and waited for the turn to end.
        let rows = unsafe { self.engine.stamps.written(rows) };
        for piece in rows.chunks(PIECE) {
            let mut bytes = [0; PIECE * Stamps::LEN];
            for (place, row) in bytes.chunks_exact_mut(Stamps::LEN).zip(piece) {
                place.copy_from_slice(&row.bytes());
            }
            quietly(|| file::write_all(file.raw(), &bytes[..piece.len() * Stamps::LEN]))?;
            self.stay_responsive();
        }
        Ok(())
    }
}
