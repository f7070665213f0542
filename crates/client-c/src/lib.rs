//! The functions of `memfold.h`: the crate `client` for C, as a shared and a static library.
//!
//! What it is not: more than that. Each function returns 0, or a negated error number.

use core::ffi::{c_int, c_void};
use memfold_client::{Error, Hint, Options, OwnHeap, Stats};
use std::time::Duration;

/// What allocates in this library. It is not the program's `malloc`: the engine's threads may not call that.
#[global_allocator]
static HEAP: OwnHeap = OwnHeap;

/// `struct memfold_options`: 0 in a field leaves it to the environment.
#[repr(C)]
pub struct COptions {
    /// How long memory must go untouched before it is folded, ms.
    pub cold_age_ms: u64,
    /// The highest share of time that the program may wait, in millionths.
    pub max_stall_ppm: u64,
    /// Bytes that the process may have resident: threads wait for room above.
    pub resident_limit: u64,
    /// The highest share of one CPU that folding may take, in millionths.
    pub max_cpu_ppm: u64,
}

fn status(result: Result<(), Error>) -> c_int {
    result.map_or_else(|error| -error.number(), |()| 0)
}

/// See [`memfold_client::start`]. A null pointer takes all from the environment.
///
/// # Safety
/// `options` is null or valid.
#[no_mangle]
pub unsafe extern "C" fn memfold_start(options: *const COptions) -> c_int {
    let mut chosen = Options::default();
    // SAFETY: the caller's contract.
    if let Some(options) = unsafe { options.as_ref() } {
        if options.cold_age_ms != 0 {
            chosen = chosen.cold_age(Duration::from_millis(options.cold_age_ms));
        }
        if options.max_stall_ppm != 0 {
            chosen = chosen.max_stall(options.max_stall_ppm);
        }
        if options.max_cpu_ppm != 0 {
            chosen = chosen.max_cpu(options.max_cpu_ppm);
        }
        if options.resident_limit != 0 {
            chosen = chosen.resident_limit(options.resident_limit);
        }
    }
    memfold_client::have_own_heap();
    status(memfold_client::start(&chosen))
}

/// See [`memfold_client::register`].
#[no_mangle]
pub extern "C" fn memfold_register(addr: *const c_void, len: usize) -> c_int {
    status(memfold_client::register(addr.cast(), len))
}

/// See [`memfold_client::unregister`].
#[no_mangle]
pub extern "C" fn memfold_unregister(addr: *const c_void, len: usize) -> c_int {
    status(memfold_client::unregister(addr.cast(), len))
}

/// See [`memfold_client::hint`]. `-EINVAL` for a number that is no hint.
#[no_mangle]
pub extern "C" fn memfold_hint(addr: *const c_void, len: usize, hint: c_int) -> c_int {
    let hint = match hint {
        0 => Hint::Normal,
        1 => Hint::WillNeed,
        2 => Hint::DontNeedSoon,
        3 => Hint::Keep,
        _ => return -libc::EINVAL,
    };
    status(memfold_client::hint(addr.cast(), len, hint))
}

/// See [`memfold_client::stats`].
///
/// # Safety
/// `stats` is valid for a write.
#[no_mangle]
pub unsafe extern "C" fn memfold_stats(stats: *mut Stats) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { stats.write(memfold_client::stats()) };
    0
}

/// See [`memfold_client::stop`].
#[no_mangle]
pub extern "C" fn memfold_stop() -> c_int {
    status(memfold_client::stop())
}
