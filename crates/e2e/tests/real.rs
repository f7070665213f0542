//! Real programs that nobody here wrote do the same plain and folded, under the harshest folding.
//!
//! Each row is a piece of shell that prints what the program made of its input. A row in which nothing was evicted
//! proves nothing, and fails. With `MEMFOLD_ROWS=FILE` each row appends a line of the table in
//! `docs/compatibility.md` to the file.

use e2e::run::{self, program};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(240);

/// One program at work.
struct Row {
    /// The program, and the Debian package that has it.
    program: &'static str,
    package: &'static str,
    /// What it does, for the table.
    work: &'static str,
    /// The work itself, run in an empty folder.
    script: &'static str,
    /// Whether what it prints follows from its input alone.
    repeatable: bool,
}

fn shell(row: &Row, home: &Path) -> Command {
    program(row.program, row.package);
    let mut command = Command::new("/bin/sh");
    command.args(["-eu", "-c", row.script]).current_dir(home).env("LC_ALL", "C").env("TZ", "UTC");
    command
}

fn check(row: &Row) {
    let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let plain = run::run_plain(shell(row, home.path()), LIMIT).expect_success("plain");
    let folding = run::harsh();
    let folded = run::run_folded(shell(row, other.path()), &folding, LIMIT);
    let said = String::from_utf8_lossy(&folded.stdout).into_owned();
    assert!(folded.status.success(), "{}, folded: {}\n{said}\n{}", row.program, folded.status, folded.stderr);
    if row.repeatable {
        assert!(!plain.stdout.is_empty(), "{} printed nothing, so nothing was compared", row.program);
        assert_eq!(said, String::from_utf8_lossy(&plain.stdout), "{} says something else", row.program);
    }
    run::expect_evictions(&folding, row.program);
    report(row, &folding);
}

fn report(row: &Row, folding: &bench::launch::Folding) {
    let all = run::counters(folding);
    let evicted: u64 = all.iter().map(|c| c.pages_evicted).sum();
    let restored: u64 = all.iter().map(|c| c.pages_restored + c.pages_second_chance).sum();
    let folded = all.iter().filter(|c| c.pages_evicted > 0).count();
    let result = if row.repeatable { "the same output" } else { "exit code 0" };
    let line = format!("| {} | {} | {folded} | {evicted} | {restored} | {result} |\n", row.program, row.work);
    print!("{line}");
    if let Some(path) = std::env::var_os("MEMFOLD_ROWS") {
        let mut file =
            OpenOptions::new().append(true).create(true).open(path).expect("the table can be written");
        file.write_all(line.as_bytes()).expect("the table can be written");
    }
}

#[test]
fn sqlite_loads_changes_and_checks_a_database() {
    check(&Row {
        program: "sqlite3",
        package: "sqlite3",
        work: "loads 200 000 rows with two indexes, changes a third, integrity_check",
        script: r#"sqlite3 t.db <<'SQL'
PRAGMA cache_size=-65536;
CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT, amount INTEGER, note TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<200000)
  INSERT INTO t SELECT i, 'user '||(i*7919%200003), i*104729%1000003, printf('%0*d', i%90, i) FROM n;
CREATE INDEX a ON t(name); CREATE INDEX b ON t(amount, name);
UPDATE t SET amount=amount+1 WHERE id%3=0;
DELETE FROM t WHERE id%50=0;
SELECT count(*), sum(amount), max(name), total(length(note)) FROM t;
SELECT name, amount FROM t ORDER BY amount DESC, name LIMIT 5;
SELECT count(*) FROM t x JOIN t y ON x.amount=y.amount WHERE x.id<y.id;
PRAGMA integrity_check;
SQL"#,
        repeatable: true,
    });
}

#[test]
fn perl_sorts_and_digests_a_large_hash() {
    check(&Row {
        program: "perl",
        package: "perl",
        work: "builds, sorts and digests a hash of 150 000 keys, in a child too",
        script: r#"perl -MDigest::MD5 -e '
my (%h, $x); $x = 1;
for my $i (1..150000) { $x = ($x * 1103515245 + 12345) & 0x7fffffff; $h{"key $x $i"} = [$x, "v" x ($x % 50)]; }
select(undef, undef, undef, 0.3);
sub digest { my $d = Digest::MD5->new; $d->add($_, ":", $h{$_}[0], $h{$_}[1]) for sort keys %h; $d->hexdigest }
print digest(), "\n";
my $pid = fork; if (!$pid) { delete $h{$_} for grep { /7/ } keys %h; print digest(), "\n"; exit 0 }
waitpid $pid, 0; select(undef, undef, undef, 0.2); print digest(), " $?\n";'"#,
        repeatable: true,
    });
}

#[test]
fn ruby_collects_garbage_and_digests() {
    check(&Row {
        program: "ruby",
        package: "ruby",
        work: "builds and digests 150 000 objects with three threads, compacting collections between",
        script: r#"ruby -rdigest -e '
def build(seed, n) = (1..n).map { |i| seed = (seed * 1103515245 + 12345) & 0x7fffffff; [seed, "text " * (seed % 9), { i => seed.to_s }] }
parts = (1..3).map { |s| Thread.new { build(s, 50000) } }.map(&:value)
GC.start; sleep 0.3
digest = ->(p) { d = Digest::SHA256.new; p.each { |r| d << r.inspect }; d.hexdigest }
parts.each { |p| puts digest.(p) }
parts[1].reject! { |r| r[0].odd? }; GC.start; GC.compact if GC.respond_to?(:compact); sleep 0.2
puts parts.map(&digest)'"#,
        repeatable: true,
    });
}

#[test]
fn node_digests_objects_that_lay_idle() {
    check(&Row {
        program: "node",
        package: "nodejs",
        work: "builds and digests 200 000 objects and 64 MiB of buffers that lay idle",
        script: r#"node -e '
const { createHash } = require("crypto");
let x = 1; const next = () => (x = (Math.imul(x, 1103515245) + 12345) & 0x7fffffff);
const rows = Array.from({ length: 200000 }, (_, i) => ({ i, n: next(), text: "text ".repeat(next() % 9) }));
const buffers = Array.from({ length: 64 }, (_, i) => Buffer.alloc(1 << 20, "buffer " + i));
const digest = () => { const h = createHash("sha256"); for (const r of rows) h.update(JSON.stringify(r)); for (const b of buffers) h.update(b); return h.digest("hex"); };
setTimeout(() => { console.log(digest()); for (const r of rows) r.n ^= 1; setTimeout(() => console.log(digest()), 300); }, 500);'"#,
        repeatable: true,
    });
}

#[test]
fn git_packs_a_history_of_thousands_of_commits() {
    check(&Row {
        program: "git",
        package: "git",
        work: "imports 2 000 commits, gc with two threads, fsck",
        script: r#"git init -q --bare r && cd r
perl -e 'my $x = 1; for my $c (1..2000) {
  print "commit refs/heads/main\ncommitter A <a\@b> ", 1600000000 + $c, " +0000\ndata 8\ncommit\n\n";
  for my $f (1..3) { $x = ($x * 1103515245 + 12345) & 0x7fffffff; my $t = join("", map {; "line $_ ", ($x >> ($_ % 16)) & 255, "\n" } 1..120);
    print "M 100644 inline dir", $x % 7, "/file", $x % 60, "\ndata ", length $t, "\n$t\n"; } }' | git fast-import --quiet
git -c pack.threads=2 gc -q --prune=now
git fsck --full --strict; git rev-parse main 'main^{tree}'; git count-objects -v | grep -E 'in-pack|packs|garbage'"#,
        repeatable: true,
    });
}

#[test]
fn xz_compresses_with_two_threads_and_back() {
    check(&Row {
        program: "xz",
        package: "xz-utils",
        work: "compresses 32 MiB with two threads, and back",
        script: r#"perl -e 'my $x = 1; for (1..800000) { $x = ($x * 1103515245 + 12345) & 0x7fffffff; printf "%d some text that repeats %x\n", $_ % 977, $x >> 12 }' > data
xz -T2 -3 --block-size=4MiB -k data; sha256sum data.xz; xz -dc data.xz | sha256sum; sha256sum < data"#,
        repeatable: true,
    });
}

#[test]
fn imagemagick_blurs_a_generated_picture() {
    check(&Row {
        program: "convert",
        package: "imagemagick",
        work: "blurs, turns and scales a picture of 9 megapixels",
        script: r#"/usr/bin/convert -size 3000x3000 gradient:red-blue -seed 7 -attenuate 0.4 +noise Gaussian -blur 0x2 -rotate 7 -resize 40% rgb:out
sha256sum out"#,
        repeatable: true,
    });
}

#[test]
fn stress_ng_verifies_its_memory() {
    check(&Row {
        program: "stress-ng",
        package: "stress-ng",
        work: "vm and malloc methods with --verify",
        script: "stress-ng --vm 2 --vm-bytes 96M --vm-keep --malloc 1 --malloc-bytes 64M --verify --timeout 6 --temp-path . 2>&1",
        repeatable: false,
    });
}

#[test]
fn nginx_serves_and_compresses_the_same_bytes() {
    check(&Row {
        program: "nginx",
        package: "nginx-light",
        work: "two workers serve and compress 600 requests, with a reload between",
        script: r#"PATH=$PATH:/usr/sbin; mkdir -p logs html
perl -e 'print "line $_ of a page that is compressed on its way\n" for 1..20000' > html/big.txt
cat > conf <<C
daemon off; master_process on; worker_processes 2; pid nginx.pid; error_log logs/e; user root;
events { worker_connections 256; }
http { access_log off; gzip on; gzip_http_version 1.0; gzip_types text/plain; gzip_buffers 64 16k; client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
  server { listen unix:$PWD/sock; root html; } }
C
nginx -p "$PWD" -c conf -e logs/e & server=$!
trap 'kill $server' EXIT
for i in $(seq 100); do [ -S sock ] && break; sleep 0.05; done
cat > load.py <<'P'
import hashlib, socket, sys, zlib
seen = set()
for n in range(int(sys.argv[1])):
    s = socket.socket(socket.AF_UNIX); s.connect("sock")
    s.sendall(b"GET /big.txt HTTP/1.0\r\nHost: h\r\nAccept-Encoding: gzip\r\n\r\n")
    data = b"".join(iter(lambda: s.recv(1 << 16), b"")); s.close()
    head, body = data.split(b"\r\n\r\n", 1)
    seen.add((head.split(b"\r\n")[0], hashlib.sha256(zlib.decompress(body, 31)).hexdigest()))
print(sorted(seen))
P
python3 load.py 300; kill -HUP $server; sleep 0.5; python3 load.py 300"#,
        repeatable: true,
    });
}
