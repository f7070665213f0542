//! Core dumps: what was at an address, and a copy in which folded pages are in their place.
//!
//! Invariants: the dump itself is only read. In the copy no byte is changed but of pages that are zeros in the dump, as those
//! are that were away.

use crate::exit;
use anyhow::{Context, Result};
use memfold_pager::codec::{Codecs, Page};
use memfold_pager::postmortem::{Foreign, Memory, Tables, ANCHOR_LEN};
use memfold_sys::PAGE_SIZE;
use nix::errno::Errno;
use nix::unistd::{lseek, Whence};
use object::elf::{FileHeader64, ET_CORE, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes that are read at a time.
const PART: usize = 1 << 20;

/// A core dump.
pub struct CoreDump {
    file: File,
    len: u64,
    /// What it has of the process's memory, by address.
    segments: Vec<Segment>,
}

/// A piece of the process's memory.
struct Segment {
    addr: u64,
    /// Bytes of it that are in the file.
    len: u64,
    offset: u64,
}

/// What became of the pages that were folded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// In their place.
    pub back: u64,
    /// Of these the bytes are not in the dump, or cannot be told any more.
    pub lost: u64,
    /// The dump has no room for them: it leaves their memory out.
    pub left_out: u64,
    /// Tables that are not in the dump. What they told is not known.
    pub unread: u64,
}

impl CoreDump {
    /// Opens one.
    ///
    /// # Errors
    /// If the file cannot be read, or is no core dump of this kind of machine.
    pub fn open(path: &Path) -> Result<CoreDump> {
        let name = path.display();
        let cannot = |error| exit::usage(format!("cannot open core dump {name}: {error}"));
        // To open a pipe would be to wait for a writer.
        let meta = path.metadata().map_err(cannot)?;
        if !meta.is_file() {
            return Err(exit::usage(format!("{name} is no file: a core dump has to be saved first")));
        }
        let file = File::open(path).map_err(cannot)?;
        let segments = segments(&file)
            .map_err(|why| exit::usage(format!("{name} is no core dump of a process: {why}")))?;
        Ok(CoreDump { file, len: meta.len(), segments })
    }

    /// Length of the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has less than it says.
    pub fn is_cut_short(&self) -> bool {
        self.segments.iter().any(|segment| segment.offset + segment.len > self.len)
    }

    /// The pager's tables in it. More than one if the process had more than one pager.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn tables(&self) -> Result<Vec<Result<Tables, Foreign>>> {
        let (mut found, mut part) = (Vec::new(), vec![0; PART]);
        for segment in &self.segments {
            self.each_part(segment.offset..segment.offset + segment.len, |range| {
                // From a page's beginning on.
                let first =
                    (range.start - segment.offset).next_multiple_of(PAGE_SIZE as u64) + segment.offset;
                let part = &mut part[..range.end.saturating_sub(first) as usize];
                self.file.read_exact_at(part, first)?;
                found.extend(part.chunks(PAGE_SIZE).filter_map(|page| Tables::at(page.get(..ANCHOR_LEN)?)));
                Ok(())
            })?;
        }
        Ok(found)
    }

    /// Copies it; what are holes stay holes. `copied` is told how many bytes were.
    ///
    /// # Errors
    /// If it cannot be read, or the copy not written.
    pub fn copy(&self, to: &File, mut copied: impl FnMut(u64)) -> Result<()> {
        let mut part = vec![0; PART];
        to.set_len(self.len)?;
        self.each_part(0..self.len, |range| {
            let part = &mut part[..(range.end - range.start) as usize];
            self.file.read_exact_at(part, range.start)?;
            to.write_all_at(part, range.start)?;
            copied(range.end);
            Ok(())
        })
    }

    /// Puts the folded pages that the tables tell of into their place in the copy.
    ///
    /// # Errors
    /// If the copy cannot be written.
    pub fn unfold(&self, tables: &Tables, to: &File) -> Result<Tally> {
        let mut tally = Tally::default();
        let mut codecs = Codecs::new().context("no memory to decompress with")?;
        let mut failed = None;
        tally.unread = tables.pages(self, &mut codecs, |addr, page| match self.put(addr, page, to) {
            Ok(Place::Back) => tally.back += 1,
            Ok(Place::Lost) => tally.lost += 1,
            Ok(Place::LeftOut) => tally.left_out += 1,
            Ok(Place::InView) => {}
            Err(error) => failed = Some(error),
        });
        failed.map_or(Ok(tally), |error| Err(error).context("cannot write the copy"))
    }

    fn put(&self, addr: usize, page: Option<&Page>, to: &File) -> std::io::Result<Place> {
        let Some(offset) = self.offset(addr, PAGE_SIZE) else { return Ok(Place::LeftOut) };
        let mut here = [0; PAGE_SIZE];
        if !self.read(addr, &mut here) {
            return Ok(Place::LeftOut);
        }
        if here != [0; PAGE_SIZE] {
            return Ok(Place::InView);
        }
        let Some(page) = page else { return Ok(Place::Lost) };
        if *page != here {
            to.write_all_at(page, offset)?;
        }
        Ok(Place::Back)
    }

    /// Where in the file the bytes from the address on are; `None` if it does not have all of them.
    fn offset(&self, addr: usize, len: usize) -> Option<u64> {
        let (addr, len) = (addr as u64, len as u64);
        let next = self.segments.partition_point(|segment| segment.addr <= addr);
        let segment = self.segments.get(next.checked_sub(1)?)?;
        let within = addr - segment.addr;
        (within.checked_add(len)? <= segment.len).then(|| segment.offset + within)
    }

    /// Calls `each` for parts of the range that hold anything else than zeros, in order.
    fn each_part(&self, range: Range<u64>, mut each: impl FnMut(Range<u64>) -> Result<()>) -> Result<()> {
        let end = range.end.min(self.len);
        let mut at = range.start;
        while at < end {
            let seek = |from: u64, whence| match lseek(&self.file, from as i64, whence) {
                Ok(offset) => Ok(offset as u64),
                // Nothing more but a hole.
                Err(Errno::ENXIO) => Ok(end),
                Err(error) => Err(error),
            };
            let data = seek(at, Whence::SeekData)?.min(end);
            let hole = if data < end { seek(data, Whence::SeekHole)?.min(end) } else { end };
            at = data;
            while at < hole {
                let next = hole.min(at + PART as u64);
                each(at..next)?;
                at = next;
            }
        }
        Ok(())
    }
}

/// What became of a page.
enum Place {
    Back,
    Lost,
    LeftOut,
    InView,
}

impl Memory for CoreDump {
    fn read(&self, addr: usize, out: &mut [u8]) -> bool {
        let offset = self.offset(addr, out.len());
        offset.is_some_and(|offset| self.file.read_exact_at(out, offset).is_ok())
    }
}

/// What the file has of a process's memory, by address.
fn segments(file: &File) -> Result<Vec<Segment>, String> {
    let data = ReadCache::new(file);
    let header = FileHeader64::<Endianness>::parse(&data).map_err(|error| error.to_string())?;
    let endian = header.endian().map_err(|error| error.to_string())?;
    if header.e_type.get(endian) != ET_CORE {
        return Err("it is another kind of ELF file".into());
    }
    let headers = header.program_headers(endian, &data).map_err(|error| error.to_string())?;
    let loaded = headers.iter().filter(|header| header.p_type(endian) == PT_LOAD);
    let mut segments: Vec<Segment> = loaded
        .map(|header| Segment {
            addr: header.p_vaddr(endian),
            len: header.p_filesz(endian),
            offset: header.p_offset(endian),
        })
        .filter(|segment| segment.len != 0 && segment.offset.checked_add(segment.len).is_some())
        .collect();
    segments.sort_unstable_by_key(|segment| segment.addr);
    Ok(segments)
}
