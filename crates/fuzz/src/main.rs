//! The executable that searches: libFuzzer over the target that `MEMFOLD_FUZZ_TARGET` names.
//!
//! What it is not: a program for use; `scripts/fuzz` builds and runs it.
//!
//! With `MEMFOLD_FUZZ_SEEDS` the target's seeds are written into that folder first. Without a target the names of all
//! targets are printed, and nothing is searched.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::Path;
use std::sync::OnceLock;

static TARGET: OnceLock<&memfold_fuzz::Target> = OnceLock::new();

fn begin() {
    let Ok(name) = std::env::var("MEMFOLD_FUZZ_TARGET") else {
        memfold_fuzz::TARGETS.iter().for_each(|target| println!("{}", target.name));
        std::process::exit(0);
    };
    let Some(target) = memfold_fuzz::find(&name) else {
        eprintln!("memfold-fuzz: there is no target {name}");
        std::process::exit(2);
    };
    if let Some(folder) = std::env::var_os("MEMFOLD_FUZZ_SEEDS") {
        for (n, seed) in (target.seeds)().iter().enumerate() {
            let path = Path::new(&folder).join(format!("seed-{n}"));
            if let Err(error) = std::fs::write(&path, seed) {
                eprintln!("memfold-fuzz: cannot write {}: {error}", path.display());
                std::process::exit(2);
            }
        }
    }
    TARGET.get_or_init(|| target);
}

fuzz_target!(init: begin(), |bytes: &[u8]| {
    if let Some(target) = TARGET.get() {
        (target.run)(bytes);
    }
});
