//! An ELF file: from a place in it to functions.
//!
//! Where it, or what Debian calls its debug file, has DWARF, functions, inlined ones too, and lines come from there; else from its symbols,
//! those for the dynamic loader included. A symbol names what lies within its length and no more. A function without a symbol is called
//! by where it begins, which is in the call frame information of every file.
//!
//! What it is not: where the file is mapped.

use crate::frame::Frame;
use flate2::read::ZlibDecoder;
use gimli::{EndianArcSlice, RunTimeEndian, UnwindSection};
use memfold_inspect::plain;
use object::{CompressedData, CompressionFormat, File, Object, ObjectSection, ObjectSegment, ObjectSymbol};
use std::borrow::Cow;
use std::fs;
use std::io::Read;
use std::sync::Arc;

type Reader = EndianArcSlice<RunTimeEndian>;

/// Where debug files are, by build id.
const DEBUG_FILES: &str = "/usr/lib/debug/.build-id";

/// Frames that are inlined into one call, at most.
const MOST_INLINED: usize = 64;

struct Symbol {
    start: u64,
    end: u64,
    name: String,
}

/// What was read of a file.
#[derive(Default)]
pub(crate) struct Program {
    /// Loaded parts: where in the file, how long, and the address that the file gives them.
    segments: Vec<(u64, u64, u64)>,
    /// Functions by address.
    symbols: Vec<Symbol>,
    /// Functions by address, from where to where, whether they have a name or not.
    functions: Vec<(u64, u64)>,
    lines: Option<addr2line::Context<Reader>>,
}

impl Program {
    /// From a file's bytes; of what is no such file nothing is known.
    pub(crate) fn new(bytes: Vec<u8>) -> Program {
        let Ok(file) = File::parse(&*bytes) else { return Program::default() };
        let mut symbols = Vec::new();
        add_symbols(&file, &mut symbols);
        let mut lines = lines(&file);
        let debug = file.build_id().ok().flatten().and_then(debug_file);
        if let Some(debug) = debug.as_deref().and_then(|bytes| File::parse(bytes).ok()) {
            add_symbols(&debug, &mut symbols);
            lines = lines.or_else(|| self::lines(&debug));
        }
        symbols.sort_by_key(|symbol| symbol.start);
        let segments = file.segments().map(|segment| {
            let (offset, len) = segment.file_range();
            (offset, len, segment.address())
        });
        Program { segments: segments.collect(), symbols, functions: functions(&file), lines }
    }

    /// The functions at a place of the file, what was inlined first; none where no name is known.
    pub(crate) fn frames(&self, offset: u64) -> Vec<Frame> {
        let segment = self.segments.iter().find(|(start, len, _)| (*start..start + len).contains(&offset));
        let Some((start, _, address)) = segment else { return Vec::new() };
        let address = offset - start + address;
        let named = self.symbol(address);
        let mut frames = self.inlined(address);
        match (frames.last_mut(), named) {
            (Some(last), Some(name)) if last.function.is_empty() => last.function = name,
            (None, Some(name)) => frames.push(Frame { function: name, file: None, line: 0 }),
            _ => {}
        }
        frames.retain(|frame| !frame.function.is_empty());
        frames
    }

    /// Where the function at a place of the file begins, in the file too; the place itself where that is not known.
    pub(crate) fn beginning(&self, offset: u64) -> u64 {
        let segment = self.segments.iter().find(|(start, len, _)| (*start..start + len).contains(&offset));
        let Some((start, _, address)) = segment else { return offset };
        let at = offset - start + address;
        let after = self.functions.partition_point(|(begin, _)| *begin <= at);
        match self.functions[..after].last() {
            Some((begin, end)) if at < *end && begin >= address => begin - address + start,
            _ => offset,
        }
    }

    fn inlined(&self, address: u64) -> Vec<Frame> {
        let Some(lines) = &self.lines else { return Vec::new() };
        let Ok(mut found) = lines.find_frames(address).skip_all_loads() else { return Vec::new() };
        let mut frames = Vec::new();
        while let (true, Ok(Some(frame))) = (frames.len() < MOST_INLINED, found.next()) {
            let name =
                frame.function.as_ref().and_then(|function| Some(function.demangle().ok()?.into_owned()));
            let location = frame.location.as_ref();
            frames.push(Frame {
                function: plain(&name.unwrap_or_default()),
                file: location.and_then(|place| place.file).map(plain),
                line: location.and_then(|place| place.line).unwrap_or(0),
            });
        }
        frames
    }

    fn symbol(&self, address: u64) -> Option<String> {
        let after = self.symbols.partition_point(|symbol| symbol.start <= address);
        // Several may begin at one place, or one within another.
        let near = self.symbols[..after].iter().rev().take(4);
        let found = near.into_iter().find(|symbol| address < symbol.end)?;
        Some(plain(&addr2line::demangle_auto(Cow::from(&found.name), None)))
    }
}

fn add_symbols(file: &File<'_>, symbols: &mut Vec<Symbol>) {
    let functions = file.symbols().chain(file.dynamic_symbols()).filter(|symbol| {
        symbol.is_definition() && symbol.kind() == object::SymbolKind::Text && symbol.size() > 0
    });
    symbols.extend(functions.filter_map(|symbol| {
        let (start, name) = (symbol.address(), symbol.name().ok()?.to_owned());
        Some(Symbol { start, end: start.checked_add(symbol.size())?, name })
    }));
}

fn functions(file: &File<'_>) -> Vec<(u64, u64)> {
    let section = file.section_by_name(".eh_frame");
    let Some((section, data)) = section.and_then(|section| Some((section.address(), section.data().ok()?)))
    else {
        return Vec::new();
    };
    let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
    let frames = gimli::EhFrame::new(data, endian);
    let bases = gimli::BaseAddresses::default().set_eh_frame(section);
    let (mut entries, mut functions) = (frames.entries(&bases), Vec::new());
    while let Ok(Some(entry)) = entries.next() {
        let gimli::CieOrFde::Fde(partial) = entry else { continue };
        if let Ok(found) = partial.parse(gimli::EhFrame::cie_from_offset) {
            functions.push((found.initial_address(), found.end_address()));
        }
    }
    functions.sort_unstable();
    functions
}

fn lines(file: &File<'_>) -> Option<addr2line::Context<Reader>> {
    file.section_by_name(".debug_info").filter(|section| section.size() > 0)?;
    let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
    let section = |id: gimli::SectionId| -> Result<Reader, gimli::Error> {
        let data =
            file.section_by_name(id.name()).and_then(|section| unpacked(section.compressed_data().ok()?));
        Ok(Reader::new(Arc::from(&*data.unwrap_or_default()), endian))
    };
    addr2line::Context::from_dwarf(gimli::Dwarf::load(section).ok()?).ok()
}

/// The debug file of a build id, if it is installed.
fn debug_file(id: &[u8]) -> Option<Vec<u8>> {
    let (first, rest) = id.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    fs::read(format!("{DEBUG_FILES}/{first:02x}/{rest}.debug")).ok()
}

/// What a section holds, which may be compressed (ELF: `SHF_COMPRESSED`); `None` where it is damaged.
fn unpacked(section: CompressedData<'_>) -> Option<Cow<'_, [u8]>> {
    let packed: Box<dyn Read> = match section.format {
        CompressionFormat::None => return Some(section.data.into()),
        CompressionFormat::Zlib => Box::new(ZlibDecoder::new(section.data)),
        CompressionFormat::Zstandard => Box::new(zstd::Decoder::new(section.data).ok()?),
        _ => return None,
    };
    // The length is the file's own word: room is made for what comes, not for what is said.
    let mut whole = Vec::new();
    packed.take(section.uncompressed_size).read_to_end(&mut whole).ok()?;
    (whole.len() as u64 == section.uncompressed_size).then(|| whole.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_comes_out_as_it_was_however_it_is_packed_and_a_damaged_one_not_at_all() {
        let whole = b"a section ".repeat(999);
        let mut zlib = Vec::new();
        flate2::bufread::ZlibEncoder::new(&whole[..], flate2::Compression::fast())
            .read_to_end(&mut zlib)
            .unwrap();
        let zstd = zstd::encode_all(&whole[..], 1).unwrap();
        let packed = [
            (CompressionFormat::None, &whole),
            (CompressionFormat::Zlib, &zlib),
            (CompressionFormat::Zstandard, &zstd),
        ];
        for (format, data) in packed {
            let size = whole.len() as u64;
            let section = |data, size| CompressedData { format, data, uncompressed_size: size };
            assert_eq!(unpacked(section(data, size)).as_deref(), Some(&whole[..]), "{format:?}");
            if format != CompressionFormat::None {
                assert_eq!(unpacked(section(&data[..data.len() / 2], size)), None, "{format:?}");
                assert_eq!(unpacked(section(data, u64::MAX)), None, "{format:?}");
            }
        }
    }

    #[test]
    fn of_what_is_no_program_nothing_is_known() {
        for bytes in [vec![], b"\x7fELF".to_vec(), vec![0xFF; 4096]] {
            assert!(Program::new(bytes).frames(100).is_empty());
        }
    }

    #[test]
    fn a_symbol_names_what_lies_within_it_and_nothing_behind() {
        let symbol = |start, end, name: &str| Symbol { start, end, name: name.into() };
        let program = Program {
            segments: vec![(0x100, 0x1000, 0x40_0100)],
            symbols: vec![
                symbol(0x40_0200, 0x40_0300, "outer"),
                symbol(0x40_0210, 0x40_0220, "_ZN3abc5innerEv"),
                symbol(0x40_0400, 0x40_0410, "last"),
            ],
            functions: vec![(0x40_0100, 0x40_0200), (0x40_0300, 0x40_0380)],
            lines: None,
        };
        assert_eq!(
            [0x150, 0x310, 0x390, 0x50, 0x9000].map(|at| program.beginning(at)),
            [0x100, 0x300, 0x390, 0x50, 0x9000]
        );
        let name = |offset| program.frames(offset).first().map(|frame| frame.function.clone());
        assert_eq!(name(0x205).as_deref(), Some("outer"));
        assert_eq!(name(0x215).as_deref(), Some("abc::inner()"));
        assert_eq!(name(0x250).as_deref(), Some("outer"));
        for nothing in [0x50, 0x150, 0x300, 0x410, 0x5000] {
            assert_eq!(name(nothing), None, "{nothing:#x}");
        }
    }
}
