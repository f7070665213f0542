//! A small engine that reads and writes as fio's `sync` engines do, for what Debian's fio cannot do: requests with
//! `RWF_DONTCACHE`, and `posix_fadvise(DONTNEED)` behind each 256 requests.
//!
//! What it is not: a rival of fio. It knows the patterns of [`crate::workload`] and reports in the form of fio's JSON, so
//! that results are read by one reader. A depth of N requests is N threads, since buffered requests are synchronous; the
//! threads of one job share a sequential position.
//!
//! Invariants: dropping behind is part of the time of the request that triggers it.
//!
//! Sources: preadv2(2) and include/uapi/linux/fs.h (`RWF_DONTCACHE`), sync_file_range(2), posix_fadvise(2).

mod report;

use crate::job::{Access, Job};
use crate::workload::Pattern;
use crate::Unsupported;
use anyhow::{bail, Context, Result};
use hdrhistogram::Histogram;
use memfold_stats::Rng;
use nix::fcntl::{posix_fadvise, PosixFadviseAdvice as Advice};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ffi::c_int;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What to do, as the engine's process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    file: PathBuf,
    file_size: u64,
    block_size: u64,
    pattern: Pattern,
    rwmixread: u64,
    jobs: u64,
    depth: u64,
    runtime_ms: u64,
    ramp_ms: u64,
    access: Access,
    name: String,
    raw: PathBuf,
}

/// Requests that a thread makes before it drops what is behind it.
const BEHIND: usize = 256;

impl Spec {
    /// Of a job, with results to go to `raw`.
    pub fn of(job: &Job, raw: &Path) -> Spec {
        let workload = &job.workload;
        Spec {
            file: job.file.clone(),
            file_size: workload.file_size,
            block_size: workload.block_size,
            pattern: workload.pattern,
            rwmixread: workload.rwmixread,
            jobs: workload.numjobs,
            depth: workload.iodepth,
            runtime_ms: workload.runtime * 1000,
            ramp_ms: job.ramp * 1000,
            access: job.access,
            name: workload.name.clone(),
            raw: raw.to_owned(),
        }
    }
}

/// The body of the engine's process: does the job that is given as JSON.
///
/// # Errors
/// When the job cannot be read, or a request fails.
pub fn main(job: &str) -> Result<()> {
    let spec: Spec = serde_json::from_str(job).context("the job is not one of this engine")?;
    let report = run(&spec)?;
    std::fs::write(&spec.raw, report.to_string())
        .with_context(|| format!("cannot write {}", spec.raw.display()))
}

/// Whether files in `directory` can be read and written with `RWF_DONTCACHE`.
///
/// # Errors
/// [`Unsupported`] if they cannot.
pub fn try_dontcache(directory: &Path) -> Result<()> {
    let file = tempfile::tempfile_in(directory).context("cannot try RWF_DONTCACHE")?;
    let mut block = vec![1; memfold_sys::PAGE_SIZE];
    let attempt = transfer(&file, &mut block, 0, true, libc::RWF_DONTCACHE)
        .and_then(|_| transfer(&file, &mut block, 0, false, libc::RWF_DONTCACHE));
    match attempt {
        Ok(_) => Ok(()),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => Err(Unsupported(format!(
            "RWF_DONTCACHE is not supported by this kernel for the file system of {} (Linux 6.14 with ext4 or xfs has it)",
            directory.display()
        ))
        .into()),
        Err(error) => Err(error).context("cannot try RWF_DONTCACHE"),
    }
}

/// Writes a block to a file or reads one, with flags that neither the standard library nor nix passes on; how many bytes moved.
fn transfer(file: &File, block: &mut [u8], offset: u64, writes: bool, flags: c_int) -> io::Result<usize> {
    let piece = libc::iovec { iov_base: block.as_mut_ptr().cast(), iov_len: block.len() };
    let (fd, offset) = (file.as_raw_fd(), offset as i64);
    // SAFETY: the piece is the block, which nobody else has while the call lasts.
    let moved = unsafe {
        match writes {
            true => libc::pwritev2(fd, &piece, 1, offset, flags),
            false => libc::preadv2(fd, &piece, 1, offset, flags),
        }
    };
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}

/// Times of the requests after the ramp, ns: of reads and of writes.
type Times = [Histogram<u64>; 2];

fn run(spec: &Spec) -> Result<Value> {
    let mut open = OpenOptions::new();
    open.read(true).write(spec.pattern.writes());
    let file = open.open(&spec.file).with_context(|| format!("cannot open {}", spec.file.display()))?;
    // As fio does by default.
    let random = spec.pattern.random();
    let advice = if random { Advice::POSIX_FADV_RANDOM } else { Advice::POSIX_FADV_SEQUENTIAL };
    posix_fadvise(&file, 0, 0, advice)?;
    let cursors: Vec<AtomicU64> = (0..spec.jobs).map(|_| AtomicU64::new(0)).collect();
    let counting = Instant::now() + Duration::from_millis(spec.ramp_ms);
    let end = counting + Duration::from_millis(spec.runtime_ms);
    let done: Vec<Result<Times>> = std::thread::scope(|scope| {
        let threads: Vec<_> = cursors
            .iter()
            .enumerate()
            .flat_map(|(job, cursor)| {
                (0..spec.depth).map(move |slot| (job as u64 * spec.depth + slot, cursor))
            })
            .map(|(number, cursor)| {
                let thread =
                    Thread { spec, file: &file, cursor, rng: Rng::new(1).fork(number), behind: Vec::new() };
                scope.spawn(move || thread.work(counting, end))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| bail!("a thread panicked")))
            .collect()
    });
    let elapsed = counting.elapsed();
    let mut all = [histogram(), histogram()];
    for done in done {
        for (sum, part) in all.iter_mut().zip(done?) {
            sum.add(part).context("a histogram cannot be added")?;
        }
    }
    Ok(report::of(spec, &all, elapsed))
}

fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are allowed")
}

struct Thread<'a> {
    spec: &'a Spec,
    file: &'a File,
    cursor: &'a AtomicU64,
    rng: Rng,
    /// Offsets that were read or written and not dropped yet, and whether any was written.
    behind: Vec<u64>,
}

impl Thread<'_> {
    fn work(mut self, counting: Instant, end: Instant) -> Result<Times> {
        let blocks = self.spec.file_size / self.spec.block_size;
        let mut buffer: Vec<u8> =
            (0..self.spec.block_size.div_ceil(8)).flat_map(|_| self.rng.next_u64().to_le_bytes()).collect();
        buffer.truncate(self.spec.block_size as usize);
        let mut done = [histogram(), histogram()];
        loop {
            let block = if self.spec.pattern.random() {
                self.rng.below(blocks)
            } else {
                // Only the position is shared, no data: no order is needed.
                self.cursor.fetch_add(1, Ordering::Relaxed) % blocks
            };
            let writes = match self.spec.pattern {
                pattern if pattern.mixed() => self.rng.below(100) >= self.spec.rwmixread,
                pattern => pattern.writes(),
            };
            let start = Instant::now();
            if start >= end {
                return Ok(done);
            }
            self.request(block * self.spec.block_size, writes, &mut buffer)?;
            if start >= counting {
                let taken = start.elapsed().as_nanos() as u64;
                done[usize::from(writes)].record(taken.max(1)).context("a time is out of range")?;
            }
        }
    }

    fn request(&mut self, offset: u64, writes: bool, buffer: &mut [u8]) -> Result<()> {
        let flags = if self.spec.access == Access::DontCache { libc::RWF_DONTCACHE } else { 0 };
        let length = buffer.len();
        let moved = loop {
            match transfer(self.file, buffer, offset, writes, flags) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                moved => break moved.with_context(|| format!("a request at {offset} failed"))?,
            }
        };
        if moved != length {
            bail!("a request of {length} bytes at {offset} moved {moved}");
        }
        if self.spec.access == Access::DropBehind {
            self.behind.push(offset);
            if self.behind.len() == BEHIND {
                self.drop_behind()?;
            }
        }
        Ok(())
    }

    /// Drops the pages of the last requests from the cache, which a page must be clean for.
    fn drop_behind(&mut self) -> Result<()> {
        let ranges = runs(&mut self.behind, self.spec.block_size);
        if self.spec.pattern.writes() {
            let whole = libc::SYNC_FILE_RANGE_WAIT_BEFORE
                | libc::SYNC_FILE_RANGE_WRITE
                | libc::SYNC_FILE_RANGE_WAIT_AFTER;
            for flags in [libc::SYNC_FILE_RANGE_WRITE, whole] {
                for &(offset, length) in &ranges {
                    sync_file_range(self.file, offset, length, flags)?;
                }
            }
        }
        // The kernel drops whole folios only. One that reached beyond the last batch goes with this one.
        let back = if self.spec.pattern.random() { 0 } else { BEHIND as u64 * self.spec.block_size };
        for (offset, length) in ranges {
            let start = offset.saturating_sub(back);
            let length = offset + length - start;
            posix_fadvise(self.file, start as i64, length as i64, Advice::POSIX_FADV_DONTNEED)
                .context("cannot drop what is behind")?;
        }
        self.behind.clear();
        Ok(())
    }
}

/// The blocks at `offsets` as runs of offset and length, ascending.
fn runs(offsets: &mut [u64], block: u64) -> Vec<(u64, u64)> {
    offsets.sort_unstable();
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for &offset in offsets.iter() {
        match runs.last_mut() {
            Some((start, length)) if offset <= *start + *length => *length = offset + block - *start,
            _ => runs.push((offset, block)),
        }
    }
    runs
}

fn sync_file_range(file: &File, offset: u64, length: u64, flags: libc::c_uint) -> Result<()> {
    // SAFETY: no memory involved.
    let answer = unsafe { libc::sync_file_range(file.as_raw_fd(), offset as i64, length as i64, flags) };
    if answer != 0 {
        return Err(std::io::Error::last_os_error()).context("cannot write back what is behind");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome;
    use crate::residency::Residency;
    use std::io::Write;

    const SIZE: u64 = 4 << 20;

    fn file() -> tempfile::NamedTempFile {
        // Beside the build, which lies on a disk where /tmp may not.
        let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![7; SIZE as usize]).unwrap();
        file.as_file().sync_all().unwrap();
        file
    }

    fn spec(file: &Path, pattern: Pattern, access: Access) -> Spec {
        Spec {
            file: file.to_owned(),
            file_size: SIZE,
            block_size: 4096,
            pattern,
            rwmixread: 25,
            jobs: 2,
            depth: 2,
            runtime_ms: 50,
            ramp_ms: 20,
            access,
            name: "w".into(),
            raw: "unused".into(),
        }
    }

    #[test]
    fn each_pattern_moves_what_it_says_and_is_read_as_fio_s_json() {
        let file = file();
        for pattern in Pattern::ALL {
            // On a busy machine the threads may not have their turn for long.
            let mut spec = spec(file.path(), pattern, Access::Cached);
            let mut outcome = || {
                spec.runtime_ms *= 2;
                let report = run(&spec).unwrap();
                outcome::parse(&report.to_string()).ok().filter(|outcome| outcome.ios >= 1000)
            };
            let outcome = (0..8).find_map(|_| outcome()).expect("requests are done");
            assert_eq!(outcome.read_bytes > 0, pattern.mixed() || !pattern.writes(), "{pattern:?}");
            assert_eq!(outcome.written_bytes > 0, pattern.writes(), "{pattern:?}");
            assert_eq!(outcome.read_bytes + outcome.written_bytes, outcome.ios * 4096);
            assert_eq!(outcome.latencies.count(), outcome.ios);
            assert!(outcome.p50_ns <= outcome.p99_ns && outcome.p99_ns <= outcome.p999_ns);
            if pattern.mixed() {
                let share = outcome.read_bytes as f64 / (outcome.ios * 4096) as f64;
                assert!((0.15..0.35).contains(&share), "{share} of the requests are reads");
            }
        }
        assert_eq!(std::fs::metadata(file.path()).unwrap().len(), SIZE);
    }

    /// What is in the cache after each block of a file was requested once, in order.
    fn left_behind(pattern: Pattern, access: Access) -> Residency {
        let file = file();
        posix_fadvise(file.as_file(), 0, 0, Advice::POSIX_FADV_DONTNEED).unwrap();
        let spec = spec(file.path(), pattern, access);
        let cursor = AtomicU64::new(0);
        let mut thread = Thread {
            spec: &spec,
            file: file.as_file(),
            cursor: &cursor,
            rng: Rng::new(1),
            behind: Vec::new(),
        };
        let mut block = vec![3; 4096];
        for offset in (0..SIZE).step_by(4096) {
            thread.request(offset, pattern.writes(), &mut block).unwrap();
        }
        Residency::of(file.as_file(), SIZE).unwrap()
    }

    #[test]
    fn pages_are_clean_and_gone_after_dropping_behind() {
        assert_eq!(SIZE % (BEHIND as u64 * 4096), 0, "nothing may be left to be dropped");
        for pattern in [Pattern::Read, Pattern::Write] {
            let left = left_behind(pattern, Access::DropBehind);
            assert!(left.resident < SIZE / 4, "{pattern:?}: {left:?}");
        }
    }

    #[test]
    fn reads_without_caching_leave_nothing() {
        if try_dontcache(Path::new(env!("CARGO_MANIFEST_DIR"))).is_err() {
            return;
        }
        let file = file();
        posix_fadvise(file.as_file(), 0, 0, Advice::POSIX_FADV_DONTNEED).unwrap();
        run(&Spec { jobs: 1, depth: 1, ..spec(file.path(), Pattern::RandRead, Access::DontCache) }).unwrap();
        let left = Residency::of(file.as_file(), SIZE).unwrap();
        assert!(left.resident < SIZE / 4, "{left:?}");
    }

    #[test]
    fn neighbouring_blocks_are_dropped_as_one_run() {
        assert_eq!(runs(&mut [8, 0, 4, 20, 4], 4), [(0, 12), (20, 4)]);
        assert!(runs(&mut [], 4).is_empty());
    }

    #[test]
    fn a_file_that_is_too_short_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(run(&spec(file.path(), Pattern::Read, Access::Cached)).is_err());
    }
}
