//! The zram arm of the fault benchmark: its pages are really swapped, and its device is gone afterwards.

use memfold_bench::launch::plain;
use memfold_bench::worker::{
    Job, Order, Presence, Program, Region, Round, Touch, TouchRequest, TouchResult, Worker,
};
use memfold_bench::zram::Zram;
use memfold_e2e::machine;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn devices() -> BTreeSet<String> {
    let names = fs::read_dir("/sys/block").expect("sysfs is mounted").flatten().map(|e| e.file_name());
    names.map(|n| n.to_string_lossy().into_owned()).filter(|n| n.starts_with("zram")).collect()
}

/// Whether this machine and user can have a zram device; if not, the module must say so instead.
fn possible() -> bool {
    // SAFETY: no arguments, no effects.
    let root = unsafe { libc::geteuid() } == 0;
    if root && Path::new("/sys/class/zram-control").exists() {
        return true;
    }
    let error = Zram::start(64 << 20, "lz4").expect_err("there is no zram for us here");
    assert!(error.downcast_ref::<memfold_bench::Unsupported>().is_some(), "{error:#}");
    false
}

/// Has another process set up a device, and ends that process in the way that `end` does.
fn end_a_holder_by(end: impl FnOnce(&mut Child)) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memfold-e2e"));
    let mut holder =
        command.arg("zram").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
    let mut line = String::new();
    BufReader::new(holder.stdout.take().expect("piped")).read_line(&mut line).expect("the holder answers");
    assert_eq!(line, "ready\n");
    end(&mut holder);
    holder.wait().expect("the holder ends");
}

#[test]
fn a_device_does_not_outlive_an_interrupted_run_nor_the_run_after_a_killed_one() {
    // Devices are counted.
    let _alone = machine::alone_with(machine::SWAP);
    if !possible() {
        return;
    }
    let before = devices();
    // SAFETY: the holder is our child and has not been waited for.
    let signal =
        |number| move |holder: &mut Child| assert_eq!(unsafe { libc::kill(holder.id() as i32, number) }, 0);
    for number in [libc::SIGINT, libc::SIGTERM] {
        end_a_holder_by(signal(number));
        assert_eq!(devices(), before, "after signal {number}");
    }
    end_a_holder_by(|holder| {
        let input = holder.stdin.as_mut().expect("piped");
        input.write_all(b"!").expect("the holder reads");
    });
    assert_eq!(devices(), before, "after a panic");
    end_a_holder_by(signal(libc::SIGKILL));
    assert_eq!(devices().len(), before.len() + 1, "a killed process cannot have cleaned up");
    drop(Zram::start(64 << 20, "lz4").expect("zram can be set up"));
    assert_eq!(devices(), before, "the device of the killed process is still there");
}

#[test]
fn pages_swapped_to_zram_are_seen_there_and_come_back_right() {
    // Devices are counted.
    let _alone = machine::alone_with(machine::SWAP);
    if !possible() {
        return;
    }
    let before = devices();
    let zram = Zram::start(64 << 20, "lz4").expect("zram can be set up");
    let program = Program {
        path: env!("CARGO_BIN_EXE_memfold-e2e").into(),
        arguments: vec!["worker".into()],
        library: "unused".into(),
    };
    let job = Job::Touch(Touch { bytes: 8 << 20, seed: 1, pin: None });
    let mut worker = Worker::start(&program, &job, plain).expect("the worker starts");
    let region: Region = worker.receive().expect("the worker is ready");
    for (seed, order) in [(1, Order::Random), (2, Order::Sequential)] {
        let presence: Presence = worker.ask(&TouchRequest::PageOut).expect("the region is swapped out");
        // What lies in a batch of some CPU's, on its way to the kernel's lists, stays: thirty pages each.
        assert!(presence.swapped * 100 >= region.pages * 95, "{presence:?}");
        let held = zram.usage().expect("the device is there");
        assert!(held.original >= (presence.swapped * 4096) as u64, "{held:?}");
        assert!(held.compressed * 5 < held.original * 4, "half-compressible pages shrank to {held:?}");
        let result: TouchResult =
            worker.ask(&TouchRequest::Touch(Round { order, seed, traced: false })).expect("touched");
        assert_eq!(result.wrong_words, 0);
        assert!(result.touch_ns.count() as usize >= presence.swapped.min(region.pages) * 9 / 10, "{order:?}");
    }
    drop(worker);
    drop(zram);
    assert_eq!(devices(), before, "a device was left behind");
    let swaps = fs::read_to_string("/proc/swaps").expect("procfs is mounted");
    assert!(before.iter().all(|d| !swaps.contains(&format!("/dev/{d} "))), "{swaps}");
}
