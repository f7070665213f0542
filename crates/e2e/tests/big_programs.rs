//! Big programs that nobody here wrote do the same plain and folded: a database server, a Java machine, the Rust
//! compiler, a browser, and CPython under its own tests.
//!
//! They do little here, so that every run of the tests can afford them; `make test-programs` gives them more. The work of
//! each is a script in `programs`. How a row is run: [`memfold_e2e::row`].

use memfold_e2e::row::Row;
use memfold_e2e::run;
use memfold_pager::control::Mode;

#[test]
fn postgres_keeps_what_clients_write_at_once() {
    Row::new("postgres", "postgresql", "pgbench with three clients, sorts and a cursor, pg_amcheck, pg_dump")
        .script(include_str!("../programs/postgres.sh"))
        .never_root()
        .check();
}

#[test]
fn java_compiles_and_digests_with_three_collectors() {
    Row::new(
        "java",
        "default-jdk-headless",
        "javac; three threads build and digest 120 000 objects, with G1, serial and parallel GC",
    )
    .script(include_str!("../programs/java.sh"))
    .check();
}

#[test]
fn rustc_compiles_a_crate_to_the_same_bytes() {
    Row::new("rustc", "rustup", "cargo builds a crate of this workspace with the crates that it uses")
        .script(include_str!("../programs/rustc.sh"))
        .check();
}

#[test]
fn chromium_makes_the_same_picture_of_a_page() {
    Row::new("chromium", "chromium", "headless, a picture of a page that computes and draws")
        .script(concat!("SANDBOX=--no-sandbox\n", include_str!("../programs/chromium.sh")))
        .check();
}

#[test]
#[ignore = "wants user namespaces for ordinary users, which containers often refuse; make test-programs runs it"]
fn chromium_makes_it_in_its_own_sandbox_too() {
    let folding = Row::new("chromium", "chromium", "the same in its own sandbox, as an ordinary user")
        .script(concat!("SANDBOX=\n", include_str!("../programs/chromium.sh")))
        .never_root()
        .compare();
    let modes = run::modes(&folding);
    let confined = modes.iter().any(|(mode, reason)| *mode == Mode::Off && reason.contains("seccomp"));
    assert!(confined, "no process was confined: {modes:?}");
}

#[test]
fn cpython_passes_its_own_tests() {
    Row::new("python3", "libpython3.11-testsuite", "ten modules of CPython's own test-suite")
        .script(include_str!("../programs/cpython.sh"))
        .check();
}
