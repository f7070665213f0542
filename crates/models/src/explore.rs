//! Running scenarios: each execution anew, from the start.

use crate::{futex, sync, thread, weaken};
use std::any::Any;
use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// A scenario: what the threads do is `body`, run once for each execution.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// By which it is asked for.
    pub name: &'static str,
    /// Preemptions tried, besides the switches where a thread waits. `MEMFOLD_PREEMPTIONS` in the environment adds to it.
    pub preemptions: usize,
    /// Spare words and cells: how many different atomics and cells it touches, at most.
    pub spares: (usize, usize),
    /// What its first thread does; it starts the others.
    pub body: fn(),
}

/// Runs the scenarios whose name contains one of the words, or all without words, and prints what was explored. A scenario
/// that fails ends the process with code 101 or a signal; a planted bug that none of them reaches, with 2.
pub fn run(scenarios: &[Scenario], words: &[String]) {
    let is_wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    let began = Instant::now();
    let wanted: Vec<&Scenario> = scenarios.iter().filter(|scenario| is_wanted(scenario.name)).collect();
    for scenario in &wanted {
        explore(**scenario);
    }
    weaken::all_reached();
    println!("{} scenarios passed, {:.1} s", wanted.len(), began.elapsed().as_secs_f64());
}

fn explore(scenario: Scenario) {
    static EXECUTIONS: AtomicUsize = AtomicUsize::new(0);
    EXECUTIONS.store(0, Relaxed);
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 20_000;
    builder.preemption_bound = Some(scenario.preemptions + number("MEMFOLD_PREEMPTIONS").unwrap_or(0));
    let began = Instant::now();
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
    let layout = std::alloc::Layout::new::<T>();
    assert!(layout.size() > 0);
    // SAFETY: the size is not 0; the caller says that zeros are a valid `T`, and the box frees by the same layout.
    keep_box(unsafe {
        let zeros = std::alloc::alloc_zeroed(layout);
        assert!(!zeros.is_null(), "no memory for the model");
        Box::from_raw(zeros.cast::<T>())
    })
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
pub fn spawn<R: Send + 'static>(
    number: u32,
    body: impl FnOnce() -> R + Send + 'static,
) -> loom::thread::JoinHandle<R> {
    let started = loom::thread::Builder::new().stack_size(1 << 13).spawn(move || {
        thread::set_number(number);
        body()
    });
    started.unwrap_or_else(|error| panic!("a thread of the model: {error}"))
}
