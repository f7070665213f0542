//! Texts: fio's results, configurations, what the kernel says, and what a person types for an option.

use memfold_pagecache::cgroup::MemoryStat;
use memfold_pagecache::diskstats::Counters;
use memfold_pagecache::workload::{self, Scale};
use memfold_pager::config::{parse_duration, parse_percent, parse_size, Setting};
use memfold_policy::spec::Spec;
use memfold_sim::run::Size;
use std::str::from_utf8;

const FIO_3: &str = r#"fio: a warning comes first
{"fio version": "fio-3.33", "jobs": [{"jobname": "w", "error": 0,
"read": {"io_kbytes": 4000, "bw_bytes": 819200, "iops": 200.0, "total_ios": 1000, "clat_ns": {"mean": 11000.0},
"lat_ns": {"mean": 12500.0, "percentile": {"50.000000": 10000, "99.000000": 60000}, "bins": {"10000": 900, "60000": 100}}},
"write": {"total_ios": 0}}]}"#;
const FIO_2: &str = r#"{"fio version": "fio-2.16", "jobs": [{"error": 0, "read": {"io_bytes": 4000, "bw": 800,
"iops": 200.0, "total_ios": 1000, "lat": {"mean": 12.5}, "clat": {"percentile": {"50.000000": 10}}}}]}"#;

fn seeds(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Any text is the result of a fio run, or an error.
pub(crate) fn fio_json(bytes: &[u8]) {
    let Ok(text) = from_utf8(bytes) else { return };
    if let Ok(outcome) = memfold_pagecache::outcome::parse(text) {
        assert!(outcome.ios > 0);
    }
}

pub(crate) fn fio_json_seeds() -> Vec<Vec<u8>> {
    seeds(&[FIO_2, FIO_3])
}

/// Any text is a configuration of workloads that can run, or a mistake on one of its lines.
pub(crate) fn pagecache_config(bytes: &[u8]) {
    let Ok(text) = from_utf8(bytes) else { return };
    match workload::parse(text) {
        Ok(workloads) => {
            for workload in workloads {
                assert!(workload.block_size >= 512 && workload.file_size >= workload.block_size);
                assert_eq!(workload.file_size % workload.block_size, 0);
                assert!(workload.runtime > 0 && workload.numjobs > 0 && workload.iodepth > 0);
            }
        }
        Err(mistake) => assert!(mistake.line.is_none_or(|line| (1..=text.lines().count()).contains(&line))),
    }
}

pub(crate) fn pagecache_config_seeds() -> Vec<Vec<u8>> {
    seeds(&[
        workload::BUILT_IN,
        "[w]\nfile_size=1G\nblock_size=4k\npattern=randrw\nrwmixread = 30\nnumjobs=2\n",
    ])
}

/// Accounts of memory cgroups and of block devices.
pub(crate) fn kernel_text(bytes: &[u8]) {
    let Ok(text) = from_utf8(bytes) else { return };
    MemoryStat::parse(text);
    Counters::parse(text, "vda");
}

pub(crate) fn kernel_text_seeds() -> Vec<Vec<u8>> {
    seeds(&[
        "anon 5\nfile 9\nfile_dirty 8\nfile_writeback 7\nworkingset_refault_file 6\n",
        "cache 1\ntotal_cache 9\ntotal_dirty 8\ntotal_writeback 7\ntotal_workingset_refault_file 6\n",
        " 254 0 vda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n 254 1 vda1 1 2 3\n",
    ])
}

/// Sizes, durations, shares, scales and policies with their parameters: what is taken lies in its range.
pub(crate) fn options(bytes: &[u8]) {
    let Ok(text) = from_utf8(bytes) else { return };
    let _ = (parse_size(text), parse_duration(text), parse_percent(text));
    for setting in Setting::ALL {
        if let Ok(value) = setting.parse(text) {
            let (least, most) = setting.range();
            assert!((least..=most).contains(&value));
        }
    }
    if let Some(size) = Size::parse(text) {
        assert!(size.pages(1000) >= 1);
    }
    if let Some(scale) = Scale::parse(text) {
        assert!(scale.of(u64::MAX) > 0 && scale.of(1 << 40) <= 1 << 40);
    }
    if let Ok(spec) = Spec::parse(text) {
        assert!(memfold_policy::spec::names().any(|name| name == spec.name()));
        spec.make(4, 16);
    }
}

pub(crate) fn option_seeds() -> Vec<Vec<u8>> {
    let policies = ["s3fifo:small=0.05,ghost=1", "freebsd:free=0.1,period=60", "wtinylfu:window=0.5"];
    let values = ["64K", "1.5GiB", "500ms", "5d", "0.5%", "10%", "1/16", "0.25", "18446744073709551615"];
    let names: Vec<&str> = memfold_policy::spec::names().collect();
    seeds(&[&names[..], &policies, &values].concat())
}
