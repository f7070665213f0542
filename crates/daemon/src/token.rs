//! The word that whoever asks for the counters over TCP has to know.
//!
//! Invariants: it comes from a file that nobody but its owner, the daemon's user or root, can read or change; it is compared in a time
//! that does not depend on where a guess goes wrong.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The shortest one, bytes.
const LEAST: usize = 16;
/// The longest one, bytes.
const MOST: usize = 1024;

/// A token.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It cannot be read.
    #[error("{0}")]
    File(#[from] io::Error),
    /// It is no plain file.
    #[error("it is no regular file")]
    Kind,
    /// It is somebody else's.
    #[error("it belongs to user {0}; make one of your own")]
    Owner(u32),
    /// Others may read or change it.
    #[error("others may read or write it (mode {0:o}); chmod 600 it")]
    Mode(u32),
    /// Not a word.
    #[error("it holds no token: {LEAST} to {MOST} printable characters without spaces, such as `openssl rand -hex 32` makes")]
    Text,
}

impl Token {
    /// Reads one; spaces and line ends around it do not count.
    ///
    /// # Errors
    /// The file may not be trusted, or holds none.
    pub fn read(path: &Path) -> Result<Token, Refused> {
        let mut open = OpenOptions::new();
        // A fifo is not to be waited for.
        let file = open.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(Refused::Kind);
        }
        let own = memfold_sys::thread::effective_user();
        if meta.uid() != own && meta.uid() != 0 {
            return Err(Refused::Owner(meta.uid()));
        }
        if meta.mode() & 0o077 != 0 {
            return Err(Refused::Mode(meta.mode() & 0o777));
        }
        let mut text = String::new();
        file.take(2 * MOST as u64).read_to_string(&mut text).map_err(|_| Refused::Text)?;
        let word = text.trim_ascii();
        let is_one = (LEAST..=MOST).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_graphic());
        is_one.then(|| Token(word.to_owned())).ok_or(Refused::Text)
    }

    /// Whether a guess is right. Takes as long for each guess of the same length.
    pub fn is(&self, guess: &[u8]) -> bool {
        let own = self.0.as_bytes();
        let differences = guess
            .iter()
            .enumerate()
            .fold(0, |all, (n, &byte)| std::hint::black_box(all | byte ^ own[n % own.len()]));
        differences == 0 && guess.len() == own.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{symlink, PermissionsExt};

    const WORD: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn a_token_is_read_of_a_file_that_is_closed_to_others_and_of_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let write = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            Token::read(&path)
        };
        assert_eq!(write(&format!("{WORD}\n"), 0o600).unwrap(), Token(WORD.into()));
        for mode in [0o640, 0o604, 0o620] {
            assert!(matches!(write(WORD, mode), Err(Refused::Mode(found)) if found == mode));
        }
        for text in ["", "short", "with a space in it, at least", &"x".repeat(MOST + 1)] {
            assert!(matches!(write(text, 0o600), Err(Refused::Text)), "{text}");
        }
        write(WORD, 0o600).unwrap();
        let link = dir.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(matches!(Token::read(&link), Err(Refused::File(_))));
        assert!(matches!(Token::read(dir.path()), Err(Refused::Kind)));
        let fifo = dir.path().join("fifo");
        let name = std::ffi::CString::new(fifo.to_str().unwrap()).unwrap();
        // SAFETY: a valid path.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert!(matches!(Token::read(&fifo), Err(Refused::Kind)));
        // Only root can make another user's.
        if std::os::unix::fs::chown(&path, Some(61_303), None).is_ok() {
            assert!(matches!(Token::read(&path), Err(Refused::Owner(61_303))));
        }
    }

    #[test]
    fn only_the_token_itself_is_the_token() {
        let token = Token(WORD.into());
        assert!(token.is(WORD.as_bytes()));
        for guess in
            ["", "0", &WORD[1..], &format!("{WORD}0"), &format!("{WORD}{WORD}"), &WORD.replace('f', "e")]
        {
            assert!(!token.is(guess.as_bytes()), "{guess}");
        }
    }
}
