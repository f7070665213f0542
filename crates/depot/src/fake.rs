//! An engine for tests, which answers what a test says.

use crate::config::Config;
use memfold_pager::tier::choice::Choice;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// What comes of a command: an answer as it is sent, or the end of the connection.
pub type Answer = Option<String>;

pub struct Fake {
    pub port: u16,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Fake {
    /// One that answers commands in this way.
    pub fn start(answer: impl FnMut(&[String]) -> Answer + Send + 'static) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let answer = Arc::new(Mutex::new(answer));
        let of_thread = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (answer, asked) = (answer.clone(), of_thread.clone());
                std::thread::spawn(move || talk(stream.unwrap(), &asked, &answer));
            }
        });
        Fake { port, asked }
    }

    /// The names of the commands that came, since that was asked last.
    pub fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

fn talk(
    stream: TcpStream,
    asked: &Mutex<Vec<String>>,
    answer: &Mutex<impl FnMut(&[String]) -> Answer>,
) -> Option<()> {
    stream.set_nodelay(true).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let words = command(&mut reader)?;
        asked.lock().unwrap().push(words[0].clone());
        let said = answer.lock().unwrap()(&words)?;
        (&stream).write_all(said.as_bytes()).ok()?;
    }
}

fn command(reader: &mut impl BufRead) -> Option<Vec<String>> {
    let mut number = |kind: char| -> Option<(usize, Vec<u8>)> {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let number = line.trim_end().strip_prefix(kind)?.parse().ok()?;
        let mut bytes = vec![0; if kind == '$' { number + 2 } else { 0 }];
        reader.read_exact(&mut bytes).ok()?;
        Some((number, bytes))
    };
    let (words, _) = number('*')?;
    let word = |_| number('$').map(|(len, bytes)| String::from_utf8_lossy(&bytes[..len]).into_owned());
    (0..words).map(word).collect()
}

/// How these engines are used: as nodes of a cluster, or each alone.
pub fn config(engines: &[&Fake], cluster: bool, more: &str) -> Config {
    let addresses: Vec<String> = engines.iter().map(|engine| engine.address()).collect();
    let text = format!("redis://{}{more}", addresses.join(","));
    Config::new(&Choice::parse(&text).unwrap().engines().unwrap(), cluster).unwrap()
}

/// What `CLUSTER SLOTS` answers where the first has the first half of them, and the second the other.
pub fn halves(ports: [u16; 2]) -> String {
    let range = |first: u16, last: u16, port: u16| {
        format!("*3\r\n:{first}\r\n:{last}\r\n*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$2\r\nid\r\n")
    };
    format!("*2\r\n{}{}", range(0, 8191, ports[0]), range(8192, 16383, ports[1]))
}
