//! A program in a terminal of its own, whose screen is read back: what a user sees, and what the user types.

use crate::run::Server;
use crate::{wait_until, LIMIT};
use nix::pty::{openpty, Winsize};
use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use vt100::{Color, MouseProtocolMode, Parser, Screen};

/// The terminal, and what runs in it.
pub struct Terminal {
    program: Server,
    keyboard: File,
    seen: Arc<Mutex<Parser>>,
    reader: JoinHandle<()>,
}

/// What stood on the screen at one moment.
pub struct Seen(Screen);

impl Seen {
    /// The lines, without blanks at their ends.
    pub fn lines(&self) -> Vec<String> {
        self.0.rows(0, self.0.size().1.get()).map(|line| line.trim_end().to_owned()).collect()
    }

    /// All of it.
    pub fn text(&self) -> String {
        self.lines().join("\n")
    }

    /// The line and the cell at which a text begins, from 0.
    pub fn find(&self, text: &str) -> Option<(u16, u16)> {
        self.lines()
            .iter()
            .enumerate()
            .find_map(|(y, line)| line.find(text).map(|at| (y as u16, line[..at].chars().count() as u16)))
    }

    /// Whether any cell has a colour.
    pub fn has_colours(&self) -> bool {
        let (rows, columns) = self.0.size();
        let mut cells = (0..rows.get()).flat_map(|y| (0..columns.get()).map(move |x| (y, x)));
        cells.any(|(y, x)| {
            self.0
                .cell(y, x)
                .is_some_and(|cell| cell.fgcolor() != Color::Default || cell.bgcolor() != Color::Default)
        })
    }

    /// Whether the terminal is as a shell wants it: no other screen, a cursor, and a mouse that is left alone.
    pub fn is_left(&self) -> bool {
        !self.0.alternate_screen()
            && !self.0.hide_cursor()
            && self.0.mouse_protocol_mode() == MouseProtocolMode::None
    }
}

fn size(lines: u16, columns: u16) -> Winsize {
    Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

fn some(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).expect("a terminal has lines and columns")
}

impl Terminal {
    /// Runs a command in a terminal of that size.
    ///
    /// # Panics
    /// If there is no terminal to be had, or the command cannot be executed.
    pub fn run(mut command: Command, lines: u16, columns: u16) -> Terminal {
        let both = openpty(&size(lines, columns), None).expect("a terminal");
        let end = |fd: &OwnedFd| fd.try_clone().expect("a descriptor");
        command.stdin(end(&both.slave)).stdout(end(&both.slave)).stderr(end(&both.slave));
        // SAFETY: both calls are safe between fork and exec.
        unsafe {
            command.pre_exec(|| {
                if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let program = Server(command.spawn().expect("the command can be executed"));
        // The command keeps them too, and the screen would never end.
        drop((command, both.slave));
        let keyboard = File::from(both.master);
        let seen = Arc::new(Mutex::new(Parser::new(some(lines), some(columns), 0)));
        let (mut screen, parser) = (keyboard.try_clone().expect("a descriptor"), seen.clone());
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // EIO when the last who had it open has ended.
            while let Ok(len @ 1..) = screen.read(&mut bytes) {
                parser.lock().unwrap().process(&bytes[..len]);
            }
        });
        Terminal { program, keyboard, seen, reader }
    }

    /// The program.
    pub fn pid(&self) -> u32 {
        self.program.0.id()
    }

    /// What stands on the screen now.
    pub fn seen(&self) -> Seen {
        Seen(self.seen.lock().unwrap().screen().clone())
    }

    /// Waits until the screen is as it should be.
    ///
    /// # Panics
    /// If it never is, with what stood there last.
    pub fn wait_for(&self, what: &str, is: impl Fn(&Seen) -> bool) -> Seen {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_until(LIMIT, what, || is(&self.seen()));
        }));
        if let Err(panic) = result {
            eprintln!("the screen:\n{}", self.seen().text());
            std::panic::resume_unwind(panic);
        }
        self.seen()
    }

    /// Waits until a text stands there.
    ///
    /// # Panics
    /// As [`Terminal::wait_for`].
    pub fn wait_for_text(&self, text: &str) -> Seen {
        self.wait_for(text, |seen| seen.find(text).is_some())
    }

    /// Types.
    ///
    /// # Panics
    /// If nobody reads what is typed.
    pub fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("somebody reads");
    }

    /// Clicks at a line and a cell, from 0, as terminals tell it (the form SGR of xterm's control sequences).
    ///
    /// # Panics
    /// As [`Terminal::press`].
    pub fn click(&mut self, (line, column): (u16, u16)) {
        let (x, y) = (column + 1, line + 1);
        self.press(&format!("\x1b[<0;{x};{y}M\x1b[<0;{x};{y}m"));
    }

    /// Makes it another size.
    ///
    /// # Panics
    /// If it cannot be made that.
    pub fn resize(&mut self, lines: u16, columns: u16) {
        self.seen.lock().unwrap().screen_mut().set_size(some(lines), some(columns));
        let size = size(lines, columns);
        // SAFETY: a whole structure, which the kernel reads.
        assert_eq!(unsafe { libc::ioctl(self.keyboard.as_raw_fd(), libc::TIOCSWINSZ, &size) }, 0);
    }

    /// Waits for the end; how the program ended, and what stood there then.
    ///
    /// # Panics
    /// If it does not end.
    pub fn end(mut self) -> (ExitStatus, Seen) {
        let mut status = None;
        wait_until(LIMIT, "the end of the program", || {
            status = self.program.0.try_wait().expect("our child");
            status.is_some()
        });
        self.reader.join().expect("the reader ends with the program");
        let seen = Seen(self.seen.lock().unwrap().screen().clone());
        (status.expect("it has ended"), seen)
    }
}
