//! Where the agent begins.
//!
//! A thread of the process is made to run the first instruction here, which is `clone(2)`, with its arguments in the registers. It is stopped again right behind
//! that one instruction, and never comes any further. The thread that was made goes on, with all signals blocked, on a stack in the agent's
//! own memory, the address of the plan in `r12`.
//!
//! What it is not: told anything by the stack, where nothing is.

use crate::life;
use memfold_pager::plan::{Plan, Task};

core::arch::global_asm!(
    ".globl _start",
    "_start:",
    "syscall",
    "test rax, rax",
    "jnz 2f",
    // What is compiled believes that moves go upwards.
    "cld",
    "xor ebp, ebp",
    "mov rdi, r12",
    "call {main}",
    // `exit(2)` of this thread alone. Its stack may be taken away from here on.
    "mov eax, {exit}",
    "xor edi, edi",
    "syscall",
    "2:",
    "ud2",
    main = sym main,
    exit = const libc::SYS_exit,
);

extern "C" fn main(plan: usize) {
    // SAFETY: the plan lies in memory that was mapped for the agent, and stays until the agent is taken out, long after this thread has ended.
    let plan: &'static Plan = unsafe { &*(plan as *const Plan) };
    match plan.task() {
        Task::Start => life::start(plan),
        Task::End => life::end(plan),
    }
}
