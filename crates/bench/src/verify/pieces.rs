//! Stretches of memory for a system call, and the loop that goes on until the call has taken all of them.

use anyhow::{bail, ensure, Result};
use std::io::{self, ErrorKind};

/// A stretch of memory for a system call.
pub(super) type Piece = libc::iovec;

/// `bytes` from `start`, cut in two after `at` of them.
pub(super) fn cut_at(start: usize, bytes: usize, at: usize) -> [Piece; 2] {
    let piece = |from: usize, len: usize| Piece { iov_base: (start + from) as *mut _, iov_len: len };
    [piece(0, at), piece(at, bytes - at)]
}

/// Has `call` move `bytes` from or to `start`, in two pieces cut at `cut` or in one, until all have gone. It is told what
/// is left and how many bytes have gone, and says how many went.
pub(super) fn move_bytes(
    start: usize,
    bytes: usize,
    cut: Option<usize>,
    mut call: impl FnMut(&[Piece], usize) -> io::Result<usize>,
) -> Result<()> {
    let mut moved = 0;
    while moved < bytes {
        let left = bytes - moved;
        let first = cut.map_or(left, |cut| cut.min(left));
        let pieces = cut_at(start + moved, left, first);
        let used = if first == left { &pieces[..1] } else { &pieces[..] };
        match call(used, moved) {
            Ok(0) => bail!("a system call on {left} bytes: there were no more of them"),
            Ok(n) => moved += n,
            Err(error) => ensure!(
                matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock),
                "a system call on {left} bytes: {error}"
            ),
        }
    }
    Ok(())
}
