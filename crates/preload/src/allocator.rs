//! The allocator's part of the environment: its profile, and every setting by itself.
//!
//! What it is not: able to stop a program. A variable that cannot be read is named on standard error once, and what it
//! would have set stays as the profile says.

use crate::environment::Environment;
use crate::notice::{complain, say};
use core::ffi::{c_int, c_void};
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
    match environment.get("MEMFOLD_TRACE_ALLOC") {
        None | Some("" | "0" | "off") => {}
        Some("1" | "on") if settings::is_on(Knob::Check) => trace(),
        Some("1" | "on") => {
            say("memfold: MEMFOLD_TRACE_ALLOC is ignored: blocks are not checked; --profile secure does so")
        }
        Some(other) => complain("MEMFOLD_TRACE_ALLOC", other, "`on` or `off`"),
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
    say_who("allocated", address, false);
    say_who("freed", address, true);
}

/// Has it kept which calls allocate and free each block.
fn trace() {
    if !memfold_heap::trace(memfold_unwind::own_module()) {
        say("memfold: MEMFOLD_TRACE_ALLOC is ignored: no memory for the tables");
    }
}

/// Says which calls allocated the block at an address, or freed it, where that is known.
fn say_who(what: &str, address: usize, freed: bool) {
    let mut calls = [0; memfold_unwind::MOST_CALLS];
    let count = memfold_heap::trace_of(address, freed, &mut calls);
    for (number, call) in calls[..count].iter().take(SHOWN).enumerate() {
        let mut line = Line::new();
        let _ = match number {
            0 => write!(line, "memfold:   it was {what} by "),
            _ => write!(line, "memfold:     called by "),
        };
        write_place(&mut line, call - 1);
        say(line.as_str());
    }
}

/// Calls that are shown of a stack.
const SHOWN: usize = 16;

memfold_sys::weak! {
    /// Up to glibc 2.33 it is in a library of its own, which a program need not have.
    dladdr = "dladdr"
}
type Dladdr = unsafe extern "C" fn(*const c_void, *mut libc::Dl_info) -> c_int;

/// Writes the function and the file that an address lies in. The program is about to end, so a lock of the dynamic loader's may be taken.
fn write_place(line: &mut Line, address: usize) {
    let mut found = libc::Dl_info {
        dli_fname: core::ptr::null(),
        dli_fbase: core::ptr::null_mut(),
        dli_sname: core::ptr::null(),
        dli_saddr: core::ptr::null_mut(),
    };
    // SAFETY: libc's function of this name has this type.
    let dladdr: Option<Dladdr> = unsafe { core::mem::transmute(dladdr()) };
    // SAFETY: the function takes any address and fills in what it is given.
    let known = dladdr.is_some_and(|dladdr| unsafe { dladdr(address as *const c_void, &mut found) } != 0);
    let text = |at: *const core::ffi::c_char| {
        // SAFETY: names of the dynamic loader's, which end with a zero and stay while the file is mapped.
        (known && !at.is_null()).then(|| unsafe { core::ffi::CStr::from_ptr(at) }.to_str().unwrap_or("?"))
    };
    let _ = match (text(found.dli_sname), text(found.dli_fname)) {
        (Some(name), Some(file)) => {
            write!(line, "{name}+{:#x} in {file}", address - found.dli_saddr as usize)
        }
        (None, Some(file)) => write!(line, "{file}+{:#x}", address - found.dli_fbase as usize),
        _ => write!(line, "{address:#x}"),
    };
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
