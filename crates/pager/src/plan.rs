//! What an attached agent is told by who puts it into a process, and what it tells: a structure in the agent's own memory.
//!
//! Who attaches writes it before a thread of the agent's runs, and reads it afterwards, both from outside (process_vm_readv(2)). Nobody else knows where it
//! is.
//!
//! Invariants: the layout is `repr(C)`, for two executables of one version; what is told is not changed while a thread of the agent's runs.

use crate::shared_text::SharedText;
use core::sync::atomic::{AtomicU32, Ordering::*};

/// What a plan begins with: the bytes `mf-agent`, little end first.
pub const MAGIC: u64 = u64::from_le_bytes(*b"mf-agent");

/// Most bytes of choices.
pub const MOST_CHOICES: usize = 3072;

/// What who attaches answers when the handshake is made ([`Plan::helped`]): writes can be tracked, or cannot.
pub const TRACKING: u8 = 1;
/// See [`TRACKING`].
pub const NO_TRACKING: u8 = 2;

/// What a thread of the agent's is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Task {
    /// Begin to fold.
    Start = 1,
    /// Bring everything back, and leave.
    End = 2,
}

/// How far it has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Status {
    /// Not done yet.
    Working = 0,
    /// The process is folded; the thread is about to end.
    Running = 1,
    /// It cannot be; [`Plan::text`] says why.
    Failed = 2,
    /// Nothing of the agent's is left but what was mapped from outside.
    Ended = 3,
}

impl Status {
    /// From the number in the plan.
    pub fn from_u32(raw: u32) -> Status {
        match raw {
            1 => Status::Running,
            2 => Status::Failed,
            3 => Status::Ended,
            _ => Status::Working,
        }
    }
}

/// The plan.
#[repr(C)]
pub struct Plan {
    /// [`MAGIC`].
    pub magic: u64,
    /// The checksum of the agent's file (CRC-32): what is put into a process by one version is not taken out by another.
    pub build: u32,
    /// The [`Task`].
    pub task: u32,
    /// The [`Status`].
    pub status: AtomicU32,
    /// 1 while a thread is at it, from before it is made; the kernel clears it (`CLONE_CHILD_CLEARTID`).
    pub alive: AtomicU32,
    /// Where the block begins that the thread runs in, of `thread::ADOPTED_BLOCK` bytes.
    pub stack: u64,
    /// What was mapped from outside, from the plan on: address and length.
    pub mapped: [u64; 2],
    /// Where its first instruction is.
    pub entry: u64,
    /// What the thread pointer of the thread is to be.
    pub thread_pointer: u64,
    /// What is constant of it, which the agent makes read-only: address and length.
    pub constant: [u64; 2],
    /// 1 where who attaches makes the handshake of the userfaultfd, as the process has not the right to ask for reports of forks.
    pub helped: u32,
    /// Whom to reach for that: the number of the thread that waits, as the process knows it, and one more than that of a socket in its descriptor table;
    /// 0 until it waits.
    pub waiting: [AtomicU32; 2],
    /// Bytes right below the plan that were mapped with it, and that nobody may touch. Where an earlier version had none of these it left zeros.
    pub guard: u32,
    /// A line for people.
    pub text: SharedText<32>,
    /// What the user chose: `NAME=VALUE` one after another, each ended by a zero.
    pub choices: [u8; MOST_CHOICES],
}

impl Plan {
    /// A plan of zeros, but for what it begins with.
    pub const fn new() -> Plan {
        Plan {
            magic: MAGIC,
            build: 0,
            task: Task::Start as u32,
            status: AtomicU32::new(0),
            alive: AtomicU32::new(0),
            stack: 0,
            mapped: [0; 2],
            entry: 0,
            thread_pointer: 0,
            constant: [0; 2],
            helped: 0,
            waiting: [const { AtomicU32::new(0) }; 2],
            guard: 0,
            text: SharedText::new(),
            choices: [0; MOST_CHOICES],
        }
    }

    /// What is to be done.
    pub fn task(&self) -> Task {
        if self.task == Task::End as u32 {
            Task::End
        } else {
            Task::Start
        }
    }

    /// The calling thread waits at a socket to be helped.
    pub fn wait_at(&self, socket: i32) {
        self.waiting[0].store(memfold_sys::thread::current_tid(), Relaxed);
        self.waiting[1].store(socket as u32 + 1, Release);
    }

    /// The thread that waits to be helped, and the number of the socket.
    pub fn waits_at(&self) -> Option<(u32, i32)> {
        let socket = self.waiting[1].load(Acquire).checked_sub(1)?;
        Some((self.waiting[0].load(Relaxed), socket as i32))
    }

    /// Says how far it has come.
    pub fn tell(&self, status: Status) {
        self.status.store(status as u32, Release);
    }

    /// The text of a choice, if it was made and is UTF-8.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.choices
            .split(|byte| *byte == 0)
            .find_map(|choice| core::str::from_utf8(choice).ok()?.strip_prefix(name)?.strip_prefix('='))
    }

    /// Makes a choice. False, and nothing is changed, if there is no room for it.
    pub fn choose(&mut self, name: &str, text: &str) -> bool {
        let used = self.choices.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 2);
        let len = name.len() + 1 + text.len();
        let Some(room) = self.choices.get_mut(used..).filter(|room| room.len() > len && !text.contains('\0'))
        else {
            return false;
        };
        let bytes = name.bytes().chain([b'=']).chain(text.bytes());
        room.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
        true
    }
}

impl Default for Plan {
    fn default() -> Plan {
        Plan::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_chosen_is_found_by_its_whole_name() {
        let mut plan = Plan::new();
        assert!(
            plan.choose("MEMFOLD_COLD_AGE", "2s")
                && plan.choose("MEMFOLD_COLD", "")
                && plan.choose("A", "b=c")
        );
        assert_eq!(plan.get("MEMFOLD_COLD_AGE"), Some("2s"));
        assert_eq!(plan.get("MEMFOLD_COLD"), Some(""));
        assert_eq!(plan.get("A"), Some("b=c"));
        assert_eq!(plan.get("MEMFOLD"), None);
    }

    #[test]
    fn there_is_room_for_so_much_and_no_more() {
        let mut plan = Plan::new();
        let long = std::string::String::from_utf8(std::vec![b'x'; MOST_CHOICES - 10]).unwrap();
        assert!(plan.choose("A", &long));
        assert!(!plan.choose("B", "1234567"));
        assert!(plan.choose("C", "12"));
        assert_eq!((plan.get("B"), plan.get("C")), (None, Some("12")));
        assert!(!Plan::new().choose("A", "x\0y"));
    }
}
