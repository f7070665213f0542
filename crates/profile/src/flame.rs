//! A flame graph: how wide a function is says what it holds, and its colour how much of that nobody touches, from red over to blue.

use crate::folded;
use crate::profile::{By, Bytes, Profile};
use anyhow::Context;
use inferno::flamegraph::color::{BackgroundColor, Color, PaletteMap};
use inferno::flamegraph::{self, Options, TextTruncateDirection};
use std::collections::BTreeMap;

/// Draws it as SVG.
///
/// # Errors
/// There is nothing to draw.
pub fn svg(profile: &Profile, by: By, title: &str) -> anyhow::Result<Vec<u8>> {
    let lines = folded::lines(profile, by);
    anyhow::ensure!(!lines.is_empty(), "no memory of that kind was found, so there is no flame graph of it");
    let mut held: BTreeMap<String, Bytes> = BTreeMap::new();
    for stack in &profile.stacks {
        let mut names: Vec<String> = stack.frames().map(|frame| folded::plain(&frame.function)).collect();
        // A function that calls itself holds what it holds once.
        names.sort();
        names.dedup();
        for name in names {
            *held.entry(name).or_default() += stack.bytes;
        }
    }
    let mut colours = PaletteMap::default();
    for (name, bytes) in &held {
        colours.insert(name, colour(bytes.coldness()));
    }
    let mut options = Options::default();
    options.title = title.to_owned();
    options.subtitle = Some("red: in use, blue: nobody touches it".into());
    options.count_name = "bytes".into();
    options.bgcolors = Some(BackgroundColor::Flat(Color { r: 250, g: 250, b: 250 }));
    options.text_truncate_direction = TextTruncateDirection::Right;
    options.palette_map = Some(&mut colours);
    options.deterministic = true;
    let mut picture = Vec::new();
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), &mut picture)
        .context("the flame graph could not be drawn")?;
    Ok(picture)
}

/// From a warm colour, where nothing is cold, to a cold one where all is.
fn colour(coldness: f64) -> Color {
    const WARM: [f64; 3] = [240.0, 120.0, 80.0];
    const MIDDLE: [f64; 3] = [225.0, 215.0, 200.0];
    const COLD: [f64; 3] = [95.0, 155.0, 225.0];
    let (from, to, part) = match coldness {
        low if low < 0.5 => (WARM, MIDDLE, low * 2.0),
        high => (MIDDLE, COLD, (high * 2.0 - 1.0).min(1.0)),
    };
    let [r, g, b] = std::array::from_fn(|at| (from[at] + (to[at] - from[at]) * part).round() as u8);
    Color { r, g, b }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::tests::profile;

    #[test]
    fn a_function_is_as_wide_as_what_it_holds_and_blue_where_that_is_cold() {
        let profile = profile(&[
            (&["alloc", "hot_one", "main"], [300.0, 0.0, 0.0]),
            (&["alloc", "cold_one", "main"], [100.0, 100.0, 50.0]),
        ]);
        let picture = String::from_utf8(svg(&profile, By::Live, "of a test").unwrap()).unwrap();
        assert!(
            picture.contains("of a test") && picture.contains("cold_one (100 bytes, 25.00%)"),
            "{picture}"
        );
        assert!(picture.contains("rgb(240,120,80)") && picture.contains("rgb(95,155,225)"), "{picture}");
        let cold = String::from_utf8(svg(&profile, By::Cold, "of a test").unwrap()).unwrap();
        assert!(!cold.contains("hot_one"), "{cold}");
    }

    #[test]
    fn of_nothing_there_is_no_picture() {
        let profile = profile(&[(&["alloc"], [10.0, 0.0, 0.0])]);
        assert!(svg(&profile, By::Folded, "").unwrap_err().to_string().contains("no memory of that kind"));
    }
}
