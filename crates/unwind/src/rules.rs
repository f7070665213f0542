//! How to get from a function's frame to its caller's, address by address.
//!
//! What it is: the part of DWARF's call frame information (DWARF 5, section 6.4) that functions of C, C++ and Rust need in the middle of a
//! call, in one word, and a table of the words found before. What it is not: complete. A frame whose place is an expression, or
//! depends on another register than the stack and the frame pointer, is left to the frame pointer.
//!
//! Invariants: the table takes no lock. A word says which address it is for, so one that another thread is just replacing is not believed.

use crate::modules;
use core::sync::atomic::{AtomicU64, Ordering::*};
use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianSlice, NativeEndian, Register, RegisterRule,
    UnwindContext, UnwindContextStorage, UnwindSection, UnwindTableRow,
};

/// How to find a caller's frame. Offsets are bytes, multiples of eight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    /// By the call frame information.
    Frame {
        /// Whether the frame's address (CFA) is counted from the frame pointer, and not from the stack pointer.
        from_frame_pointer: bool,
        /// The distance of the CFA from there.
        cfa: i32,
        /// Where the caller's frame pointer is saved, from the CFA on; `None` where it is what it was.
        frame_pointer: Option<i32>,
        /// Where the return address is, from the CFA on; `None` where it is in the link register still.
        return_address: Option<i32>,
    },
    /// By the frame pointer: there is nothing better.
    FramePointer,
    /// There is no caller.
    End,
}

/// Bits of a word: two say what it is, fourteen tell the address, the rest are the offsets.
const KIND_FRAME: u64 = 1;
const KIND_POINTER: u64 = 2;
const KIND_END: u64 = 3;
const SAVED_BITS: u32 = 13;
const CFA_BITS: u32 = 21;

fn packed(offset: i32, bits: u32) -> Option<u64> {
    let units = offset / 8;
    let limit = 1 << (bits - 1);
    // The lowest stands for none.
    (offset % 8 == 0 && (-limit + 1..limit).contains(&units)).then_some(units as u64 & ((1 << bits) - 1))
}

fn unpacked(word: u64, bits: u32) -> Option<i32> {
    let units = ((word << (64 - bits)) as i64 >> (64 - bits)) as i32;
    (units != -(1 << (bits - 1))).then_some(units * 8)
}

impl Rule {
    fn pack(self, tag: u64) -> u64 {
        let tag = (tag & 0x3FFF) << 2;
        let none = 1u64 << (SAVED_BITS - 1);
        match self {
            Rule::Frame { from_frame_pointer, cfa, frame_pointer, return_address } => {
                let saved = |offset: Option<i32>| offset.map_or(Some(none), |at| packed(at, SAVED_BITS));
                let words = (packed(cfa, CFA_BITS), saved(frame_pointer), saved(return_address));
                let (Some(cfa), Some(frame_pointer), Some(return_address)) = words else {
                    return KIND_POINTER | tag;
                };
                KIND_FRAME
                    | tag
                    | u64::from(from_frame_pointer) << 16
                    | cfa << 17
                    | frame_pointer << (17 + CFA_BITS)
                    | return_address << (17 + CFA_BITS + SAVED_BITS)
            }
            Rule::FramePointer => KIND_POINTER | tag,
            Rule::End => KIND_END | tag,
        }
    }

    fn unpack(word: u64, tag: u64) -> Option<Rule> {
        if word >> 2 & 0x3FFF != tag & 0x3FFF {
            return None;
        }
        match word & 3 {
            KIND_FRAME => Some(Rule::Frame {
                from_frame_pointer: word >> 16 & 1 != 0,
                cfa: unpacked(word >> 17, CFA_BITS)?,
                frame_pointer: unpacked(word >> (17 + CFA_BITS), SAVED_BITS),
                return_address: unpacked(word >> (17 + CFA_BITS + SAVED_BITS), SAVED_BITS),
            }),
            KIND_POINTER => Some(Rule::FramePointer),
            KIND_END => Some(Rule::End),
            _ => None,
        }
    }
}

/// Rules that are kept; a power of two.
const KEPT: usize = 4096;

/// What was found before. All-zero bytes are an empty table.
#[repr(C)]
pub struct Rules([[AtomicU64; 2]; KEPT]);

impl Rules {
    /// Forgets all: files may have been unmapped and others be where they were.
    pub fn forget(&self) {
        for [address, _] in &self.0 {
            address.store(0, Relaxed);
        }
    }

    /// The rule at an address of a function that is in the middle of a call.
    pub(crate) fn at(&self, address: usize) -> Rule {
        let hash = (address as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let tag = hash >> 20;
        let [whose, what] = &self.0[(hash >> 52) as usize & (KEPT - 1)];
        // Relaxed: a pair of two threads' making is told by the tag, and a wrong rule yields no more than a wrong caller.
        if whose.load(Relaxed) == address as u64 {
            if let Some(rule) = Rule::unpack(what.load(Relaxed), tag) {
                return rule;
            }
        }
        // Packed and back, so that it is the same the first time.
        let word = find(address).pack(tag);
        what.store(word, Relaxed);
        whose.store(address as u64, Relaxed);
        Rule::unpack(word, tag).unwrap_or(Rule::FramePointer)
    }
}

/// Rows and rules of [`gimli`] on the stack: few, as no function of C has more registers to save.
struct Few;

impl UnwindContextStorage<usize> for Few {
    type Rules = [(Register, RegisterRule<usize>); 24];
    type Stack = [UnwindTableRow<usize, Few>; 2];
}

#[cfg(target_arch = "x86_64")]
mod registers {
    use gimli::{Register, X86_64};
    pub const FRAME_POINTER: Register = X86_64::RBP;
    pub const STACK_POINTER: Register = X86_64::RSP;
    pub const RETURN_ADDRESS: Register = X86_64::RA;
}

#[cfg(target_arch = "aarch64")]
mod registers {
    use gimli::{AArch64, Register};
    pub const FRAME_POINTER: Register = AArch64::X29;
    pub const STACK_POINTER: Register = AArch64::SP;
    pub const RETURN_ADDRESS: Register = AArch64::X30;
}

#[inline(never)]
fn find(address: usize) -> Rule {
    look_up(address).unwrap_or(Rule::FramePointer)
}

fn look_up(address: usize) -> Option<Rule> {
    let table = modules::find(address)?.frames?;
    let bytes = |start: usize| {
        // SAFETY: a part of a loaded segment, which is read-only data of a file that stays mapped while a function of it has not returned.
        let bytes = unsafe { core::slice::from_raw_parts(start as *const u8, table.end - start) };
        EndianSlice::new(bytes, NativeEndian)
    };
    let header = EhFrameHdr::from(bytes(table.start));
    let bases = BaseAddresses::default().set_eh_frame_hdr(table.start as u64);
    let parsed = header.parse(&bases, 8).ok()?;
    let gimli::Pointer::Direct(start) = parsed.eh_frame_ptr() else { return None };
    let start = usize::try_from(start)
        .ok()
        .filter(|start| *start < table.end && *start + table.len() * 64 > table.start)?;
    // In the same segment as its table, as linkers have it, or it is not read.
    let frames = EhFrame::from(bytes(start));
    let bases = bases.set_eh_frame(start as u64);
    let mut context = UnwindContext::<usize, Few>::new_in();
    let row = parsed
        .table()?
        .unwind_info_for_address(&frames, &bases, &mut context, address as u64, EhFrame::cie_from_offset)
        .ok()?;
    let &CfaRule::RegisterAndOffset { register, offset } = row.cfa() else { return None };
    let from_frame_pointer = match register {
        registers::FRAME_POINTER => true,
        registers::STACK_POINTER => false,
        _ => return None,
    };
    let saved = |register| match row.register(register) {
        RegisterRule::Offset(offset) => Some(i32::try_from(offset).ok()),
        // What nobody speaks of is as it was.
        RegisterRule::Undefined | RegisterRule::SameValue => Some(None),
        _ => None,
    };
    if cfg!(target_arch = "x86_64")
        && matches!(row.register(registers::RETURN_ADDRESS), RegisterRule::Undefined)
    {
        // Said of the first function of a thread alone, as a call leaves its return address on the stack.
        return Some(Rule::End);
    }
    Some(Rule::Frame {
        from_frame_pointer,
        cfa: i32::try_from(offset).ok()?,
        // A frame pointer that cannot be told is needed by few of the callers; what is in the register is as good a guess as any.
        frame_pointer: saved(registers::FRAME_POINTER).unwrap_or(None),
        return_address: saved(registers::RETURN_ADDRESS)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_in_a_word_reads_back_as_it_was_and_for_no_other_address() {
        let frame = |cfa, frame_pointer, return_address| Rule::Frame {
            from_frame_pointer: cfa % 16 == 0,
            cfa,
            frame_pointer,
            return_address,
        };
        let rules = [
            frame(8, None, Some(-8)),
            frame(8 * ((1 << 20) - 1), Some(-16), None),
            frame(16, Some(-8 * 4095), Some(8 * 4095)),
            Rule::FramePointer,
            Rule::End,
        ];
        for rule in rules {
            let word = rule.pack(0x1234);
            assert_eq!(Rule::unpack(word, 0x1234), Some(rule));
            assert_eq!(Rule::unpack(word, 0x1235), None);
        }
    }

    #[test]
    fn an_offset_that_does_not_fit_is_left_to_the_frame_pointer() {
        for (cfa, saved) in [(8 << 20, -8), (12, -8), (16, -8 * 4096), (16, 8 * 4096)] {
            let rule = Rule::Frame {
                from_frame_pointer: false,
                cfa,
                frame_pointer: Some(saved),
                return_address: Some(-8),
            };
            assert_eq!(Rule::unpack(rule.pack(1), 1), Some(Rule::FramePointer), "{cfa} {saved}");
        }
    }
}
