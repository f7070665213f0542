//! The real fio: whether it is here, and the job files that it runs.
//!
//! Source: fio(1) of fio 3.33.

use crate::job::{Access, Job};
use crate::Unsupported;
use std::fmt::Write;
use std::process::{Command, Stdio};

/// fio's version, such as `fio-3.33`.
///
/// # Errors
/// If it is not installed.
pub fn version() -> Result<String, Unsupported> {
    let output = Command::new("fio").arg("--version").stderr(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        _ => Err(Unsupported("fio is not here: install it with `apt-get install fio`".into())),
    }
}

/// The job file of `job`. It can be run by hand: `fio FILE`.
pub fn job_file(job: &Job) -> String {
    let workload = &job.workload;
    // A colon parts file names.
    let file = job.file.to_string_lossy().replace(':', "\\:");
    let mut text = format!(
        "[{}]\nfilename={file}\nsize={}\nrw={}\nbs={}\nnumjobs={}\niodepth={}\nioengine=libaio\ndirect={}\n\
         runtime={}\ntime_based=1\nthread=1\ngroup_reporting=1\nallow_file_create=0\nlat_percentiles=1\n\
         clat_percentiles=0\n",
        workload.name,
        workload.file_size,
        workload.pattern.name(),
        workload.block_size,
        workload.numjobs,
        workload.iodepth,
        u8::from(job.access == Access::Direct),
        workload.runtime,
    );
    let mut add = |line: String| {
        // Writing into a string cannot fail.
        let _ = writeln!(text, "{line}");
    };
    if workload.pattern.mixed() {
        add(format!("rwmixread={}", workload.rwmixread));
    }
    match job.access {
        Access::NoReadAhead => add("fadvise_hint=random".into()),
        Access::BoundedWriteback if workload.pattern.writes() => {
            add("sync_file_range=wait_before,write:64".into())
        }
        _ => {}
    }
    if job.warm {
        // It would drop the file's pages first.
        add("invalidate=0".into());
    }
    if job.ramp > 0 {
        add(format!("ramp_time={}", job.ramp));
    }
    if let Some(rate) = job.rate {
        add(format!("rate={rate}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{self, Scale};

    fn job(name: &str) -> Job {
        let workloads = workload::parse(workload::BUILT_IN).unwrap();
        let workload = workloads.into_iter().find(|workload| workload.name == name).unwrap();
        let workload = workload.scaled(Scale { numerator: 1, denominator: 16 });
        Job {
            workload,
            file: "/data/test:file".into(),
            access: Access::Direct,
            warm: false,
            ramp: 0,
            rate: None,
        }
    }

    #[test]
    fn a_job_file_says_what_the_workload_says() {
        let text = job_file(&job("bursty_writer_d32"));
        let expected = [
            "[bursty_writer_d32]",
            "filename=/data/test\\:file",
            "size=1073741824",
            "rw=randwrite",
            "bs=4096",
            "iodepth=32",
            "direct=1",
            "runtime=5",
        ];
        assert!(expected.iter().all(|line| text.lines().any(|l| l == *line)), "{text}");
    }

    #[test]
    fn each_access_has_its_options_and_no_others() {
        let extra = |name: &str, change: fn(&mut Job)| {
            let mut changed = job(name);
            changed.access = Access::Cached;
            let plain = job_file(&changed);
            change(&mut changed);
            let text = job_file(&changed);
            text.lines()
                .filter(|line| !plain.lines().any(|l| l == *line))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(extra("steady_reader_d1", |j| j.access = Access::Direct), ["direct=1"]);
        assert_eq!(extra("steady_reader_d1", |j| j.access = Access::NoReadAhead), ["fadvise_hint=random"]);
        let bounded = |j: &mut Job| j.access = Access::BoundedWriteback;
        assert_eq!(extra("steady_writer_d1", bounded), ["sync_file_range=wait_before,write:64"]);
        assert!(extra("steady_reader_d1", bounded).is_empty());
        let rest = |j: &mut Job| (j.warm, j.ramp, j.rate) = (true, 1, Some(5));
        assert_eq!(extra("steady_reader_d1", rest), ["invalidate=0", "ramp_time=1", "rate=5"]);
    }
}
