//! From SVG to PNG, with the font that comes with the program.

use crate::letters;
use anyhow::{Context, Result};
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree};

/// Pixels to a unit of the drawing.
const SCALE: f32 = 2.0;

/// The picture of an SVG document. Fonts of the machine are not looked at.
///
/// # Errors
/// When the document cannot be read, or is too large for memory.
pub(crate) fn render(svg: &str) -> Result<Vec<u8>> {
    let tree = read(svg)?;
    let size = tree.size().to_int_size().scale_by(SCALE).context("the drawing has no size")?;
    let mut pixels = Pixmap::new(size.width(), size.height()).context("the drawing is too large")?;
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().context("the picture cannot be encoded")
}

/// The shapes of a document; its texts are among them, as paths with the names that [`letters::outlined`] gives them.
///
/// # Errors
/// When the document cannot be read.
pub(crate) fn read(svg: &str) -> Result<Tree> {
    Tree::from_str(&letters::outlined(svg)?, &Options::default()).context("the drawing is not valid SVG")
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
