//! Any text is the result of a fio run, or an error.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(outcome) = pagecache::outcome::parse(text) {
        assert!(outcome.ios > 0);
    }
});
