//! The agent threads: who they are, and how the background thread is woken.
//!
//! What it is not: what they do, nor when they begin and end ([`super::lifecycle`]).
//!
//! Invariants: the background thread is noted by who makes it and taken by who waits for its end, the others by the background thread until it
//! has ended. The lock is held for moments, but by who waits for the end of all of them: then none of them needs it any more.

use crate::fault::helpers;
use crate::lock::Mutex;
use core::sync::atomic::{AtomicU32, Ordering::*};
use memfold_sys::futex;
use memfold_sys::thread::{Credentials, Thread};

/// An agent thread, by what it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Agent {
    /// [`crate::fault::service`].
    Fault,
    /// [`crate::evict::background`].
    Background,
    /// [`crate::changes::proxy`].
    Proxy,
    /// [`crate::tier::thread`].
    Tier,
    /// [`crate::fault::helpers`], by its place.
    Helper(usize),
}

impl Agent {
    /// How many there are.
    const COUNT: usize = 4 + helpers::MOST;

    fn place(self) -> usize {
        match self {
            Agent::Fault => 0,
            Agent::Background => 1,
            Agent::Proxy => 2,
            Agent::Tier => 3,
            Agent::Helper(place) => 4 + place,
        }
    }
}

/// The threads.
pub(crate) struct Agents {
    threads: Mutex<[Option<Thread>; Agent::COUNT]>,
    /// The kernel's numbers of them, by [`Agent`]; 0 before they run.
    tids: [AtomicU32; Agent::COUNT],
    /// The background thread's futex: incremented to wake it.
    pub bell: AtomicU32,
    /// Who the thread was that made them: users and groups of its [`Credentials`].
    maker: [AtomicU32; 6],
}

impl Agents {
    /// None.
    pub const fn new() -> Agents {
        Agents {
            threads: Mutex::new([const { None }; Agent::COUNT]),
            tids: [const { AtomicU32::new(0) }; Agent::COUNT],
            bell: AtomicU32::new(0),
            maker: [const { AtomicU32::new(0) }; 6],
        }
    }

    /// The calling thread is about to make them.
    pub fn note_maker(&self) {
        let Credentials { users, groups } = Credentials::own();
        let ids = users.iter().chain(&groups);
        self.maker.iter().zip(ids).for_each(|(place, id)| place.store(*id, Relaxed));
    }

    /// Who the thread was that made them.
    pub fn maker(&self) -> Credentials {
        let [a, b, c, d, e, f] = [0, 1, 2, 3, 4, 5].map(|place: usize| self.maker[place].load(Relaxed));
        Credentials { users: [a, b, c], groups: [d, e, f] }
    }

    /// Notes a thread that was just made. With signals blocked, or by an agent.
    pub fn note(&self, agent: Agent, thread: Thread) {
        self.threads.lock()[agent.place()] = Some(thread);
    }

    /// The thread, if there is one, which is the caller's to wait for.
    pub fn take(&self, agent: Agent) -> Option<Thread> {
        self.threads.lock()[agent.place()].take()
    }

    /// Waits for the end of all that there are. Whoever comes meanwhile waits too.
    pub fn join_all(&self) {
        let mut threads = self.threads.lock();
        threads.iter_mut().filter_map(Option::take).for_each(Thread::join);
    }

    /// Remembers the kernel's number of one; 0 once it has ended.
    pub fn set_tid(&self, agent: Agent, tid: u32) {
        self.tids[agent.place()].store(tid, Relaxed);
    }

    /// The kernel's number of one, once it runs.
    pub fn tid(&self, agent: Agent) -> Option<u32> {
        Some(self.tids[agent.place()].load(Relaxed)).filter(|&tid| tid != 0)
    }

    /// Wakes the background thread.
    pub fn ring(&self) {
        self.bell.fetch_add(1, Release);
        futex::wake(&self.bell, 1);
    }

    /// Forgets them in a forked child, which does not have them. Its only thread.
    pub fn forget_in_child(&self) {
        self.threads.reset_in_child();
        self.threads.lock().iter_mut().filter_map(Option::take).for_each(Thread::forget_in_child);
        self.tids.iter().for_each(|tid| tid.store(0, Relaxed));
    }
}
