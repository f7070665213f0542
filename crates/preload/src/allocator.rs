//! The allocator's part of the environment: its profile, and every setting by itself.
//!
//! What it is not: able to stop a program. A variable that cannot be read is named on standard error once, and what it
//! would have set stays as the profile says.

use crate::environment::Environment;
use crate::notice::{complain, say};
use core::fmt::Write;
use memfold_arena::settings::{self, Knob, Profile, Unit};
use memfold_pager::config::{parse_duration, parse_size};
use memfold_pager::Line;

/// Puts the profile and the settings of the environment in force.
pub fn configure(environment: Environment) {
    if let Some(name) = environment.get("MEMFOLD_PROFILE") {
        match Profile::from_name(name) {
            Some(profile) => settings::set_profile(profile),
            None => complain("MEMFOLD_PROFILE", name, "`speed`, `balanced`, `lean` or `secure`"),
        }
    }
    for knob in Knob::ALL {
        let Some(text) = environment.get(knob.variable()) else { continue };
        match parse(knob.unit(), text) {
            Some(value) if within(knob, value) => settings::set(knob, value),
            _ => complain(knob.variable(), text, allowed(knob).as_str()),
        }
    }
    if settings::is_on(Knob::Check) {
        memfold_heap::harden(random_key(), report);
    }
    memfold_arena::prewarm(settings::get(Knob::Prewarm) as usize);
}

/// A number that the program cannot foretell, not 0.
fn random_key() -> usize {
    // SAFETY: `getauxval` reads what the kernel handed to the process; AT_RANDOM is the address of 16 random bytes that
    // stay for ever (getauxval(3)).
    let random = unsafe {
        let bytes = libc::getauxval(libc::AT_RANDOM) as *const u64;
        if bytes.is_null() {
            0
        } else {
            bytes.add(1).read_unaligned()
        }
    };
    (random ^ memfold_sys::time::now().0.rotate_left(32)) as usize | 1 << 63
}

/// Says what the program did, before it ends.
fn report(what: &str, address: usize, slot: usize) {
    let mut line = Line::new();
    let _ = match slot {
        0 => write!(line, "memfold: {what} (at {address:#x}); the program is ended"),
        _ => write!(line, "memfold: {what} (at {address:#x}, size class {slot}); the program is ended"),
    };
    say(line.as_str());
}

fn parse(unit: Unit, text: &str) -> Option<u64> {
    match unit {
        Unit::Word(words) => words.iter().position(|word| *word == text).map(|place| place as u64),
        Unit::Size => parse_size(text),
        Unit::Duration => parse_duration(text),
        Unit::Count => text.parse().ok(),
    }
}

fn within(knob: Knob, value: u64) -> bool {
    let (least, most) = knob.range();
    (least..=most).contains(&value)
}

/// What a knob takes, to follow "it takes".
fn allowed(knob: Knob) -> Line {
    let mut line = Line::new();
    let (least, most) = knob.range();
    let _ = match knob.unit() {
        Unit::Word(words) => words.iter().enumerate().try_for_each(|(place, word)| {
            let before = match place {
                0 => "",
                _ if place + 1 == words.len() => " or ",
                _ => ", ",
            };
            write!(line, "{before}`{word}`")
        }),
        Unit::Size => write!(line, "a size from {} to {} MiB, such as 8M", least >> 20, most >> 20),
        Unit::Duration => write!(line, "a time up to an hour, such as 500ms or 10s"),
        Unit::Count => write!(line, "a number from {least} to {most}"),
    };
    line
}
