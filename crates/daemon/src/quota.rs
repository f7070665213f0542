//! What one user, and one process, may have of the daemon, and who has how much.
//!
//! Invariants: what was granted is given back when its [`Permit`] goes. Being over the quota of CPU time slows down who uses more than
//! an equal part of it, and nobody else.

use memfold_policy::pace::Pace;
use memfold_sys::time::{self, Nanos};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// Connections that are served at a time, of one user. Less where the process may not have as many descriptors.
pub const CONNECTIONS: usize = 256;
/// Of one process. It needs one, and a second for the moment in which it comes again.
pub const CONNECTIONS_OF_A_PROCESS: usize = 4;
/// Connections that have not greeted yet; of more, the oldest are ended.
pub const UNFINISHED: usize = 64;
/// How long a connection may take to greet.
pub const TIME_TO_GREET: Nanos = Nanos::from_secs(1);
/// Greetings that are looked at, and refused, at a time.
pub const GREETINGS: usize = 16;
/// Descriptors that a connection takes: the socket, the userfaultfd, the channel, and the process's sizes.
pub const DESCRIPTORS_OF_A_CONNECTION: usize = 4;
/// Descriptors for everything else: unfinished connections, greetings with what comes along, those who ask for the counters.
pub const OTHER_DESCRIPTORS: usize = 512;
/// Pages for which one user's channels have entries, all together: 4 TiB. An entry, which is 8 bytes, is all of the daemon's memory
/// that a page can take.
pub const PAGES: usize = 1 << 30;
/// CPU time that the threads serving one user may take, in thousandths of all CPUs; but at least that of one CPU.
pub const CPU: u64 = 500;
/// Pause of a thread that is over it.
pub const PAUSE: Nanos = Nanos::from_millis(5);
/// Connections for the counters at a time; of more, the oldest are ended.
pub const SCRAPES: usize = 64;
/// How long one of them may take to ask, and to take the answer.
pub const TIME_TO_SCRAPE: Nanos = Nanos::from_secs(2);

/// Threads that serve or greet.
pub(crate) const MOST_THREADS: usize = CONNECTIONS + GREETINGS;

/// Why there is no permit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Excess {
    /// Of one process.
    #[error("it has {CONNECTIONS_OF_A_PROCESS} connections, and needs one")]
    OfProcess,
    /// Of the user.
    #[error("{0} connections of its user are served, which is the most")]
    Connections(usize),
    /// Of the user.
    #[error("the channels of its user are for {PAGES} pages together at most")]
    Pages,
}

#[derive(Debug)]
struct Use {
    processes: HashMap<u32, usize>,
    connections: usize,
    pages: usize,
    /// CPU time of its threads so far, ns.
    cpu: u64,
    pace: Pace,
}

/// Who has how much.
#[derive(Debug)]
pub struct Ledger {
    connections: usize,
    /// CPU time of one user, millionths of a CPU.
    cpu: u64,
    users: Mutex<HashMap<u32, Use>>,
}

impl Ledger {
    /// With so many connections for each user, at most [`CONNECTIONS`].
    pub fn new(connections: usize) -> Arc<Ledger> {
        let cpus = std::thread::available_parallelism().map_or(1, |count| count.get()) as u64;
        let cpu = (cpus * CPU * 1000).max(1_000_000);
        Arc::new(Ledger { connections: connections.min(CONNECTIONS), cpu, users: Mutex::default() })
    }

    fn users(&self) -> MutexGuard<'_, HashMap<u32, Use>> {
        self.users.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Lets a connection in, with a channel for so many pages.
    ///
    /// # Errors
    /// Its process or its user has as much as one may have.
    pub fn admit(self: &Arc<Ledger>, user: u32, process: u32, pages: usize) -> Result<Permit, Excess> {
        let mut users = self.users();
        let now = time::now().0;
        let of = users.entry(user).or_insert_with(|| Use {
            processes: HashMap::new(),
            connections: 0,
            pages: 0,
            cpu: 0,
            pace: Pace::new(now, 0),
        });
        if of.processes.get(&process).is_some_and(|&count| count >= CONNECTIONS_OF_A_PROCESS) {
            return Err(Excess::OfProcess);
        }
        if of.connections >= self.connections {
            return Err(Excess::Connections(self.connections));
        }
        if of.pages.saturating_add(pages) > PAGES {
            return Err(Excess::Pages);
        }
        *of.processes.entry(process).or_default() += 1;
        of.connections += 1;
        of.pages += pages;
        Ok(Permit { ledger: self.clone(), user, process, pages, cpu: 0, pace: Pace::new(now, 0) })
    }
}

/// That a connection may be served.
#[derive(Debug)]
pub struct Permit {
    ledger: Arc<Ledger>,
    user: u32,
    process: u32,
    pages: usize,
    cpu: u64,
    pace: Pace,
}

impl Permit {
    /// Its thread has taken so much CPU time more. Whether it is to pause: its user has had all of a user's CPU time, and this
    /// connection more than an equal part.
    pub fn charge(&mut self, now: Nanos, spent: Nanos) -> bool {
        let mut users = self.ledger.users();
        let Some(of) = users.get_mut(&self.user) else { return false };
        of.cpu += spent.0;
        self.cpu += spent.0;
        of.pace.charge(now.0, of.cpu, self.ledger.cpu);
        self.pace.charge(now.0, self.cpu, self.ledger.cpu / of.connections.max(1) as u64);
        of.pace.left() == 0 && self.pace.left() == 0
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut users = self.ledger.users();
        let Some(of) = users.get_mut(&self.user) else { return };
        of.connections -= 1;
        of.pages -= self.pages;
        if let Some(count) = of.processes.get_mut(&self.process) {
            *count -= 1;
            if *count == 0 {
                of.processes.remove(&self.process);
            }
        }
        if of.connections == 0 {
            users.remove(&self.user);
        }
    }
}

/// Lets the process have the descriptors that all connections need, as far as it may have them. How many connections there is room for.
pub(crate) fn make_room_for_descriptors() -> usize {
    let wanted = (CONNECTIONS * DESCRIPTORS_OF_A_CONNECTION + OTHER_DESCRIPTORS) as u64;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: one whole structure.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return CONNECTIONS;
    }
    if limit.rlim_cur < wanted {
        limit.rlim_cur = wanted.min(limit.rlim_max);
        // SAFETY: as above.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    }
    room_within(limit.rlim_cur)
}

fn room_within(descriptors: u64) -> usize {
    let left = descriptors.saturating_sub(OTHER_DESCRIPTORS as u64) / DESCRIPTORS_OF_A_CONNECTION as u64;
    left.clamp(1, CONNECTIONS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_more_than_one_may_have_and_what_was_given_back_can_be_had_again() {
        let ledger = Ledger::new(8);
        let admit = |user, process, pages| ledger.admit(user, process, pages);
        let mut held: Vec<_> = (0..4).map(|_| admit(1, 10, 5).unwrap()).collect();
        assert_eq!(admit(1, 10, 5).unwrap_err(), Excess::OfProcess);
        held.extend((0..4).map(|n| admit(1, 20 + n, 5).unwrap()));
        assert_eq!(admit(1, 30, 5).unwrap_err(), Excess::Connections(8));
        // Another user's are not counted.
        held.push(admit(2, 30, 5).unwrap());
        assert_eq!(admit(2, 31, PAGES).unwrap_err(), Excess::Pages);
        drop(held);
        drop(admit(1, 10, PAGES).unwrap());
        assert!(ledger.users().is_empty());
    }

    #[test]
    fn who_takes_more_than_its_part_pauses_and_the_others_do_not() {
        let ledger = Ledger::new(8);
        let (mut greedy, mut modest) = (ledger.admit(1, 1, 1).unwrap(), ledger.admit(1, 2, 1).unwrap());
        let begun = time::now();
        let (mut greedy_paused, mut modest_paused) = (0, 0);
        for millis in 1..2000 {
            let now = begun + Nanos::from_millis(millis);
            // All CPUs and more, and next to nothing.
            greedy_paused += u32::from(greedy.charge(now, Nanos::from_millis(ledger.cpu / 500_000)));
            modest_paused += u32::from(modest.charge(now, Nanos(1000)));
        }
        assert!(greedy_paused > 1000, "{greedy_paused}");
        // At the very start nobody has saved anything.
        assert!(modest_paused <= 1, "{modest_paused}");
    }

    #[test]
    fn there_are_as_many_connections_as_descriptors_for_them() {
        assert_eq!(room_within(u64::MAX), CONNECTIONS);
        assert_eq!(room_within(512 + 40), 10);
        assert_eq!(room_within(20), 1);
    }
}
