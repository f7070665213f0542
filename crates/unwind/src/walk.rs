//! From call to call, up the stack of the calling thread.

use crate::rules::{Rule, Rules};
use crate::stack::Stack;
use core::ops::Range;

/// The most calls that a walk finds, the innermost.
pub const MOST_CALLS: usize = 128;

/// Frames of more bytes than this are none that were made by a function.
const LONGEST_FRAME: usize = 8 << 20;

/// What is known of a call: where it is, its stack pointer and its frame pointer.
#[derive(Clone, Copy)]
struct Call {
    address: usize,
    stack_pointer: usize,
    frame_pointer: usize,
    /// What the link register holds, in the innermost.
    link: usize,
}

/// Finds the calls that the calling thread is in, the innermost first, without those at the beginning that lie in `left_out`. Returns how many.
///
/// What is found are return addresses: a call is the instruction before. Some 3 KiB of the stack are used.
#[inline(never)]
pub fn capture(rules: &Rules, left_out: &Range<usize>, calls: &mut [usize; MOST_CALLS]) -> usize {
    let mut stack = Stack::new();
    let mut call = here();
    let mut count = 0;
    while count < MOST_CALLS {
        let Some(caller) = caller_of(call, count == 0, rules, &mut stack) else { break };
        call = caller;
        if count > 0 || !left_out.contains(&call.address) {
            calls[count] = call.address;
            count += 1;
        }
    }
    count
}

/// The call in which this is, as part of the function that it becomes a part of.
#[inline(always)]
fn here() -> Call {
    let (address, stack_pointer, frame_pointer, link): (usize, usize, usize, usize);
    // SAFETY: reads registers.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        {
            core::arch::asm!(
                "lea {0}, [rip]",
                "mov {1}, rsp",
                "mov {2}, rbp",
                out(reg) address,
                out(reg) stack_pointer,
                out(reg) frame_pointer,
                options(nomem, nostack, preserves_flags),
            );
            link = 0;
        }
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!(
            "adr {0}, .",
            "mov {1}, sp",
            "mov {2}, x29",
            "mov {3}, x30",
            out(reg) address,
            out(reg) stack_pointer,
            out(reg) frame_pointer,
            out(reg) link,
            options(nomem, nostack, preserves_flags),
        );
    }
    Call { address, stack_pointer, frame_pointer, link }
}

/// Addresses of code without what ARM's pointer authentication puts in the high bits.
fn plain(address: usize) -> usize {
    address & ((1 << 48) - 1)
}

fn caller_of(call: Call, innermost: bool, rules: &Rules, stack: &mut Stack) -> Option<Call> {
    // A return address may be the first of the next function, where a function ends by a call that does not return.
    let looked_at = if innermost { call.address } else { call.address - 1 };
    let (cfa, frame_pointer, address) = match rules.at(looked_at) {
        Rule::End => return None,
        Rule::Frame { from_frame_pointer, cfa, frame_pointer, return_address } => {
            let base = if from_frame_pointer { call.frame_pointer } else { call.stack_pointer };
            let cfa = base.wrapping_add_signed(cfa as isize);
            let mut at = |offset: i32| stack.word(cfa.wrapping_add_signed(offset as isize));
            // From below, so that what is near is read once.
            let frame_pointer = match frame_pointer {
                Some(offset) => at(offset)?,
                None => call.frame_pointer,
            };
            let address = match return_address {
                Some(offset) => at(offset)?,
                None if innermost && call.link != 0 => call.link,
                None => return None,
            };
            (cfa, frame_pointer, address)
        }
        Rule::FramePointer => {
            let at = call.frame_pointer;
            (at.checked_add(16)?, stack.word(at)?, stack.word(at + 8)?)
        }
    };
    let address = plain(address);
    let grown = cfa.checked_sub(call.stack_pointer)?;
    if grown == 0 || grown > LONGEST_FRAME || address < memfold_sys::PAGE_SIZE {
        return None;
    }
    Some(Call { address, stack_pointer: cfa, frame_pointer, link: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules;
    use std::boxed::Box;
    use std::vec::Vec;

    fn rules() -> Box<Rules> {
        // SAFETY: all-zero bytes are an empty table.
        unsafe { Box::<Rules>::new_zeroed().assume_init() }
    }

    fn calls(rules: &Rules) -> Vec<usize> {
        let mut calls = [0; MOST_CALLS];
        let count = capture(rules, &(0..0), &mut calls);
        calls[..count].to_vec()
    }

    /// So deep a call, of a function with a frame of its own.
    #[inline(never)]
    fn deep(depth: usize, rules: &Rules) -> Vec<usize> {
        let room = std::hint::black_box([depth; 9]);
        let mut found = if depth == 0 { calls(rules) } else { deep(depth - 1, rules) };
        std::hint::black_box(&room);
        found.reserve(1);
        found
    }

    #[test]
    fn each_of_many_nested_calls_is_found_at_its_place() {
        let rules = rules();
        let (ten, thirty) = (deep(10, &rules), deep(30, &rules));
        assert_eq!(thirty.len(), ten.len() + 20, "{ten:x?} {thirty:x?}");
        // The calls of a function by itself are all at the same place.
        let within = ten[2];
        let count = |calls: &[usize]| calls.iter().filter(|at| **at == within).count();
        assert_eq!(count(&thirty), count(&ten) + 20);
        // The outermost call of a thread, in libc, has no caller.
        assert!(ten.len() > 15 && modules::find(ten[ten.len() - 1]).is_some());
    }

    #[test]
    fn a_walk_that_was_made_before_finds_the_same() {
        let rules = rules();
        let mut walks = Vec::new();
        for round in 0..4 {
            // The last one anew.
            if round == 3 {
                rules.forget();
            }
            walks.push(deep(5, &rules));
        }
        // The compiler may have made four calls of one.
        let within = |walk: &Vec<usize>| (walk.len(), walk[..7].to_vec());
        assert!(walks.iter().all(|walk| within(walk) == within(&walks[0])), "{walks:x?}");
    }

    #[test]
    fn what_is_to_be_left_out_is_left_out_at_the_beginning_alone() {
        let rules = rules();
        let all = calls(&rules);
        let own = crate::own_module();
        assert!(own.contains(&all[0]));
        let mut found = [0; MOST_CALLS];
        let count = capture(&rules, &own, &mut found);
        assert!(count < all.len() && !own.contains(&found[0]));
    }

    #[test]
    fn a_deep_recursion_ends_the_walk_and_a_wrong_frame_pointer_does_too() {
        let rules = rules();
        assert_eq!(deep(500, &rules).len(), MOST_CALLS);
        let mut stack = Stack::new();
        for frame_pointer in [0, 8, usize::MAX - 7, 0x1000] {
            let call = Call { address: 0x10_0000, stack_pointer: 0x1000, frame_pointer, link: 0 };
            assert!(caller_of(call, false, &rules, &mut stack).is_none());
        }
    }
}
