//! From SVG to PNG, with the font that comes with the program.

use anyhow::{Context, Result};
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{fontdb, Options, Tree};
use std::sync::{Arc, OnceLock};

/// Pixels to a unit of the drawing.
const SCALE: f32 = 2.0;

/// The picture of an SVG document. Fonts of the machine are not looked at.
///
/// # Errors
/// When the document cannot be read, or is too large for memory.
pub(crate) fn render(svg: &str) -> Result<Vec<u8>> {
    let tree = Tree::from_str(svg, &options()).context("the drawing is not valid SVG")?;
    let size = tree.size().to_int_size().scale_by(SCALE).context("the drawing has no size")?;
    let mut pixels = Pixmap::new(size.width(), size.height()).context("the drawing is too large")?;
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().context("the picture cannot be encoded")
}

/// How drawings are read.
pub(crate) fn options() -> Options<'static> {
    Options { fontdb: fonts(), font_family: FAMILY.into(), ..Options::default() }
}

const FAMILY: &str = "DejaVu Sans";

/// DejaVu Sans, regular and bold, compressed by the build script.
const FONTS_PACKED: [&[u8]; 2] = [
    include_bytes!(concat!(env!("OUT_DIR"), "/regular.z")),
    include_bytes!(concat!(env!("OUT_DIR"), "/bold.z")),
];

fn fonts() -> Arc<fontdb::Database> {
    static FONTS: OnceLock<Arc<fontdb::Database>> = OnceLock::new();
    let load = || {
        let mut fonts = fontdb::Database::new();
        for packed in FONTS_PACKED {
            let font = miniz_oxide::inflate::decompress_to_vec(packed);
            fonts.load_font_data(font.expect("the build script has packed it"));
        }
        fonts.set_sans_serif_family(FAMILY);
        Arc::new(fonts)
    };
    Arc::clone(FONTS.get_or_init(load))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dark_pixels(svg: &str) -> usize {
        let png = render(svg).unwrap();
        let pixels = Pixmap::decode_png(&png).unwrap();
        pixels.pixels().iter().filter(|p| p.alpha() > 128 && p.red() < 128).count()
    }

    #[test]
    fn text_is_drawn_without_any_font_on_the_machine() {
        let text = |content: &str| {
            format!(
                r##"<svg xmlns="http://www.w3.org/2000/svg" width="100" height="30" fill="#000" font-family="No Such, sans-serif"><text x="5" y="20" font-size="16">{content}</text></svg>"##
            )
        };
        assert_eq!(dark_pixels(&text("")), 0);
        let (one, many) = (dark_pixels(&text("m")), dark_pixels(&text("mmmm")));
        assert!(one > 100 && (3 * one..=5 * one).contains(&many), "{one} dark pixels for m, {many} for mmmm");
    }

    #[test]
    fn what_is_no_drawing_is_refused() {
        assert!(render("<html>").is_err());
    }
}
