//! Memory that is read soon.
//!
//! What it is: a hint for the processor to fetch it into its cache. What it is not: an access; it changes and faults nothing, whatever
//! the address.

/// Has the cache line at an address fetched.
#[inline(always)]
pub(crate) fn fetch(at: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which changes and faults nothing whatever the address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(at as *const i8);
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{0}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
}
