//! Every scenario passes, and every planted bug is caught by the scenario that is there for it.
//!
//! What it is: a test without the standard harness, because loom's executions each need the process's environment as the
//! planted bug wants it. It runs itself once for each bug. `cargo test -p memfold-models -- mutex` runs the scenarios whose
//! name contains the word, and no planted bugs.

use std::process::{Command, ExitCode, Stdio};

/// A bug, and who must catch it.
struct Planted {
    variable: &'static str,
    value: &'static str,
    scenario: &'static str,
}

/// A bug in the code, by its name in the pager's src/sabotage.rs.
const fn bug(value: &'static str, scenario: &'static str) -> Planted {
    Planted { variable: "PLANTED_BUG", value, scenario }
}

/// An access that is weaker than it should be, in the words of src/weaken.rs.
const fn weak(value: &'static str, scenario: &'static str) -> Planted {
    Planted { variable: "MEMFOLD_WEAKEN", value, scenario }
}

const PLANTED: &[Planted] = &[
    weak("lock.rs:compare_exchange:relaxed", "pager-mutex"),
    weak("lock.rs:compare_exchange:split", "pager-mutex"),
    weak("lock.rs:swap@FREE:relaxed", "pager-mutex"),
    weak("lock.rs:swap@HELD_AND_WANTED:relaxed", "pager-mutex"),
    weak("lock.rs:compare_exchange:relaxed", "arena-mutex"),
    weak("lock.rs:swap@FREE:relaxed", "arena-mutex"),
    weak("gate.rs:load:acqrel", "gate"),
    weak("gate.rs:fetch_sub:split", "gate"),
    bug("closer-left-asleep", "gate-closed-by-two"),
    weak("gate.rs:load:acqrel", "brake"),
    weak("gate.rs:store:relaxed", "brake"),
    weak("turns.rs:load:acqrel", "turns"),
    weak("turns.rs:fetch_sub:relaxed", "turns"),
    bug("turn-not-taken", "turns"),
    bug("service-not-left", "turns-in-touch"),
    bug("report-behind-touch", "turns-behind-touch"),
    bug("helper-not-awaited", "helpers"),
    weak("helpers.rs:load:acqrel", "helpers"),
    weak("helpers.rs:fetch_sub:relaxed", "helpers"),
    weak("prefetch.rs:compare_exchange:split", "prefetch-by-two"),
    weak("prefetch.rs:load@self.taken.load(Acquire):relaxed", "prefetch-by-two"),
    weak("free_queue.rs:compare_exchange:relaxed", "free-queue"),
    weak("free_queue.rs:compare_exchange:split", "free-queue"),
    weak("free_queue.rs:swap:relaxed", "free-queue"),
    weak("prefetch.rs:store@self.put:relaxed", "prefetch-queue"),
    weak("prefetch.rs:load@self.put.load(Acquire):relaxed", "prefetch-queue"),
    bug("leaving-wake-lost", "page-leaves-and-is-touched"),
    bug("armed-too-late", "page-leaves-and-is-touched"),
    weak("entry.rs:compare_exchange:split", "page-touched-by-two"),
    bug("ahead-wake-lost", "page-touched-while-brought-ahead"),
    bug("ahead-unsaid", "page-dropped-while-brought-ahead"),
    bug("ahead-over-unwoken", "page-dropped-while-brought-ahead"),
    bug("announcement-ignored", "page-dropped-while-brought-ahead"),
    bug("busy-not-awaited", "page-dropped-while-brought-ahead"),
    bug("incompressible-dropped", "page-that-does-not-shrink"),
    bug("drop-not-seen", "page-dropped-while-it-leaves"),
    bug("change-wake-lost", "page-dropped-while-touched"),
    bug("announcement-ignored", "page-dropped-while-touched"),
    bug("busy-not-awaited", "page-dropped-while-touched"),
    weak("entry.rs:load:acqrel", "page-dropped-while-touched"),
    weak("extent.rs:load@changing.load(SeqCst):acqrel", "page-dropped-while-touched"),
    bug("unmap-not-seen", "page-mapped-over-while-foreseen"),
    bug("unmap-not-seen", "page-unmapped-while-touched"),
    bug("wrong-slot-freed", "slot-read-while-recompressed"),
    bug("slot-freed-twice", "slot-read-while-recompressed"),
    bug("relocation-untold", "slot-read-while-compacted"),
    weak("entry.rs:compare_exchange:split", "slot-read-while-compacted"),
    bug("tier-wake-lost", "pending-page-is-touched"),
    bug("wanted-forgotten", "pending-page-is-touched"),
    bug("moved-taken-for-lost", "pending-page-moves-and-is-touched"),
    bug("move-untold", "pending-page-moves-and-is-touched"),
    bug("announcement-ignored", "pending-page-is-dropped"),
    bug("busy-not-awaited", "pending-page-is-dropped"),
    weak("parcel.rs:compare_exchange:relaxed", "block-freed-by-another"),
    weak("parcel.rs:swap:relaxed", "block-freed-by-another"),
    weak("parcel.rs:swap:split", "block-freed-by-another"),
    weak("parcel.rs:compare_exchange:split", "blocks-freed-by-two-others"),
    weak("lock.rs:swap@FREE:relaxed", "heap-handed-over"),
    weak("away.rs:compare_exchange:split", "pages-go-away-from-a-span-that-changes-hands"),
];

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    memfold_models::explore::run(&memfold_models::scenarios(), &wanted);
    if !wanted.is_empty() {
        return ExitCode::SUCCESS;
    }
    let missed = PLANTED.iter().filter(|planted| !is_caught(planted)).count();
    println!("{} planted bugs, {missed} not caught", PLANTED.len());
    if missed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs the bug's scenario in a process of its own, which must fail; not by 2, which says that the bug was never reached.
fn is_caught(planted: &Planted) -> bool {
    let Planted { variable, value, scenario } = planted;
    let program = std::env::current_exe().expect("a running program has a path");
    let output = Command::new(program)
        .arg(scenario)
        .env(variable, value)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .output()
        .expect("the test can run itself");
    let text = String::from_utf8_lossy(&output.stderr);
    let caught = !output.status.success() && output.status.code() != Some(2);
    let how = if caught { how_it_ended(&text) } else { "NOT CAUGHT" };
    println!("{scenario}: {value}: {how}");
    caught
}

/// The line of a panic message that tells most.
fn how_it_ended(text: &str) -> &str {
    let lines = || text.lines().map(str::trim);
    let known = ["deadlock", "Causality violation", "assertion", "slot freed twice", "overflow"];
    lines()
        .find(|line| known.iter().any(|word| line.contains(word)))
        .or(lines().next_back())
        .unwrap_or_default()
}
