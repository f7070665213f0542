//! What a program says of a range decides, long before the range is cold: here nothing ever grows cold by itself.

mod common;

use common::*;
use memfold_client::{hint, register, Hint};
use std::time::Duration;

const NEVER: Duration = Duration::from_secs(86_400);

fn registered(seed: u64) -> Memory {
    started(NEVER);
    let memory = Memory::new(4 * MIB, seed);
    register(memory.pointer(), memory.len).unwrap();
    memory
}

fn say(memory: &Memory, what: Hint) {
    hint(memory.pointer(), memory.len, what).unwrap();
}

#[test]
fn what_is_not_needed_soon_leaves_at_once_and_what_will_be_needed_is_back_when_the_call_returns() {
    let memory = registered(1);
    assert_eq!(memory.present(), memory.pages());
    say(&memory, Hint::DontNeedSoon);
    wait_until("it is set aside", || memory.present() == 0);
    say(&memory, Hint::WillNeed);
    assert_eq!(memory.present(), memory.pages());
    assert!(memory.is_right());
}

/// While a mapping is changed past memfold nothing can leave; what was said holds still when that is over.
#[test]
fn what_is_said_while_other_memory_goes_is_done_when_it_has_gone() {
    let memory = registered(5);
    std::thread::scope(|scope| {
        let rounds = scope.spawn(|| {
            for _ in 0..30 {
                say(&memory, Hint::DontNeedSoon);
                wait_until("it is set aside", || memory.present() == 0);
                say(&memory, Hint::WillNeed);
                assert_eq!(memory.present(), memory.pages());
            }
        });
        while !rounds.is_finished() {
            let other = registered(6);
            say(&other, Hint::DontNeedSoon);
            wait_until("something of the other is set aside", || other.present() < other.pages());
        }
    });
    assert!(memory.is_right());
}

#[test]
fn what_is_to_be_kept_stays_until_that_is_taken_back() {
    let (kept, other) = (registered(2), registered(3));
    say(&kept, Hint::DontNeedSoon);
    wait_until("it is set aside", || kept.present() == 0);
    say(&kept, Hint::Keep);
    assert_eq!(kept.present(), kept.pages());
    say(&kept, Hint::DontNeedSoon);
    say(&other, Hint::DontNeedSoon);
    wait_until("another one is set aside", || other.present() == 0);
    assert_eq!(kept.present(), kept.pages());
    say(&kept, Hint::Normal);
    say(&kept, Hint::DontNeedSoon);
    wait_until("it is set aside again", || kept.present() == 0);
    assert!(kept.is_right() && other.is_right());
}

#[test]
fn a_hint_for_a_part_of_a_range_moves_that_part_only() {
    let memory = registered(4);
    hint(memory.pointer(), memory.len / 4, Hint::DontNeedSoon).unwrap();
    wait_until("it is set aside", || memory.present() == memory.pages() / 4 * 3);
    assert!(memory.is_right());
}

#[test]
fn a_hint_for_memory_that_is_not_registered_is_refused() {
    started(NEVER);
    let far = (1usize << 46) as *const u8;
    assert!(matches!(
        hint(far, MIB, Hint::DontNeedSoon),
        Err(memfold_client::Error::NotRegistered { len: MIB, .. })
    ));
}
