//! What `memfold bench fold` reports, as JSON, as rows and as a table.

use super::arm::Folded;
use super::{Alone, Blocks, Options};
use crate::experiment::Report;
use memfold_pager::activity::Activity;
use memfold_pager::codec::CodecId;
use memfold_sys::PAGE_SIZE;
use serde::Serialize;
use std::fmt;

/// One round of one arm on one heap.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// `memfold`, or zram with its compressor.
    pub arm: String,
    /// Number of the round, from 0.
    pub round: usize,
    /// What became of the pages.
    pub folded: Folded,
}

/// A heap or an arm that was left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Which.
    pub what: String,
    /// Why, and what to do about it.
    pub why: String,
}

/// An arm on a heap: medians over its rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// `memfold`, or zram with its compressor.
    pub arm: String,
    /// Pages that went.
    pub pages: f64,
    /// CPU time a page, all in, us.
    pub cpu_us: f64,
    /// What the codecs that compressed them take alone, us a page; `None` for zram.
    pub codecs_us: Option<f64>,
    /// Of the heap's memory what is free now, with all that it takes to keep it counted, per cent.
    pub saved_percent: f64,
    /// Time by the clock a page, by [`Activity`], us; `None` for zram.
    pub steps_us: Option<[f64; Activity::COUNT]>,
}

/// One heap.
#[derive(Clone, Debug, Serialize)]
pub struct HeapReport {
    /// Its name.
    pub heap: String,
    /// Its pages.
    pub pages: usize,
    /// Of those the ones that are one word repeated, which need no codec.
    pub same_value: usize,
    /// The pager's codecs on the others.
    pub alone: Vec<Alone>,
    /// zstd on blocks of several of the others.
    pub blocks: Vec<Blocks>,
    /// The arms.
    pub arms: Vec<Summary>,
    /// Every round.
    pub runs: Vec<Run>,
}

/// What is found.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// The steps of which times are given, in their order.
    pub steps: [&'static str; Activity::COUNT],
    /// The heaps.
    pub heaps: Vec<HeapReport>,
    /// What was left out.
    pub skipped: Vec<Skipped>,
}

/// One line of the file of runs; times are CPU time, those of steps by the clock.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)] // The fields are those of `Run`, a page.
pub struct Row {
    pub heap: String,
    pub arm: String,
    pub round: usize,
    pub pages: usize,
    pub cpu_us: f64,
    pub memory_bytes: u64,
    pub look_us: Option<f64>,
    pub set_aside_us: Option<f64>,
    pub learn_us: Option<f64>,
    pub compress_us: Option<f64>,
    pub keep_us: Option<f64>,
    pub drop_us: Option<f64>,
    pub other_us: Option<f64>,
}

impl Folded {
    fn a_page(&self, ns: u64) -> f64 {
        ns as f64 / 1e3 / self.pages.max(1) as f64
    }

    fn steps_us(&self) -> Option<[f64; Activity::COUNT]> {
        self.pager.as_ref().map(|inside| inside.activity_ns.map(|ns| self.a_page(ns)))
    }

    fn codecs_us(&self, alone: &[Alone]) -> Option<f64> {
        let by_codec = &self.pager.as_ref()?.pages_by_codec;
        let all = by_codec.iter().enumerate().filter(|(_, &pages)| pages > 0).map(|(number, &pages)| {
            let codec = CodecId::from_bits(number as u64)?;
            let there = alone.iter().find(|alone| alone.codec == codec.name())?.there_us;
            Some(there * pages as f64)
        });
        Some(all.sum::<Option<f64>>()? / self.pages.max(1) as f64)
    }

    /// Of a heap of so many pages, of which those that stayed save nothing.
    fn saved_percent(&self, heap: usize) -> f64 {
        let went = (self.pages * PAGE_SIZE) as f64;
        100.0 * (went - self.memory_bytes as f64) / (heap.max(1) * PAGE_SIZE) as f64
    }
}

impl HeapReport {
    pub(super) fn new(
        heap: String,
        pages: usize,
        same_value: usize,
        alone: Vec<Alone>,
        blocks: Vec<Blocks>,
        runs: Vec<Run>,
    ) -> HeapReport {
        let mut names: Vec<String> = Vec::new();
        for run in &runs {
            if !names.contains(&run.arm) {
                names.push(run.arm.clone());
            }
        }
        // In one order, whichever began.
        names.sort_by_key(|name| (name != "memfold", name.clone()));
        let arms = names.into_iter().map(|name| summary(name, pages, &runs, &alone)).collect();
        HeapReport { heap, pages, same_value, alone, blocks, arms, runs }
    }
}

fn summary(arm: String, pages: usize, runs: &[Run], alone: &[Alone]) -> Summary {
    let own: Vec<&Folded> = runs.iter().filter(|run| run.arm == arm).map(|run| &run.folded).collect();
    let median = |figure: &dyn Fn(&Folded) -> Option<f64>| {
        let values: Option<Vec<f64>> = own.iter().map(|folded| figure(folded)).collect();
        values.and_then(|values| memfold_stats::median(&values))
    };
    let steps = || -> Option<[f64; Activity::COUNT]> {
        let mut steps = [0.0; Activity::COUNT];
        for (n, step) in steps.iter_mut().enumerate() {
            *step = median(&|folded| Some(folded.steps_us()?[n]))?;
        }
        Some(steps)
    };
    Summary {
        pages: median(&|folded| Some(folded.pages as f64)).unwrap_or(0.0),
        cpu_us: median(&|folded| Some(folded.a_page(folded.cpu_ns))).unwrap_or(0.0),
        codecs_us: median(&|folded| folded.codecs_us(alone)),
        saved_percent: median(&|folded| Some(folded.saved_percent(pages))).unwrap_or(0.0),
        steps_us: steps(),
        arm,
    }
}

impl Found {
    /// Every round, as a flat row.
    pub fn rows(&self) -> impl Iterator<Item = Row> + '_ {
        self.heaps.iter().flat_map(|heap| {
            heap.runs.iter().map(|Run { arm, round, folded }| {
                let steps = folded.steps_us();
                let step = |activity: Activity| steps.map(|steps| steps[activity as usize]);
                Row {
                    heap: heap.heap.clone(),
                    arm: arm.clone(),
                    round: *round,
                    pages: folded.pages,
                    cpu_us: folded.a_page(folded.cpu_ns),
                    memory_bytes: folded.memory_bytes,
                    look_us: step(Activity::Look),
                    set_aside_us: step(Activity::SetAside),
                    learn_us: step(Activity::Learn),
                    compress_us: step(Activity::Compress),
                    keep_us: step(Activity::Keep),
                    drop_us: step(Activity::Drop),
                    other_us: step(Activity::Other),
                }
            })
        })
    }
}

impl fmt::Display for Report<Options> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "what it costs to fold a page, us of CPU time, and what it saves  (at most {} MiB a heap, {} {} of each arm, interleaved, \
             medians)",
            self.options.bytes >> 20,
            self.options.rounds,
            if self.options.rounds == 1 { "round" } else { "rounds" }
        )?;
        for heap in &self.found.heaps {
            write!(f, "\n{heap}")?;
        }
        if !self.found.skipped.is_empty() {
            writeln!(f)?;
        }
        self.found.skipped.iter().try_for_each(|left| writeln!(f, "{} was left out: {}", left.what, left.why))
    }
}

impl fmt::Display for HeapReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HeapReport { heap, pages, same_value, alone, blocks, arms, .. } = self;
        writeln!(f, "{heap}: {pages} pages, {same_value} of them one word repeated")?;
        writeln!(f, "  {:<24}{:>10}{:>10}{:>10}", "codec alone", "there", "back", "saved, %")?;
        for alone in alone {
            let all = ((pages - same_value) * PAGE_SIZE).max(1) as f64;
            let saved = 100.0 * (1.0 - alone.bytes as f64 / all);
            writeln!(
                f,
                "  {:<24}{:>10.1}{:>10.1}{:>10.1}",
                alone.codec, alone.there_us, alone.back_us, saved
            )?;
        }
        if !blocks.is_empty() {
            writeln!(
                f,
                "  {:<24}{:>10}{:>10}{:>10}{:>14}",
                "zstd on blocks", "there", "back", "saved, %", "a block back"
            )?;
        }
        for blocks in blocks {
            let with = if blocks.dictionary { ", dictionary" } else { "" };
            writeln!(
                f,
                "  {:<24}{:>10.1}{:>10.1}{:>10.1}{:>14.1}",
                format!("{} KiB{with}", blocks.block_bytes >> 10),
                blocks.there_us,
                blocks.back_us,
                blocks.saved_percent,
                blocks.back_block_us
            )?;
        }
        writeln!(
            f,
            "  {:<24}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "all in", "a page", "codec's", "above", "saved, %", "pages"
        )?;
        for arm in arms {
            let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.1}"));
            writeln!(
                f,
                "  {:<24}{:>10.1}{:>10}{:>10}{:>10.1}{:>10.0}",
                arm.arm,
                arm.cpu_us,
                number(arm.codecs_us),
                number(arm.codecs_us.map(|codecs| arm.cpu_us - codecs)),
                arm.saved_percent,
                arm.pages
            )?;
        }
        for arm in arms {
            let Some(steps) = arm.steps_us else { continue };
            let steps: Vec<String> =
                Activity::NAMES.iter().zip(steps).map(|(name, us)| format!("{name} {us:.1}")).collect();
            writeln!(f, "  {}, by the clock: {}", arm.arm, steps.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::arm::Inside;
    use super::*;
    use memfold_pager::codec::CODEC_NUMBERS;

    fn run(arm: &str, round: usize, pages: usize, inside: Option<Inside>) -> Run {
        let folded =
            Folded { pages, cpu_ns: 12_000 * pages as u64, memory_bytes: 1024 * pages as u64, pager: inside };
        Run { arm: arm.into(), round, folded }
    }

    #[test]
    fn what_is_above_the_codecs_is_by_the_pages_of_each() {
        let mut pages_by_codec = [0; CODEC_NUMBERS];
        pages_by_codec[CodecId::Lz4.bits() as usize] = 100;
        pages_by_codec[CodecId::Dictionary(0).bits() as usize] = 200;
        pages_by_codec[CodecId::Dictionary(1).bits() as usize] = 100;
        let inside = Inside { activity_ns: [400_000; Activity::COUNT], pages_by_codec, incompressible: 0 };
        let of = |codec: CodecId, there_us| Alone {
            codec: codec.name(),
            there_us,
            back_us: 1.0,
            bytes: 1000,
            incompressible: 0,
        };
        let alone = vec![of(CodecId::Lz4, 4.0), of(CodecId::Dictionary(0), 8.0)];
        let runs = vec![run("zram lz4", 0, 400, None), run("memfold", 0, 400, Some(inside))];
        let report = HeapReport::new("json".into(), 400, 0, alone, Vec::new(), runs);
        let [memfold, zram] = &report.arms[..] else { panic!("{:?}", report.arms) };
        assert_eq!((memfold.arm.as_str(), memfold.cpu_us, memfold.codecs_us), ("memfold", 12.0, Some(7.0)));
        assert_eq!((memfold.saved_percent, memfold.steps_us), (75.0, Some([1.0; Activity::COUNT])));
        assert_eq!((zram.arm.as_str(), zram.codecs_us, zram.steps_us), ("zram lz4", None, None));
        let said = report.to_string();
        assert!(said.contains("5.0") && said.contains("set aside 1.0"), "{said}");
    }
}
