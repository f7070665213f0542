//! The way to an engine on the network, in a model: there is none.

use memfold_sys::time::Nanos;
use memfold_sys::Errno;

/// As in the pager.
pub const AWAY: Errno = Errno(libc::EHOSTDOWN);

/// The calls that the modelled files use.
pub struct Remote;

impl Remote {
    pub fn wait(&self) -> Nanos {
        Nanos(0)
    }
}
