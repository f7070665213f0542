//! Folding a program into which nothing can be preloaded: the agent is put into it once it runs.
//!
//! A program that ends within a moment is left alone.

use crate::text;
use memfold_attach::{Error, Image, Stop, Target};
use std::path::PathBuf;
use std::thread::JoinHandle;

/// See the module.
pub struct Attaching {
    program: PathBuf,
    quiet: bool,
    /// What to attach, until that is begun.
    next: Option<(Image, Vec<(String, String)>)>,
    /// Does it: it can take as long as a thread of the program cannot be interrupted.
    under_way: Option<JoinHandle<Result<Stop, Error>>>,
    /// Why the program is not folded.
    why: Option<String>,
}

impl Attaching {
    /// Will attach to the program.
    pub fn new(program: PathBuf, quiet: bool, image: Image, choices: Vec<(String, String)>) -> Attaching {
        let why = Some("it ended before the agent could be put into it".into());
        Attaching { program, quiet, next: Some((image, choices)), under_way: None, why }
    }

    /// To be called now and then, with the program's process.
    pub fn look(&mut self, pid: u32) {
        if let Some((image, choices)) = self.next.take() {
            let attach = move || memfold_attach::attach(&Target::new(pid), &image, &choices);
            self.under_way = Some(std::thread::spawn(attach));
        }
        if self.under_way.as_ref().is_some_and(JoinHandle::is_finished) {
            self.take();
        }
    }

    fn take(&mut self) {
        let Some(done) = self.under_way.take() else { return };
        self.why = match done.join() {
            Ok(Ok(_)) => None,
            // As before.
            Ok(Err(Error::Ended(_) | Error::Zombie(_) | Error::NoProcess(_))) => return,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("attaching has failed".into()),
        };
        if let Some(why) = self.why.as_ref().filter(|_| !self.quiet) {
            text::say(format_args!("{} cannot be folded and runs plainly: {why}", self.program.display()));
        }
    }

    /// The program has ended: why it was not folded, if it was not.
    pub fn finish(mut self) -> Option<String> {
        self.take();
        self.why
    }
}
