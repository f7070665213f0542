//! Packs the fonts of the pictures, which are the larger part of what an executable has besides code. Of the glyphs those stay that pictures are likely to
//! have: the others keep their place and their width, and nothing is drawn there.

use std::collections::HashSet;
use std::path::Path;
use ttf_parser::head::IndexToLocationFormat;
use ttf_parser::{loca, Face, GlyphId, Tag};

/// Latin, Greek and Cyrillic letters, punctuation, arrows, signs of mathematics, blocks and shapes.
const KEPT: [std::ops::RangeInclusive<u32>; 4] =
    [0x20..=0x24F, 0x370..=0x4FF, 0x2000..=0x22FF, 0x2580..=0x25FF];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let out = std::env::var_os("OUT_DIR").expect("cargo names a directory for what is made");
    for (name, font) in [("regular.z", dejavu::sans::regular()), ("bold.z", dejavu::sans::bold())] {
        let font = without_others(font).expect("the font has its tables");
        let packed = miniz_oxide::deflate::compress_to_vec(&font, 8);
        std::fs::write(Path::new(&out).join(name), packed).expect("what is made can be written");
    }
}

/// The font with nothing to draw in the glyphs that are not kept, and zeros, of which little is left when they are packed, behind those that are.
fn without_others(font: &[u8]) -> Option<Vec<u8>> {
    let face = Face::parse(font, 0).ok()?;
    let glyphs = face.raw_face().table(Tag::from_bytes(b"glyf"))?;
    let tables = face.tables();
    let places = face.raw_face().table(Tag::from_bytes(b"loca"))?;
    let places =
        loca::Table::parse(tables.maxp.number_of_glyphs, tables.head.index_to_location_format, places)?;
    let mut kept = HashSet::from([0]);
    let mut wanted: Vec<u16> = KEPT.into_iter().flatten().filter_map(|code| glyph(&face, code)).collect();
    while let Some(id) = wanted.pop() {
        let outline = places.glyph_range(GlyphId(id)).and_then(|range| glyphs.get(range));
        if kept.insert(id) {
            wanted.extend(outline.map(parts).unwrap_or_default());
        }
    }
    let (mut packed, mut starts) = (Vec::with_capacity(glyphs.len()), Vec::new());
    for id in 0..face.number_of_glyphs() {
        starts.push(packed.len());
        let outline = places.glyph_range(GlyphId(id)).filter(|_| kept.contains(&id));
        packed.extend_from_slice(outline.and_then(|range| glyphs.get(range)).unwrap_or_default());
    }
    starts.push(packed.len());
    packed.resize(glyphs.len(), 0);
    let starts: Vec<u8> = match tables.head.index_to_location_format {
        IndexToLocationFormat::Short => starts.iter().flat_map(|&at| (at as u16 / 2).to_be_bytes()).collect(),
        IndexToLocationFormat::Long => starts.iter().flat_map(|&at| (at as u32).to_be_bytes()).collect(),
    };
    let mut bytes = font.to_vec();
    for (name, table) in [(b"glyf", packed), (b"loca", starts)] {
        let old = face.raw_face().table(Tag::from_bytes(name))?;
        let begin = old.as_ptr() as usize - font.as_ptr() as usize;
        bytes.get_mut(begin..begin + table.len())?.copy_from_slice(&table);
    }
    Some(bytes)
}

fn glyph(face: &Face<'_>, code: u32) -> Option<u16> {
    face.glyph_index(char::from_u32(code)?).map(|glyph| glyph.0)
}

/// The glyphs that a glyph is put together of (OpenType, `glyf`: composite glyph description).
fn parts(outline: &[u8]) -> Vec<u16> {
    /// Flags of a part: its offsets are words; it has a scale, two, or four; there are more parts.
    const WORDS: u16 = 1;
    const SCALES: [(u16, usize); 3] = [(1 << 3, 2), (1 << 6, 4), (1 << 7, 8)];
    const MORE: u16 = 1 << 5;
    let word = |at: usize| Some(u16::from_be_bytes(outline.get(at..at + 2)?.try_into().ok()?));
    let (mut at, mut parts) = (10, Vec::new());
    // Contours are counted for those that are not put together.
    if word(0).is_none_or(|contours| contours >> 15 == 0) {
        return parts;
    }
    while let (Some(flags), Some(id)) = (word(at), word(at + 2)) {
        parts.push(id);
        let scale = SCALES.iter().find(|(flag, _)| flags & flag != 0).map_or(0, |(_, len)| *len);
        at += 4 + if flags & WORDS != 0 { 4 } else { 2 } + scale;
        if flags & MORE == 0 {
            break;
        }
    }
    parts
}
