//! Real programs that nobody here wrote do the same plain and folded, under the harshest folding.
//!
//! With `MEMFOLD_ROWS=FILE` each row appends its line of the table in `docs/compatibility.md` to the file. How a row
//! is run: [`memfold_e2e::row`].

use memfold_e2e::row::Row;

#[test]
fn sqlite_loads_changes_and_checks_a_database() {
    Row::new("sqlite3", "sqlite3", "loads 200 000 rows with two indexes, changes a third, integrity_check")
        .script(
            r#"$FOLD sqlite3 t.db <<'SQL'
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
        )
        .check();
}

#[test]
fn perl_sorts_and_digests_a_large_hash() {
    Row::new("perl", "perl", "builds, sorts and digests a hash of 150 000 keys, in a child too")
.script(r#"$FOLD perl -MDigest::MD5 -e '
my (%h, $x); $x = 1;
for my $i (1..150000) { $x = ($x * 1103515245 + 12345) & 0x7fffffff; $h{"key $x $i"} = [$x, "v" x ($x % 50)]; }
select(undef, undef, undef, 0.3);
sub digest { my $d = Digest::MD5->new; $d->add($_, ":", $h{$_}[0], $h{$_}[1]) for sort keys %h; $d->hexdigest }
print digest(), "\n";
my $pid = fork; if (!$pid) { delete $h{$_} for grep { /7/ } keys %h; print digest(), "\n"; exit 0 }
waitpid $pid, 0; select(undef, undef, undef, 0.2); print digest(), " $?\n";'"#).check();
}

#[test]
fn ruby_collects_garbage_and_digests() {
    Row::new("ruby", "ruby", "builds and digests 150 000 objects with three threads, compacting collections between")
.script(r#"$FOLD ruby -rdigest -e '
def build(seed, n) = (1..n).map { |i| seed = (seed * 1103515245 + 12345) & 0x7fffffff; [seed, "text " * (seed % 9), { i => seed.to_s }] }
parts = (1..3).map { |s| Thread.new { build(s, 50000) } }.map(&:value)
GC.start; sleep 0.3
digest = ->(p) { d = Digest::SHA256.new; p.each { |r| d << r.inspect }; d.hexdigest }
parts.each { |p| puts digest.(p) }
parts[1].reject! { |r| r[0].odd? }; GC.start; GC.compact if GC.respond_to?(:compact); sleep 0.2
puts parts.map(&digest)'"#).check();
}

#[test]
fn node_digests_objects_that_lay_idle() {
    Row::new("node", "nodejs", "builds and digests 200 000 objects and 64 MiB of buffers that lay idle")
.script(r#"$FOLD node -e '
const { createHash } = require("crypto");
let x = 1; const next = () => (x = (Math.imul(x, 1103515245) + 12345) & 0x7fffffff);
const rows = Array.from({ length: 200000 }, (_, i) => ({ i, n: next(), text: "text ".repeat(next() % 9) }));
const buffers = Array.from({ length: 64 }, (_, i) => Buffer.alloc(1 << 20, "buffer " + i));
const digest = () => { const h = createHash("sha256"); for (const r of rows) h.update(JSON.stringify(r)); for (const b of buffers) h.update(b); return h.digest("hex"); };
setTimeout(() => { console.log(digest()); for (const r of rows) r.n ^= 1; setTimeout(() => console.log(digest()), 300); }, 500);'"#).check();
}

#[test]
fn git_packs_a_history_of_thousands_of_commits() {
    Row::new("git", "git", "imports 2 000 commits, gc with two threads, fsck")
.script(r#"git init -q --bare r && cd r
perl -e 'my $x = 1; for my $c (1..2000) {
  print "commit refs/heads/main\ncommitter A <a\@b> ", 1600000000 + $c, " +0000\ndata 8\ncommit\n\n";
  for my $f (1..3) { $x = ($x * 1103515245 + 12345) & 0x7fffffff; my $t = join("", map {; "line $_ ", ($x >> ($_ % 16)) & 255, "\n" } 1..120);
    print "M 100644 inline dir", $x % 7, "/file", $x % 60, "\ndata ", length $t, "\n$t\n"; } }' | $FOLD git fast-import --quiet
$FOLD git -c pack.threads=2 gc -q --prune=now
$FOLD git fsck --full --strict; git rev-parse main 'main^{tree}'; git count-objects -v | grep -E 'in-pack|packs|garbage'"#).check();
}

#[test]
fn xz_compresses_with_two_threads_and_back() {
    Row::new("xz", "xz-utils", "compresses 32 MiB with two threads, and back")
.script(r#"perl -e 'my $x = 1; for (1..800000) { $x = ($x * 1103515245 + 12345) & 0x7fffffff; printf "%d some text that repeats %x\n", $_ % 977, $x >> 12 }' > data
$FOLD xz -T2 -3 --block-size=4MiB -k data; sha256sum data.xz; $FOLD xz -dc data.xz | sha256sum; sha256sum < data"#).check();
}

#[test]
fn imagemagick_blurs_a_generated_picture() {
    Row::new("convert", "imagemagick", "blurs, turns and scales a picture of 9 megapixels")
.script(r#"$FOLD /usr/bin/convert -size 3000x3000 gradient:red-blue -seed 7 -attenuate 0.4 +noise Gaussian -blur 0x2 -rotate 7 -resize 40% rgb:out
sha256sum out"#).check();
}

#[test]
fn stress_ng_verifies_its_memory() {
    Row::new("stress-ng", "stress-ng", "vm and malloc methods with --verify")
.script("$FOLD stress-ng --vm 2 --vm-bytes 96M --vm-keep --malloc 1 --malloc-bytes 64M --verify --timeout 6 --temp-path . 2>&1")
.any_output().check();
}

#[test]
fn nginx_serves_and_compresses_the_same_bytes() {
    Row::new("nginx", "nginx-light", "two workers serve and compress 600 requests, with a reload between")
.script(r#"PATH=$PATH:/usr/sbin; mkdir -p logs html
perl -e 'print "line $_ of a page that is compressed on its way\n" for 1..20000' > html/big.txt
cat > conf <<C
daemon off; master_process on; worker_processes 2; pid nginx.pid; error_log logs/e; user root;
events { worker_connections 256; }
http { access_log off; gzip on; gzip_http_version 1.0; gzip_types text/plain; gzip_buffers 64 16k; client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
  server { listen unix:$PWD/sock; root html; } }
C
$FOLD nginx -p "$PWD" -c conf -e logs/e & server=$!
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
python3 load.py 300; kill -HUP $server; sleep 0.5; python3 load.py 300"#).check();
}
