//! Any bytes are a trace in memfold's own format, or an error that names the offset; what is read is written the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sim::format::{Format, Sink};

fuzz_target!(|bytes: &[u8]| {
    let read = |bytes: &[u8]| Format::Native.read(Box::new(std::io::Cursor::new(bytes.to_vec())))?.collect::<Result<Vec<_>, _>>();
    if let Ok(requests) = read(bytes) {
        let mut sink = Sink::native(Vec::new()).unwrap();
        requests.iter().for_each(|&request| sink.push(request).unwrap());
        assert_eq!(read(&sink.finish().unwrap()).unwrap(), requests);
    }
});
