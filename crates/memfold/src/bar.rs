//! Progress on standard error: a bar on a terminal, nothing elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// A bar from 0 to `total`, hidden unless standard error is a terminal and `quiet` is false.
pub fn bar(total: u64, quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
    }
    let bar = ProgressBar::new(total);
    let style = ProgressStyle::with_template("{spinner:.green} [{elapsed:>3}] {bar:30.cyan/blue} {wide_msg}");
    bar.set_style(style.expect("the template is valid"));
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}
