//! What the daemon knows of a process that it serves: by its own count, and of what the process says no more than the kernel bears out.
//!
//! Invariants: no number that the process writes is passed on unchecked, so nobody is asked for anything because of it.

use crate::channel::{Channel, Header};
use crate::serve::Done;
use memfold_sys::file::{self, Fd};
use memfold_sys::PAGE_SIZE;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a wait for a page that its agent has is counted with at most, ns: the daemon knows of the touch, not of its end.
const WAIT_FOR_AGENT: u64 = 1_000_000;

/// Sizes in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sizes {
    /// What may be folded.
    pub managed: u64,
    /// Of that what is in memory as it is.
    pub resident: u64,
    /// Of that what is folded.
    pub evicted: u64,
    /// The store.
    pub stored: u64,
}

/// What the kernel says of a process, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// Its address space.
    pub space: u64,
    /// Its anonymous memory that is resident.
    pub resident: u64,
    /// What its channel takes.
    pub channel: u64,
}

impl Facts {
    /// What of a claim can be true.
    fn bear_out(&self, claim: Sizes) -> Sizes {
        let managed = claim.managed.min(self.space);
        Sizes {
            managed,
            resident: claim.resident.min(managed).min(self.resident),
            evicted: claim.evicted.min(managed),
            stored: claim.stored.min(self.channel),
        }
    }
}

/// The account of one process.
#[derive(Debug)]
pub struct Account {
    /// Its `/proc/PID/statm`. It stays that process's, whoever has the number later.
    statm: File,
    /// Its channel, as a file.
    memory: Fd,
    /// Bytes that it may keep; `u64::MAX` without limit.
    limit: AtomicU64,
    restored: AtomicU64,
    zeroed: AtomicU64,
    compressed: AtomicU64,
    told: AtomicU64,
    waited_ns: AtomicU64,
    cpu_ns: AtomicU64,
}

impl Account {
    /// Of the process `pid`, with its channel, and what it may keep to begin with.
    ///
    /// # Errors
    /// There is no such process any more, or no descriptor left.
    pub fn open(pid: u32, memory: Fd, limit: u64) -> io::Result<Account> {
        let zero = || AtomicU64::new(0);
        Ok(Account {
            statm: File::open(format!("/proc/{pid}/statm"))?,
            memory,
            limit: AtomicU64::new(limit),
            restored: zero(),
            zeroed: zero(),
            compressed: zero(),
            told: zero(),
            waited_ns: zero(),
            cpu_ns: zero(),
        })
    }

    /// Its thread in the daemon has come so far.
    pub fn note(&self, done: Done, cpu_ns: u64) {
        for (to, value) in [
            (&self.restored, done.restored),
            (&self.zeroed, done.zeroed),
            (&self.compressed, done.compressed),
            (&self.told, done.told),
            (&self.waited_ns, done.waited_ns),
            (&self.cpu_ns, cpu_ns),
        ] {
            to.store(value, Relaxed);
        }
    }

    /// What its thread has done.
    pub fn done(&self) -> Done {
        Done {
            restored: self.restored.load(Relaxed),
            zeroed: self.zeroed.load(Relaxed),
            compressed: self.compressed.load(Relaxed),
            told: self.told.load(Relaxed),
            waited_ns: self.waited_ns.load(Relaxed),
        }
    }

    /// CPU time of its thread, ns.
    pub fn cpu_ns(&self) -> u64 {
        self.cpu_ns.load(Relaxed)
    }

    /// Bytes that it may keep; `u64::MAX` without limit.
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Tells it how much it may keep.
    pub fn set_limit(&self, header: &Header, bytes: u64) {
        self.limit.store(bytes, Relaxed);
        header.resident_limit.store(bytes, Relaxed);
    }

    /// What it has, as far as it is borne out.
    pub fn sizes(&self, channel: &Channel) -> Sizes {
        let header = channel.header();
        let most = (channel.pages() * PAGE_SIZE) as u64;
        self.facts().bear_out(Sizes {
            managed: header.managed_bytes.load(Relaxed).min(most),
            resident: header.resident_bytes.load(Relaxed),
            evicted: header.evicted_bytes.load(Relaxed),
            stored: header.store_bytes.load(Relaxed),
        })
    }

    /// For how long its threads have waited, ns: what the daemon has measured, and what the agent says for touches that there were.
    pub fn waited_ns(&self, header: &Header) -> u64 {
        let done = self.done();
        let most = done.told.saturating_mul(WAIT_FOR_AGENT);
        done.waited_ns.saturating_add(header.held_ns.sum.load(Relaxed).min(most))
    }

    /// Nothing of a process that is gone.
    fn facts(&self) -> Facts {
        let mut text = [0; 128];
        let len = self.statm.read_at(&mut text, 0).unwrap_or(0);
        let text = core::str::from_utf8(&text[..len]).unwrap_or("");
        let mut words = text.split(' ').map(|word| word.parse::<u64>().unwrap_or(0) * PAGE_SIZE as u64);
        let mut word = || words.next().unwrap_or(0);
        let (space, resident, shared) = (word(), word(), word());
        // In units of 512 bytes, whatever the block size (stat(2)).
        let channel = file::status(self.memory.raw()).map_or(0, |status| status.st_blocks as u64 * 512);
        Facts { space, resident: resident.saturating_sub(shared), channel }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_claim_is_more_than_the_kernel_says() {
        let facts = Facts { space: 1000, resident: 100, channel: 10 };
        let all = |bytes| Sizes { managed: bytes, resident: bytes, evicted: bytes, stored: bytes };
        assert_eq!(
            facts.bear_out(all(u64::MAX)),
            Sizes { managed: 1000, resident: 100, evicted: 1000, stored: 10 }
        );
        assert_eq!(facts.bear_out(all(7)), all(7));
        let within = Sizes { managed: 5, ..all(100) };
        assert_eq!(facts.bear_out(within), Sizes { managed: 5, resident: 5, evicted: 5, stored: 10 });
    }

    #[test]
    fn the_kernel_is_asked_of_the_process_and_of_its_file() {
        let memory = memfold_sys::socket::sealed_memory(c"test", 1 << 20).unwrap();
        file::allocate(memory.raw(), 0, 1 << 16).unwrap();
        let facts = Account::open(std::process::id(), memory, 0).unwrap().facts();
        assert!(facts.space > facts.resident && facts.resident > 0, "{facts:?}");
        assert_eq!(facts.channel, 1 << 16);
        let gone = memfold_sys::socket::sealed_memory(c"test", 1).unwrap();
        assert!(Account::open(0x3F_FFFF, gone, 0).is_err());
    }
}
