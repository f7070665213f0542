//! Another simulator at work on the same trace: libCacheSim's `cachesim`.
//!
//! What it is not: libCacheSim, of which nothing is here; the executable is the user's.

use memfold_policy::spec::Spec;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// The executable.
#[derive(Clone, Debug)]
pub struct Peer {
    path: PathBuf,
}

/// What it said of one run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Said {
    /// Misses per request, to four digits.
    pub miss_ratio: f64,
    /// Million requests a second, to two digits behind the point; more than 0. It reads the trace in that time.
    pub mega_requests_per_second: f64,
}

/// Why a peer has no result.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// It cannot be started.
    #[error("cannot start the peer {}: {error}; give the path of libCacheSim's cachesim, which its build leaves in bin/", path.display())]
    Start {
        /// The executable.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// It failed.
    #[error("the peer {} ended with {status} at {policy}: {said}", path.display())]
    Failed {
        /// The executable.
        path: PathBuf,
        /// How it ended.
        status: ExitStatus,
        /// The policy that it was to run.
        policy: String,
        /// The last line of its standard error.
        said: String,
    },
    /// It printed something else.
    #[error(
        "the peer {} printed {line:?} at {policy}, where cachesim ends with \"cache size {size}, {requests} req, miss ratio \
         R, throughput T MQPS\", T above 0: is it libCacheSim's cachesim, and are the requests enough to be timed?",
        path.display()
    )]
    Unreadable {
        /// The executable.
        path: PathBuf,
        /// The policy that it was to run.
        policy: String,
        /// The line that looked most like a result, or the last.
        line: String,
        /// The pages of the cache that it was to simulate.
        size: usize,
        /// The requests of the trace.
        requests: u64,
    },
}

/// A result as it stands in a line.
struct Line {
    size: usize,
    requests: u64,
    said: Said,
}

impl Peer {
    /// The executable at `path`, or, without a slash in it, of that name in `PATH`.
    ///
    /// # Errors
    /// When the current directory is gone.
    pub fn new(path: &Path) -> std::io::Result<Peer> {
        let named = path.components().count() == 1 && !path.as_os_str().as_encoded_bytes().contains(&b'/');
        Ok(Peer { path: if named { path.to_owned() } else { std::path::absolute(path)? } })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its name of a policy, and the parameters that make it ours; `None` for a policy that it does not have.
    pub fn policy(spec: &Spec) -> Option<(&'static str, Option<&'static str>)> {
        let own = spec.to_string();
        let plain =
            ["lru", "fifo", "clock", "sieve", "twoq", "arc", "lirs", "s3fifo", "lfu", "random", "belady"];
        match own.as_str() {
            "slru" => Some(("slru", Some("seg-size=20:80"))),
            "wtinylfu" | "wtinylfu:libcachesim=1" => Some(("wtinylfu", None)),
            _ => plain.into_iter().find(|name| *name == own).map(|name| (name, None)),
        }
    }

    /// Runs a policy with a cache of `size` pages over the oracleGeneral trace at `trace`, which has `requests`. What it
    /// writes itself goes into the trace's directory. `None` for a policy that it does not have.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub fn run(
        &self,
        trace: &Path,
        spec: &Spec,
        size: usize,
        requests: u64,
    ) -> Result<Option<Said>, PeerError> {
        let Some((policy, parameters)) = Peer::policy(spec) else { return Ok(None) };
        let mut command = Command::new(&self.path);
        command.arg(trace).args(["oracleGeneral", policy, &size.to_string(), "--ignore-obj-size", "1"]);
        if let Some(parameters) = parameters {
            command.args(["-e", parameters]);
        }
        let folder = trace.parent().unwrap_or(Path::new("."));
        let output = command.current_dir(folder).stdin(Stdio::null()).output();
        let output = output.map_err(|error| PeerError::Start { path: self.path.clone(), error })?;
        let policy = spec.to_string();
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let said = last_line(&text).unwrap_or("it said nothing").to_owned();
            return Err(PeerError::Failed { path: self.path.clone(), status: output.status, policy, said });
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().rev().find(|line| line.contains(" req, ")).or(last_line(&text)).unwrap_or("");
        match parse(line) {
            Some(line) if line.size == size && line.requests == requests => Ok(Some(line.said)),
            _ => {
                let line = line.trim().to_owned();
                Err(PeerError::Unreadable { path: self.path.clone(), policy, line, size, requests })
            }
        }
    }
}

fn last_line(text: &str) -> Option<&str> {
    text.lines().map(str::trim).rfind(|line| !line.is_empty())
}

/// Reads `… cache size N, M req, miss ratio R, throughput T MQPS`.
fn parse(line: &str) -> Option<Line> {
    let (_, result) = line.rsplit_once(" cache size ")?;
    let [size, requests, ratio, speed] =
        result.split(',').map(str::trim).collect::<Vec<_>>().try_into().ok()?;
    let ratio =
        ratio.strip_prefix("miss ratio ")?.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio))?;
    let speed: f64 = speed.strip_prefix("throughput ")?.strip_suffix(" MQPS")?.parse().ok()?;
    let said = Said { miss_ratio: ratio, mega_requests_per_second: speed };
    let requests = requests.strip_suffix(" req")?.parse().ok()?;
    (speed > 0.0 && speed.is_finite()).then_some(Line { size: size.parse().ok()?, requests, said })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Request, Sink};

    /// The stand-in, by a name that tells it what to do.
    fn stand_in(folder: &Path, name: &str) -> Peer {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cachesim");
        let path = folder.join(name);
        std::os::unix::fs::symlink(script, &path).unwrap();
        Peer::new(&path).unwrap()
    }

    fn trace(folder: &Path) -> PathBuf {
        let path = folder.join("t.oracleGeneral.bin");
        let mut sink = Sink::oracle_general(std::fs::File::create(&path).unwrap());
        (0..5).for_each(|n| sink.push(Request { time: n, object: n % 2 }).unwrap());
        sink.finish().unwrap();
        path
    }

    fn spec(text: &str) -> Spec {
        Spec::parse(text).unwrap()
    }

    #[test]
    fn what_cachesim_prints_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let (peer, trace) = (stand_in(folder.path(), "cachesim"), trace(folder.path()));
        let said = peer.run(&trace, &spec("lru"), 2, 5).unwrap();
        assert_eq!(said, Some(Said { miss_ratio: 0.5, mega_requests_per_second: 8.0 }));
        assert_eq!(peer.run(&trace, &spec("mglru"), 2, 5).unwrap(), None, "it has no such policy");
        assert_eq!(peer.run(&trace, &spec("s3fifo:small=0.2"), 2, 5).unwrap(), None, "nor these parameters");
    }

    #[test]
    fn a_peer_without_a_result_is_named_with_what_it_said() {
        let folder = tempfile::tempdir().unwrap();
        let trace = trace(folder.path());
        let complaint = |name: &str| {
            let peer = stand_in(folder.path(), name);
            let said = peer.run(&trace, &spec("lru"), 2, 5).unwrap_err().to_string();
            said.strip_prefix(&format!("the peer {} ", peer.path().display())).unwrap().to_owned()
        };
        assert_eq!(complaint("broken"), "ended with exit status: 134 at lru: do not support algorithm lru");
        let wanted = "at lru, where cachesim ends with \"cache size 2, 5 req, miss ratio R, throughput T MQPS\", T above 0: \
                      is it libCacheSim's cachesim, and are the requests enough to be timed?";
        assert_eq!(complaint("silent"), format!("printed \"\" {wanted}"));
        assert_eq!(complaint("changed"), format!("printed \"lru: 5 requests, hit ratio 0.5\" {wanted}"));
        assert!(complaint("instant").contains("throughput inf MQPS\" at lru"));
        assert!(complaint("short").contains("4 req, miss ratio 0.5000"), "it did not run all of the trace");
        let none =
            Peer::new(&folder.path().join("none")).unwrap().run(&trace, &spec("lru"), 2, 5).unwrap_err();
        assert_eq!(
            none.to_string(),
            format!(
                "cannot start the peer {}/none: No such file or directory (os error 2); give the path of libCacheSim's \
                 cachesim, which its build leaves in bin/",
                folder.path().display()
            )
        );
    }

    #[test]
    fn a_line_that_is_no_result_is_none() {
        let good = "a b cache size 10, 5 req, miss ratio 0.25, throughput 1.5 MQPS";
        assert!(parse(good).is_some_and(|line| line.size == 10 && line.requests == 5));
        for (part, other) in [
            ("0.25", "1.25"),
            ("0.25", "nan"),
            ("1.5", "0.00"),
            ("1.5", "-1"),
            (" req", ""),
            ("10,", "10KiB,"),
            ("MQPS", "QPS"),
        ] {
            assert!(parse(&good.replace(part, other)).is_none(), "{other}");
        }
        assert!(parse("").is_none() && parse(" cache size ").is_none());
    }
}
