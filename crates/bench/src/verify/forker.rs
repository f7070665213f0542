//! The forker: now and then it stops all threads between two operations and forks, so that the child can know everything.

use super::children::{make, Child, Kind};
use super::findings::lock;
use super::shared::Shared;
use anyhow::Result;
use memfold_stats::Rng;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::Duration;

/// The forker's body.
pub(super) fn run(shared: &Shared) {
    let beat = shared.forker();
    let mut rng = Rng::new(shared.options.seed).fork(u64::MAX);
    while !shared.over() && shared.beats[..shared.options.threads].iter().any(|beat| !beat.done.load(Relaxed))
    {
        beat.begin("pause");
        sleep(Duration::from_millis(20 + rng.below(300)));
        beat.begin("fork");
        let linger = Duration::from_millis(rng.below(3) * 20);
        match fork_everything(shared, Kind::any(&mut rng), linger) {
            Ok(child) => child.wait(&shared.findings),
            Err(error) => shared.findings.fail(format!("forker: {error:#}")),
        }
        beat.finish();
    }
    beat.done.store(true, Relaxed);
}

fn fork_everything(shared: &Shared, kind: Kind, linger: Duration) -> Result<Child> {
    // In the order of their numbers; actors hold only their own. An actor holds `common` and `exchange` only inside.
    let mut actors: Vec<_> = shared.actors.iter().map(lock).collect();
    let exchange = lock(&shared.exchange);
    let common = shared.common.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    make(&shared.findings, kind, |may_allocate| {
        // Meanwhile the parent goes on and changes its side of the copy.
        sleep(linger);
        for actor in &mut actors {
            actor.forget_kept();
            actor.check(&shared.findings);
        }
        exchange.iter().for_each(|block| block.check(&shared.findings));
        shared.check_shared(&common);
        shared.tally.check(&shared.findings, actors.iter().map(|actor| actor.counted).sum());
        if let Some(actor) = actors.first_mut() {
            actor.live_on(shared, may_allocate);
        }
    })
}
