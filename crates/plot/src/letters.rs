//! Texts of a drawing as outlines, in the font that comes with the program: what draws pictures then needs to know of shapes alone.
//!
//! What it is not: a typesetter. Letters stand one after another from left to right, each as wide as the font has it; marks that combine and other
//! directions of writing are not looked after.

use anyhow::{Context, Result};
use resvg::usvg::roxmltree::{Document, Node};
use std::fmt::Write;
use std::sync::OnceLock;
use ttf_parser::{Face, GlyphId, OutlineBuilder};

/// DejaVu Sans, regular and bold, compressed by the build script.
const PACKED: [&[u8]; 2] = [
    include_bytes!(concat!(env!("OUT_DIR"), "/regular.z")),
    include_bytes!(concat!(env!("OUT_DIR"), "/bold.z")),
];
/// What says where and how large the letters are; the rest of a text's attributes is as good for its outlines.
const PLACING: [&str; 5] = ["x", "y", "text-anchor", "font-size", "font-weight"];

/// The document with a path for each text, named `text-N` by its number in the document; of a text of spaces nothing is left.
///
/// # Errors
/// When the document is not XML, or a text has something in it besides letters.
pub(crate) fn outlined(svg: &str) -> Result<String> {
    let document = Document::parse(svg).context("the drawing is not valid XML")?;
    let (mut out, mut done) = (String::with_capacity(2 * svg.len()), 0);
    let texts = document.descendants().filter(|node| node.is_element() && node.has_tag_name("text"));
    for (number, text) in texts.enumerate() {
        let path = path(&text)?;
        let _ = write!(out, "{}", &svg[done..text.range().start]);
        if !path.is_empty() {
            let _ = write!(out, r#"<path id="text-{number}" d="{path}""#);
            for attribute in text.attributes().filter(|attribute| !PLACING.contains(&attribute.name())) {
                let _ = write!(out, r#" {}="{}""#, attribute.name(), &svg[attribute.range_value()]);
            }
            out.push_str("/>");
        }
        done = text.range().end;
    }
    out.push_str(&svg[done..]);
    Ok(out)
}

/// The outlines of a text's letters, as the `d` of a path.
fn path(text: &Node<'_, '_>) -> Result<String> {
    let number = |name: &str| text.attribute(name).and_then(|value| value.parse::<f32>().ok());
    let words = match text.first_child() {
        None => "",
        Some(only) if only.is_text() && only.next_sibling().is_none() => only.text().unwrap_or_default(),
        Some(_) => anyhow::bail!("a text of the drawing has something in it besides letters"),
    };
    let face = face(text.attribute("font-weight") == Some("bold"));
    let scale =
        number("font-size").context("a text of the drawing has no size")? / f32::from(face.units_per_em());
    let letters: Vec<GlyphId> =
        words.chars().map(|letter| face.glyph_index(letter).unwrap_or_default()).collect();
    let advance = |letter: &GlyphId| scale * f32::from(face.glyph_hor_advance(*letter).unwrap_or(0));
    let width: f32 = letters.iter().map(advance).sum();
    let before = match text.attribute("text-anchor") {
        Some("middle") => width / 2.0,
        Some("end") => width,
        _ => 0.0,
    };
    let x = number("x").unwrap_or(0.0) - before;
    let mut pen = Pen { path: String::new(), scale, x, y: number("y").unwrap_or(0.0) };
    for letter in &letters {
        face.outline_glyph(*letter, &mut pen);
        pen.x += advance(letter);
    }
    Ok(pen.path)
}

fn face(bold: bool) -> &'static Face<'static> {
    static FACES: [OnceLock<Face<'static>>; 2] = [const { OnceLock::new() }; 2];
    let which = usize::from(bold);
    FACES[which].get_or_init(|| {
        let font =
            miniz_oxide::inflate::decompress_to_vec(PACKED[which]).expect("the build script has packed it");
        Face::parse(font.leak(), 0).expect("the build script has parsed it")
    })
}

/// Writes outlines, whose y goes upwards, where a letter stands.
struct Pen {
    path: String,
    scale: f32,
    x: f32,
    y: f32,
}

impl Pen {
    fn to<const N: usize>(&mut self, command: char, points: [(f32, f32); N]) {
        self.path.push(command);
        for (x, y) in points {
            // Writing into a string cannot fail.
            let _ = write!(self.path, "{:.2} {:.2} ", self.x + self.scale * x, self.y - self.scale * y);
        }
    }
}

impl OutlineBuilder for Pen {
    fn move_to(&mut self, x: f32, y: f32) {
        self.to('M', [(x, y)]);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        self.to('L', [(x, y)]);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        self.to('Q', [(x1, y1), (x, y)]);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        self.to('C', [(x1, y1), (x2, y2), (x, y)]);
    }

    fn close(&mut self) {
        self.path.push('Z');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(text: &str) -> String {
        outlined(&format!("<svg xmlns=\"http://www.w3.org/2000/svg\">{text}<rect/></svg>")).unwrap()
    }

    #[test]
    fn a_text_becomes_a_path_and_keeps_what_is_not_of_letters() {
        let out = drawn(
            r##"<text x="5" y="20" font-size="16" stroke="#fff" transform="rotate(-90 5 20)">a &lt; b</text>"##,
        );
        assert!(!out.contains("<text") && out.ends_with("/><rect/></svg>"), "{out}");
        assert!(out.contains(r##"id="text-0" d="M"##), "{out}");
        assert!(out.contains(r##" stroke="#fff" transform="rotate(-90 5 20)"/>"##), "{out}");
        assert_eq!(drawn(r#"<text x="5" y="20" font-size="16"> </text>"#), drawn(""));
    }

    #[test]
    fn what_is_no_plain_text_is_refused() {
        for text in [r#"<text font-size="9"><tspan>a</tspan></text>"#, "<text>a</text>", "<text"] {
            assert!(outlined(&format!("<svg>{text}</svg>")).is_err(), "{text}");
        }
    }
}
