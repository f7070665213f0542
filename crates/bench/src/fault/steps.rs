//! Where the time of a touch goes, step by step.
//!
//! The touching thread says when each touch began and ended, the fault thread when it reached each step, both by the same clock. So the steps of a
//! touch add up to what it took. What only the kernel sees is in the step that it lies in: entering the kernel in the first wake-up, leaving it in
//! the return.
//!
//! What it is not: free. Stamping takes some 0.2 us of a touch.

use crate::worker::{Order, Traced};
use memfold_pager::stamps::Stamps;
use memfold_plot::{Axis, Bars, Chart, Panels, Plot, Series, Unit};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// How many steps there are.
const COUNT: usize = 11;

/// Their names, in their order.
const NAMES: [&str; COUNT] = [
    "queue",
    "wake-up",
    "read",
    "find",
    "take",
    "decompress",
    "copy",
    "wake",
    "follow-up",
    "return",
    "elsewhere",
];

/// What each is.
const ABOUT: [&str; COUNT] = [
    "until the fault thread has nothing else to do",
    "into the kernel, and until the fault thread runs",
    "until it has read the message",
    "until it has found the extent, and what the thread waited before",
    "until the entry is its own",
    "until the bytes are whole again",
    "until the page is in place",
    "until the kernel has been told to wake the thread",
    "until the fault thread has done the rest of its work, which the thread waited for",
    "until the thread runs, and out of the kernel",
    "left to another agent that has the page in hand",
];

/// The last.
const ELSEWHERE: usize = COUNT - 1;

/// Slow touches that are shown one by one.
const SLOW: usize = 10;
/// Quantiles whose touches are shown, in thousandths, and how many thousandths around each.
const NEAR: [(usize, &str); 3] = [(500, "p50"), (900, "p90"), (990, "p99")];
const AROUND: usize = 5;

/// One touch that the fault thread has served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stepped {
    parts: [u64; COUNT],
    /// What the fault thread did afterwards for it, ns.
    after: u64,
    /// The CPU of the touching thread before and after, and that of the fault thread, if it served it to the end.
    cpus: (i32, i32),
    fault_cpu: Option<u64>,
}

impl Stepped {
    fn of(touch: &Traced, stamps: &Stamps) -> Stepped {
        let mut parts = [0; COUNT];
        let mut at = touch.began;
        let mut until = |step: usize, time: u64| {
            let time = time.clamp(at, touch.ended.max(at));
            parts[step] += time - at;
            at = time;
        };
        let Stamps { idle, woke, read, found, taken, unpacked, placed, woken, .. } = *stamps;
        // It never slept where the message was there already.
        until(0, idle);
        until(1, woke);
        until(2, read);
        until(3, found);
        if placed == 0 {
            until(ELSEWHERE, touch.ended);
        } else {
            // Who runs before all is done did not wait for that.
            let rest = if stamps.done <= touch.ended { stamps.done } else { woken };
            // What is only set aside is not decompressed.
            for (step, time) in
                [(4, taken), (5, unpacked), (6, placed), (7, woken), (8, rest), (9, touch.ended)]
            {
                until(step, time);
            }
        }
        let after = if woken == 0 { 0 } else { stamps.done.saturating_sub(woken) };
        Stepped { parts, after, cpus: touch.cpus, fault_cpu: Some(stamps.cpu).filter(|&cpu| cpu != u64::MAX) }
    }

    fn total(&self) -> u64 {
        self.parts.iter().sum()
    }

    /// On which CPUs it was: those of the thread, with that of the fault thread in the middle.
    fn cpus(&self) -> String {
        let fault = self.fault_cpu.map_or("-".to_owned(), |cpu| cpu.to_string());
        format!("{}>{fault}>{}", self.cpus.0, self.cpus.1)
    }
}

/// Puts what both threads say of the touches together. A touch of which the fault thread says nothing found its page in place.
pub(super) fn join(touches: &[Traced], stamps: &[Stamps]) -> Vec<Stepped> {
    let mut of_page: BTreeMap<u64, Vec<&Stamps>> = BTreeMap::new();
    stamps.iter().for_each(|stamps| of_page.entry(stamps.page).or_default().push(stamps));
    let served = |touch: &Traced| {
        let during = |stamps: &&&Stamps| stamps.read >= touch.began && stamps.read <= touch.ended;
        // Whoever is woken before the page is there asks again.
        of_page.get(&touch.page)?.iter().filter(during).max_by_key(|stamps| stamps.read).copied()
    };
    touches.iter().filter_map(|touch| served(touch).map(|stamps| Stepped::of(touch, stamps))).collect()
}

/// A distribution, ns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[allow(missing_docs)] // Named by the statistic.
pub struct Spread {
    pub mean: f64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub max: u64,
}

impl Spread {
    fn of(values: impl Iterator<Item = u64>) -> Spread {
        let mut values: Vec<u64> = values.collect();
        values.sort_unstable();
        let at = |thousandths: usize| values.get(rank(values.len(), thousandths)).copied().unwrap_or(0);
        let mean = values.iter().sum::<u64>() as f64 / values.len().max(1) as f64;
        Spread { mean, p50: at(500), p90: at(900), p99: at(990), max: at(1000) }
    }
}

fn rank(count: usize, thousandths: usize) -> usize {
    (count * thousandths / 1000).min(count.saturating_sub(1))
}

/// The time of one step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Its name.
    pub step: &'static str,
    /// What it is.
    pub about: &'static str,
    /// Over all touches, ns.
    pub ns: Spread,
}

/// The steps of touches that take about as long as a quantile of all.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Near {
    /// `p50`, `p90` or `p99`.
    pub quantile: &'static str,
    /// The mean time of each step, ns, in the order of the steps.
    pub parts: Vec<f64>,
}

/// A slow touch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Slow {
    /// What it took, ns.
    pub total: u64,
    /// The time of each step, ns, in the order of the steps.
    pub parts: Vec<u64>,
    /// The CPUs of the touching thread before, of the fault thread, and of the touching thread afterwards: `0>1>0`.
    pub cpus: String,
}

/// The steps of touches under one condition.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Steps {
    /// CPU hogs.
    pub hogs: usize,
    /// Order of the touches.
    pub order: Order,
    /// Touches that the fault thread served.
    pub touches: usize,
    /// Each step.
    pub steps: Vec<Step>,
    /// What the fault thread still does for a touch after it was told to wake the thread, ns.
    pub afterwards: Spread,
    /// What touches are made of that take about as long as a quantile of all.
    pub near: Vec<Near>,
    /// The slowest.
    pub slow: Vec<Slow>,
}

/// One line of the file of steps.
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs)] // The fields are those of `Steps` and `Spread`.
pub struct Row {
    pub hogs: usize,
    pub order: Order,
    pub step: &'static str,
    pub touches: usize,
    pub mean_ns: f64,
    pub p50_ns: u64,
    pub p90_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
}

/// One line of the file of slow touches.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)] // The fields are those of `Slow`, one step a line.
pub struct SlowRow {
    pub hogs: usize,
    pub order: Order,
    pub touch: usize,
    pub cpus: String,
    pub step: &'static str,
    pub ns: u64,
}

impl Steps {
    /// Those of all rounds under one condition; `None` where the fault thread served none.
    pub(super) fn of(hogs: usize, order: Order, mut touches: Vec<Stepped>) -> Option<Steps> {
        if touches.is_empty() {
            return None;
        }
        touches.sort_by_key(Stepped::total);
        let count = touches.len();
        let step = |n: usize| Step {
            step: NAMES[n],
            about: ABOUT[n],
            ns: Spread::of(touches.iter().map(|touch| touch.parts[n])),
        };
        let near = |&(thousandths, quantile): &(usize, &'static str)| {
            let around = &touches[rank(count, thousandths - AROUND)..=rank(count, thousandths + AROUND)];
            let mean =
                |n| around.iter().map(|touch| touch.parts[n]).sum::<u64>() as f64 / around.len() as f64;
            Near { quantile, parts: (0..COUNT).map(mean).collect() }
        };
        let slow =
            |touch: &Stepped| Slow { total: touch.total(), parts: touch.parts.to_vec(), cpus: touch.cpus() };
        Some(Steps {
            hogs,
            order,
            touches: count,
            steps: (0..COUNT).map(step).collect(),
            afterwards: Spread::of(touches.iter().map(|touch| touch.after)),
            near: NEAR.iter().map(near).collect(),
            slow: touches.iter().rev().take(SLOW).map(slow).collect(),
        })
    }

    /// Each step as a flat row.
    pub(super) fn rows(&self) -> impl Iterator<Item = Row> + '_ {
        let all = self.steps.iter().map(|step| (step.step, step.ns)).chain([("afterwards", self.afterwards)]);
        all.map(|(step, ns)| Row {
            hogs: self.hogs,
            order: self.order,
            step,
            touches: self.touches,
            mean_ns: ns.mean,
            p50_ns: ns.p50,
            p90_ns: ns.p90,
            p99_ns: ns.p99,
            max_ns: ns.max,
        })
    }

    /// Each step of each slow touch as a flat row.
    pub(super) fn slow_rows(&self) -> impl Iterator<Item = SlowRow> + '_ {
        self.slow.iter().enumerate().flat_map(move |(touch, slow)| {
            slow.parts.iter().zip(NAMES).map(move |(&ns, step)| SlowRow {
                hogs: self.hogs,
                order: self.order,
                touch: touch + 1,
                cpus: slow.cpus.clone(),
                step,
                ns,
            })
        })
    }

    fn condition(&self) -> String {
        let order = format!("{:?}", self.order).to_lowercase();
        let load = if self.hogs == 0 { "idle".to_owned() } else { format!("{} hogs", self.hogs) };
        format!("{order}, {load}")
    }

    /// Bars of so many names, whose parts are the steps.
    fn bars(
        &self,
        title: String,
        names: Vec<String>,
        shown: &[usize],
        part: impl Fn(usize, usize) -> f64,
    ) -> String {
        let series = |&n: &usize| Series {
            name: NAMES[n].to_owned(),
            values: (0..names.len()).map(|bar| Some(part(bar, n).into())).collect(),
        };
        let series = shown.iter().map(series).collect();
        let axis = Axis::linear("time since the touch").unit(Unit::Nanos).not_negative();
        Bars { title, axis, groups: names, series, stacked: true }.svg()
    }

    fn near_bars(&self, shown: &[usize]) -> String {
        let names = self.near.iter().map(|near| near.quantile.to_owned()).collect();
        self.bars(format!("What touches are made of: {}", self.condition()), names, shown, |bar, n| {
            self.near[bar].parts[n]
        })
    }

    fn slow_bars(&self, shown: &[usize]) -> String {
        let names = self.slow.iter().map(|slow| slow.cpus.clone()).collect();
        let title = format!("The slowest touches, by CPUs: {}", self.condition());
        self.bars(title, names, shown, |bar, n| self.slow[bar].parts[n] as f64)
    }
}

/// The steps of touches at three quantiles, and of the slowest.
pub(super) fn plots(steps: &[Steps]) -> Vec<Plot> {
    // The same in every drawing, so that a step looks alike in all.
    let ever = |n: &usize| steps.iter().any(|one| one.steps[*n].ns.max > 0);
    let shown: Vec<usize> = (0..COUNT).filter(ever).collect();
    let of = |draw: fn(&Steps, &[usize]) -> String| Panels {
        panels: steps.iter().map(|one| draw(one, &shown)).collect(),
    };
    vec![
        Plot::new(
            "steps",
            "The steps of touches that take about as long as the median, the 90th and the 99th percentile of all.",
            of(Steps::near_bars),
        ),
        Plot::new(
            "slow",
            "The slowest touches from their beginning up. Below each the CPU of the thread before, of the fault thread, and of the thread \
             afterwards.",
            of(Steps::slow_bars),
        ),
    ]
}

/// Microseconds, with a tenth.
pub(super) fn micros(ns: f64) -> String {
    format!("{:.1}", ns / 1000.0)
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "steps of a touch, us  ({}; {} touches)", self.condition(), self.touches)?;
        writeln!(f, "  {:<12}{:>8}{:>8}{:>8}{:>8}{:>10}", "", "mean", "p50", "p90", "p99", "max")?;
        let all = self.steps.iter().map(|step| (step.step, step.about, step.ns));
        let after = ("afterwards", "what the fault thread still does for it", self.afterwards);
        for (step, about, ns) in all.chain([after]).filter(|(.., ns)| ns.max > 0) {
            let [p50, p90, p99, max] = [ns.p50, ns.p90, ns.p99, ns.max].map(|ns| micros(ns as f64));
            writeln!(f, "  {step:<12}{:>8}{p50:>8}{p90:>8}{p99:>8}{max:>10}  {about}", micros(ns.mean))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(page: u64, began: u64, ended: u64) -> Traced {
        Traced { page, began, ended, cpus: (0, 1) }
    }

    fn stamps(page: u64, at: u64) -> Stamps {
        Stamps {
            page,
            tid: 1,
            cpu: 1,
            idle: at + 1,
            woke: at + 10,
            read: at + 12,
            found: at + 15,
            taken: at + 16,
            unpacked: at + 20,
            placed: at + 26,
            woken: at + 33,
            done: at + 60,
        }
    }

    #[test]
    fn the_steps_of_a_touch_add_up_to_what_it_took() {
        let one = Stepped::of(&touch(1, 1000, 1041), &stamps(1, 1000));
        assert_eq!(one.parts, [1, 9, 2, 3, 1, 4, 6, 7, 0, 8, 0]);
        assert_eq!((one.total(), one.after, one.cpus()), (41, 27, "0>1>1".to_owned()));
        // It runs before the fault thread is told that it was woken, and has not slept for long.
        let one = Stepped::of(&touch(1, 1005, 1030), &stamps(1, 1000));
        assert_eq!(one.parts, [0, 5, 2, 3, 1, 4, 6, 4, 0, 0, 0]);
        // A page that was only set aside.
        let whole = Stamps { unpacked: 0, ..stamps(1, 1000) };
        assert_eq!(Stepped::of(&touch(1, 1000, 1041), &whole).parts, [1, 9, 2, 3, 1, 0, 10, 7, 0, 8, 0]);
        // It had to wait until the fault thread left its CPU.
        let one = Stepped::of(&touch(1, 1000, 1070), &stamps(1, 1000));
        assert_eq!(one.parts, [1, 9, 2, 3, 1, 4, 6, 7, 27, 10, 0]);
    }

    #[test]
    fn what_is_left_to_another_agent_is_told_apart() {
        let left = Stamps { taken: 0, unpacked: 0, placed: 0, woken: 0, cpu: u64::MAX, ..stamps(1, 1000) };
        let one = Stepped::of(&touch(1, 1000, 1100), &left);
        assert_eq!(one.parts, [1, 9, 2, 3, 0, 0, 0, 0, 0, 0, 85]);
        assert_eq!((one.after, one.cpus()), (0, "0>->1".to_owned()));
    }

    #[test]
    fn a_touch_goes_with_the_last_message_of_its_page_that_was_read_meanwhile() {
        let touches = [touch(1, 1000, 1100), touch(2, 2000, 2010), touch(1, 3000, 3050)];
        let all = [stamps(1, 1000), stamps(1, 1030), stamps(1, 3000), stamps(3, 2000)];
        let joined = join(&touches, &all);
        assert_eq!(joined, [Stepped::of(&touches[0], &all[1]), Stepped::of(&touches[2], &all[2])]);
    }

    #[test]
    fn steps_are_told_at_quantiles_of_the_whole() {
        let touches: Vec<Stepped> =
            (0..1000).map(|n| Stepped::of(&touch(1, 1000, 1041 + n), &stamps(1, 1000))).collect();
        let steps = Steps::of(0, Order::Random, touches).unwrap();
        let Spread { p50, p99, max, .. } = steps.steps[9].ns;
        assert_eq!((p50, p99, max), (481, 971, 980));
        assert_eq!(steps.near[1].parts[9], 881.0);
        assert_eq!((steps.slow.len(), steps.slow[0].total), (10, 1040));
        assert_eq!(steps.slow_rows().count(), 10 * COUNT);
        assert_eq!(steps.rows().count(), COUNT + 1);
        assert!(Steps::of(0, Order::Random, Vec::new()).is_none());
        let svg = plots(&[steps])[0].chart.svg();
        assert!(svg.contains("decompress") && svg.contains("p99") && !svg.contains("elsewhere"));
    }
}
