//! Whether the CPUs of the machine have anything to spare.
//!
//! Two answers. *Contended*: as many threads want to run as there are CPUs. The fault thread needs real-time priority then: it would wait
//! for a time slice like everybody else. When a CPU is idle, real-time priority does harm: the scheduler then sends the program's thread,
//! when it is woken, away from the CPU on which the fault thread still runs, to an idle one that must be woken by an interrupt.
//!
//! A process that may use some of the machine's CPUs alone (cpuset, taskset) is told nothing by how many threads want to run somewhere: there it goes by how much of their
//! time these CPUs were idle.
//!
//! *Spare*: nobody is in folding's way, nor folding in anybody's. The machine is not contended, hardly anything waits for a CPU (which tells
//! of a quota that is used up, too, while CPUs are idle), and it does not run on a battery.
//!
//! The quota that control groups set is known besides: what folding takes of a small one, the program would lack.

use crate::text::Line;
use core::ffi::CStr;
use core::fmt::Write;
use memfold_sys::cgroup;
use memfold_sys::dir;
use memfold_sys::file::{self, Fd};
use memfold_sys::thread::CpuSet;
use memfold_sys::time::Nanos;

/// How often the waiting is looked at, whether there is a battery in use, and what the quota is.
const WAITING: Nanos = Nanos::from_secs(1);
/// How often it is looked at for how long the CPUs were idle: the kernel counts that in hundredths of a second.
const IDLE: Nanos = Nanos::from_millis(500);
/// A hundredth of a second, ns.
const HUNDREDTH: u64 = 10_000_000;
/// How often it is looked at which CPUs the process may use.
const ALLOWED: Nanos = Nanos::from_secs(10);
const POWER: Nanos = Nanos::from_secs(30);
const QUOTA: Nanos = Nanos::from_secs(10);
/// A quota of so many millionths of a CPU leaves the program one even while a thread of the pager works without a pause.
const AMPLE: u64 = 2_000_000;
/// The part of the time in which something waits for a CPU, in per cent, above which there is none to spare.
const MUCH: u64 = 10;

/// What is known of it. Opens its files in the thread that makes it.
#[derive(Debug)]
pub struct Contention {
    /// `/proc/loadavg` and `/proc/pressure/cpu`, where they can be read.
    loadavg: Option<Fd>,
    pressure: Option<Fd>,
    /// CPUs that this process may use, where they can be told, and how many they are.
    allowed: Option<CpuSet>,
    cpus: u32,
    allowed_at: Nanos,
    /// Whether the machine has others.
    restricted: bool,
    /// `/proc/stat`; for how long, in hundredths of a second, the allowed ones have been idle since the machine was started, and when
    /// that was read.
    stat: Option<Fd>,
    idle: u64,
    idle_at: Nanos,
    /// The CPU time that folding had taken by then.
    own_time: Nanos,
    /// Moving average of the runnable threads beside ourselves, in sixteenths.
    runnable: u32,
    contended: bool,
    /// For how long anything has waited for a CPU since the machine was started, us, and when that was read.
    waited: u64,
    waited_at: Nanos,
    waits: bool,
    battery: bool,
    battery_at: Option<Nanos>,
    /// Millionths of a CPU that the process may have by its control groups; `u64::MAX` for all.
    quota: u64,
    quota_at: Option<Nanos>,
}

impl Contention {
    /// Nothing sampled yet: there is nothing to spare.
    pub fn new() -> Contention {
        let allowed = CpuSet::of_current_thread().ok();
        let cpus = allowed.as_ref().map_or(1, CpuSet::len);
        let open = |path| file::open(path, libc::O_RDONLY, 0).ok();
        Contention {
            allowed,
            allowed_at: Nanos(0),
            restricted: false,
            stat: open(c"/proc/stat"),
            idle: 0,
            idle_at: Nanos(0),
            own_time: Nanos(0),
            loadavg: open(c"/proc/loadavg"),
            pressure: open(c"/proc/pressure/cpu"),
            cpus,
            runnable: 16 * cpus,
            contended: true,
            waited: 0,
            waited_at: Nanos(0),
            waits: true,
            battery: true,
            battery_at: None,
            quota: u64::MAX,
            quota_at: None,
        }
    }

    /// Takes a sample at `now`, at which so many threads of the pager's have work to do that others could do without. They and the calling one have taken so much
    /// CPU time so far.
    pub fn look(&mut self, now: Nanos, own: u32, own_time: Nanos) {
        if now.since(self.allowed_at) >= ALLOWED {
            self.look_at_allowed(now);
        }
        if self.restricted {
            self.look_at_idle(now, own_time);
        } else {
            self.count_runnable(own);
        }
        if now.since(self.waited_at) >= WAITING {
            self.look_at_waiting(now);
        }
        if self.battery_at.is_none_or(|at| now.since(at) >= POWER) {
            (self.battery, self.battery_at) = (runs_on_battery(c"/sys/class/power_supply"), Some(now));
        }
        if self.quota_at.is_none_or(|at| now.since(at) >= QUOTA) {
            (self.quota, self.quota_at) = (cgroup::cpu_quota().unwrap_or(u64::MAX), Some(now));
        }
    }

    /// Whether as many threads want to run as there are CPUs.
    pub fn is_contended(&self) -> bool {
        self.contended
    }

    /// Whether there is CPU time that nobody else has a use for.
    pub fn has_spare(&self) -> bool {
        !self.contended && !self.waits && !self.battery
    }

    /// Whether a whole CPU can be had for some time, and nobody goes without.
    pub fn has_whole_cpu(&self) -> bool {
        self.has_spare() && self.quota >= AMPLE
    }

    /// Millionths of a CPU that all that is in the process's control groups may have; `u64::MAX` for all.
    pub fn quota(&self) -> u64 {
        self.quota
    }

    /// By `/proc/loadavg` (proc_loadavg(5)): the field `running/all`. Where it cannot be read, the machine counts as contended.
    fn count_runnable(&mut self, own: u32) {
        let mut text = [0u8; 64];
        let sample = read(&self.loadavg, &mut text).and_then(running);
        // This thread is running too.
        let others = sample.map_or(u32::MAX / 64, |running| running.saturating_sub(1 + own));
        self.judge((self.runnable * 3 + others.min(1 << 16) * 16) / 4);
    }

    /// So many threads, in sixteenths, want to run beside ourselves.
    fn judge(&mut self, runnable: u32) {
        self.runnable = runnable;
        // No CPU is idle; a quarter of one must be for contention to end.
        let free = if self.contended { 4 } else { 2 };
        self.contended = self.runnable + free > 16 * self.cpus;
    }

    /// Which CPUs the process may use may have changed.
    fn look_at_allowed(&mut self, now: Nanos) {
        self.allowed_at = now;
        let Ok(allowed) = CpuSet::of_process() else { return };
        if self.allowed != Some(allowed) {
            (self.allowed, self.cpus, self.idle_at) = (Some(allowed), allowed.len(), Nanos(0));
        }
        let all = self.stat.as_ref().and_then(|stat| idle(stat, &allowed)).map_or(0, |idle| idle.cpus);
        self.restricted = all > self.cpus;
    }

    /// By `/proc/stat` (proc_stat(5)): what the CPUs that may be used did beside being idle and folding counts as so many threads.
    fn look_at_idle(&mut self, now: Nanos, own_time: Nanos) {
        let passed = now.since(self.idle_at);
        if passed < IDLE {
            return;
        }
        let (Some(stat), Some(allowed)) = (&self.stat, &self.allowed) else { return };
        let Some(Idle { time: idle, .. }) = idle(stat, allowed) else { return };
        let before = core::mem::replace(&mut self.idle, idle);
        let own = own_time.since(core::mem::replace(&mut self.own_time, own_time)).0 / HUNDREDTH;
        if core::mem::replace(&mut self.idle_at, now) != Nanos(0) {
            let hundredths = passed.0 / HUNDREDTH;
            let idle_or_own = idle.saturating_sub(before) + own;
            let busy = (hundredths * u64::from(self.cpus)).saturating_sub(idle_or_own);
            self.judge((busy * 16 / hundredths.max(1)).min(1 << 20) as u32);
        }
    }

    /// By `/proc/pressure/cpu` (Documentation/accounting/psi.rst). Where it cannot be read, that nothing is contended must do.
    fn look_at_waiting(&mut self, now: Nanos) {
        let mut text = [0u8; 128];
        let Some(waited) = read(&self.pressure, &mut text).and_then(waited) else {
            self.waits = false;
            return;
        };
        let passed = now.since(core::mem::replace(&mut self.waited_at, now)).0 / 1000;
        let before = core::mem::replace(&mut self.waited, waited);
        // The first time it is since the machine was started.
        self.waits = before == 0 || waited.saturating_sub(before) * 100 > passed * MUCH;
    }
}

impl Default for Contention {
    fn default() -> Contention {
        Contention::new()
    }
}

fn read<'a>(file: &Option<Fd>, text: &'a mut [u8]) -> Option<&'a [u8]> {
    let len = file::pread(file.as_ref()?.raw(), text, 0).ok()?;
    Some(&text[..len])
}

/// The number before the slash in the fourth field.
fn running(loadavg: &[u8]) -> Option<u32> {
    let field = loadavg.split(|&b| b == b' ').nth(3)?;
    number(field.split(|&b| b == b'/').next()?).and_then(|n| n.try_into().ok())
}

/// What `/proc/stat` says of CPUs.
#[derive(Debug, PartialEq, Eq)]
struct Idle {
    /// For how long those asked about have been idle, in hundredths of a second.
    time: u64,
    /// How many there are in all.
    cpus: u32,
}

/// Of these CPUs; `None` where it says nothing of any of them.
fn idle(stat: &Fd, allowed: &CpuSet) -> Option<Idle> {
    let mut text = [0u8; 4096];
    let (mut at, mut kept, mut any) = (0, 0, false);
    let mut found = Idle { time: 0, cpus: 0 };
    loop {
        let len = file::pread(stat.raw(), &mut text[kept..], at).ok()?;
        at += len as u64;
        let all = kept + len;
        let end = text[..all].iter().rposition(|&b| b == b'\n').map_or(0, |place| place + 1);
        for line in text[..end].split(|&b| b == b'\n') {
            if let Some((cpu, idle)) = idle_of(line) {
                found.cpus += 1;
                if allowed.contains(cpu) {
                    (found.time, any) = (found.time + idle, true);
                }
            }
        }
        // The long line of interrupts comes behind the CPUs.
        if len == 0 || end == 0 {
            return any.then_some(found);
        }
        text.copy_within(end..all, 0);
        kept = all - end;
    }
}

/// The number of a CPU, and for how long it has been idle: `idle` and `iowait` of its line.
fn idle_of(line: &[u8]) -> Option<(u32, u64)> {
    let mut words = line.split(|&b| b == b' ');
    let cpu = number(words.next()?.strip_prefix(b"cpu")?)?.try_into().ok()?;
    Some((cpu, number(words.nth(3)?)? + number(words.next()?)?))
}

/// The number behind `total=` in the line `some`, us.
fn waited(pressure: &[u8]) -> Option<u64> {
    let line = pressure.split(|&b| b == b'\n').find(|line| line.starts_with(b"some "))?;
    number(line.split(|&b| b == b' ').find_map(|word| word.strip_prefix(b"total="))?)
}

fn number(digits: &[u8]) -> Option<u64> {
    core::str::from_utf8(digits).ok()?.parse().ok()
}

/// Whether the machine has a mains supply and none of them gives anything (Documentation/ABI/testing/sysfs-class-power).
fn runs_on_battery(class: &CStr) -> bool {
    let Ok(dir) = file::open(class, libc::O_RDONLY | libc::O_DIRECTORY, 0) else { return false };
    let (mut mains, mut online) = (false, false);
    let looked = dir::for_each_name(&dir, |name| {
        let is = |file: &str, wanted: &[u8]| {
            let mut line = Line::new();
            let (class, name) = (class.to_str().unwrap_or_default(), name.to_str().unwrap_or_default());
            // What does not fit has no end, and is no path.
            let _ = write!(line, "{class}/{name}/{file}\0");
            let path = CStr::from_bytes_until_nul(line.as_str().as_bytes()).ok();
            let mut text = [0u8; 16];
            let opened = path.and_then(|path| file::open(path, libc::O_RDONLY, 0).ok());
            read(&opened, &mut text).is_some_and(|text| text.trim_ascii_end() == wanted)
        };
        if is("type", b"Mains") {
            mains = true;
            online |= is("online", b"1");
        }
        online
    });
    looked.is_ok() && mains && !online
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::fs;

    #[test]
    fn the_number_of_running_threads_is_found() {
        assert_eq!(running(b"0.57 1.10 2.71 3/120 4711\n"), Some(3));
        assert_eq!(running(b"0.57 1.10"), None);
        assert_eq!(running(b""), None);
    }

    #[test]
    fn the_idle_time_of_a_cpu_is_found_and_that_of_those_allowed_added_up() {
        assert_eq!(idle_of(b"cpu12 1 2 3 400 50 6 7 8 9 10"), Some((12, 450)));
        assert_eq!(idle_of(b"cpu  1 2 3 400 50 6 7 8 9 10"), None);
        assert_eq!(idle_of(b"intr 5 6 7 8 9 10"), None);
        // More of it than is read at a time.
        let path = std::env::temp_dir().join(std::format!("memfold-stat-{}", std::process::id()));
        let lines = (0..200).map(|cpu| std::format!("cpu{cpu} 10 20 30 {} 1 0 0 0 0 0\n", cpu * 1000));
        let text = std::format!(
            "cpu  1 2 3 4 5 6\n{}intr {}\n",
            lines.collect::<std::string::String>(),
            "0 ".repeat(9000)
        );
        fs::write(&path, text).unwrap();
        let stat = file::open(&CString::new(path.to_str().unwrap()).unwrap(), libc::O_RDONLY, 0).unwrap();
        assert_eq!(idle(&stat, &CpuSet::only(0)), Some(Idle { time: 1, cpus: 200 }));
        assert_eq!(idle(&stat, &CpuSet::only(199)), Some(Idle { time: 199_001, cpus: 200 }));
        assert_eq!(idle(&stat, &CpuSet::only(700)), None);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn cpus_that_the_process_may_use_alone_are_contended_when_others_keep_them_busy() {
        let path = std::env::temp_dir().join(std::format!("memfold-idle-{}", std::process::id()));
        let write = |idle: u64| fs::write(&path, std::format!("cpu0 0 0 0 {idle} 0\nintr 1\n")).unwrap();
        write(1000);
        let stat = file::open(&CString::new(path.to_str().unwrap()).unwrap(), libc::O_RDONLY, 0).unwrap();
        let mut contention = Contention::new();
        (contention.cpus, contention.stat, contention.allowed) = (1, Some(stat), Some(CpuSet::only(0)));
        let (mut now, mut idle, mut own) = (Nanos::from_secs(1), 1000, Nanos::from_secs(7));
        contention.look_at_idle(now, own);
        // Of half a second, hundredths of a second that the CPU was idle, and that folding took.
        let mut look = |more: u64, folding: u64| {
            (now, idle, own) = (now + IDLE, idle + more, own + Nanos::from_millis(10 * folding));
            write(idle);
            contention.look_at_idle(now, own);
            contention.is_contended()
        };
        let looks = [(0, 0), (2, 0), (13, 0), (0, 50), (7, 0), (3, 0), (0, 30), (25, 10), (0, 49)];
        let contended = looks.map(|(idle, folding)| look(idle, folding));
        assert_eq!(contended, [true, true, false, false, false, true, false, false, false]);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn the_time_that_anything_waited_is_found() {
        let text = b"some avg10=0.00 avg60=1.25 avg300=1.67 total=29361485214\nfull avg10=0.00 total=7\n";
        assert_eq!(waited(text), Some(29_361_485_214));
        assert_eq!(waited(b"full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"), None);
    }

    #[test]
    fn a_machine_runs_on_a_battery_when_its_mains_supplies_give_nothing() {
        let class = std::env::temp_dir().join(std::format!("memfold-power-{}", std::process::id()));
        let path = CString::new(class.to_str().unwrap()).unwrap();
        let set = |name: &str, kind: &str, online: &str| {
            let supply = class.join(name);
            fs::create_dir_all(&supply).unwrap();
            fs::write(supply.join("type"), kind).unwrap();
            fs::write(supply.join("online"), online).unwrap();
        };
        assert!(!runs_on_battery(&path), "there is no such class");
        set("BAT0", "Battery\n", "0\n");
        assert!(!runs_on_battery(&path), "a battery in a mouse says nothing of the machine");
        set("AC", "Mains\n", "0\n");
        set("AC1", "Mains\n", "0\n");
        assert!(runs_on_battery(&path));
        set("AC1", "Mains\n", "1\n");
        assert!(!runs_on_battery(&path));
        fs::remove_dir_all(&class).unwrap();
    }
}
