//! The agent's file, as it is to lie in memory.

use crate::Error;
use object::elf::{
    FileHeader64, PF_W, PF_X, PT_LOAD, PT_TLS, R_X86_64_RELATIVE, SHT_FINI_ARRAY, SHT_INIT_ARRAY,
};
use object::read::elf::{FileHeader, ProgramHeader, Rela, SectionHeader};
use object::Endianness;

const PAGE: usize = memfold_sys::PAGE_SIZE;

/// What may be done to a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Read and executed.
    Execute,
    /// Read and written.
    Write,
}

/// The agent.
#[derive(Debug)]
pub struct Image {
    bytes: Vec<u8>,
    /// Whole pages, by ascending addresses, that do not overlap.
    parts: Vec<(usize, usize, Access)>,
    /// Where an address stands that is one of the image's own, and which.
    addresses: Vec<(usize, u64)>,
    entry: usize,
    build: u32,
}

impl Image {
    /// Reads the file.
    ///
    /// # Errors
    /// It is not an agent's: what it would need nobody here gives it.
    pub fn parse(file: &[u8]) -> Result<Image, Error> {
        let bad = Error::BadImage;
        let damaged = |_| Error::BadImage("it is damaged");
        let header = FileHeader64::<Endianness>::parse(file).map_err(damaged)?;
        let endian = header.endian().map_err(damaged)?;
        if header.e_machine(endian) != object::elf::EM_X86_64 || header.e_type(endian) != object::elf::ET_DYN
        {
            return Err(bad("it is for another machine, or for one place in memory"));
        }
        let (mut bytes, mut parts) = (Vec::new(), Vec::new());
        for segment in header.program_headers(endian, file).map_err(damaged)? {
            match segment.p_type(endian) {
                PT_TLS => return Err(bad("it has thread-local storage")),
                PT_LOAD => {}
                _ => continue,
            }
            let (start, len) = (segment.p_vaddr(endian) as usize, segment.p_memsz(endian) as usize);
            let data = segment.data(endian, file).map_err(|()| bad("it is damaged"))?;
            let end = start.checked_add(len).filter(|&end| end < 1 << 30 && data.len() <= len);
            let end = end.ok_or(bad("it is too long"))?.next_multiple_of(PAGE);
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[start..start + data.len()].copy_from_slice(data);
            let access = match segment.p_flags(endian) & (PF_W | PF_X) {
                0 => Access::Read,
                PF_X => Access::Execute,
                PF_W => Access::Write,
                _ => return Err(bad("it has memory that can be written and executed")),
            };
            let start = start & !(PAGE - 1);
            if parts.last().is_some_and(|&(_, before, _)| start < before) {
                return Err(bad("its parts overlap"));
            }
            parts.push((start, end, access));
        }
        let mut addresses = Vec::new();
        let sections = header.sections(endian, file).map_err(damaged)?;
        for section in sections.iter() {
            if [SHT_INIT_ARRAY, SHT_FINI_ARRAY].contains(&section.sh_type(endian)) {
                return Err(bad("it has constructors"));
            }
            let Some((relocations, _)) = section.rela(endian, file).map_err(damaged)? else { continue };
            for one in relocations {
                let at = one.r_offset(endian) as usize;
                if one.r_type(endian, false) != R_X86_64_RELATIVE || at + 8 > bytes.len() {
                    return Err(bad("it wants to be linked"));
                }
                addresses.push((at, one.r_addend(endian) as u64));
            }
        }
        let entry = header.e_entry(endian) as usize;
        let executable =
            |&(start, end, access): &_| access == Access::Execute && (start..end).contains(&entry);
        if bytes.get(entry..entry + 2) != Some(&[0x0F, 0x05]) || !parts.iter().any(executable) {
            return Err(bad("it does not begin with a system call"));
        }
        Ok(Image { bytes, parts, addresses, entry, build: crc32fast::hash(file) })
    }

    /// Which build it is of: the checksum of its file.
    pub fn build(&self) -> u32 {
        self.build
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn entry(&self) -> usize {
        self.entry
    }

    /// Its parts, by their places in it, and what may be done to them.
    pub(crate) fn parts(&self) -> &[(usize, usize, Access)] {
        &self.parts
    }

    /// Its bytes for that place in memory.
    pub(crate) fn at(&self, base: usize) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        for &(at, address) in &self.addresses {
            bytes[at..at + 8].copy_from_slice(&(base as u64).wrapping_add(address).to_le_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_agent_is_refused() {
        let why = |file: &[u8]| Image::parse(file).unwrap_err().to_string();
        assert!(why(b"").contains("damaged"));
        assert!(why(&[0; 4096]).contains("damaged"));
        // An ordinary program wants to be linked, among other things.
        assert!(why(&std::fs::read("/proc/self/exe").unwrap()).contains("not the agent"));
    }
}
