//! Charts and report pages: what every experiment of memfold shows its figures with.
//!
//! What it is: grouped and stacked bars with intervals ([`Bars`]), lines over time or passes ([`Lines`]), labelled
//! points ([`Scatter`]), distributions on logarithmic axes ([`ccdf()`]), each drawn as SVG and as PNG; and a page that
//! holds text, tables and charts in one HTML file ([`Report`]).
//!
//! What it is not: statistics. A chart shows the middles and intervals that it is given.
//!
//! Invariants: equal charts give equal bytes. Nothing is taken from the machine: the font of the PNGs comes with the
//! program, and a page names no other file. Series differ in brightness and in pattern, dash or marker as well as in
//! colour, so they can be told apart in grey print and by the colour-blind. A value that is missing or not finite is
//! left out, and the chart is drawn without it.

mod axis;
mod bars;
mod ccdf;
mod frame;
mod letters;
mod lines;
mod palette;
mod panels;
mod png;
mod report;
mod scatter;
mod svg;

pub use axis::{Axis, Unit};
pub use bars::{Bars, Series, Value};
pub use ccdf::ccdf;
pub use lines::{Line, Lines};
pub use panels::Panels;
pub use report::{Block, Report, Table};
pub use scatter::{Point, Scatter};

use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

/// Something that can be drawn.
pub trait Chart {
    /// The drawing as an SVG document.
    fn svg(&self) -> String;
}

/// A chart with the name of its files and what the reader should see in it.
pub struct Plot {
    /// Name of its files, without extension.
    pub name: &'static str,
    /// What the reader should see.
    pub caption: String,
    /// The drawing.
    pub chart: Box<dyn Chart>,
}

impl Plot {
    /// Puts them together.
    pub fn new(name: &'static str, caption: impl Into<String>, chart: impl Chart + 'static) -> Plot {
        Plot { name, caption: caption.into(), chart: Box::new(chart) }
    }

    /// Its place on a page.
    pub fn block(&self) -> Block {
        Block::chart(self.chart.as_ref(), &self.caption)
    }
}

/// Draws `chart` into the files `name.svg` and `name.png` of `directory`, which must exist. The PNG has two pixels to
/// each unit of the SVG.
///
/// # Errors
/// When a file cannot be written.
pub fn save(chart: &dyn Chart, directory: &Path, name: &str) -> Result<()> {
    let svg = chart.svg();
    let write = |extension: &str, bytes: &[u8]| {
        let path = directory.join(format!("{name}.{extension}"));
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    };
    write("png", &png::render(&svg)?)?;
    write("svg", svg.as_bytes())
}
