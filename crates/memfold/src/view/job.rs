//! What programs are asked for while the screen goes on: each by a thread of its own, whose answer comes back through a channel.

use crate::options;
use crate::pages::PageFile;
use crate::view::heat::Picture;
use anyhow::Context;
use memfold_inspect::Mailbox;
use memfold_pager::config::Setting;
use memfold_pager::control::Command;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::thread;
use std::time::Duration;

/// How long a program may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a program can be asked to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Evict,
    Restore,
    Pause,
    Resume,
    Sleep,
    Wake,
    Set(Setting, u64),
}

impl Action {
    /// In words.
    pub fn words(self) -> String {
        match self {
            Action::Evict => "evict: fold everything that can be folded now, whatever its age".into(),
            Action::Restore => "restore: bring everything back, then go on".into(),
            Action::Pause => "pause: fold no more until it is resumed".into(),
            Action::Resume => "resume folding".into(),
            Action::Sleep => "sleep: fold everything now, down to the lowest tier, until it is wanted".into(),
            Action::Wake => "wake: bring back what was wanted when it last woke".into(),
            Action::Set(setting, value) => {
                format!("set {} to {}", setting.name(), options::show(setting, value))
            }
        }
    }

    /// Has a program do it, and waits for its answer.
    ///
    /// # Errors
    /// It has ended, does not answer in time, or says that it cannot.
    pub fn ask(self, file: &PageFile, pid: u32) -> anyhow::Result<()> {
        let (command, argument, value) = self.command();
        let page = file.open().context("cannot open the control page")?;
        Mailbox::open(page, pid)?.ask(command, argument, value, "", PATIENCE)
    }

    /// What the mailbox takes.
    fn command(self) -> (Command, u64, u64) {
        match self {
            Action::Evict => (Command::Evict, 0, 0),
            Action::Restore => (Command::Restore, 0, 0),
            Action::Pause => (Command::Pause, 0, 0),
            Action::Resume => (Command::Resume, 0, 0),
            Action::Sleep => (Command::Sleep, 0, 0),
            Action::Wake => (Command::Wake, 0, 0),
            Action::Set(setting, value) => (Command::Set, setting as u64, value),
        }
    }
}

/// An answer.
pub enum Done {
    /// What became of an action, in words.
    Asked(String),
    /// The picture of a process, or why there is none.
    Picture(u32, Result<Picture, String>),
}

/// Questions that are not answered yet.
pub struct Jobs {
    sender: Sender<Done>,
    receiver: Receiver<Done>,
    open: usize,
}

impl Default for Jobs {
    fn default() -> Self {
        let (sender, receiver) = channel();
        Jobs { sender, receiver, open: 0 }
    }
}

impl Jobs {
    /// Has a program do something.
    pub fn ask(&mut self, file: PageFile, pid: u32, action: Action) {
        self.start(move || {
            Done::Asked(match action.ask(&file, pid) {
                Ok(()) => format!("done: {}", action.words()),
                Err(error) => format!("{error:#}"),
            })
        });
    }

    /// Has a picture made of a program's address space.
    pub fn look_at(&mut self, file: PageFile, pid: u32, cold_age: Duration) {
        self.start(move || {
            Done::Picture(
                pid,
                Picture::take(&file, pid, cold_age, PATIENCE).map_err(|error| format!("{error:#}")),
            )
        });
    }

    fn start(&mut self, job: impl FnOnce() -> Done + Send + 'static) {
        let sender = self.sender.clone();
        let started = thread::Builder::new().spawn(move || {
            // Nobody listens any more when the screen is left.
            let _ = sender.send(job());
        });
        self.open += usize::from(started.is_ok());
    }

    /// The next answer, if there is one.
    pub fn done(&mut self) -> Option<Done> {
        let done = self.receiver.try_recv().ok()?;
        self.open -= 1;
        Some(done)
    }

    /// Whether anything is not answered yet.
    pub fn are_waited_for(&self) -> bool {
        self.open > 0
    }
}
