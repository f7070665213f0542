use super::*;
use proptest::prelude::*;

const CSV: Format = Format::Csv(Columns { object: 2, time: None, separator: ',', header: true });

fn record(object: u64) -> Vec<u8> {
    [&7u32.to_le_bytes()[..], &object.to_le_bytes(), &4096u32.to_le_bytes(), &(-1i64).to_le_bytes()].concat()
}

fn read(format: Format, bytes: &[u8]) -> Result<Vec<Request>, TraceError> {
    format.read(Box::new(std::io::Cursor::new(bytes.to_vec())))?.collect()
}

fn complaint(format: Format, bytes: &[u8]) -> String {
    read(format, bytes).unwrap_err().to_string()
}

fn native(requests: &[Request]) -> Vec<u8> {
    let mut sink = Sink::native(Vec::new()).unwrap();
    requests.iter().for_each(|&request| sink.push(request).unwrap());
    sink.finish().unwrap()
}

fn pages(count: u64) -> Vec<Request> {
    (0..count).map(|n| Request { time: n, object: n * n }).collect()
}

#[test]
fn every_format_gives_the_objects_in_their_order() {
    let objects = |format, bytes: &[u8]| -> Vec<u64> {
        read(format, bytes).unwrap().into_iter().map(|request| request.object).collect()
    };
    let bytes: Vec<u8> = [900, u64::MAX, 900, 7].into_iter().flat_map(record).collect();
    assert_eq!(objects(Format::OracleGeneral, &bytes), [900, u64::MAX, 900, 7]);
    let said = objects(CSV, b"time,object\n1,900\n2,five\n\n3,900\r\n4,7\n5,five\n6,007");
    assert_eq!((said[0], said[2], said[3]), (900, 900, 7));
    assert!(said[1] == said[4] && said[1] != said[5] && said[5] != 7);
    let times = Format::Csv(Columns { object: 1, time: Some(2), separator: ' ', header: false });
    assert_eq!(read(times, b"5 1.5\n6 70").unwrap()[0], Request { time: 1, object: 5 });
}

fn oracle_general(requests: &[Request]) -> std::io::Result<Vec<u8>> {
    let mut sink = Sink::oracle_general(Vec::new());
    for &request in requests {
        sink.push(request)?;
    }
    sink.finish()
}

#[test]
fn oracle_general_is_written_with_the_next_request_of_each_object() {
    let requests =
        [(1, 900), (2, 5), (3, 900), (3, 7), (9, 5)].map(|(time, object)| Request { time, object });
    let bytes = oracle_general(&requests).unwrap();
    assert_eq!(read(Format::OracleGeneral, &bytes).unwrap(), requests);
    let field = |at, of: usize| u64::from_le_bytes(bytes[of * 24 + at..][..8].try_into().unwrap()) as i64;
    assert_eq!([0, 1, 2, 3, 4].map(|n| field(16, n)), [3, 5, -1, -1, -1], "counted from 1");
    assert_eq!([0, 1, 2, 3, 4].map(|n| field(12, n) as i32), [1; 5], "each object is one page");
    assert_eq!(oracle_general(&[]).unwrap_err().to_string(), "it has no request");
    let late = oracle_general(&[requests[0], Request { time: 1 << 32, object: 1 }]).unwrap_err();
    assert_eq!(
        late.to_string(),
        "request 2 has the time 4294967296, and oracleGeneral holds times up to 4294967295: write another format, or scale \
         the times"
    );
}

/// The trace that libCacheSim's repository has lies beside a checkout, not in it.
#[test]
fn a_trace_of_libcachesims_is_written_as_it_was_but_for_the_sizes() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let path = std::env::var_os("MEMFOLD_TRACES").map_or(data, Into::into);
    let Ok(theirs) = std::fs::read(path.join("cloudPhysicsIO.oracleGeneral.bin")) else {
        println!("not compared: no traces in {} (MEMFOLD_TRACES names another folder)", path.display());
        return;
    };
    let ours = oracle_general(&read(Format::OracleGeneral, &theirs).unwrap()).unwrap();
    let without_size = |bytes: &[u8]| -> Vec<u8> {
        bytes.chunks(24).flat_map(|record| [&record[..12], &record[16..]].concat()).collect()
    };
    assert!(without_size(&ours) == without_size(&theirs));
}

#[test]
fn a_broken_trace_is_refused_with_the_offset() {
    let bytes: Vec<u8> = [record(1), record(2)].concat();
    assert_eq!(
        complaint(Format::OracleGeneral, &bytes[..47]),
        "truncated: 23 bytes are left at offset 24, and a record of oracleGeneral has 24"
    );
    assert_eq!(
        complaint(CSV, b"a,b\n1,2\nlonely\n"),
        "line 3 (offset 8) has 1 columns; the object is expected in column 2"
    );
    let timed = Format::Csv(Columns::default());
    assert_eq!(complaint(timed, b"a,b\nsoon,2\n"), "damaged at offset 4: line 2: \"soon\" is no time");
    let long = vec![b'x'; 1 << 17];
    assert_eq!(complaint(CSV, &long), "damaged at offset 0: a line is longer than 65536 bytes");
}

#[test]
fn memfolds_own_format_tells_every_flipped_bit_and_every_cut() {
    let whole = native(&pages(20));
    assert!(whole.len() < 100, "{} bytes for 20 requests", whole.len());
    assert_eq!(read(Format::Native, &whole).unwrap(), pages(20));
    for cut in 0..whole.len() {
        let said = complaint(Format::Native, &whole[..cut]);
        assert!(said.contains("offset"), "cut at {cut}: {said}");
    }
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let said = complaint(Format::Native, &bytes);
        assert!(said.contains("offset"), "bit {bit}: {said}");
    }
    let more = [whole.as_slice(), b"x"].concat();
    assert!(complaint(Format::Native, &more).contains("something follows the block that ends the trace"));
    let second = 8 + 12 + u32::from_le_bytes(whole[8..12].try_into().unwrap()) as usize;
    let said = complaint(Format::Native, &whole[..second]);
    assert_eq!(
        said,
        format!("damaged at offset {second}: truncated: the block that ends a trace is missing")
    );
}

#[test]
fn zstd_is_unpacked_whatever_is_in_it_and_its_damage_is_told() {
    let (plain, records) = (native(&pages(5000)), record(3));
    let packed = zstd::encode_all(&plain[..], 3).unwrap();
    assert_eq!(read(Format::Native, &packed).unwrap(), pages(5000));
    let packed_records = zstd::encode_all(&records[..], 3).unwrap();
    assert_eq!(read(Format::OracleGeneral, &packed_records).unwrap()[0].object, 3);
    let said = complaint(Format::Native, &packed[..packed.len() / 2]);
    assert!(said.contains("offset") && said.contains("compressed data"), "{said}");
}

#[test]
fn a_file_is_known_by_its_first_bytes_or_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let detect = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        Format::detect(&path).unwrap()
    };
    assert_eq!(detect("t", &native(&[])), Format::Native);
    assert_eq!(detect("t.csv", &zstd::encode_all(&native(&[])[..], 1).unwrap()), Format::Native);
    assert_eq!(detect("T.CSV.zst", b"a,b\n"), Format::Csv(Columns::default()));
    assert_eq!(detect("io.bin", &record(1)), Format::OracleGeneral);
}

proptest! {
    #[test]
    fn any_bytes_are_a_trace_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400), mark: bool) {
        let bytes = if mark { [&native::MARK[..], &bytes].concat() } else { bytes };
        for format in [Format::Native, Format::OracleGeneral, CSV, Format::Csv(Columns::default())] {
            let _ = read(format, &bytes);
        }
    }

    #[test]
    fn what_is_written_is_read_again(
        requests in prop::collection::vec((any::<u64>(), any::<u64>()), 0..9000)
    ) {
        let requests: Vec<_> = requests.into_iter().map(|(time, object)| Request { time, object }).collect();
        prop_assert_eq!(read(Format::Native, &native(&requests)).unwrap(), requests);
    }
}
