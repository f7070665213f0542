//! What the agent tells of its work: to the daemon in the channel, and to people on the control page.

use super::agent::Agent;
use memfold_daemon::channel::{State, JOBS, REGIONS};
use memfold_pager::config::Setting;
use memfold_pager::control::Histogram;
use memfold_pager::source::Kind;
use memfold_sys::time;
use memfold_sys::PAGE_SIZE;
use std::sync::atomic::Ordering::*;

impl Agent {
    /// Brings up to date how much there is to fold, after ranges have come or gone. Looks at no page: a program may register and
    /// unregister a thousand times a second.
    pub fn count_ranges(&self) {
        let pages: usize = self.regions.iter().map(|region| region.pages).sum();
        let (header, control) = (self.channel.header(), self.control);
        let managed = (pages * PAGE_SIZE) as u64;
        header.managed_bytes.store(managed, Relaxed);
        control.managed_bytes.store(managed, Relaxed);
        control.managed_bytes_peak.fetch_max(managed, Relaxed);
        let resident = managed.saturating_sub(header.evicted_bytes.load(Relaxed));
        header.resident_bytes.store(resident, Relaxed);
        control.resident_bytes.store(resident, Relaxed);
    }

    /// Brings the counters up to date, and takes back the slots of what was restored.
    pub fn count(&mut self) {
        let page = PAGE_SIZE as u64;
        let (mut managed, mut evicted, mut aside) = (0, 0, 0);
        for region in 0..REGIONS {
            managed += self.regions[region].pages as u64;
            for n in 0..self.regions[region].pages {
                match self.regions[region].entry(&self.channel, n).state() {
                    State::Stored | State::Same => evicted += 1,
                    State::Held | State::HeldWanted => aside += 1,
                    State::Returned => self.take_back_slot(region, n),
                    State::Resident => {}
                }
            }
        }
        let (usage, header, control) = (self.store.usage(), self.channel.header(), self.control);
        let overhead = usage.memory + self.tables_bytes();
        let own = time::thread_cpu().since(self.serving);
        header.managed_bytes.store(managed * page, Relaxed);
        header.resident_bytes.store((managed - evicted) * page, Relaxed);
        header.evicted_bytes.store(evicted * page, Relaxed);
        header.store_bytes.store(usage.memory, Relaxed);
        let saved = (evicted * page).saturating_sub(overhead);
        for (gauge, peak, value) in [
            (&control.managed_bytes, &control.managed_bytes_peak, managed * page),
            (&control.evicted_bytes, &control.evicted_bytes_peak, evicted * page),
            (&control.stored_bytes, &control.stored_bytes_peak, usage.data),
            (&control.saved_bytes, &control.saved_bytes_peak, saved),
        ] {
            gauge.store(value, Relaxed);
            peak.fetch_max(value, Relaxed);
        }
        control.source.store(self.source() as u64, Relaxed);
        let told = Kind::from_number(self.config.get(Setting::Source)).is_told();
        control.source_why.set(if told {
            "a program that a daemon serves goes by probe or writes"
        } else {
            ""
        });
        for (to, value) in [
            (&control.resident_bytes, (managed - evicted) * page),
            (&control.aside_bytes, aside * page),
            (&control.overhead_bytes, overhead),
            (&control.store_bytes, usage.memory),
            (&control.table_bytes, overhead - usage.memory),
            (&control.pages_evicted, self.counts.evicted),
            (&control.pages_same_value, self.counts.same),
            (&control.pages_incompressible, self.counts.incompressible),
            (&control.pages_second_chance, self.counts.second_chance),
            (&control.budget_holds, self.counts.holds),
            (&control.pages_restored, header.restored.load(Relaxed)),
            (&control.faults_zero, header.zeroed.load(Relaxed)),
            (&control.stall_ns, header.stall_ns.load(Relaxed)),
            (&control.cpu_fault_ns, self.serving.0.saturating_add(header.fault_cpu_ns.load(Relaxed))),
            (&control.cpu_background_ns, own.0.saturating_add(header.compress_cpu_ns.load(Relaxed))),
            (&control.updated_ns, self.now),
        ] {
            to.store(value, Relaxed);
        }
        merge([&header.fault_ns, &header.held_ns], &control.fault_ns);
        merge([&header.restore_ns, &header.held_restore_ns], &control.restore_ns);
    }

    /// What the entries, the tables of the pieces and the pages of the jobs take.
    fn tables_bytes(&self) -> u64 {
        let regions =
            self.regions.iter().filter(|region| region.exists()).map(|region| region.tables_bytes());
        (regions.sum::<usize>() + JOBS * 2 * PAGE_SIZE) as u64
    }
}

/// Writes the sum of histograms.
fn merge<const N: usize>(from: [&Histogram; N], to: &Histogram) {
    to.count.store(from.iter().map(|h| h.count.load(Relaxed)).fold(0, u64::wrapping_add), Relaxed);
    to.sum.store(from.iter().map(|h| h.sum.load(Relaxed)).fold(0, u64::wrapping_add), Relaxed);
    to.max.store(from.iter().map(|h| h.max.load(Relaxed)).fold(0, u64::max), Relaxed);
    for (n, bucket) in to.buckets.iter().enumerate() {
        bucket.store(from.iter().map(|h| h.buckets[n].load(Relaxed)).fold(0, u32::wrapping_add), Relaxed);
    }
}
