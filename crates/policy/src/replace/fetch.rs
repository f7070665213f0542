//! A hint to the processor that a table's row is about to be read.
//!
//! What it is not: a read. A row that is not there is no error.

/// Asks for the row of `page`.
#[inline(always)]
pub(super) fn prefetch<T>(table: &[T], page: u32) {
    let row = table.as_ptr().wrapping_add(page as usize);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program sees and never faults, whatever the address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(row.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) row, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = row;
}
