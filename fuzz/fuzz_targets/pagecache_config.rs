//! Any text is a configuration of workloads that can run, or a mistake on one of its lines.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pagecache::workload::parse;

fuzz_target!(|text: &str| match parse(text) {
    Ok(workloads) => {
        for workload in workloads {
            assert!(workload.block_size >= 512 && workload.file_size >= workload.block_size);
            assert_eq!(workload.file_size % workload.block_size, 0);
            assert!(workload.runtime > 0 && workload.numjobs > 0 && workload.iodepth > 0);
        }
    }
    Err(mistake) => assert!(mistake.line.is_none_or(|line| line >= 1 && line <= text.lines().count())),
});
