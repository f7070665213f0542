//! Putting the agent into a process that runs, and taking it out again, by ptrace(2).
//!
//! One thread of the process is stopped for as long as a few system calls take, which it is made to make ([`stopped`]); it goes on as if nothing had been.
//! Everything else the agent does itself, on a thread of its own.
//!
//! Whoever attaches can be killed at any moment: what it leaves in a process then is nothing, or memory that does nothing, or an agent that folds; the next
//! one to attach or to detach takes it from there ([`region::State`]).
//!
//! What it is not: the agent (`crates/agent`), or a judge of whether folding is worth it.
//!
//! Invariants: no memory of the process is ever writable and executable; a process to which [`attach`] returned an error has nothing of the agent's in it, if it
//! could be had out; whatever happens, a thread that was stopped goes on with the registers, the signal mask and the signals that it had.

mod alone;
mod error;
pub mod hand;
mod helping;
mod image;
mod memory;
mod proc;
mod region;
pub mod rights;
mod rseq;
mod stopped;
pub mod target;
mod threads;

pub use error::Error;
pub use image::Image;
pub use target::Target;

use memfold_pager::plan::{Plan, Task};
use memfold_pager::sabotage::{planted, Bug};
use memory::Memory;
use region::{Region, State};
use std::time::{Duration, Instant};
use stopped::Stopped;

/// How long the agent may take to start, and to bring everything back.
const START: Duration = Duration::from_secs(60);
const END: Duration = Duration::from_secs(600);

/// For how long a thread of the process was stopped, all in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stop(pub Duration);

/// Folds the process from now on. `choices` are names and texts as `memfold run` has them in the environment.
///
/// # Errors
/// The process refuses, or the agent does; there is nothing of it left in the process then.
pub fn attach(target: &Target, image: &Image, choices: &[(String, String)]) -> Result<Stop, Error> {
    memfold_pager::sabotage::choose(None);
    target.check()?;
    let memory = memory_of(target)?;
    alone::take(&memory)?;
    let mut stop = Stop::default();
    // Somebody may have been before.
    if let Some(region) = Region::find(&memory)? {
        match region.settle(&memory, START)? {
            State::Folding => return Err(Error::Folded(target.pid())),
            State::Remains => unmap(&memory, &region, &mut stop)?,
            State::Failed => take_out(&memory, &region, &mut stop, START)?,
        }
    }
    let mut plan = Plan::new();
    plan.build = image.build();
    plan.helped = u32::from(!rights::may_ask_for_forks(target.pid()));
    if cfg!(feature = "sabotage") {
        if let Ok(bug) = std::env::var("PLANTED_BUG") {
            plan.choose("PLANTED_BUG", &bug);
        }
    }
    for (name, text) in choices {
        if !plan.choose(name, text) {
            return Err(Error::TooMuchChosen);
        }
    }
    let (region, stopped) = Stopped::during(&memory, |thread| Region::map(&memory, thread, image))?;
    stop.0 += stopped;
    // While the process runs: it takes longer than all else.
    let filled = region.fill(&memory, image, &mut plan);
    let begun = filled.and_then(|()| {
        Stopped::during(&memory, |thread| {
            region.protect(thread, image)?;
            region.start(&memory, thread, Task::Start)
        })
    });
    match begun {
        Ok(((), stopped)) => stop.0 += stopped,
        // The agent may run there by now, or still be made to.
        Err(error @ Error::Unfinished(_)) => return Err(error),
        Err(error) => {
            let _ = unmap(&memory, &region, &mut stop);
            return Err(error);
        }
    }
    let helped = if plan.helped == 0 { Ok(()) } else { helping::help(target, &memory, &region) };
    if region.settle(&memory, START)? == State::Folding {
        return Ok(stop);
    }
    // The process may have written anything there.
    let why = region.plan(&memory)?.text.read(&mut [0; 256]).replace(char::is_control, " ");
    let _ = take_out(&memory, &region, &mut stop, START);
    helped.and(Err(Error::AgentFailed(why)))
}

/// Brings everything back, and takes the agent out of the process.
///
/// # Errors
/// There is none in it, or not one of this version; the process refuses.
pub fn detach(target: &Target, image: &Image) -> Result<Stop, Error> {
    memfold_pager::sabotage::choose(None);
    match target.check_runs() {
        // Its other threads can still be borrowed.
        Ok(()) | Err(Error::Headless(_)) => {}
        Err(error) => return Err(error),
    }
    let memory = memory_of(target)?;
    alone::take(&memory)?;
    let region = Region::find(&memory)?.ok_or(Error::NotAttached(target.pid()))?;
    if region.plan(&memory)?.build != image.build() {
        return Err(Error::OtherVersion(target.pid()));
    }
    let mut stop = Stop::default();
    match region.settle(&memory, START)? {
        State::Folding | State::Failed => take_out(&memory, &region, &mut stop, END)?,
        State::Remains => unmap(&memory, &region, &mut stop)?,
    }
    Ok(stop)
}

/// The memory of the process that is meant, and of no later one with its number.
fn memory_of(target: &Target) -> Result<Memory, Error> {
    let memory = Memory::open(target.pid())?;
    target.check_same()?;
    Ok(memory)
}

/// Whether the agent is in the process, or is just being put there.
pub fn is_attached(target: &Target) -> bool {
    let state = || {
        let memory = Memory::open(target.pid())?;
        let region = Region::find(&memory)?;
        region.map(|region| region.plan(&memory)).transpose()
    };
    state().is_ok_and(|plan| plan.is_some_and(|plan| State::of(&plan) != Some(State::Remains)))
}

fn take_out(memory: &Memory, region: &Region, stop: &mut Stop, patience: Duration) -> Result<(), Error> {
    stop.0 += Stopped::during(memory, |thread| region.start(memory, thread, Task::End))?.1;
    if region.settle(memory, patience)? != State::Remains {
        return Err(Error::AgentLost(memory.pid()));
    }
    unmap(memory, region, stop)
}

fn unmap(memory: &Memory, region: &Region, stop: &mut Stop) -> Result<(), Error> {
    if planted(Bug::MappingLeaked) {
        return Ok(());
    }
    let unmapped = Stopped::during(memory, |thread| {
        region.unmap(thread);
        Ok(())
    })?;
    stop.0 += unmapped.1;
    Ok(())
}

/// Waits until something is so, or for too long. Whether it was so.
fn wait_until(patience: Duration, mut is_so: impl FnMut() -> Result<bool, Error>) -> Result<bool, Error> {
    let began = Instant::now();
    let mut pause = Duration::from_micros(100);
    while !is_so()? {
        if began.elapsed() > patience {
            return Ok(false);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
    Ok(true)
}
