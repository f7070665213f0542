//! Putting the agent into a process that runs, and taking it out again, by ptrace(2).
//!
//! One thread of the process is stopped for as long as a few system calls take, which it is made to make ([`stopped`]); it goes on as if nothing had been.
//! Everything else the agent does itself, on a thread of its own.
//!
//! What it is not: the agent (`crates/agent`), or a judge of whether folding is worth it.
//!
//! Invariants: no memory of the process is ever writable and executable; a process to which [`attach`] returned an error has nothing of the agent's in it, if it
//! could be had out; whatever happens, a thread that was stopped goes on with the registers, the signal mask and the signals that it had.

mod alone;
mod error;
mod helping;
mod image;
mod memory;
mod region;
mod rights;
mod stopped;
pub mod target;
mod threads;

use alone::Alone;
pub use error::Error;
pub use image::Image;
pub use target::Target;

use memfold_pager::plan::{Plan, Status, Task};
use region::Region;
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
    target.check()?;
    let _alone = Alone::with(target.pid())?;
    // Somebody may have been before.
    if is_attached(target) {
        return Err(Error::Folded(target.pid()));
    }
    memfold_pager::sabotage::choose(None);
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
    let (region, stopped) = Stopped::during(target, |thread| Region::map(thread, image))?;
    let mut stop = Stop(stopped);
    // While the process runs: it takes longer than all else.
    let filled = region.fill(target, image, &mut plan);
    let begun = Stopped::during(target, |thread| {
        let done =
            filled.and_then(|()| region.protect(thread, image)).and_then(|()| region.start(thread, &plan));
        done.inspect_err(|_| region.unmap(thread))
    })?;
    stop.0 += begun.1;
    let helped = if plan.helped == 0 { Ok(()) } else { helping::help(target, &region) };
    let done = region.wait(target, START)?;
    if done == Status::Running {
        return Ok(stop);
    }
    // The process may have written anything there.
    let why = region.plan(target)?.text.read(&mut [0; 256]).replace(char::is_control, " ");
    let _ = take_out(target, &region, &mut stop);
    helped.and(Err(Error::AgentFailed(why)))
}

/// Brings everything back, and takes the agent out of the process.
///
/// # Errors
/// There is none in it, or not one of this version; the process refuses.
pub fn detach(target: &Target, image: &Image) -> Result<Stop, Error> {
    let _alone = Alone::with(target.pid())?;
    let region = Region::find(target)?.ok_or(Error::NotAttached(target.pid()))?;
    if region.plan(target)?.build != image.build() {
        return Err(Error::OtherVersion(target.pid()));
    }
    let mut stop = Stop::default();
    take_out(target, &region, &mut stop)?;
    Ok(stop)
}

/// Whether the agent is in the process.
pub fn is_attached(target: &Target) -> bool {
    Region::find(target).is_ok_and(|region| region.is_some())
}

fn take_out(target: &Target, region: &Region, stop: &mut Stop) -> Result<(), Error> {
    let mut plan = region.plan(target)?;
    (plan.task, plan.status, plan.alive) = (Task::End as u32, 0.into(), 1.into());
    region.write_plan(target, &plan)?;
    stop.0 += Stopped::during(target, |thread| region.start(thread, &plan))?.1;
    match region.wait(target, END)? {
        Status::Ended => {}
        _ => return Err(Error::AgentLost(target.pid())),
    }
    stop.0 += Stopped::during(target, |thread| {
        region.unmap(thread);
        Ok(())
    })?
    .1;
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
