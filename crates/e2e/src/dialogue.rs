//! A program that is told what to do by lines on its standard input, and answers by lines.

use crate::run::Server;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

/// The program, and both ends of the talk. What it has of the test's is closed before it is waited for.
#[derive(Debug)]
pub struct Dialogue {
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    process: Server,
}

impl Dialogue {
    /// Starts it.
    ///
    /// # Panics
    /// If it cannot be.
    pub fn start(command: &mut Command) -> Dialogue {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Server(command.spawn().expect("the program can be executed"));
        let stdin = process.0.stdin.take();
        let stdout = BufReader::new(process.0.stdout.take().expect("piped"));
        Dialogue { stdin, stdout, process }
    }

    /// The next line that it says.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn hear(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("it says something");
        line.trim().to_owned()
    }

    /// Has it do what a line says, which it answers with the same line.
    ///
    /// # Panics
    /// If it does not.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().expect("open until the end"), "{line}").expect("it listens");
        assert_eq!(self.hear(), line);
    }

    /// It.
    pub fn process(&mut self) -> &mut Child {
        &mut self.process.0
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// Tells it the last line, and waits for it: how it ended, and what it said until then.
    ///
    /// # Panics
    /// If it says what is no text.
    pub fn finish(mut self, line: &str) -> (ExitStatus, String) {
        // It may have ended already.
        drop(self.stdin.take().map(|mut stdin| writeln!(stdin, "{line}")));
        let mut said = String::new();
        self.stdout.read_to_string(&mut said).expect("it says how it was");
        (self.end(), said)
    }

    /// Ends its standard input, and waits for it.
    ///
    /// # Panics
    /// If it is not our child.
    pub fn end(mut self) -> ExitStatus {
        drop(self.stdin.take());
        self.process.0.wait().expect("our child")
    }
}
