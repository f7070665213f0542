//! The functions that a loaded library defines, read from its own tables (elf(5); its hash table is the one of `DT_GNU_HASH`).
//!
//! What it is not: `dlsym(3)`, which this library exports itself ([`crate::lookup`]). It takes no lock, allocates nothing and leaves no message for `dlerror`.
//!
//! Invariant: libraries that may be unloaded are not read: this one never is, and the others are looked through before the program runs.

use core::ffi::{c_char, c_void, CStr};
use core::mem::size_of;

/// An entry of a library's dynamic section.
#[repr(C)]
struct Dynamic {
    tag: u64,
    value: usize,
}

/// What the loader shows of a library (link.h).
#[repr(C)]
struct LinkMap {
    base: usize,
    _name: *const c_char,
    dynamic: *const Dynamic,
    next: *const LinkMap,
}

/// What the loader shows to debuggers (link.h).
#[repr(C)]
struct Debug {
    _version: u32,
    first: *const LinkMap,
}

extern "C" {
    /// The loader's list of libraries.
    static _r_debug: Debug;
    /// This library's dynamic section, and its file's header, by names of the linker's.
    static _DYNAMIC: [Dynamic; 0];
    static __ehdr_start: [u8; 0];
}

/// The function of this name that this library exports.
pub fn own(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: this library's own tables.
    unsafe { Symbols::read(__ehdr_start.as_ptr() as usize, _DYNAMIC.as_ptr()) }?.function(name)
}

/// The function of this name of libc's, or of the library that had its loader up to glibc 2.33, whatever other library defines one.
pub fn of_libc(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the loader fills it in before any code of a library runs.
    let mut at = unsafe { _r_debug.first };
    // SAFETY: an entry of the loader's list, or its end.
    while let Some(library) = unsafe { at.as_ref() } {
        // SAFETY: what the loader shows of a library that it has loaded.
        let symbols = unsafe { Symbols::read(library.base, library.dynamic) };
        let is_libcs = |library: &Symbols| {
            library.name.is_some_and(|name| [c"libc.so.6", c"libdl.so.2"].contains(&name))
        };
        if let Some(function) = symbols.filter(is_libcs).and_then(|library| library.function(name)) {
            return Some(function);
        }
        at = library.next;
    }
    None
}

/// A library's tables.
struct Symbols {
    base: usize,
    /// What it calls itself.
    name: Option<&'static CStr>,
    symbols: *const libc::Elf64_Sym,
    names: *const c_char,
    hash: *const u32,
}

impl Symbols {
    /// Finds them; `None` where there are none.
    ///
    /// # Safety
    /// The address at which a library is loaded, and that of its dynamic section.
    unsafe fn read(base: usize, dynamic: *const Dynamic) -> Option<Symbols> {
        const NULL: u64 = 0;
        const STRTAB: u64 = 5;
        const SYMTAB: u64 = 6;
        const SONAME: u64 = 14;
        const GNU_HASH: u64 = 0x6fff_fef5;
        let (mut names, mut symbols, mut hash, mut name) = (0, 0, 0, None);
        // The loader writes addresses where the file has distances from the first one, but in a section that cannot be written.
        let place = |value: usize| if value < base { base + value } else { value };
        let mut at = dynamic;
        // SAFETY: the caller's contract; the section ends with `NULL`.
        while let Some(entry) = unsafe { at.as_ref() }.filter(|entry| entry.tag != NULL) {
            match entry.tag {
                STRTAB => names = place(entry.value),
                SYMTAB => symbols = place(entry.value),
                GNU_HASH => hash = place(entry.value),
                SONAME => name = Some(entry.value),
                _ => {}
            }
            // SAFETY: as above.
            at = unsafe { at.add(1) };
        }
        (names != 0 && symbols != 0 && hash != 0).then(|| Symbols {
            base,
            // SAFETY: a name in the table of names.
            name: name.map(|offset: usize| unsafe { CStr::from_ptr((names + offset) as *const c_char) }),
            symbols: symbols as *const _,
            names: names as *const _,
            hash: hash as *const _,
        })
    }

    /// The function of this name that the library defines.
    fn function(&self, name: &CStr) -> Option<*mut c_void> {
        let wanted = hash_of(name);
        // SAFETY: the table is the library's: four numbers, a filter of 64-bit words, a first symbol for each bucket, and a hash for each symbol
        // from `least` on, of which the lowest bit says that it is the last one of its bucket.
        unsafe {
            let [buckets, least, filter, _] = *self.hash.cast::<[u32; 4]>();
            let first = self.hash.add(4 + filter as usize * (size_of::<u64>() / size_of::<u32>()));
            let hashes = first.add(buckets as usize);
            let mut index = *first.add((wanted % buckets) as usize);
            while index >= least {
                let hash = *hashes.add((index - least) as usize);
                let symbol = &*self.symbols.add(index as usize);
                if hash | 1 == wanted | 1
                    && is_function(symbol)
                    && CStr::from_ptr(self.names.add(symbol.st_name as usize)) == name
                {
                    return Some((self.base + symbol.st_value as usize) as *mut c_void);
                }
                if hash & 1 == 1 {
                    break;
                }
                index += 1;
            }
        }
        None
    }
}

/// Whether it is a function, and defined.
fn is_function(symbol: &libc::Elf64_Sym) -> bool {
    const FUNCTION: u8 = 2;
    const UNDEFINED: u16 = 0;
    symbol.st_info & 15 == FUNCTION && symbol.st_shndx != UNDEFINED
}

/// The hash of a name in such a table.
fn hash_of(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(5381, |hash: u32, &byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)))
}
