//! Which mapped file an address lies in, and where its call frame information is.
//!
//! The dynamic loader of glibc 2.35 and later answers that without a lock (`_dl_find_object`, dlfcn.h), for unwinders; with another libc no file is
//! known, and frame pointers are all that there is.

use core::ffi::{c_int, c_void};
use core::ops::Range;

/// What the loader says (dlfcn.h of glibc 2.35; the same on x86-64 and aarch64).
#[repr(C)]
struct Found {
    flags: u64,
    map_start: *mut c_void,
    map_end: *mut c_void,
    link_map: *mut c_void,
    eh_frame: *mut c_void,
    reserved: [u64; 7],
}

type FindObject = unsafe extern "C" fn(*mut c_void, *mut Found) -> c_int;

memfold_sys::weak! {
    /// The loader's function.
    find_object = "_dl_find_object"
}

/// A file that is mapped.
pub(crate) struct Module {
    /// The addresses from its first to its last segment.
    pub(crate) range: Range<usize>,
    /// The table that leads to its call frame information (`.eh_frame_hdr`), and the end of the segment in which it lies.
    pub(crate) frames: Option<Range<usize>>,
}

/// The file that holds the address.
pub(crate) fn find(address: usize) -> Option<Module> {
    let find = find_object();
    if find.is_null() {
        return None;
    }
    // SAFETY: glibc's function of this name has this type.
    let find: FindObject = unsafe { core::mem::transmute(find) };
    let mut found = Found {
        flags: 0,
        map_start: core::ptr::null_mut(),
        map_end: core::ptr::null_mut(),
        link_map: core::ptr::null_mut(),
        eh_frame: core::ptr::null_mut(),
        reserved: [0; 7],
    };
    // SAFETY: the function takes any address and fills in what it is given.
    if unsafe { find(address as *mut c_void, &mut found) } != 0 {
        return None;
    }
    let range = found.map_start as usize..found.map_end as usize;
    let table = found.eh_frame as usize;
    let frames = segment_end(&range, table).map(|end| table..end);
    Some(Module { range, frames })
}

/// Where the library or program that this code is in is mapped; empty where that cannot be told.
pub fn own_module() -> Range<usize> {
    find(own_module as *const () as usize).map_or(0..0, |module| module.range)
}

/// The end of the loaded segment of a file that holds `address`. The file's header lies at the start of its first segment.
fn segment_end(range: &Range<usize>, address: usize) -> Option<usize> {
    const HEADER: usize = core::mem::size_of::<libc::Elf64_Ehdr>();
    if address == 0 || !range.contains(&address) || range.len() < HEADER {
        return None;
    }
    // SAFETY: the first bytes of a segment of a file that stays mapped while a function of it has not returned.
    let header = unsafe { &*(range.start as *const libc::Elf64_Ehdr) };
    let size = core::mem::size_of::<libc::Elf64_Phdr>();
    let end = header.e_phoff as usize + usize::from(header.e_phnum) * size;
    if header.e_ident[..4] != *b"\x7fELF"
        || usize::from(header.e_phentsize) != size
        || end > memfold_sys::PAGE_SIZE
    {
        return None;
    }
    // SAFETY: program headers lie behind the header, in the same page.
    let segments = unsafe {
        core::slice::from_raw_parts(
            (range.start + header.e_phoff as usize) as *const libc::Elf64_Phdr,
            usize::from(header.e_phnum),
        )
    };
    let first = segments.iter().find(|segment| segment.p_type == libc::PT_LOAD)?;
    let bias = range.start.wrapping_sub(first.p_vaddr as usize & !(memfold_sys::PAGE_SIZE - 1));
    segments.iter().filter(|segment| segment.p_type == libc::PT_LOAD).find_map(|segment| {
        let start = bias.wrapping_add(segment.p_vaddr as usize);
        // What lies in the file alone: the rest is no table.
        let end = start.checked_add(segment.p_filesz as usize)?;
        (start..end).contains(&address).then_some(end)
    })
}
