//! What end-to-end tests start under the preload library: `memfold-e2e worker JOB` is the body of a benchmark's worker,
//! `memfold-e2e verify SECONDS THREADS SEED` verifies and prints the report as JSON, `torture` in place of `verify` does so
//! while the pager's settings change, `attached` verifies what is to be attached to, which must not move memory (docs/attach.md), `memfold-e2e keep MIB SEED` keeps memory and checks it, `client` and `client-forks` use the explicit API
//! under a daemon, `memfold-e2e zram` holds a zram device until standard input ends, and panics then if it reads anything.

use memfold_bench::verify::{self, Options, Work};
use memfold_e2e::client;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["worker", job] => match memfold_bench::worker::main(job) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&format!("{error:#}")),
        },
        [what @ ("verify" | "torture" | "attached"), seconds, threads, seed] => {
            match (seconds.parse(), threads.parse(), seed.parse()) {
                (Ok(seconds), Ok(threads), Ok(seed)) => report(&Options {
                    seconds,
                    operations: None,
                    threads,
                    seed,
                    without: if what == "attached" { vec![Work::Remap] } else { Vec::new() },
                    torture: what == "torture",
                }),
                _ => fail(&format!("{what} takes three numbers: SECONDS THREADS SEED")),
            }
        }
        ["keep", mib, seed] => match (mib.parse(), seed.parse()) {
            (Ok(mib @ 1..=1024), Ok(seed)) => {
                memfold_e2e::keep::main(mib, seed);
                ExitCode::SUCCESS
            }
            _ => fail("keep takes two numbers: MIB SEED"),
        },
        ["client", socket, goal, seed, mib] => match (client::Goal::of(goal), seed.parse(), mib.parse()) {
            (Some(goal), Ok(seed), Ok(mib @ 1..=1024)) => {
                client::work(socket, goal, seed, mib);
                ExitCode::SUCCESS
            }
            _ => fail("client takes SOCKET, a goal, and two numbers: SEED MIB"),
        },
        ["client-forks", socket] => {
            client::fork_again_and_again(socket);
            ExitCode::SUCCESS
        }
        ["zram"] => match memfold_bench::zram::Zram::start(64 << 20, "lz4") {
            Ok(_held) => {
                println!("ready");
                let ended = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
                assert_eq!(ended.unwrap_or(0), 0, "asked to panic");
                ExitCode::SUCCESS
            }
            Err(error) => fail(&format!("{error:#}")),
        },
        _ => fail(
            "`worker JOB`, `verify`, `torture` or `attached SECONDS THREADS SEED`, `keep MIB SEED`, `client …` or `zram` is needed",
        ),
    }
}

fn report(options: &Options) -> ExitCode {
    let report = match verify::run(options) {
        Ok(report) => report,
        Err(error) => return fail(&format!("{error:#}")),
    };
    match serde_json::to_string(&report) {
        Ok(text) => println!("{text}"),
        Err(error) => return fail(&format!("the report is no JSON: {error}")),
    }
    eprintln!("{report}");
    ExitCode::from(u8::from(!report.passed()))
}

fn fail(message: &str) -> ExitCode {
    eprintln!("memfold-e2e: {message}");
    ExitCode::FAILURE
}
