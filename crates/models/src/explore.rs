//! Running scenarios: all of a program's, or the ones it is asked for.

use crate::{futex, sync, thread, weaken};
use std::any::Any;
use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A scenario: what the threads do is `body`, run once for each execution.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// By which it is asked for.
    pub name: &'static str,
    /// Preemptions tried, besides the switches where a thread waits. `MEMFOLD_PREEMPTIONS` says otherwise.
    pub preemptions: usize,
    /// Spare words and cells: how many different atomics and cells it touches, at most.
    pub spares: (usize, usize),
    /// What its first thread does; it starts the others.
    pub body: fn(),
}

/// Runs the scenarios named on the command line, or all, and prints what was explored. Ends the process with code 101 or
/// a signal where one fails, and with 2 for a name that none has.
pub fn main(scenarios: &[Scenario]) {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if wanted.iter().any(|arg| arg == "--help" || arg == "-h") {
        help(scenarios);
        return;
    }
    if let Some(name) = wanted.iter().find(|name| scenarios.iter().all(|s| s.name != **name)) {
        let names: Vec<&str> = scenarios.iter().map(|scenario| scenario.name).collect();
        eprintln!("{name:?} is no scenario; there are {}", names.join(", "));
        std::process::exit(2);
    }
    for scenario in scenarios.iter().filter(|s| wanted.is_empty() || wanted.iter().any(|name| s.name == name)) {
        run(*scenario);
    }
    weaken::all_reached();
}

fn help(scenarios: &[Scenario]) {
    println!("Tries every order in which the threads of small scenarios can meet.\n");
    println!("Usage: [MEMFOLD_PREEMPTIONS=N] [MEMFOLD_WEAKEN=FILE:OPERATION:HOW] PROGRAM [SCENARIO]...\n\nScenarios:");
    for scenario in scenarios {
        println!("  {} (up to {} preemptions)", scenario.name, scenario.preemptions);
    }
    println!("\nExamples:\n  {0}=3 PROGRAM {1}", "MEMFOLD_PREEMPTIONS", scenarios[0].name);
}

fn run(scenario: Scenario) {
    static EXECUTIONS: AtomicUsize = AtomicUsize::new(0);
    EXECUTIONS.store(0, Relaxed);
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 20_000;
    builder.preemption_bound = Some(number("MEMFOLD_PREEMPTIONS").unwrap_or(scenario.preemptions));
    builder.max_duration = number("MEMFOLD_SECONDS").map(|seconds| Duration::from_secs(seconds as u64));
    builder.checkpoint_interval = 1_000;
    let began = Instant::now();
    eprintln!("{}: begins", scenario.name);
    builder.check(move || {
        EXECUTIONS.fetch_add(1, Relaxed);
        sync::reset(scenario.spares.0, scenario.spares.1);
        futex::reset();
        KEPT.take().into_iter().for_each(drop);
        (scenario.body)();
    });
    println!(
        "{}: {} executions, {:.1} s",
        scenario.name,
        EXECUTIONS.load(Relaxed),
        began.elapsed().as_secs_f64()
    );
}

thread_local! {
    /// What the execution at hand uses for as long as it runs.
    static KEPT: RefCell<Vec<Box<dyn Any>>> = RefCell::default();
}

/// Keeps a value until the execution is over, at a place that does not change.
pub fn keep<T: 'static>(value: T) -> &'static T {
    keep_box(Box::new(value))
}

/// Keeps zeros, of the size and alignment of a `T`, until the execution is over.
///
/// # Safety
/// All-zero bytes are a valid `T`, and it needs no drop.
pub unsafe fn keep_zeroed<T: 'static>() -> &'static T {
    // SAFETY: the caller's contract.
    keep_box(unsafe { Box::<T>::new_zeroed().assume_init() })
}

fn keep_box<T: 'static>(value: Box<T>) -> &'static T {
    let place: *const T = &*value;
    KEPT.with_borrow_mut(|kept| kept.push(value));
    // SAFETY: the box is not touched before the next execution begins, and all threads have ended by then.
    unsafe { &*place }
}

fn number(variable: &str) -> Option<usize> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| {
        eprintln!("{variable}: {value:?} is not a number");
        std::process::exit(2);
    }))
}

/// Starts a thread of the scenario, with a number of its own: 2, 3 or 4.
pub fn spawn<R: Send + 'static>(number: u32, body: impl FnOnce() -> R + Send + 'static) -> loom::thread::JoinHandle<R> {
    let started = loom::thread::Builder::new().stack_size(1 << 13).spawn(move || {
        thread::set_number(number);
        body()
    });
    started.unwrap_or_else(|error| panic!("a thread of the model: {error}"))
}
