//! Any bytes are a trace in oracleGeneral, or an error that names the offset.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sim::format::Format;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(requests) = Format::OracleGeneral.read(Box::new(std::io::Cursor::new(bytes.to_vec()))) {
        requests.for_each(drop);
    }
});
