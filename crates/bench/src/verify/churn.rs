//! Threads that come and go: each has memory and blocks of its own, leaves some of the blocks to others, and ends; and
//! other programs, started from a process whose memory is evicted.

use super::area::Area;
use super::blocks::Block;
use super::findings::{lock, Tags};
use super::shared::Shared;
use super::Work;
use anyhow::{ensure, Context, Result};
use memfold_stats::Rng;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::Duration;

/// Owner number of the churner's first thread, above those of actors.
const FIRST_OWNER: u64 = 1 << 10;

/// The churner's body.
pub(super) fn run(shared: &Shared) {
    let beat = shared.churner();
    let mut rng = Rng::new(shared.options.seed).fork(u64::MAX - 1);
    let mut tags = Tags::new(FIRST_OWNER);
    while !shared.over() && shared.beats[..shared.options.threads].iter().any(|beat| !beat.done.load(Relaxed))
    {
        beat.begin("thread");
        let (part, tags) = (rng.fork(rng.clone().next_u64()), &mut tags);
        let outcome = std::thread::scope(|scope| scope.spawn(|| visit(shared, part, tags)).join());
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) => shared.findings.fail(format!("churner: {error:#}")),
            Err(_) => shared.findings.fail("churner: a short-lived thread panicked".into()),
        }
        if rng.below(8) == 0 {
            beat.begin("program");
            if let Err(error) = start_program() {
                shared.findings.fail(format!("churner: {error:#}"));
            }
        }
        beat.finish();
        sleep(Duration::from_millis(rng.below(20)));
    }
    beat.done.store(true, Relaxed);
}

/// The life of a short-lived thread.
fn visit(shared: &Shared, mut rng: Rng, tags: &mut Tags) -> Result<()> {
    let mut area = Area::map(256 + rng.below(256) as usize)?;
    let pages = area.pages();
    area.write(shared.findings.content, 0..pages, tags);
    let mut blocks = Vec::new();
    if shared.does(Work::Heap) {
        blocks.extend((0..50).filter_map(|_| Block::allocate(&shared.findings, &mut rng, tags)));
    }
    sleep(Duration::from_millis(rng.below(10)));
    area.check(&shared.findings, "short-lived area", 0..pages);
    blocks.iter().for_each(|block| block.check(&shared.findings));
    // Half of the blocks outlive their thread.
    let left: Vec<Block> = blocks.drain(..blocks.len() / 2).collect();
    lock(&shared.exchange).extend(left);
    Ok(())
}

/// Starts a program (by `vfork` or its like, as the standard library does) and sees that it does its work.
fn start_program() -> Result<()> {
    let mut command = Command::new("/bin/echo");
    command.arg("folded").stderr(Stdio::null());
    let output = command.output().context("cannot start /bin/echo")?;
    ensure!(output.status.success(), "/bin/echo: {}", output.status);
    ensure!(output.stdout == b"folded\n", "/bin/echo said {:?}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}
