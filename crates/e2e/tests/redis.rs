//! redis-server keeps every value, folded: in memory, in the snapshots and in the log that its forked children write,
//! while clients go on writing too.

use memfold_bench::control::Peer;
use memfold_e2e::redis::{Client, Redis};
use memfold_e2e::row::report;
use memfold_e2e::{run, wait_until, LIMIT};
use memfold_pager::control::Command as Request;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

const VALUES: usize = 40_000;

/// Clients that write at the same time.
const WRITERS: usize = 3;

/// A JSON value that follows from its number, and from how often it was written.
fn value(number: usize, generation: usize) -> String {
    let mut token = (number * 31 + generation) as u64;
    let mut next = || {
        token = token.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        token >> 16
    };
    let history: Vec<String> = (0..20)
        .map(|day| format!("{{\"day\":{day},\"spent\":{},\"session\":\"{:012x}\"}}", next() % 500, next()))
        .collect();
    format!(
        "{{\"id\":{number},\"generation\":{generation},\"name\":\"user {number}\",\"city\":\"Springfield\",\"history\":[{}]}}",
        history.join(",")
    )
}

/// How often a value is written in all: every third one twice.
fn generation(number: usize) -> usize {
    usize::from(number.is_multiple_of(3))
}

fn set(number: usize, generation: usize) -> Vec<String> {
    vec!["SET".into(), format!("user:{number}"), value(number, generation)]
}

fn load(redis: &mut Redis) {
    redis.pipeline(VALUES, |n| set(n, 0), |n, reply| assert_eq!(reply, b"OK", "SET of value {n}"));
}

fn overwrite(redis: &mut Redis) {
    redis.pipeline(
        VALUES / 3,
        |n| set(n * 3, 1),
        |n, reply| assert_eq!(reply, b"OK", "SET of value {}", n * 3),
    );
    redis.pipeline(
        VALUES / 50,
        |n| vec!["DEL".into(), format!("user:{}", n * 50)],
        |n, reply| {
            assert_eq!(reply, b"1", "DEL of value {}", n * 50);
        },
    );
}

fn read_back(redis: &mut Redis) {
    redis.pipeline(
        VALUES,
        |n| vec!["GET".into(), format!("user:{n}")],
        |n, reply| {
            if n % 50 == 0 && n / 50 < VALUES / 50 {
                assert_eq!(reply, b"(nil)", "value {n} was deleted");
            } else {
                let expected = value(n, generation(n).min(usize::from(n / 3 < VALUES / 3)));
                assert!(reply == expected.as_bytes(), "value {n} is {:?}", String::from_utf8_lossy(reply));
            }
        },
    );
}

/// redis's own digest of all that it holds.
fn digest(redis: &mut Redis) -> Vec<u8> {
    redis.ask(&["DEBUG", "DIGEST"])
}

fn evict(peer: &Peer) {
    peer.ask(Request::Evict, 0, 0, LIMIT).expect("the pager evicts");
}

#[test]
fn redis_returns_every_value_after_its_memory_was_evicted() {
    let (plain_home, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut plain = Redis::start(plain_home.path(), memfold_bench::launch::plain);
    load(&mut plain);
    overwrite(&mut plain);
    read_back(&mut plain);
    let expected = digest(&mut plain);
    drop(plain);

    let folding = run::on_request();
    let mut folded = Redis::start(home.path(), |command| folding.apply(command));
    let peer =
        Peer::of(folding.control_dir(), folded.pid(), Duration::from_secs(5)).expect("the server is folded");
    load(&mut folded);
    evict(&peer);
    overwrite(&mut folded);
    evict(&peer);
    let before = peer.counters().unwrap();
    // 40 000 values of about 1 KB are 10 000 pages; most must have gone.
    assert!(before.sizes.evicted_bytes > 20 << 20, "only {} bytes are evicted", before.sizes.evicted_bytes);
    read_back(&mut folded);
    peer.await_count(LIMIT).expect("the server counts");
    let after = peer.counters().unwrap();
    assert!(
        after.pages.restored - before.pages.restored > 5_000,
        "the values were not read from evicted memory"
    );
    evict(&peer);
    assert_eq!(digest(&mut folded), expected, "the digests of plain and folded differ");

    // The child that saves was forked with nearly everything evicted.
    evict(&peer);
    folded.save_in_background();
    read_back(&mut folded);
    assert_eq!(peer.counters().unwrap().pages.lost, 0);
    drop(folded);
    let mut reader = Redis::start(home.path(), memfold_bench::launch::plain);
    assert_eq!(digest(&mut reader), expected, "what the forked child saved differs");
}

/// What clients wrote to one value: generations are numbered from 0, which was loaded.
#[derive(Default)]
struct Written {
    /// The last generation that was sent.
    sent: AtomicUsize,
    /// The last one that the server has confirmed.
    confirmed: AtomicUsize,
}

/// Writes all values of one client over and over, until told to stop.
fn keep_writing(client: &mut Client, written: &[Written], first: usize, stop: &AtomicBool) {
    let mine: Vec<usize> = (first..written.len()).step_by(WRITERS).collect();
    for batch in mine.chunks(64).cycle() {
        if stop.load(SeqCst) {
            return;
        }
        client.pipeline(
            batch.len(),
            |i| set(batch[i], written[batch[i]].sent.fetch_add(1, SeqCst) + 1),
            |i, reply| {
                assert_eq!(reply, b"OK", "SET of value {}", batch[i]);
                written[batch[i]].confirmed.fetch_add(1, SeqCst);
            },
        );
    }
}

/// Reads every value and makes sure that it is one of those that `allowed` names, by first and last generation.
fn expect_generations(redis: &mut Redis, allowed: &[(usize, usize)], what: &str) {
    redis.pipeline(
        allowed.len(),
        |n| vec!["GET".into(), format!("user:{n}")],
        |n, reply| {
            let (first, last) = allowed[n];
            assert!(
                (first..=last).any(|generation| value(n, generation).as_bytes() == reply),
                "{what}: value {n} is none of the generations {first} to {last}: {:?}",
                String::from_utf8_lossy(reply)
            );
        },
    );
    assert_eq!(redis.ask(&["DBSIZE"]), allowed.len().to_string().as_bytes(), "{what}: the number of keys");
}

#[test]
fn redis_saves_and_rewrites_its_log_while_clients_write() {
    let (home, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let with_log = ["--appendonly", "yes", "--auto-aof-rewrite-percentage", "0"];
    let folding = run::harsh();
    let mut redis = Redis::start(home.path(), |command| {
        command.args(with_log);
        folding.apply(command);
    });
    load(&mut redis);
    let counters_of = |redis: &Redis| {
        let peer = Peer::of(folding.control_dir(), redis.pid(), LIMIT).expect("the server is folded");
        peer.counters().unwrap()
    };
    // On a busy machine little goes while the clients write.
    wait_until(LIMIT, "the server's pages to go", || counters_of(&redis).pages.evicted > 1000);
    let written: Vec<Written> = (0..VALUES).map(|_| Written::default()).collect();
    let generations = |which: fn(&Written) -> &AtomicUsize| -> Vec<usize> {
        written.iter().map(|w| which(w).load(SeqCst)).collect()
    };
    let stop = AtomicBool::new(false);
    let mut saved = Vec::new();
    thread::scope(|scope| {
        for first in 0..WRITERS {
            let mut client = redis.another_client();
            let (written, stop) = (&written, &stop);
            scope.spawn(move || keep_writing(&mut client, written, first, stop));
        }
        let _stop_in_any_case = StopOnDrop(&stop);
        for _ in 0..2 {
            let before = generations(|w| &w.confirmed);
            redis.save_in_background();
            let after = generations(|w| &w.sent);
            assert!(before.iter().sum::<usize>() < after.iter().sum(), "nobody wrote during the save");
            saved = before.into_iter().zip(after).collect();
            redis.rewrite_log();
        }
    });
    let last: Vec<(usize, usize)> = generations(|w| &w.confirmed).into_iter().map(|g| (g, g)).collect();
    expect_generations(&mut redis, &last, "in memory");
    let expected = digest(&mut redis);
    let server = counters_of(&redis);
    redis.shut_down();
    run::expect_evictions(&folding, "redis-server");
    let read: u64 = run::counters(&folding).iter().map(|c| c.pages.restored + c.pages.second_chance).sum();
    let by_server = server.pages.restored + server.pages.second_chance;
    assert!(read > by_server, "no forked child read anything that was away");
    let work =
        "two snapshots and two rewrites of the log while three clients write, then restarted from each";
    report(&folding, "redis-server", work, "every value");

    std::fs::copy(home.path().join("dump.rdb"), copy.path().join("dump.rdb")).unwrap();
    let mut from_snapshot = Redis::start(copy.path(), memfold_bench::launch::plain);
    expect_generations(&mut from_snapshot, &saved, "from the snapshot");
    let mut from_log = Redis::start(home.path(), |command| {
        command.args(with_log);
        memfold_bench::launch::plain(command);
    });
    expect_generations(&mut from_log, &last, "from the log");
    assert_eq!(digest(&mut from_log), expected, "the digests of log and memory differ");
}

/// Lets the writers end when the test fails, too.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}
