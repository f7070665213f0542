//! Who decided each setting of a run, as a file beside its control pages: it is there for as long as one of them is.

use crate::directory::Directory;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Read;

/// The file's name in the directory of a run. No control page has such a name.
const NAME: &str = "settings";
/// Longer ones are not read, bytes.
const LONGEST: u64 = 1 << 16;

/// A setting that was not left at its default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Its value, as text.
    pub value: String,
    /// Who decided it: an option, a variable, or a line of a file.
    pub from: String,
}

/// By the option's name.
pub type Origins = BTreeMap<String, Origin>;

/// Writes them down. A directory that cannot be written to has none, and the program runs all the same.
pub fn keep(run: &Directory, origins: &Origins) {
    if let Ok(text) = serde_json::to_vec(origins) {
        let _ = run.replace(NAME, &text);
    }
}

/// Reads them; `None` where nothing was written down, by an older memfold say.
pub fn kept(run: &Directory) -> Option<Origins> {
    let mut text = Vec::new();
    run.open(NAME, libc::O_RDONLY).ok()?.take(LONGEST).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_down_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let run = Directory::hold(dir.path()).unwrap();
        assert_eq!(kept(&run), None);
        let origin = Origin { value: "2s".into(), from: "--cold-age".into() };
        let origins = Origins::from([("cold-age".into(), origin)]);
        keep(&run, &origins);
        assert_eq!(kept(&run), Some(origins));
    }
}
