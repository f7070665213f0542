//! The greeting between a process and the daemon. Everything after it goes through the channel.
//!
//! The process sends a [`Hello`] with two descriptors: the channel and its userfaultfd. The daemon answers with a [`Reply`]. From then
//! on each side rings the other by sending bytes, whatever they are: there is something new in the channel. (Sockets alone can be
//! read and written without waiting, whatever the other side does to the descriptors that it shares.) The end of the connection,
//! from either side, is the end of the service; a connection that ends without a reply may be tried again.

/// First bytes of a greeting.
pub const MAGIC: u64 = u64::from_le_bytes(*b"memfoldD");
/// Version of greeting and channel. Another one is refused, by a reply that names the daemon's own.
pub const VERSION: u32 = 5;
/// Bytes of a greeting.
pub const HELLO_LEN: usize = 32;
/// Bytes of a reply.
pub const REPLY_LEN: usize = 16;
/// Descriptors that come with a greeting.
pub const FDS: usize = 2;

/// What a process says first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Its version.
    pub version: u32,
    /// Pages that its channel has entries for.
    pub pages: u64,
}

/// What the daemon answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The daemon's version.
    pub version: u32,
    /// 0, or the error number for which the process is refused.
    pub error: u32,
}

/// Rings the other side. One that has not heard the bells before has been rung.
pub fn ring(socket: i32) {
    let _ = memfold_sys::socket::send(socket, &[0], &[]);
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

impl Hello {
    /// As it is sent.
    pub fn bytes(&self) -> [u8; HELLO_LEN] {
        let mut out = [0; HELLO_LEN];
        out[..8].copy_from_slice(&MAGIC.to_le_bytes());
        out[8..12].copy_from_slice(&self.version.to_le_bytes());
        out[16..24].copy_from_slice(&self.pages.to_le_bytes());
        out
    }

    /// From what was received; `None` for anything else.
    pub fn parse(bytes: &[u8]) -> Option<Hello> {
        if bytes.len() != HELLO_LEN || word(bytes, 0)? != MAGIC {
            return None;
        }
        Some(Hello { version: word(bytes, 8)? as u32, pages: word(bytes, 16)? })
    }
}

impl Reply {
    /// As it is sent.
    pub fn bytes(&self) -> [u8; REPLY_LEN] {
        let mut out = [0; REPLY_LEN];
        out[..8].copy_from_slice(&MAGIC.to_le_bytes());
        out[8..12].copy_from_slice(&self.version.to_le_bytes());
        out[12..].copy_from_slice(&self.error.to_le_bytes());
        out
    }

    /// From what was received; `None` for anything else.
    pub fn parse(bytes: &[u8]) -> Option<Reply> {
        if bytes.len() != REPLY_LEN || word(bytes, 0)? != MAGIC {
            return None;
        }
        let rest = word(bytes, 8)?;
        Some(Reply { version: rest as u32, error: (rest >> 32) as u32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn greetings_survive_the_wire(version: u32, pages: u64, error: u32) {
            let hello = Hello { version, pages };
            prop_assert_eq!(Hello::parse(&hello.bytes()), Some(hello));
            let reply = Reply { version, error };
            prop_assert_eq!(Reply::parse(&reply.bytes()), Some(reply));
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(Hello::parse(&bytes).is_none() && Reply::parse(&bytes).is_none());
            let mut alike = MAGIC.to_le_bytes().to_vec();
            alike.extend(bytes);
            prop_assert_eq!(Hello::parse(&alike).is_some(), alike.len() == HELLO_LEN);
        }
    }
}
