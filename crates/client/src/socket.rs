//! The daemon's socket: by which path its programs name it, and whether anybody listens there.
//!
//! What it is not: a conversation. The daemon finds its programs by their control pages, and nothing is sent to whoever listens, whose
//! socket it may be: a process of another user's can pose as a daemon, and gains nothing by it.

use crate::Error;
use memfold_sys::{socket, Errno};
use std::io;
use std::path::Path;

/// The longest path of a socket, without its end (unix(7)).
const MOST: usize = 107;

/// The whole path of a socket; the same for the same socket however it was written, and the one by which `memfold daemon` knows its own.
///
/// # Errors
/// It is longer than the path of a socket can be, or not UTF-8.
pub fn whole(path: &Path) -> Result<String, Error> {
    let refused = |why| Error::BadSocket { path: path.to_owned(), why };
    let absolute = std::path::absolute(path).map_err(|_| refused("is no path"))?;
    let dir = absolute.parent().and_then(|dir| dir.canonicalize().ok());
    let whole = match (dir, absolute.file_name()) {
        (Some(dir), Some(name)) => dir.join(name),
        _ => absolute,
    };
    match whole.into_os_string().into_string() {
        Ok(text) if text.len() <= MOST => Ok(text),
        Ok(_) => Err(refused("is longer than the 107 bytes that the path of a socket can have")),
        Err(_) => Err(refused("is not UTF-8")),
    }
}

/// Whether somebody listens there; a line for people that says what follows if not.
pub fn listens(path: &str) -> Result<(), String> {
    match socket::connect(path.as_bytes()) {
        // In a crowd there is no room for one more, which says as much.
        Ok(_) | Err(Errno::EAGAIN) => Ok(()),
        Err(errno) => Err(format!(
            "memfold: no daemon listens at {path} ({}): this program keeps to its own settings until `memfold daemon --budget \
             2G` is started there",
            io::Error::from_raw_os_error(errno.0)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_socket_has_one_path_however_it_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::os::unix::fs::symlink(&real, real.join("link")).unwrap();
        let wanted = Ok(real.join("s").to_str().unwrap().to_owned());
        for way in ["s", "./s", "link/s", "link/link/s"] {
            assert_eq!(whole(&real.join(way)), wanted, "{way}");
        }
        // Where there is no such directory yet, the path is as it was given.
        assert_eq!(whole(Path::new("/nonexistent/s")), Ok("/nonexistent/s".into()));
        assert!(
            whole(Path::new(&"x".repeat(200))).is_err_and(|error| error.to_string().contains("107 bytes"))
        );
        assert!(whole(Path::new("")).is_err());
    }

    #[test]
    fn who_listens_is_found_and_of_nobody_a_line_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let text = path.to_str().unwrap();
        let said = listens(text).unwrap_err();
        assert!(
            said.contains(text) && said.contains("memfold daemon") && said.contains("No such file"),
            "{said}"
        );
        let listener = UnixListener::bind(&path).unwrap();
        // More than it accepts, which is none: who asks is not kept waiting.
        let _crowd: Vec<_> =
            (0..).map_while(|_| socket::connect(text.as_bytes()).ok()).take(10_000).collect();
        assert_eq!(listens(text), Ok(()));
        drop(listener);
        assert!(listens(text).is_err());
    }
}
