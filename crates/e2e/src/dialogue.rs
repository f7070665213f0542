//! A program that is told what to do by lines on its standard input, and answers by lines.

use crate::run::Server;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

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
    pub fn start(mut command: Command) -> Dialogue {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Server(command.spawn().expect("memfold can be executed"));
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

    /// Ends its standard input, and waits for it.
    ///
    /// # Panics
    /// If it is not our child.
    pub fn end(mut self) -> ExitStatus {
        drop(self.stdin.take());
        self.process.0.wait().expect("our child")
    }
}
