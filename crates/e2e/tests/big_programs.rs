//! Big programs that nobody here wrote do the same plain and folded: a database server, a Java machine, the Rust
//! compiler, a browser, and CPython under its own tests.
//!
//! They do little here, so that every run of the tests can afford them; `make test-programs` gives them more. The work of
//! each is a script in `programs`. How a row is run: [`e2e::row`].

use e2e::row::Row;

#[test]
fn postgres_keeps_what_clients_write_at_once() {
    Row::new(
        "postgres",
        "postgresql",
        "initdb, pgbench with three clients, sorts and a cursor, pg_amcheck, pg_dump",
    )
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
    Row::new("rustc", "rustup", "cargo builds a crate of this workspace with the 15 that it uses")
        .script(include_str!("../programs/rustc.sh"))
        .check();
}

#[test]
fn chromium_makes_the_same_picture_of_a_page() {
    Row::new("chromium", "chromium", "headless, a picture of a page that computes and draws")
        .script(include_str!("../programs/chromium.sh"))
        .check();
}

#[test]
fn cpython_passes_its_own_tests() {
    Row::new("python3", "libpython3-testsuite", "ten modules of CPython's own test-suite")
        .script(include_str!("../programs/cpython.sh"))
        .check();
}
