//! What the pager's codecs take on the pages, with nothing around them.

use anyhow::{ensure, Context, Result};
use memfold_pager::codec::{CodecId, Codecs, Dictionaries, Dictionary, Page, MAX_STORED};
use memfold_pager::training::Samples;
use memfold_policy::learning::SAMPLES;
use memfold_sys::{time, PAGE_SIZE};
use serde::Serialize;

/// One codec on all pages of a heap that are not one word repeated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Alone {
    /// What people call it.
    pub codec: &'static str,
    /// CPU time to compress a page, us.
    pub there_us: f64,
    /// CPU time to bring it back, us.
    pub back_us: f64,
    /// Lengths of compressed pages, bytes; a page that does not shrink by 5 % counts as it is.
    pub bytes: u64,
    /// Pages that do not shrink by 5 %.
    pub incompressible: usize,
}

/// All codecs, one after the other; the one with a dictionary is left out where the pages have too little in common for one.
///
/// # Errors
/// When there is no memory, or a page does not come back.
pub(super) fn measure(pages: &[&Page]) -> Result<Vec<Alone>> {
    let mut codecs = Codecs::new().context("no memory for the codecs")?;
    let dictionaries = Dictionaries::new();
    // SAFETY: nobody else has the dictionaries.
    let taught = dictionary(pages)?.and_then(|dictionary| unsafe { dictionaries.add(dictionary) });
    let mut ways = CodecId::ALONE.to_vec();
    ways.extend(taught.map(CodecId::Dictionary));
    ways.into_iter().map(|codec| one(&mut codecs, &dictionaries, codec, pages)).collect()
}

/// A dictionary as the pager makes it of such pages; `None` where they have too little in common.
///
/// # Errors
/// When there is no memory.
pub(super) fn dictionary(pages: &[&Page]) -> Result<Option<Dictionary>> {
    let mut codecs = Codecs::new().context("no memory for the codecs")?;
    let mut samples = Samples::new().context("no memory for samples")?;
    let step = (pages.len() / SAMPLES).max(1);
    for page in pages.iter().step_by(step).take(SAMPLES) {
        // SAFETY: it is readable.
        unsafe { samples.add_at(page.as_ptr() as usize) };
    }
    Ok(samples.train(&mut codecs, None).map(|made| made.dictionary))
}

/// Each codec's times over the rounds.
pub(super) fn medians(rounds: &[Vec<Alone>]) -> Vec<Alone> {
    let Some(first) = rounds.first() else { return Vec::new() };
    let of = |codec: &str, figure: fn(&Alone) -> f64| {
        let values = rounds.iter().flatten().filter(|alone| alone.codec == codec).map(figure);
        memfold_stats::median(&values.collect::<Vec<_>>()).unwrap_or(0.0)
    };
    let median = |alone: &Alone| Alone {
        there_us: of(alone.codec, |alone| alone.there_us),
        back_us: of(alone.codec, |alone| alone.back_us),
        ..alone.clone()
    };
    first.iter().map(median).collect()
}

/// Pages between two looks at the clock, which costs something itself.
const BATCH: usize = 64;

fn one(codecs: &mut Codecs, dictionaries: &Dictionaries, codec: CodecId, pages: &[&Page]) -> Result<Alone> {
    // SAFETY: it is not removed while we have it.
    let dictionary = |number| Some((number, unsafe { dictionaries.get(number) }?));
    let dictionary = codec.dictionary().and_then(|number| dictionary(number as u8));
    let mut packed = vec![[0; MAX_STORED]; BATCH];
    let mut back = vec![[0; PAGE_SIZE]; BATCH];
    let mut lengths = [None; BATCH];
    let (mut there_ns, mut back_ns, mut bytes, mut incompressible) = (0, 0, 0, 0);
    for batch in pages.chunks(BATCH) {
        let before = time::thread_cpu();
        for ((page, out), len) in batch.iter().zip(&mut packed).zip(&mut lengths) {
            // SAFETY: it is readable.
            let done = unsafe { codecs.compress_at(codec.effort(), dictionary, page.as_ptr() as usize, out) };
            *len = done.map(|(_, len)| len);
        }
        let between = time::thread_cpu();
        let mut whole = true;
        for ((data, len), page) in packed.iter().zip(&lengths).zip(&mut back).take(batch.len()) {
            whole &= len.is_none_or(|len| codecs.decompress(codec, dictionaries, &data[..len], page));
        }
        there_ns += between.since(before).0;
        back_ns += time::thread_cpu().since(between).0;
        for ((page, len), back) in batch.iter().zip(&lengths).zip(&back) {
            ensure!(whole && (len.is_none() || back == *page), "{} does not bring a page back", codec.name());
            bytes += len.unwrap_or(PAGE_SIZE) as u64;
            incompressible += usize::from(len.is_none());
        }
    }
    let micros = |ns: u64, pages: usize| ns as f64 / 1e3 / pages.max(1) as f64;
    Ok(Alone {
        codec: codec.name(),
        there_us: micros(there_ns, pages.len()),
        back_us: micros(back_ns, pages.len() - incompressible),
        bytes,
        incompressible,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_codec_is_measured_and_noise_counts_as_it_is() {
        let text: Vec<Page> = (0..300usize)
            .map(|n| std::array::from_fn(|at| b"key: value, another key: another value; "[(at + n * 7) % 40]))
            .collect();
        let mut rng = memfold_stats::Rng::new(3);
        let noise: Vec<Page> = (0..100).map(|_| std::array::from_fn(|_| rng.next_u64() as u8)).collect();
        let pages: Vec<&Page> = text.iter().chain(&noise).collect();
        let measured = measure(&pages).unwrap();
        assert!(measured.len() >= 3, "{measured:?}");
        for alone in measured {
            assert_eq!(alone.incompressible, 100, "{alone:?}");
            assert!(
                alone.bytes > 100 * PAGE_SIZE as u64 && alone.bytes < 130 * PAGE_SIZE as u64,
                "{alone:?}"
            );
            assert!(alone.there_us > 0.0, "{alone:?}");
        }
    }
}
