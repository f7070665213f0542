//! Any bytes are CSV, with a column of times or without, or an error that names the offset.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sim::format::{Columns, Format};

fuzz_target!(|bytes: &[u8]| {
    let bare = Columns { object: 1, time: None, separator: ';', header: false };
    for columns in [Columns::default(), bare] {
        if let Ok(requests) = Format::Csv(columns).read(Box::new(std::io::Cursor::new(bytes.to_vec()))) {
            requests.for_each(drop);
        }
    }
});
