//! The allocators that are compared: glibc's, ours in its profiles, those found installed, and those named by the user.
//!
//! Invariants: an arm starts its program in an environment of its own, and a run counts only if the program's `malloc`
//! came from the arm's library: the loader goes on without a library that it cannot load.

use crate::launch;
use crate::worker::Hello;
use anyhow::{bail, ensure, Result};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The arm without a library, with which all others are compared.
pub const BASE: &str = "glibc";

/// Our own arm, in the profile that is the default.
pub const OURS: &str = "memfold";

memfold_experiment::named! {
    /// What our allocator is to do first; by its name as `MEMFOLD_PROFILE` takes it.
    #[derive(Default)]
    pub enum Profile, "profile" {
        /// Be fast, keep memory.
        Speed = "speed",
        /// Be fast, keep a target.
        #[default]
        Balanced = "balanced",
        /// Give memory back early.
        Lean = "lean",
        /// Find misuse.
        Secure = "secure",
    }
}

impl Profile {
    /// Who should choose it.
    pub fn use_case(self) -> &'static str {
        match self {
            Profile::Speed => "latency first, memory to spare",
            Profile::Balanced => "general purpose, the default",
            Profile::Lean => "small machines, many processes",
            Profile::Secure => "untrusted input, hunting for bugs",
        }
    }
}

/// An allocator to compare with, as a library to preload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Peer {
    /// Its name in results.
    pub name: String,
    /// Its shared library.
    pub library: PathBuf,
}

impl std::str::FromStr for Peer {
    type Err = String;

    /// From `name=path.so`; the file must exist, and a name of ours is refused.
    fn from_str(text: &str) -> Result<Peer, String> {
        let (name, path) = text.split_once('=').ok_or_else(|| {
            format!("{text:?} is not NAME=LIBRARY, such as mimalloc=/usr/lib/libmimalloc.so")
        })?;
        if name.is_empty() || name == BASE || name.starts_with(OURS) {
            return Err(format!("a peer cannot be called {name:?}: choose another name before the ="));
        }
        let library = Path::new(path)
            .canonicalize()
            .map_err(|error| format!("cannot use the library {path:?}: {error}"))?;
        if library.to_string_lossy().contains([' ', ':', '\t', '\n']) {
            return Err(format!("LD_PRELOAD cannot carry the path {library:?}: it has a space or a colon"));
        }
        Ok(Peer { name: name.to_owned(), library })
    }
}

impl Peer {
    /// Allocators that are installed where distributions and `make install` put libraries.
    pub fn installed() -> Vec<Peer> {
        const PLACES: [&str; 5] = [
            "/usr/local/lib",
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib/aarch64-linux-gnu",
            "/usr/lib64",
            "/usr/lib",
        ];
        const FILES: [(&str, &[&str]); 4] = [
            ("jemalloc", &["libjemalloc.so.2"]),
            ("tcmalloc", &["libtcmalloc_minimal.so.4"]),
            ("mimalloc", &["libmimalloc.so.3", "libmimalloc.so.2"]),
            ("snmalloc", &["libsnmallocshim.so"]),
        ];
        let find = |files: &[&str]| {
            let all =
                files.iter().flat_map(|file| PLACES.iter().map(move |place| Path::new(place).join(file)));
            all.filter_map(|path| path.canonicalize().ok()).find(|path| path.is_file())
        };
        let found = FILES
            .iter()
            .filter_map(|(name, files)| Some(Peer { name: (*name).to_owned(), library: find(files)? }));
        found.collect()
    }
}

/// One side of the comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Arm {
    /// Its name in results.
    pub name: String,
    /// Its library; `None` for glibc.
    pub library: Option<PathBuf>,
    /// Environment variables besides.
    pub variables: Vec<(String, String)>,
}

impl Arm {
    /// No library.
    pub fn base() -> Arm {
        Arm { name: BASE.into(), library: None, variables: Vec::new() }
    }

    /// Our allocator in a profile, without its pager.
    pub fn ours(library: &Path, profile: Profile) -> Arm {
        let name = match profile {
            Profile::Balanced => OURS.to_owned(),
            other => format!("{OURS}-{}", other.name()),
        };
        let variables = [("MEMFOLD_PAGER", "off"), ("MEMFOLD_PROFILE", profile.name())];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        Arm { name, library: Some(library.to_owned()), variables }
    }

    /// Our allocator with its page arena on or off.
    pub fn with_arena(library: &Path, on: bool) -> Arm {
        let state = if on { "on" } else { "off" };
        let mut arm = Arm::ours(library, Profile::Balanced);
        arm.name = format!("arena-{state}");
        arm.variables.push(("MEMFOLD_ARENA".into(), state.into()));
        arm
    }

    /// As a user would start it.
    pub fn peer(peer: &Peer) -> Arm {
        Arm { name: peer.name.clone(), library: Some(peer.library.clone()), variables: Vec::new() }
    }

    /// Its version: glibc's own, or that of the package that its library is of. `None` where no package has it: then its name should tell.
    pub fn version(&self) -> Option<String> {
        let Some(library) = &self.library else {
            // SAFETY: returns a string that stays.
            let version = unsafe { std::ffi::CStr::from_ptr(nix::libc::gnu_get_libc_version()) };
            return Some(version.to_string_lossy().into_owned());
        };
        let said = |program: &str, words: &[&str]| {
            let output = Command::new(program).args(words).output().ok()?;
            let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            (output.status.success() && !text.is_empty()).then_some(text)
        };
        let path = library.to_str()?;
        let of_debian = || {
            let owner = said("dpkg-query", &["-S", path])?;
            let (package, _) = owner.split_once(": ")?;
            said("dpkg-query", &["-W", "-f", "${Version}", package])
        };
        of_debian().or_else(|| said("rpm", &["-qf", "--qf", "%{VERSION}-%{RELEASE}", path]))
    }

    /// Whether it is our allocator.
    pub fn is_ours(&self) -> bool {
        self.name.starts_with(OURS)
    }

    /// Whether it is another allocator that is preloaded as ours is.
    pub fn is_peer(&self) -> bool {
        self.library.is_some() && !self.is_ours()
    }

    /// Gives `command` the arm's environment.
    pub fn apply(&self, command: &mut Command) {
        launch::clean(command);
        if let Some(library) = &self.library {
            command.env("LD_PRELOAD", library);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
    }

    /// Whether a worker of this arm has the arm's `malloc`.
    ///
    /// # Errors
    /// [`NotLoaded`] when it has another.
    pub fn check(&self, hello: &Hello) -> Result<()> {
        let from = hello.malloc_from.canonicalize().unwrap_or_else(|_| hello.malloc_from.clone());
        let Some(library) = &self.library else {
            let name = from.file_name().unwrap_or_default().to_string_lossy().into_owned();
            ensure!(name.starts_with("libc"), "{BASE}: malloc came from {} instead", from.display());
            return Ok(());
        };
        if library.canonicalize().ok().as_ref() != Some(&from) {
            bail!(NotLoaded { name: self.name.clone(), library: library.clone(), from });
        }
        Ok(())
    }
}

/// A library that was preloaded and did not become the allocator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name} cannot be measured: with {} preloaded, malloc came from {}; the file must be a shared library for this \
     machine that defines malloc and whose own libraries are installed",
    library.display(), from.display()
)]
pub struct NotLoaded {
    /// The arm.
    pub name: String,
    /// Its library.
    pub library: PathBuf,
    /// Where `malloc` was found.
    pub from: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_a_name_and_an_existing_library() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().display();
        assert_eq!(format!("other={path}").parse::<Peer>().unwrap().name, "other");
        for bad in [
            format!("{path}"),
            format!("={path}"),
            format!("glibc={path}"),
            format!("memfold-lean={path}"),
            "other=/no/such/file".into(),
        ] {
            assert!(bad.parse::<Peer>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_arm_passes_nothing_on_but_what_it_names() {
        let mut command = Command::new("true");
        command.env("MALLOC_ARENA_MAX", "1");
        Arm::ours(Path::new("/lib/x.so"), Profile::Lean).apply(&mut command);
        let mut names: Vec<_> =
            command.get_envs().map(|(name, _)| name.to_string_lossy().into_owned()).collect();
        names.retain(|name| name != "PATH");
        assert_eq!(names, ["LC_ALL", "LD_PRELOAD", "MEMFOLD_PAGER", "MEMFOLD_PROFILE"]);
    }

    #[test]
    fn a_worker_with_another_malloc_than_its_arms_is_refused() {
        let hello = |path: &str| Hello { malloc_from: path.into() };
        assert!(Arm::base().check(&hello("/usr/lib/libc.so.6")).is_ok());
        assert!(Arm::base().check(&hello("/usr/lib/libjemalloc.so.2")).is_err());
        let file = tempfile::NamedTempFile::new().unwrap();
        let arm = Arm::peer(&Peer { name: "other".into(), library: file.path().to_owned() });
        assert!(arm.check(&Hello { malloc_from: file.path().to_owned() }).is_ok());
        let refused = arm.check(&hello("/usr/lib/libc.so.6")).unwrap_err();
        assert!(refused.downcast_ref::<NotLoaded>().is_some() && refused.to_string().contains("libc.so.6"));
    }
}
