//! Finding a program as `execvp(3)` does, and telling from its file whether it can be folded.
//!
//! A program can be folded if glibc's dynamic loader will load the preload library into it: it is
//! dynamically linked against glibc, for the same machine as the library, and gains no rights by being
//! executed (ld.so(8), secure-execution mode). Scripts are judged by their interpreter.

use object::elf::{FileHeader32, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, ReadCache};
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why a command cannot be started.
#[derive(Debug, PartialEq, Eq)]
pub enum Absent {
    /// There is no such file.
    NotFound,
    /// There is one, but it cannot be executed; the reason.
    NotExecutable(&'static str),
}

/// Finds the file that a command names: as it is if it has a slash, else in the directories of `path`
/// (the value of `PATH`).
pub fn find(command: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, Absent> {
    if command.is_empty() {
        return Err(Absent::NotFound);
    }
    if command.as_bytes().contains(&b'/') {
        let file = PathBuf::from(command);
        return executable(&file).map(|()| file);
    }
    let mut failure = Absent::NotFound;
    for dir in std::env::split_paths(path.unwrap_or(OsStr::new("/bin:/usr/bin"))) {
        // An empty part of PATH is the current directory.
        let dir = if dir.as_os_str().is_empty() { PathBuf::from(".") } else { dir };
        let file = dir.join(command);
        match executable(&file) {
            Ok(()) => return Ok(file),
            Err(Absent::NotFound) => {}
            Err(other) => failure = other,
        }
    }
    Err(failure)
}

fn executable(file: &Path) -> Result<(), Absent> {
    let meta = fs::metadata(file).map_err(|e| match e.kind() {
        std::io::ErrorKind::PermissionDenied => Absent::NotExecutable("permission denied"),
        _ => Absent::NotFound,
    })?;
    if meta.is_dir() {
        return Err(Absent::NotExecutable("it is a directory"));
    }
    nix::unistd::access(file, nix::unistd::AccessFlags::X_OK)
        .map_err(|_| Absent::NotExecutable("permission denied"))
}

/// Why the program in `file` cannot be folded with `library`; `None` if it can.
pub fn obstacle(file: &Path, library: &Path) -> Option<String> {
    let loaded = Elf::read(library);
    obstacle_within(file, loaded.as_ref(), 4)
}

/// `depth` more interpreters are followed; the kernel follows about as many.
fn obstacle_within(file: &Path, library: Option<&Elf>, depth: u32) -> Option<String> {
    let mut head = [0u8; 256];
    // A program that may be executed but not read cannot be judged; the loader will.
    let len = open(file)?.read(&mut head).ok()?;
    if head.starts_with(b"\x7fELF") {
        return elf_obstacle(file, library);
    }
    // The kernel refuses what is neither; execvp(3) then gives it to the shell.
    let interpreter = interpreter_of(&head[..len]).unwrap_or(PathBuf::from("/bin/sh"));
    if depth == 0 {
        return None;
    }
    obstacle_within(&interpreter, library, depth - 1)
        .map(|why| format!("its interpreter {}: {why}", interpreter.display()))
}

/// Whether the agent can be put into the program of the file once it runs: it is for this kind of machine, gains no rights, and nothing can be preloaded
/// into it.
pub fn takes_agent(file: &Path) -> bool {
    executed(file, 4).is_some_and(|file| {
        let mode = fs::metadata(&file).map_or(libc::S_ISUID, |meta| meta.permissions().mode());
        let gains = mode & libc::S_ISUID != 0 || mode & libc::S_ISGID != 0 || has_capabilities(&file);
        let elf = Elf::read(&file).filter(|elf| (elf.bits, elf.machine) == (64, object::elf::EM_X86_64));
        cfg!(target_arch = "x86_64")
            && !gains
            && elf.is_some_and(|elf| elf.interpreter.is_none_or(|loader| !is_glibc(&loader)))
    })
}

/// What the kernel executes for a file: itself, or its interpreter.
fn executed(file: &Path, depth: u32) -> Option<PathBuf> {
    let mut head = [0u8; 256];
    let len = open(file)?.read(&mut head).ok()?;
    if head.starts_with(b"\x7fELF") {
        return Some(file.to_owned());
    }
    let interpreter = interpreter_of(&head[..len]).filter(|_| depth > 0)?;
    executed(&interpreter, depth - 1)
}

fn elf_obstacle(file: &Path, library: Option<&Elf>) -> Option<String> {
    let mode = fs::metadata(file).ok()?.permissions().mode();
    if mode & libc::S_ISUID != 0 {
        return Some("it is set-user-ID, and the loader preloads nothing into such programs".into());
    }
    if mode & libc::S_ISGID != 0 && mode & libc::S_IXGRP != 0 {
        return Some("it is set-group-ID, and the loader preloads nothing into such programs".into());
    }
    if has_capabilities(file) {
        return Some("it has file capabilities, and the loader preloads nothing into such programs".into());
    }
    let elf = Elf::read(file)?;
    match (&elf.interpreter, library) {
        (_, Some(library)) if (library.bits, library.machine) != (elf.bits, elf.machine) => Some(format!(
            "it is a {}-bit program for machine {}, and libmemfold.so is {}-bit for machine {}",
            elf.bits, elf.machine, library.bits, library.machine
        )),
        (None, _) => Some("it is statically linked, so nothing can be preloaded into it".into()),
        (Some(loader), _) if !is_glibc(loader) => {
            Some(format!("its loader is {loader}, and libmemfold.so needs that of glibc"))
        }
        _ => elf.sanitizer.map(|runtime| {
            format!("it is built with a sanitizer, whose runtime {runtime} has to come before all other libraries")
        }),
    }
}

fn is_glibc(loader: &str) -> bool {
    let name = loader.rsplit('/').next().unwrap_or(loader);
    name.starts_with("ld-linux") || name.starts_with("ld-2.") || name.starts_with("ld64.so")
}

/// The program behind `#!` in the first line of a script.
fn interpreter_of(head: &[u8]) -> Option<PathBuf> {
    let line = head.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    let word = line.split(|b| matches!(b, b' ' | b'\t' | b'\r')).find(|w| !w.is_empty())?;
    Some(PathBuf::from(OsStr::from_bytes(word)))
}

fn has_capabilities(file: &Path) -> bool {
    let Ok(path) = CString::new(file.as_os_str().as_bytes()) else { return false };
    // SAFETY: both names are strings; with a length of 0 nothing is written.
    let len =
        unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) };
    len > 0
}

/// Opens a file to read, if it is one. It may have another user's name for it, who could have put a pipe there.
fn open(file: &Path) -> Option<File> {
    let mut options = File::options();
    let opened = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(file).ok()?;
    opened.metadata().is_ok_and(|meta| meta.is_file()).then_some(opened)
}

/// What matters of an ELF file.
#[derive(Debug, PartialEq, Eq)]
struct Elf {
    bits: u32,
    machine: u16,
    interpreter: Option<String>,
    /// The library of a sanitizer that has an allocator of its own.
    sanitizer: Option<String>,
}

/// How the names of such libraries begin.
const SANITIZERS: [&str; 4] = ["libasan.", "libtsan.", "liblsan.", "libhwasan."];

impl Elf {
    fn read(file: &Path) -> Option<Elf> {
        let data = ReadCache::new(open(file)?);
        match object::FileKind::parse(&data).ok()? {
            object::FileKind::Elf64 => Elf::of::<FileHeader64<Endianness>>(64, &data),
            object::FileKind::Elf32 => Elf::of::<FileHeader32<Endianness>>(32, &data),
            _ => None,
        }
    }

    fn of<H: FileHeader<Endian = Endianness>>(bits: u32, data: &ReadCache<File>) -> Option<Elf> {
        let header = H::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let mut headers = header.program_headers(endian, data).ok()?.iter();
        let interpreter = headers.find_map(|p| p.interpreter(endian, data).ok()?);
        Some(Elf {
            bits,
            machine: header.e_machine(endian),
            interpreter: interpreter.map(|i| String::from_utf8_lossy(i).into_owned()),
            sanitizer: needed(header, endian, data)
                .into_iter()
                .find(|name| SANITIZERS.iter().any(|begin| name.starts_with(begin))),
        })
    }
}

/// The libraries that a file names as those which it needs, as far as it can be read.
fn needed<H: FileHeader<Endian = Endianness>>(
    header: &H,
    endian: Endianness,
    data: &ReadCache<File>,
) -> Vec<String> {
    let Ok(sections) = header.sections(endian, data) else { return Vec::new() };
    let Ok(Some((entries, strings))) = sections.dynamic(endian, data) else { return Vec::new() };
    let Ok(strings) = sections.strings(endian, data, strings) else { return Vec::new() };
    let names = entries.iter().filter(|entry| entry.tag32(endian) == Some(object::elf::DT_NEEDED));
    let names = names.filter_map(|entry| strings.get(entry.d_val(endian).into().try_into().ok()?).ok());
    names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str) -> tempfile::TempPath {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        file.into_temp_path()
    }

    /// A copy of this test's executable with other permissions.
    fn copy_with_mode(mode: u32) -> tempfile::TempPath {
        let copy = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(mode)).unwrap();
        copy
    }

    fn why(file: &Path) -> Option<String> {
        obstacle(file, &std::env::current_exe().unwrap())
    }

    #[test]
    fn a_dynamic_program_and_a_script_of_one_can_be_folded() {
        assert_eq!(why(&std::env::current_exe().unwrap()), None);
        assert_eq!(why(&script("#! /bin/sh -e\ntrue\n")), None);
        assert_eq!(why(&script("true\n")), None);
    }

    #[test]
    fn set_user_id_and_set_group_id_programs_are_told_apart_from_plain_ones() {
        assert!(why(&copy_with_mode(0o4755)).unwrap().contains("set-user-ID"));
        assert!(why(&copy_with_mode(0o2755)).unwrap().contains("set-group-ID"));
        assert_eq!(why(&copy_with_mode(0o755)), None);
    }

    #[test]
    fn a_static_program_is_seen_through_its_script_too() {
        // An ELF header of a 64-bit x86-64 or aarch64 executable without program headers.
        let mut header = [0u8; 64];
        header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        header[16] = 2;
        header[18] = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
        header[20] = 1;
        header[52] = 64;
        let program = script("");
        fs::write(&program, header).unwrap();
        assert!(why(&program).unwrap().contains("statically linked"));
        let text = format!("#!{}\n", program.display());
        assert!(why(&script(&text)).unwrap().contains("its interpreter"));
        header[18] = 40;
        fs::write(&program, header).unwrap();
        assert!(why(&program).unwrap().contains("machine 40"));
    }

    #[test]
    fn the_libraries_that_a_program_needs_are_read() {
        let file = ReadCache::new(File::open(std::env::current_exe().unwrap()).unwrap());
        let header = FileHeader64::<Endianness>::parse(&file).unwrap();
        let names = needed(header, header.endian().unwrap(), &file);
        assert!(names.iter().any(|name| name.starts_with("libc.so")), "{names:?}");
        assert_eq!(Elf::read(&std::env::current_exe().unwrap()).unwrap().sanitizer, None);
    }

    #[test]
    fn the_loader_of_another_libc_is_known() {
        assert!(is_glibc("/lib64/ld-linux-x86-64.so.2"));
        assert!(is_glibc("/nix/store/x/lib/ld-linux-aarch64.so.1"));
        assert!(!is_glibc("/lib/ld-musl-x86_64.so.1"));
    }

    #[test]
    fn commands_are_found_as_the_shell_finds_them() {
        let path = Some(OsStr::new("/nonexistent:/usr/bin:/bin"));
        assert!(find(OsStr::new("sh"), path).unwrap().ends_with("sh"));
        assert_eq!(find(OsStr::new("no-such-command"), path), Err(Absent::NotFound));
        assert_eq!(find(OsStr::new(""), path), Err(Absent::NotFound));
        assert_eq!(find(OsStr::new("/tmp"), None), Err(Absent::NotExecutable("it is a directory")));
        let plain = copy_with_mode(0o644);
        assert_eq!(find(plain.as_os_str(), None), Err(Absent::NotExecutable("permission denied")));
    }
}
