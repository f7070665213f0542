//! From addresses of a process to functions, files and lines.
//!
//! What it is: the mappings of the process, and of each mapped file what [`crate::program`] reads of it. What it is not: able to name code that
//! was made at run time.

use crate::frame::Frame;
use crate::program::Program;
use anyhow::Context;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::rc::Rc;

/// Files longer than this are not read, bytes.
const LONGEST: u64 = 1 << 30;

/// A mapping of a file.
#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) offset: u64,
    pub(crate) path: String,
}

/// The names of a process.
pub struct Names {
    pid: u32,
    mappings: Vec<Mapping>,
    programs: HashMap<String, Option<Rc<Program>>>,
    known: HashMap<u64, Vec<Frame>>,
}

impl Names {
    /// Of the process, as it is mapped now.
    ///
    /// # Errors
    /// Its mappings may not be read.
    pub fn of(pid: u32) -> anyhow::Result<Names> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))
            .with_context(|| format!("cannot read the mappings of process {pid}"))?;
        let mappings = maps.lines().filter_map(mapping).collect();
        Ok(Names { pid, mappings, programs: HashMap::new(), known: HashMap::new() })
    }

    /// The functions at a return address: that which was called from there, and before it those that were inlined into it.
    pub fn of_call(&mut self, address: u64) -> Vec<Frame> {
        if let Some(frames) = self.known.get(&address) {
            return frames.clone();
        }
        // The call is the instruction before.
        let frames = self.find(address.saturating_sub(1));
        self.known.insert(address, frames.clone());
        frames
    }

    /// The mappings that code was found in.
    pub(crate) fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    fn find(&mut self, address: u64) -> Vec<Frame> {
        let mapping = self.mappings.iter().find(|mapping| (mapping.start..mapping.end).contains(&address));
        let Some(mapping) = mapping.filter(|mapping| mapping.path.starts_with('/')) else {
            return vec![Frame::unknown("[code made at run time]")];
        };
        let mapping = mapping.clone();
        let offset = address - mapping.start + mapping.offset;
        let program = match self.programs.get(&mapping.path) {
            Some(known) => known.clone(),
            None => {
                let read = self.read(&mapping).map(|bytes| Rc::new(Program::new(bytes)));
                self.programs.entry(mapping.path.clone()).or_insert(read).clone()
            }
        };
        let frames = program.as_ref().map(|program| program.frames(offset)).unwrap_or_default();
        if frames.is_empty() {
            let name = mapping.path.rsplit('/').next().unwrap_or_default();
            let beginning = program.map_or(offset, |program| program.beginning(offset));
            return vec![Frame::unknown(&format!("{name}+{beginning:#x}"))];
        }
        frames
    }

    /// The bytes of a file as the process sees it, in whichever root directory it is; also one that was replaced since, where that is permitted.
    fn read(&self, mapping: &Mapping) -> Option<Vec<u8>> {
        let deleted = mapping.path.ends_with(" (deleted)");
        let path = PathBuf::from(format!("/proc/{}/root{}", self.pid, mapping.path));
        let mapped = format!("/proc/{}/map_files/{:x}-{:x}", self.pid, mapping.start, mapping.end);
        let mut options = File::options();
        let file = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(if deleted {
            mapped.into()
        } else {
            path
        });
        let file = file
            .ok()
            .filter(|file| file.metadata().is_ok_and(|found| found.is_file() && found.len() <= LONGEST))?;
        let mut bytes = Vec::new();
        file.take(LONGEST).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }
}

/// A line of `/proc/PID/maps` (proc_pid_maps(5)).
fn mapping(line: &str) -> Option<Mapping> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let is_code = words.next()?.contains('x');
    let offset = number(words.next()?)?;
    let path = words.nth(2).unwrap_or_default().trim_start();
    is_code
        .then(|| Some(Mapping { start: number(start)?, end: number(end)?, offset, path: path.to_owned() }))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn named_as_it_is() -> u64 {
        named_as_it_is as *const () as u64 + 4
    }

    #[test]
    fn a_function_of_this_program_is_found_by_its_address_with_its_file() {
        let mut names = Names::of(std::process::id()).unwrap();
        let frames = names.of_call(named_as_it_is());
        let last = frames.last().unwrap();
        assert!(last.function.contains("named_as_it_is"), "{frames:?}");
        assert!(
            last.file.as_ref().is_some_and(|file| file.ends_with("names.rs")) && last.line > 0,
            "{frames:?}"
        );
        assert_eq!(names.of_call(named_as_it_is()), frames);
    }

    #[test]
    fn a_function_of_libc_is_found_though_its_file_is_stripped() {
        let mut names = Names::of(std::process::id()).unwrap();
        let frames = names.of_call(libc_function() + 4);
        assert!(frames.iter().any(|frame| frame.function.contains("getenv")), "{frames:?}");
    }

    fn libc_function() -> u64 {
        extern "C" {
            fn secure_getenv(name: *const std::ffi::c_char) -> *mut std::ffi::c_char;
        }
        secure_getenv as *const () as u64
    }

    #[test]
    fn what_lies_in_no_file_has_a_name_that_says_so() {
        let mut names = Names::of(std::process::id()).unwrap();
        for address in [0, 1, 0x1000, u64::MAX] {
            assert_eq!(names.of_call(address)[0].function, "[code made at run time]");
        }
        assert!(mapping("7f0000000000-7f0000001000 r-xp 00002000 08:01 77 /a b/c (deleted)")
            .is_some_and(|found| found.path == "/a b/c (deleted)" && found.offset == 0x2000));
        assert!(mapping("7f0000000000-7f0000001000 rw-p 00000000 00:00 0").is_none());
        assert!(mapping("nonsense").is_none());
    }
}
