//! `held THREADS`: threads that keep a map each, change a part of it all the time and look at all of it, and strings that grow. Says `ready`, goes on until the
//! end of its standard input, then says `fine N` and ends with status 7. Built by rustc alone, as a static program.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::process::exit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::Arc;
use std::thread::{sleep, spawn};
use std::time::Duration;

const KEYS: u64 = 20_000;

fn value(key: u64, version: u64) -> String {
    format!("{key} of version {version}, ").repeat(3 + (key % 5) as usize)
}

fn check(held: &HashMap<u64, (u64, String)>, sorted: &BTreeMap<u64, Box<u64>>) {
    for (key, (version, text)) in held {
        if *text != value(*key, *version) || sorted.get(key).map(|at| **at) != Some(*version) {
            eprintln!("WRONG: {key}");
            exit(1);
        }
    }
}

fn main() {
    let threads: u64 = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(2);
    let (over, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (tell, hear) = std::sync::mpsc::channel();
    let all: Vec<_> = (0..threads)
        .map(|number| {
            let (over, rounds, tell) = (over.clone(), rounds.clone(), tell.clone());
            spawn(move || {
                let mut held: HashMap<_, _> = (0..KEYS).map(|key| (key, (0, value(key, 0)))).collect();
                let mut sorted: BTreeMap<_, _> = (0..KEYS).map(|key| (key, Box::new(0))).collect();
                tell.send(()).unwrap();
                let mut version = 0;
                while !over.load(SeqCst) {
                    version += 1;
                    for key in (number..KEYS).step_by(97) {
                        held.insert(key, (version, value(key, version)));
                        sorted.insert(key, Box::new(version));
                    }
                    if version % 8 == 0 {
                        check(&held, &sorted);
                    }
                    rounds.fetch_add(1, SeqCst);
                    sleep(Duration::from_millis(20));
                }
                check(&held, &sorted);
            })
        })
        .collect();
    all.iter().for_each(|_| hear.recv().unwrap());
    println!("ready");
    let _ = std::io::stdin().read(&mut [0; 16]);
    over.store(true, SeqCst);
    for thread in all {
        if thread.join().is_err() {
            exit(1);
        }
    }
    println!("fine {}", rounds.load(SeqCst));
    exit(7);
}
