//! `memfold sim` as a person types it.

use e2e::command_line::{memfold, scratch};

/// A record of oracleGeneral.
fn record(object: u64) -> Vec<u8> {
    [&0u32.to_le_bytes()[..], &object.to_le_bytes(), &4096u32.to_le_bytes(), &(-1i64).to_le_bytes()].concat()
}

#[test]
fn a_trace_gives_the_misses_that_were_worked_out_by_hand() {
    let home = scratch();
    let trace = home.path().join("belady.bin");
    let objects = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5].map(|n| n + 1_000_000_007);
    std::fs::write(&trace, objects.into_iter().flat_map(record).collect::<Vec<u8>>()).unwrap();
    let mut command = memfold(home.path());
    command.arg("sim").arg("--trace").arg(&trace);
    let output = command.args(["--policy", "fifo,belady", "--size", "3,80%", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = said["results"].as_array().unwrap().iter();
    let rows: Vec<_> = rows
        .map(|row| (row["policy"].as_str().unwrap().to_owned(), row["size"].as_u64(), row["misses"].as_u64()))
        .collect();
    let row = |policy: &str, size, misses| (policy.to_owned(), Some(size), Some(misses));
    assert_eq!(rows, [row("fifo", 3, 9), row("fifo", 4, 10), row("belady", 3, 7), row("belady", 4, 6)]);
}

#[test]
fn what_cannot_be_simulated_is_named_and_ends_with_2() {
    let home = scratch();
    let trace = home.path().join("short.bin");
    std::fs::write(&trace, &record(1)[..20]).unwrap();
    let say = |args: &[&str]| {
        let mut command = memfold(home.path());
        let output = command.arg("sim").arg("--trace").arg(&trace).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(say(&[]).contains("truncated: 20 bytes are left at offset 0"));
    assert!(say(&["--policy", "plru"]).contains("there is no policy \"plru\"; there are lru, fifo"));
    assert!(
        say(&["--policy", "s3fifo:small=2"]).contains("\"small=2\" is no number in the parameter's range")
    );
    assert!(say(&["--size", "0"]).contains("give pages, at least 1"));
    std::fs::write(&trace, record(1)).unwrap();
    assert!(say(&["--size", "2"]).contains("more than the 1 different pages of the trace"));
}
