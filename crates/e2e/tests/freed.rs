//! Blocks that a program frees while they are folded: it does not wait for them, they serve again, and those beside them keep every byte.
//!
//! The program is `c/freed.c`.

use memfold_e2e::holder::Holder;
use memfold_e2e::{scratch, wait_until, LIMIT};
use serde_json::Value;

/// The program, which folds when it is told to.
struct Freer(Holder);

impl Freer {
    fn start(options: &[&str]) -> Freer {
        Freer(Holder::start("freed.c", &["-O1"], &[&["--cold-age", "1h"], options].concat()))
    }

    fn tell(&mut self, line: &str) {
        self.0.program.tell(line);
    }

    fn count(&self, key: &str) -> u64 {
        let stat = self.0.stat();
        stat.pointer(key).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {key} in {stat:#}"))
    }

    /// Has everything folded, and returns how many pages are.
    fn fold(&self) -> u64 {
        // When it answers for the second time, the background thread has counted what came back before the first.
        (0..2).for_each(|_| drop(self.0.done("ctl", &["evict"])));
        self.count("/evicted_bytes") / 4096
    }
}

#[test]
fn who_frees_what_is_folded_does_not_wait_for_it_and_it_serves_again() {
    let mut freer = Freer::start(&[]);
    // Where it is freed for the first time, where blocks of earlier rounds lie dormant, and where others were put in their places.
    for round in 0..3 {
        let folded = freer.fold();
        assert!(folded > 10_000, "round {round}: {folded} pages");
        let before = freer.count("/fault_ns/count");
        freer.tell("free");
        freer.fold();
        let waits = freer.count("/fault_ns/count") - before;
        // Its stack, the C library's data, and the allocator's bins are folded, too.
        assert!(waits < 100, "round {round}: it waited {waits} times while it freed what was folded");
        freer.tell("check");
        if round == 1 {
            freer.fold();
            freer.tell("child");
        }
        freer.tell("again");
        freer.tell("check");
    }
    freer.fold();
    freer.tell("all");
    // Nothing of it is kept in the store, but for what the allocator keeps for the next call.
    wait_until(LIMIT, "what was freed to be dropped", || freer.count("/evicted_bytes") < 8 << 20);
    freer.tell("again");
    freer.tell("check");
    freer.0.end();
}

#[test]
fn what_is_freed_while_it_is_below_memory_is_not_read() {
    let tier = scratch();
    let option = format!("disk={},after=1s", tier.path().display());
    let mut freer = Freer::start(&["--tier", &option]);
    let folded = freer.fold();
    wait_until(LIMIT, "what is folded to go below memory", || {
        freer.fold();
        freer.count("/tier_bytes") > folded * 4096 / 10
    });
    let (before, below) = (freer.count("/tier_read_bytes"), freer.count("/tier_bytes"));
    freer.tell("all");
    let read = freer.count("/tier_read_bytes") - before;
    // The program's own data, and what the allocator has at hand, lie there, too.
    assert!(read < below / 20, "{read} of {below} bytes were read for what was freed");
    freer.tell("again");
    freer.tell("check");
    freer.0.end();
}
