//! What a program and the process beside it that knows the network say to each other, over a Unix socket: [`super::remote`] at one end,
//! `memfold-depot` at the other.
//!
//! What it is not: the way to the network. Nothing here leaves the machine; and what is handed over is sealed.
//!
//! Each message is a request of [`REQUEST`] bytes with the bytes of a cluster behind it, if it puts one. To [`Op::Put`] and [`Op::Get`] there is an
//! answer of [`ANSWER`] bytes, with the cluster behind it if one was got. All numbers are little-endian.

use super::CLUSTER_BYTES;
use core::fmt;

/// Bytes of a request, without a cluster.
pub const REQUEST: usize = 32;
/// Bytes of an answer, without a cluster.
pub const ANSWER: usize = 8;
/// The name of the socket in the directory of the tier, in which the files' marks are too.
pub const SOCKET: &str = "socket";

/// A file's random name.
pub type Name = [u8; 16];

/// A name in text: its mark is called so, and it stands so in the keys on the engines.
pub struct NameText(pub Name);

impl fmt::Display for NameText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Op {
    /// A file is this connection's: it is kept while the connection is there, and for as long as a process has its mark locked.
    Own = 1,
    /// Segments of it have something: as many as the number says.
    Keep = 2,
    /// Nothing in a segment is wanted any more, by nobody.
    Forget = 3,
    /// The file is no longer this connection's.
    Leave = 4,
    /// Keep a cluster.
    Put = 5,
    /// Fetch one.
    Get = 6,
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// What is asked for.
    pub op: Op,
    /// Of which file.
    pub file: Name,
    /// In which of its segments.
    pub segment: u32,
    /// The number of the cluster, which no other of the file has or had; or of segments.
    pub number: u32,
    /// Bytes of the cluster.
    pub len: usize,
}

impl Request {
    /// As it is sent.
    pub fn bytes(&self) -> [u8; REQUEST] {
        let mut bytes = [0; REQUEST];
        bytes[0] = self.op as u8;
        bytes[4..8].copy_from_slice(&(self.len as u32).to_le_bytes());
        bytes[8..12].copy_from_slice(&self.segment.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..].copy_from_slice(&self.file);
        bytes
    }

    /// From what came; `None` where it makes no sense.
    pub fn parse(bytes: &[u8; REQUEST]) -> Option<Request> {
        let op = match bytes[0] {
            1 => Op::Own,
            2 => Op::Keep,
            3 => Op::Forget,
            4 => Op::Leave,
            5 => Op::Put,
            6 => Op::Get,
            _ => return None,
        };
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut file = [0; 16];
        file.copy_from_slice(&bytes[16..]);
        let request = Request { op, file, segment: word(8), number: word(12), len: word(4) as usize };
        let most = if matches!(op, Op::Put | Op::Get) { CLUSTER_BYTES } else { 0 };
        (bytes[1..4] == [0; 3] && request.len <= most).then_some(request)
    }
}

/// An answer: an error of the system's, or 0; and the bytes of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The error; 0 for none.
    pub error: i32,
    /// Bytes of the cluster that follows.
    pub len: usize,
}

impl Answer {
    /// As it is sent.
    pub fn bytes(&self) -> [u8; ANSWER] {
        let mut bytes = [0; ANSWER];
        bytes[..4].copy_from_slice(&self.error.to_le_bytes());
        bytes[4..].copy_from_slice(&(self.len as u32).to_le_bytes());
        bytes
    }

    /// From what came; `None` where it makes no sense.
    pub fn parse(bytes: &[u8; ANSWER]) -> Option<Answer> {
        let [a, b, c, d, rest @ ..] = *bytes;
        let answer =
            Answer { error: i32::from_le_bytes([a, b, c, d]), len: u32::from_le_bytes(rest) as usize };
        (answer.len <= CLUSTER_BYTES && (answer.error == 0 || answer.len == 0)).then_some(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_said_is_understood(file: Name, segment: u32, number: u32, len in 0..=CLUSTER_BYTES, op in 0usize..6) {
            let op = [Op::Own, Op::Keep, Op::Forget, Op::Leave, Op::Put, Op::Get][op];
            let len = if matches!(op, Op::Put | Op::Get) { len } else { 0 };
            let request = Request { op, file, segment, number, len };
            prop_assert_eq!(Request::parse(&request.bytes()), Some(request));
            for answer in [Answer { error: 0, len }, Answer { error: libc::ENOSPC, len: 0 }] {
                prop_assert_eq!(Answer::parse(&answer.bytes()), Some(answer));
            }
        }

        #[test]
        fn whatever_is_said_is_refused_or_within_bounds(request: [u8; REQUEST], answer: [u8; ANSWER]) {
            if let Some(request) = Request::parse(&request) {
                prop_assert!(request.len <= CLUSTER_BYTES);
            }
            if let Some(answer) = Answer::parse(&answer) {
                prop_assert!(answer.len <= CLUSTER_BYTES);
            }
        }
    }
}
