//! The columns of `all_runs_long.csv` beside readings of `/proc` that this test takes by itself while the runs go on.
//!
//! The experiment runs in this process, which has had more memory than any workload gets: what a workload inherits from the
//! process that started it shows. One test a program: it takes every child of its process for one of the experiment's.

use memfold_bench::ab::{self, Arm, Options};
use memfold_bench::worker::Program;
use memfold_bench::workload::{Data, Kind, Measures};
use memfold_e2e::run::children;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const MIB: f64 = (1 << 20) as f64;
/// Memory of a workload, bytes.
const REGION: usize = 48 << 20;

/// One look at a process.
#[derive(Clone, Default)]
struct Look {
    at: f64,
    resident: f64,
    peak: f64,
    minor: f64,
    major: f64,
    cpu_s: f64,
    /// CPU time of its threads by name, s.
    threads: BTreeMap<String, f64>,
    anonymous: f64,
    /// Bytes of its mappings of about the region's size that are not there.
    absent: f64,
}

/// All looks at one process; the command line tells what it is.
struct Seen {
    command: String,
    looks: Vec<Look>,
    /// When it was first looked for in vain.
    gone: f64,
}

fn field(text: &str, key: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|rest| rest.split_whitespace().next()).map_or(0.0, |word| word.parse().unwrap()) * 1024.0
}

fn look(pid: &str, began: Instant) -> Option<Look> {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
    let (status, stat) = (read("status")?, read("stat")?);
    let rest = stat.rsplit_once(')')?.1;
    let number = |at: usize| rest.split_whitespace().nth(at).map_or(0.0, |word| word.parse::<f64>().unwrap());
    let mut threads = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let own = |name: &str| fs::read_to_string(task.path().join(name)).ok();
        let (Some(name), Some(times)) = (own("comm"), own("schedstat")) else { continue };
        let ns: f64 = times.split_whitespace().next()?.parse().unwrap();
        *threads.entry(name.trim().to_owned()).or_insert(0.0) += ns / 1e9;
    }
    // By the page tables, not by the counters that the kernel keeps beside them.
    let (mut resident, mut absent, mut size) = (0.0, 0.0, 0.0);
    for line in read("smaps")?.lines() {
        if line.starts_with("Size:") {
            size = field(line, "Size:");
        } else if line.starts_with("Rss:") {
            resident += field(line, "Rss:");
            // Of mappings that a pager registers in parts the kernel makes several.
            if (MIB..2.0 * REGION as f64).contains(&size) {
                absent += size - field(line, "Rss:");
            }
        }
    }
    Some(Look {
        at: began.elapsed().as_secs_f64(),
        resident,
        peak: field(&status, "VmHWM:"),
        anonymous: field(&status, "RssAnon:"),
        minor: number(7),
        major: number(9),
        // Clock ticks of a hundredth of a second, on every architecture that has Linux's ABI of them.
        cpu_s: (number(11) + number(12)) / 100.0,
        threads,
        absent,
    })
    // A process that has ended has no memory.
    .filter(|look| look.resident > 0.0)
}

/// Looks at our children until `stop`; all that there were, in the order in which they came.
fn watch(stop: &AtomicBool) -> Vec<Seen> {
    let (began, mut order, mut all) = (Instant::now(), Vec::new(), BTreeMap::<String, Seen>::new());
    let mut last = false;
    while !last {
        last = stop.load(Relaxed);
        let mut here = Vec::new();
        for pid in children(std::process::id()) {
            let pid = pid.to_string();
            let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            // Between fork and exec it is still this program.
            let (true, Some(look)) = (command.contains("memfold\0"), look(&pid, began)) else { continue };
            here.push(pid.clone());
            let seen = all.entry(pid.clone()).or_insert_with(|| {
                order.push(pid);
                Seen { command, looks: Vec::new(), gone: f64::INFINITY }
            });
            seen.looks.push(look);
        }
        let now = began.elapsed().as_secs_f64();
        all.iter_mut()
            .filter(|(pid, _)| !here.contains(pid))
            .for_each(|(_, seen)| seen.gone = seen.gone.min(now));
        std::thread::sleep(Duration::from_millis(10));
    }
    order.into_iter().filter_map(|pid| all.remove(&pid)).collect()
}

impl Seen {
    fn last(&self) -> &Look {
        self.looks.last().unwrap()
    }

    /// For how long nobody looked before it had ended, s: little, but where others keep the CPUs busy.
    fn unseen(&self) -> f64 {
        self.gone - self.last().at
    }

    /// The looks of the last so many seconds.
    fn within(&self, seconds: f64) -> &[Look] {
        let from = self.looks.partition_point(|look| look.at < self.last().at - seconds);
        &self.looks[from..]
    }

    /// CPU time of threads whose name begins so, s: within the last seconds, and from their beginning on. What was measured lies between, but for
    /// what they did while nobody looked: where others keep the CPUs busy, the end of the process takes its time, and the last seconds are not those
    /// of the run.
    fn cpu(&self, name: &str, seconds: f64) -> [f64; 2] {
        let of = |look: &Look| -> f64 {
            look.threads.iter().filter(|(own, _)| own.starts_with(name)).map(|(_, cpu)| cpu).sum()
        };
        // A thread that has ended is not seen any more.
        let looks = self.within(seconds);
        let most = looks.iter().map(of).fold(0.0, f64::max);
        [(most - of(&looks[0]) - self.unseen()).max(0.0), most + self.unseen()]
    }
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

/// An experiment with runs of so many ms: its table, and what was seen of its processes.
fn measured(millis: u64) -> (String, Vec<Seen>) {
    let dir = memfold_e2e::scratch();
    let measures = Measures {
        millis,
        bytes: REGION,
        workers: 1,
        seed: 1,
        data: Data::Mixed,
        rate: 0.0,
        cold_millis: 200,
        hot_percent: None,
        cold_rate: None,
        phase_millis: None,
        max_cpu_percent: Some(100.0),
    };
    let arms = vec![Arm::Baseline, Arm::Pager, Arm::Daemon];
    let workloads = vec![Kind::PhaseShift, Kind::MmapChurn];
    let options =
        Options { workloads, arms, runs: 1, measures, out: PathBuf::new(), max_cpu: None, json: false };
    let program = Program {
        path: memfold_e2e::command_line::executable(),
        arguments: vec!["bench".into(), "worker".into()],
        library: memfold_e2e::preload_library(),
    };
    let folder = ab::begin(&dir.path().join("out"), &options).unwrap();
    let stop = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&stop));
        let result = ab::run(&folder, &program, &mut |_| {});
        stop.store(true, Relaxed);
        result.map(drop).unwrap_or_else(|error| panic!("{error:#}"));
        watcher.join().unwrap()
    });
    (fs::read_to_string(folder.path().join("all_runs_long.csv")).unwrap(), seen)
}

/// Whether something was folded in every run that folds.
fn folded_everywhere(table: &str) -> bool {
    let mut lines = table.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().unwrap();
    let at = head.iter().position(|name| *name == "pager_compress_success").unwrap();
    lines.all(|row| row[2] == "baseline" || row[at].parse().is_ok_and(|stored: f64| stored > 0.0))
}

#[test]
fn every_column_of_a_run_agrees_with_an_independent_reading() {
    // More than any workload gets.
    drop(vec![1u8; 4 * REGION]);
    // Where others keep the CPUs busy, the pager comes to nothing in a short run.
    let mut longer = [3_000, 12_000, 48_000, 192_000].into_iter().map(measured);
    let (table, seen) =
        longer.find(|(table, _)| folded_everywhere(table)).expect("nothing is folded, however long a run is");
    let (daemons, workers): (Vec<&Seen>, Vec<&Seen>) =
        seen.iter().partition(|seen| seen.command.contains("daemon\0"));
    let mut lines = table.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().unwrap();
    let rows: Vec<Vec<&str>> = lines.collect();
    assert_eq!((rows.len(), workers.len(), daemons.len()), (6, 6, 2));
    let mut daemons = daemons.into_iter();
    for (row, worker) in rows.iter().zip(workers) {
        let (workload, arm) = (row[0], row[2]);
        let cell = |name: &str| row[head.iter().position(|own| *own == name).expect(name)];
        let value = |name: &str| cell(name).parse::<f64>().unwrap_or_else(|_| panic!("{arm} has no {name}"));
        let near = |name: &str, own: f64, other: f64, share: f64, least: f64| {
            let apart = (own - other).abs();
            assert!(
                apart <= (other * share).max(least),
                "{workload}, {arm}: {name} is {own}, and was seen as {other}"
            );
        };
        let agrees =
            |name: &str, other: f64, share: f64, least: f64| near(name, value(name), other, share, least);
        let last = worker.last();
        let seconds = value("elapsed_ms") / 1e3;
        // What it did while nobody looked is not in the last look.
        let unseen = worker.unseen() / seconds;
        let is_as_seen =
            |name: &str, other: f64, share: f64, least: f64| agrees(name, other, share + 2.0 * unseen, least);

        // The workload by its own clock.
        assert!(seconds >= 3.0, "{seconds}");
        agrees("units_per_s", value("units") / seconds, 0.01, 0.0);
        let percentiles = ["unit_p50_ns", "unit_p95_ns", "unit_p99_ns", "unit_p999_ns"].map(value);
        assert!(percentiles.is_sorted() && percentiles[0] > 0.0, "{percentiles:?}");
        assert!(percentiles[0] * value("units") / 2.0 <= seconds * 1e9, "{percentiles:?}");

        // What the kernel accounts.
        agrees("host_peak_rss_bytes", last.peak, 0.03, MIB);
        let (churns, moves) = (workload == "mmap_churn", arm != "baseline");
        // What moves while the page tables are walked is seen twice, or not at all.
        if !churns && !moves {
            let most = worker.looks.iter().map(|look| look.resident).fold(0.0, f64::max);
            let peaks = most - MIB..most * 1.2 + 8.0 * MIB;
            assert!(peaks.contains(&last.peak), "{workload}, {arm}: {most} of {}", last.peak);
        }
        near(
            "CPU",
            value("host_user_s") + value("host_system_s"),
            last.cpu_s,
            0.1,
            0.25 + 2.0 * worker.unseen(),
        );
        is_as_seen("host_minor_faults", last.minor, 0.15, 300.0);
        is_as_seen("host_major_faults", last.major, 0.1, 20.0);

        // What is sampled, beside other samples of the same time, that of the last count among it.
        let looks = worker.within(seconds + 0.1);
        let resident = mean(looks.iter().map(|look| look.resident));
        is_as_seen("resident_mean_bytes", resident, if churns { 0.2 } else { 0.1 }, 2.0 * MIB);
        agrees("footprint_mean_bytes", value("resident_mean_bytes"), 0.0, 0.0);
        let (least, most) = looks.iter().fold((f64::INFINITY, 0.0f64), |(least, most), look| {
            (least.min(look.resident), most.max(look.resident))
        });
        let end = value("footprint_end_bytes");
        assert!(end <= value("host_peak_rss_bytes"), "{workload}, {arm}: {end} is more than the peak");
        assert!(
            (least - 4.0 * MIB..=most + 4.0 * MIB).contains(&end),
            "{workload}, {arm}: {end} of {least} to {most}"
        );
        let cold = value("cold_bytes_mean");
        assert!((REGION as f64 * 0.5..=REGION as f64).contains(&cold), "{workload}: {cold} are cold");

        // What is compared with the baseline.
        let base = rows.iter().find(|own| own[0] == workload && own[2] == "baseline").unwrap();
        let base: f64 =
            base[head.iter().position(|own| *own == "footprint_mean_bytes").unwrap()].parse().unwrap();
        agrees("saved_bytes_mean", base - value("footprint_mean_bytes"), 0.0, 1.0);
        agrees("saved_pct_of_resident", value("saved_bytes_mean") * 100.0 / base, 0.0, 1e-6);
        assert!(cell("zram_evict_cpu_pct").is_empty());
        if arm == "baseline" {
            assert!(head.iter().filter(|name| name.starts_with("pager_")).all(|name| cell(name).is_empty()));
            assert!(cell("half_of_cold_folded_s").is_empty());
            continue;
        }

        // The pager's account: its threads by the scheduler, its pages by the page tables.
        let daemon = (arm == "daemon").then(|| daemons.next().unwrap());
        if let Some(daemon) = daemon {
            let most = daemon.looks.iter().map(|look| look.anonymous).fold(0.0, f64::max);
            agrees("daemon_own_bytes", most, 0.1, MIB);
        } else {
            assert!(cell("daemon_own_bytes").is_empty());
        }
        let share = |name: &str| value(name) / 100.0 * seconds;
        let between = |name: &str, [least, most]: [f64; 2]| {
            let own = share(name);
            let bounds = least - (least * 0.3).max(0.05)..=most + (most * 0.3).max(0.05);
            assert!(
                bounds.contains(&own),
                "{workload}, {arm}: {name} is {own} s, and was seen as {least} to {most}"
            );
        };
        let agents = worker.cpu("memfold-", seconds + 0.2);
        let beside = daemon.map_or([0.0; 2], |daemon| daemon.cpu("", seconds + 0.2));
        between("pager_daemon_cpu_pct_total", [agents[0] + beside[0], agents[1] + beside[1]]);
        let parts = value("pager_bg_cpu_pct") + value("pager_fault_cpu_pct");
        if daemon.is_none() {
            agrees("pager_daemon_cpu_pct_total", parts, 1e-9, 1e-9);
        }
        assert!(value("pager_daemon_cpu_pct_total") >= parts - 1e-9, "{workload}, {arm}: {parts}");
        // With what asks the kernel for program threads.
        let [own, asking] = ["memfold-bg", "memfold-proxy"].map(|name| worker.cpu(name, seconds + 0.2));
        between("pager_bg_cpu_pct", [own[0] + asking[0], own[1] + asking[1]]);
        let (stored, waits) = (value("pager_compress_success"), value("pager_faults_missing"));
        agrees("pager_client_evict_success", stored, 0.0, 0.0);
        // A page compressed costs some microseconds: compressing is what the background did.
        let each = share("pager_bg_cpu_pct") * 1e6 / stored;
        assert!(each > 1.0, "{workload}, {arm}: {each} us of background for each of {stored} pages");
        // Who waits has faulted. What was waited for may never have been away: pages that do not shrink go back by themselves.
        let faults = last.minor + last.major;
        assert!(waits <= faults, "{workload}, {arm}: {waits} waits in {faults} faults");
        let back = value("pager_restore_success") + value("pager_second_chance");
        // On a busy machine it can be that nothing was away that was touched.
        assert!(back > 0.0 || waits == 0.0, "{workload}, {arm}: {waits} waits, and nothing came back");
        let [restore, wait] = ["pager_restore_wall_p99_ns", "pager_fault_missing_p99_ns"].map(value);
        assert!(
            restore <= wait && (wait > 0.0) == (waits > 0.0),
            "{workload}, {arm}: {restore} of {wait} ns"
        );
        assert!(waits < 20.0 || restore < wait, "{workload}, {arm}: the work is the wait, {wait} ns");
        assert!(value("pager_restore_wall_p95_ns") <= restore && value("pager_fault_missing_p95_ns") <= wait);
        assert!(value("stall_pct") / 100.0 * seconds * 1e9 <= waits * LONGEST, "{workload}, {arm}");
        let evicted = value("folded_pct_of_cold") / 100.0 * cold;
        // Absent is also what is set aside, and the ends of mappings that nobody has used.
        let absent = mean(looks.iter().map(|look| look.absent));
        assert!(evicted <= absent * 1.1 + MIB, "{workload}, {arm}: {evicted} evicted and {absent} absent");
        // On a busy machine little is folded in so short a time.
        assert_eq!(
            cell("pager_store_pct_of_evicted").is_empty(),
            evicted < MIB,
            "{workload}, {arm}: {evicted}"
        );
        if evicted >= MIB {
            // Some of it is there before anything is folded.
            let store = value("pager_store_pct_of_evicted") / 100.0 * evicted;
            let likely = evicted * 0.2..evicted + 16.0 * MIB;
            assert!(likely.contains(&store), "{workload}, {arm}: {store} of {evicted}");
        }
        // What never comes on a busy machine has no number; what comes does so within the run.
        let half = cell("half_of_cold_folded_s");
        assert!(
            half.is_empty() || value("half_of_cold_folded_s") <= seconds + 0.1,
            "{workload}, {arm}: {half}"
        );
        let pages = (REGION / 4096) as f64;
        assert!((pages..4.0 * pages).contains(&value("pager_pages_tracked_peak")), "{workload}, {arm}");
        let moved = [value("pager_range_add_msgs"), value("pager_range_del_msgs")];
        let units = if churns { value("units") } else { 0.0 };
        // A program that uses the library registers each; the preloaded one enters none into its tables that is gone before it could be cold.
        let least = if daemon.is_some() { units } else { 0.0 };
        assert!(moved.iter().all(|moved| *moved >= least), "{workload}, {arm}: {moved:?} of {units}");
        assert!(moved.iter().all(|moved| *moved <= units + 50.0), "{workload}, {arm}: {moved:?} of {units}");
        // Of each eight pages a sample tells; what began before the run may be told in it.
        let told = value("pager_foreseen_hit") + value("pager_foreseen_wasted");
        assert!(told <= 2.0 * value("pager_foreseen") + 512.0, "{workload}, {arm}: {told}");
        assert!(value("pager_faults_first_touch") >= 0.0 && value("pager_budget_holds") >= 0.0);
    }
    assert_eq!(head.len(), 3 + ab::Metrics::MEANINGS.len());
}

/// The longest wait that is believed, ns.
const LONGEST: f64 = 1e9;
