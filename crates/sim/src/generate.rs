//! Made-up traces: the shapes on which replacement policies are known to differ.
//!
//! What it is not: a model of a program. Equal descriptions give equal traces, on every machine.

use memfold_stats::Rng;

/// A description of a trace.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Shape {
    /// Page n (from 1) is requested with a probability that goes as 1 / n^`skew` (Zipf, 1949).
    Zipf {
        /// From 0, where all pages are alike, upwards.
        skew: f64,
    },
    /// Each page once, in order, and again from the first when the last is through.
    Scan,
    /// A loop over the first quarter of the pages, with every tenth request at random over all of them.
    Loop,
    /// Eight phases, each with a Zipf distribution (skew 1) over an eighth of the pages of its own.
    Phases,
}

/// Phases of [`Shape::Phases`].
const PHASES: u64 = 8;

/// A trace under way.
pub struct Generator {
    shape: Shape,
    pages: u64,
    requests: u64,
    number: u64,
    zipf: Zipf,
    rng: Rng,
}

impl Generator {
    /// Starts a trace of `requests` requests to `pages` pages, at least 8.
    pub fn new(shape: Shape, pages: u64, requests: u64, seed: u64) -> Generator {
        assert!(pages >= PHASES, "a shape needs {PHASES} pages");
        let zipf = match shape {
            Shape::Zipf { skew } => Zipf::new(pages, skew),
            _ => Zipf::new(pages / PHASES, 1.0),
        };
        Generator { shape, pages, requests, number: 0, zipf, rng: Rng::new(seed) }
    }
}

impl Iterator for Generator {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let number = self.number;
        if number == self.requests {
            return None;
        }
        self.number += 1;
        Some(match self.shape {
            Shape::Zipf { .. } => self.zipf.sample(&mut self.rng),
            Shape::Scan => number % self.pages,
            Shape::Loop if self.rng.below(10) == 0 => self.rng.below(self.pages),
            Shape::Loop => number % (self.pages / 4),
            Shape::Phases => {
                let phase = (number as u128 * u128::from(PHASES) / u128::from(self.requests)) as u64;
                phase * (self.pages / PHASES) + self.zipf.sample(&mut self.rng)
            }
        })
    }
}

/// Zipf-distributed numbers from 0, by rejection-inversion (Hörmann and Derflinger, "Rejection-inversion to generate
/// variates from monotone discrete distributions", 1996): constant time and no table.
struct Zipf {
    pages: f64,
    skew: f64,
    low: f64,
    high: f64,
    sure: f64,
}

impl Zipf {
    fn new(pages: u64, skew: f64) -> Zipf {
        let mut zipf = Zipf { pages: pages as f64, skew, low: 0.0, high: 0.0, sure: 0.0 };
        zipf.low = zipf.area(1.5) - 1.0;
        zipf.high = zipf.area(zipf.pages + 0.5);
        zipf.sure = 2.0 - zipf.area_to(zipf.area(2.5) - zipf.weight(2.0));
        zipf
    }

    /// The hat function, x^-skew.
    fn weight(&self, x: f64) -> f64 {
        (-self.skew * x.ln()).exp()
    }

    /// Its integral from 1 to `x`.
    fn area(&self, x: f64) -> f64 {
        let log = x.ln();
        let t = (1.0 - self.skew) * log;
        if t.abs() > 1e-8 {
            t.exp_m1() / t * log
        } else {
            log
        }
    }

    /// The inverse of [`Zipf::area`].
    fn area_to(&self, area: f64) -> f64 {
        let t = (area * (1.0 - self.skew)).max(-1.0);
        if t.abs() > 1e-8 {
            (t.ln_1p() / t * area).exp()
        } else {
            area.exp()
        }
    }

    fn sample(&self, rng: &mut Rng) -> u64 {
        loop {
            let unit = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            let area = self.high + unit * (self.low - self.high);
            let x = self.area_to(area);
            let page = x.round().clamp(1.0, self.pages);
            if page - x <= self.sure || area >= self.area(page + 0.5) - self.weight(page) {
                return page as u64 - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zipf_trace_asks_for_each_page_as_often_as_its_rank_says() {
        for skew in [0.0, 0.6, 1.0, 1.4] {
            let mut counts = [0u64; 100];
            let requests = 400_000;
            Generator::new(Shape::Zipf { skew }, 100, requests, 1)
                .for_each(|page| counts[page as usize] += 1);
            let whole: f64 = (1..=100).map(|n| f64::from(n).powf(-skew)).sum();
            for rank in [1usize, 2, 3, 10, 100] {
                let expected = (rank as f64).powf(-skew) / whole * requests as f64;
                let spread = 6.0 * expected.sqrt();
                let got = counts[rank - 1] as f64;
                assert!((got - expected).abs() < spread, "skew {skew}, rank {rank}: {got} and {expected}");
            }
        }
    }

    #[test]
    fn every_shape_has_its_length_its_pages_and_its_order() {
        for shape in [Shape::Zipf { skew: 1.0 }, Shape::Scan, Shape::Loop, Shape::Phases] {
            let trace: Vec<u64> = Generator::new(shape, 64, 1000, 7).collect();
            assert_eq!(trace, Generator::new(shape, 64, 1000, 7).collect::<Vec<_>>(), "{shape:?}");
            assert!(trace.len() == 1000 && trace.iter().all(|&page| page < 64), "{shape:?}");
        }
        assert_eq!(Generator::new(Shape::Scan, 8, 10, 1).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]);
        let phases: Vec<u64> = Generator::new(Shape::Phases, 64, 800, 1).collect();
        assert!(phases.chunks(100).enumerate().all(|(n, part)| part.iter().all(|page| page / 8 == n as u64)));
        let looped = Generator::new(Shape::Loop, 64, 1000, 1).filter(|page| *page < 16).count();
        assert!(looped > 850, "{looped} of 1000 requests are of the loop");
    }
}
