//! Real programs, unmodified, give byte for byte the same plain and folded.
//!
//! A folded run in which nothing was evicted proves nothing, and fails.

use memfold_e2e::row::report;
use memfold_e2e::run::{self, program};
use memfold_e2e::LIMIT;
use std::fs;
use std::path::Path;
use std::process::Command;

const PYTHON: &str = r#"
import gc, hashlib, multiprocessing, sys, threading, time

def build(seed, n):
    out, x = {}, seed
    for i in range(n):
        x = (x * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
        out["key %d" % i] = [x, str(x), {"half": x >> 32, "text": "word " * (x % 7)}, bytes(x % 97)]
    return out

def digest(data):
    h = hashlib.sha256()
    for key in sorted(data):
        h.update(repr((key, data[key])).encode())
    return h.hexdigest()

results = {}
def work(number):
    data = build(number, 15000)
    time.sleep(0.2)
    results[number] = digest(data)
    for key in list(data)[::3]:
        del data[key]
    gc.collect()
    time.sleep(0.1)
    data.update(build(number + 100, 5000))
    results[number + 100] = digest(data)

shared = build(7, 40000)

def child(number):
    # Reads what the parent built before the fork, and changes its own copy of it.
    mine = dict(list(shared.items())[number::4])
    mine["child"] = number
    time.sleep(0.1)
    return number, digest(mine)

if __name__ == "__main__":
    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for t in threads: t.start()
    for t in threads: t.join()
    time.sleep(0.3)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        children = pool.map(child, range(4))
    time.sleep(0.2)
    print(sorted(results.items()))
    print(children)
    print(digest(shared))
    big = bytearray(b"memfold " * (4 << 20))
    time.sleep(0.3)
    big[12345678] = 0
    print(hashlib.sha256(big).hexdigest())
    sys.exit(3)
"#;

#[test]
fn python_with_threads_and_forked_children_computes_the_same() {
    let command = || {
        let mut command = Command::new(program("python3", "python3"));
        command.arg("-c").arg(PYTHON).env("PYTHONHASHSEED", "0");
        command
    };
    let plain = run::run_plain(command(), LIMIT);
    assert_eq!(plain.status.code(), Some(3), "plain: {}", plain.stderr);
    let folding = run::harsh();
    let folded = run::run_folded(command(), &folding, LIMIT);
    assert_eq!(folded.status.code(), Some(3), "folded: {}\n{}", folded.status, folded.stderr);
    assert_eq!(String::from_utf8_lossy(&folded.stdout), String::from_utf8_lossy(&plain.stdout));
    run::expect_evictions(&folding, "python3");
    report(
        &folding,
        "python3",
        "three threads and four forked children digest what they built",
        "the same output",
    );
}

/// Enough templates to keep a compiler busy for some seconds and hundreds of megabytes.
fn source() -> String {
    let mut text: String = [
        "algorithm",
        "functional",
        "iostream",
        "map",
        "memory",
        "numeric",
        "random",
        "ranges",
        "regex",
        "set",
        "sstream",
        "string",
        "thread",
        "tuple",
        "unordered_map",
        "variant",
        "vector",
    ]
    .map(|header| format!("#include <{header}>\n"))
    .concat();
    text.push_str("template <int N> struct Tag { static constexpr int value = N; };\n");
    for number in 0..40 {
        text.push_str(&format!(
            "std::map<std::string, std::variant<int, double, std::vector<Tag<{number}>>>> table{number};\n\
             int use{number}(const std::string &s) {{\n\
               static const std::regex pattern(\"([a-z]+){number}([0-9]*)\");\n\
               std::smatch match; std::unordered_map<std::string, Tag<{number}>> seen;\n\
               std::vector<int> v(s.size() + {number});\n\
               std::iota(v.begin(), v.end(), {number});\n\
               std::sort(v.begin(), v.end(), [](int a, int b) {{ return a % {} > b % {}; }});\n\
               table{number}[s] = double({number});\n\
               return std::regex_search(s, match, pattern) ? v.back() + int(seen.size()) : Tag<{number}>::value;\n\
             }}\n",
            number + 2,
            number + 2
        ));
    }
    text
}

fn compile(home: &Path) -> Command {
    let mut command = Command::new(program("g++", "g++"));
    command.args(["-std=c++20", "-O1", "-g", "-frandom-seed=1", "-c", "templates.cc", "-o", "templates.o"]);
    command.current_dir(home);
    command
}

#[test]
fn gcc_compiles_to_the_same_bytes() {
    let home = tempfile::tempdir().unwrap();
    let object = home.path().join("templates.o");
    fs::write(home.path().join("templates.cc"), source()).unwrap();
    run::run_plain(compile(home.path()), LIMIT).expect_success("g++, plain");
    let expected = fs::read(&object).unwrap();
    assert!(expected.len() > 100_000, "the object has only {} bytes", expected.len());
    fs::remove_file(&object).unwrap();
    let folding = run::harsh();
    let folded = run::run_folded(compile(home.path()), &folding, LIMIT).expect_success("g++, folded");
    assert_eq!(folded.stderr, "");
    let found = fs::read(&object).unwrap();
    assert!(found == expected, "the objects differ: {} and {} bytes", expected.len(), found.len());
    run::expect_evictions(&folding, "g++");
    report(&folding, "g++", "compiles a source full of templates", "the same object");
}
