//! Folding a program into which nothing can be preloaded: the agent is put into it once it runs.
//!
//! A program that ends within a moment is left alone.

use crate::text;
use memfold_attach::{Error, Image, Stop, Target};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often it is tried where what is in the way may pass, and how far apart.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_secs(1);

/// See the module.
pub struct Attaching {
    program: PathBuf,
    quiet: bool,
    /// What to attach.
    with: Arc<(Image, Vec<(String, String)>)>,
    /// How often that may still be tried, and not before when.
    tries: u32,
    next: Instant,
    /// Does it: it can take as long as a thread of the program cannot be interrupted.
    under_way: Option<JoinHandle<Result<Stop, Error>>>,
    /// Why the program is not folded.
    why: Option<String>,
}

impl Attaching {
    /// Will attach to the program.
    pub fn new(program: PathBuf, quiet: bool, image: Image, choices: Vec<(String, String)>) -> Attaching {
        let why = Some("it ended before the agent could be put into it".into());
        let with = Arc::new((image, choices));
        Attaching { program, quiet, with, tries: TRIES, next: Instant::now(), under_way: None, why }
    }

    /// To be called now and then, with the program's process.
    pub fn look(&mut self, pid: u32) {
        if self.under_way.is_none() && self.tries > 0 && Instant::now() >= self.next {
            self.tries -= 1;
            let with = self.with.clone();
            let attach = move || memfold_attach::attach(&Target::new(pid), &with.0, &with.1);
            self.under_way = Some(std::thread::spawn(attach));
        }
        if self.under_way.as_ref().is_some_and(JoinHandle::is_finished) {
            self.take();
        }
    }

    fn take(&mut self) {
        let Some(done) = self.under_way.take() else { return };
        self.why = match done.join() {
            Ok(Ok(_)) => {
                self.tries = 0;
                None
            }
            // As before.
            Ok(Err(Error::Ended(_) | Error::Zombie(_) | Error::NoProcess(_))) => return,
            // That may pass.
            Ok(Err(
                error @ (Error::Busy(_)
                | Error::Shared(..)
                | Error::Suspended(_)
                | Error::Taken(_)
                | Error::Traced(..)
                | Error::Unfinished(_)),
            )) => {
                self.next = Instant::now() + PAUSE;
                Some(error.to_string())
            }
            Ok(Err(error)) => {
                self.tries = 0;
                Some(error.to_string())
            }
            Err(_) => {
                self.tries = 0;
                Some("attaching has failed".into())
            }
        };
        if let Some(why) = self.why.as_ref().filter(|_| !self.quiet && self.tries == 0) {
            text::say(format_args!("{} cannot be folded and runs plainly: {why}", self.program.display()));
        }
    }

    /// The program has ended: why it was not folded, if it was not.
    pub fn finish(mut self) -> Option<String> {
        self.take();
        self.why
    }
}
