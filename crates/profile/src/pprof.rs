//! The file that `pprof` reads: the message `perftools.profiles.Profile`, in gzip.
//!
//! The fields and their numbers are those of profile.proto of github.com/google/pprof; those that are not needed here are left out.

use crate::names::Names;
use crate::profile::{Profile, Stack};
use flate2::write::GzEncoder;
use flate2::Compression;
use prost::Message;
use std::collections::HashMap;
use std::io::{self, Write};

#[derive(Clone, PartialEq, Message)]
struct Whole {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    memory_start: u64,
    #[prost(uint64, tag = "3")]
    memory_limit: u64,
    #[prost(uint64, tag = "4")]
    file_offset: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// What a sample has, in that order: what it is called, and in what it is measured.
const VALUES: [(&str, &str); 4] = [
    ("inuse_objects", "count"),
    ("inuse_space", "bytes"),
    ("cold_space", "bytes"),
    ("folded_space", "bytes"),
];

/// The file's bytes. `written_ns` is when the profile was taken, ns since 1970.
///
/// # Errors
/// None that is known of: they are those of writing to memory.
pub fn file(profile: &Profile, names: &Names, written_ns: u64) -> io::Result<Vec<u8>> {
    let mut zip = GzEncoder::new(Vec::new(), Compression::default());
    zip.write_all(&whole(profile, names, written_ns).encode_to_vec())?;
    zip.finish()
}

fn whole(profile: &Profile, names: &Names, written_ns: u64) -> Whole {
    let mut made = Making::default();
    // The first text is empty by definition.
    made.text("");
    let [objects, space, cold, folded] =
        VALUES.map(|(kind, unit)| ValueType { kind: made.text(kind), unit: made.text(unit) });
    let mapping = names.mappings().iter().zip(1..).map(|(mapping, id)| Mapping {
        id,
        memory_start: mapping.start,
        memory_limit: mapping.end,
        file_offset: mapping.offset,
        filename: made.text(&mapping.path),
        has_functions: true,
    });
    let mapping: Vec<Mapping> = mapping.collect();
    let sample = profile.stacks.iter().map(|stack| made.sample(stack, &mapping)).collect();
    Whole {
        sample_type: vec![objects, space, cold, folded],
        sample,
        mapping,
        location: made.locations,
        function: made.functions,
        string_table: made.texts,
        time_nanos: i64::try_from(written_ns).unwrap_or(0),
        duration_nanos: i64::try_from(profile.sampled_ns).unwrap_or(0),
        period_type: Some(space),
        period: i64::try_from(profile.mean).unwrap_or(0),
        default_sample_type: space.kind,
    }
}

/// The tables of the file as far as they are made, and what is in them already.
#[derive(Default)]
struct Making {
    texts: Vec<String>,
    text_of: HashMap<String, i64>,
    functions: Vec<Function>,
    function_of: HashMap<(i64, i64), u64>,
    locations: Vec<Location>,
    location_of: HashMap<u64, u64>,
}

impl Making {
    fn text(&mut self, text: &str) -> i64 {
        if let Some(known) = self.text_of.get(text) {
            return *known;
        }
        let number = self.texts.len() as i64;
        self.texts.push(text.to_owned());
        self.text_of.insert(text.to_owned(), number);
        number
    }

    fn sample(&mut self, stack: &Stack, mappings: &[Mapping]) -> Sample {
        // A stack that is not known is at no address.
        let addresses = stack.addresses.iter().copied().chain(std::iter::repeat(0));
        let calls = stack.calls.iter().zip(addresses);
        let location_id = calls
            .map(|(frames, address)| {
                if let Some(known) = self.location_of.get(&address) {
                    return *known;
                }
                let line = frames.iter().map(|frame| {
                    let (name, filename) =
                        (self.text(&frame.function), self.text(frame.file.as_deref().unwrap_or("")));
                    Line { function_id: self.function(name, filename), line: i64::from(frame.line) }
                });
                let line = line.collect();
                let id = self.locations.len() as u64 + 1;
                let inside =
                    |mapping: &&Mapping| (mapping.memory_start..mapping.memory_limit).contains(&address);
                let mapping_id = mappings.iter().find(inside).map_or(0, |mapping| mapping.id);
                self.locations.push(Location { id, mapping_id, address, line });
                self.location_of.insert(address, id);
                id
            })
            .collect();
        let bytes = &stack.bytes;
        let value = [bytes.blocks, bytes.live, bytes.cold, bytes.folded].map(|value| value.round() as i64);
        Sample { location_id, value: value.to_vec() }
    }

    fn function(&mut self, name: i64, filename: i64) -> u64 {
        let next = self.functions.len() as u64 + 1;
        let id = *self.function_of.entry((name, filename)).or_insert(next);
        if id == next {
            self.functions.push(Function { id, name, system_name: name, filename });
        }
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::tests::profile;
    use flate2::read::GzDecoder;
    use std::io::Read;

    #[test]
    fn the_file_reads_back_with_each_stack_its_names_and_its_bytes() {
        let profile = profile(&[
            (&["alloc", "set", "main"], [100.0, 60.0, 40.0]),
            (&["alloc", "get", "main"], [7.0, 0.0, 0.0]),
        ]);
        let names = Names::of(std::process::id()).unwrap();
        let zipped = file(&profile, &names, 12).unwrap();
        let mut bytes = Vec::new();
        GzDecoder::new(&zipped[..]).read_to_end(&mut bytes).unwrap();
        let read = Whole::decode(&bytes[..]).unwrap();
        let text = |number: i64| read.string_table[number as usize].as_str();
        assert_eq!(text(0), "");
        let kinds: Vec<_> = read.sample_type.iter().map(|kind| (text(kind.kind), text(kind.unit))).collect();
        assert_eq!(kinds, VALUES);
        assert_eq!(read.sample[0].value, [1, 100, 60, 40]);
        let named = |sample: &Sample| -> Vec<&str> {
            let lines = sample.location_id.iter().map(|id| &read.location[*id as usize - 1].line[0]);
            lines.map(|line| text(read.function[line.function_id as usize - 1].name)).collect()
        };
        assert_eq!(named(&read.sample[0]), ["alloc", "set", "main"]);
        assert_eq!(named(&read.sample[1]), ["alloc", "get", "main"]);
        // Each function once.
        assert_eq!(read.function.len(), 4);
        assert_eq!((read.period, text(read.default_sample_type)), (1024, "inuse_space"));
    }
}
