//! Data that looks like what programs keep: text, JSON, pointers, floating-point series, noise, and a fixed mix of them.
//!
//! A block is filled with a piece of a corpus that is made once from the seed, at a place of its own. So filling costs a
//! copy, pages differ from each other, and each compresses as the kind of data does.
//!
//! What it is not: a corpus of real files. The kinds are made to compress about as such data does, page by page.

use memfold_stats::Rng;

memfold_experiment::named! {
    /// What memory is filled with.
    pub enum Data, "kind of data" {
        /// By blocks: 30 % text, 30 % JSON, 20 % pointers, 10 % floats, 10 % noise.
        Mixed = "mixed",
        /// Words of English in sentences, frequent ones more often.
        Text = "text",
        /// Records with the same keys and different values.
        Json = "json",
        /// Nodes of lists and trees: addresses of one heap, small numbers, nulls.
        Pointers = "pointers",
        /// Doubles that follow each other slowly.
        Floats = "floats",
        /// Noise, which nothing compresses.
        Random = "random",
    }
}

/// Size of the corpus of one kind, bytes.
const CORPUS: usize = 1 << 20;
/// Places in a corpus at which blocks begin are multiples of this.
const GRAIN: usize = 64;

/// Fills blocks; equal seeds and numbers give equal bytes.
pub(crate) struct Filler {
    data: Data,
    rng: Rng,
    corpora: Vec<(Data, Vec<u8>)>,
}

impl Filler {
    /// Makes the corpora that `data` needs.
    pub(crate) fn new(data: Data, seed: u64) -> Filler {
        let rng = Rng::new(seed);
        let kinds: &[Data] = match &data {
            Data::Mixed => &[Data::Text, Data::Json, Data::Pointers, Data::Floats, Data::Random],
            single => std::slice::from_ref(single),
        };
        let corpora =
            kinds.iter().enumerate().map(|(n, kind)| (*kind, corpus(*kind, rng.fork(n as u64)))).collect();
        Filler { data, rng, corpora }
    }

    /// Fills block `number`, at most [`CORPUS`] / 2 bytes.
    pub(crate) fn fill(&self, number: u64, block: &mut [u8]) {
        let mut rng = self.rng.fork(number.wrapping_add(1 << 32));
        let kind = match self.data {
            Data::Mixed => match rng.below(10) {
                0..=2 => Data::Text,
                3..=5 => Data::Json,
                6..=7 => Data::Pointers,
                8 => Data::Floats,
                _ => Data::Random,
            },
            single => single,
        };
        let Some((_, corpus)) = self.corpora.iter().find(|(of, _)| *of == kind) else { return };
        let places = (CORPUS - block.len()) / GRAIN;
        let start = rng.below(places as u64) as usize * GRAIN;
        block.copy_from_slice(&corpus[start..start + block.len()]);
    }
}

const WORDS: [&str; 48] = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "a",
    "is",
    "that",
    "for",
    "it",
    "as",
    "was",
    "with",
    "be",
    "by",
    "on",
    "not",
    "memory",
    "page",
    "which",
    "at",
    "from",
    "this",
    "have",
    "or",
    "system",
    "one",
    "had",
    "process",
    "but",
    "what",
    "their",
    "program",
    "kernel",
    "when",
    "address",
    "machine",
    "cache",
    "allocation",
    "throughput",
    "latency",
    "measurement",
    "compression",
    "userspace",
    "interval",
    "baseline",
    "scheduler",
    "translation",
];

fn corpus(kind: Data, mut rng: Rng) -> Vec<u8> {
    let mut out = Vec::with_capacity(CORPUS + 256);
    let mut level = 20.0f64;
    while out.len() < CORPUS {
        match kind {
            Data::Text | Data::Mixed => sentence(&mut rng, &mut out),
            Data::Json => record(&mut rng, &mut out),
            Data::Pointers => node(&mut rng, &mut out),
            Data::Floats => {
                // A sensor's walk, in steps of a hundredth.
                level += (rng.below(21) as f64 - 10.0) / 100.0;
                out.extend_from_slice(&((level * 100.0).round() / 100.0).to_le_bytes());
            }
            Data::Random => out.extend_from_slice(&rng.next_u64().to_le_bytes()),
        }
    }
    out.truncate(CORPUS);
    out
}

fn sentence(rng: &mut Rng, out: &mut Vec<u8>) {
    for place in 0..6 + rng.below(14) {
        // The smaller of two draws: the first words of the list come more often.
        let word = rng.below(WORDS.len() as u64).min(rng.below(WORDS.len() as u64)) as usize;
        if place > 0 {
            out.push(b' ');
        }
        out.extend_from_slice(WORDS[word].as_bytes());
        if rng.below(12) == 0 {
            out.extend_from_slice(rng.below(100_000).to_string().as_bytes());
        }
    }
    out.extend_from_slice(b". ");
}

fn record(rng: &mut Rng, out: &mut Vec<u8>) {
    let name = |rng: &mut Rng| WORDS[rng.below(WORDS.len() as u64) as usize];
    let text = format!(
        "{{\"id\":{},\"name\":\"{}_{}\",\"session\":\"{:016x}\",\"active\":{},\"score\":{}.{:02},\"tags\":[\"{}\",\"{}\"]}}\n",
        rng.below(10_000_000),
        name(rng),
        rng.below(1000),
        rng.next_u64(),
        rng.below(2) == 0,
        rng.below(1000),
        rng.below(100),
        name(rng),
        name(rng),
    );
    out.extend_from_slice(text.as_bytes());
}

fn node(rng: &mut Rng, out: &mut Vec<u8>) {
    let mut pointer = || match rng.below(4) {
        0 => 0,
        _ => 0x7f3a_1c00_0000 + (rng.below(1 << 20) << 4),
    };
    let links = [pointer(), pointer(), pointer()];
    let fields = [rng.below(256), rng.below(1 << 16), 0x5581_0040_1000 + rng.below(32) * 0x40];
    for word in links.into_iter().chain(fields) {
        out.extend_from_slice(&word.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distinct bytes pairs at distance 8: a crude measure of how much repeats, without a codec.
    fn repetition(data: Data) -> f64 {
        let filler = Filler::new(data, 7);
        let mut page = vec![0u8; 4096];
        filler.fill(3, &mut page);
        let distinct: std::collections::HashSet<&[u8]> = page.windows(4).collect();
        1.0 - distinct.len() as f64 / page.len() as f64
    }

    #[test]
    fn the_kinds_repeat_themselves_as_such_data_does() {
        assert!(repetition(Data::Random) < 0.01);
        for data in [Data::Text, Data::Json, Data::Pointers, Data::Floats] {
            assert!(repetition(data) > 0.15, "{data:?}: {}", repetition(data));
        }
    }

    #[test]
    fn a_block_is_a_function_of_seed_and_number() {
        let fill = |seed, number| {
            let mut block = vec![0u8; 1000];
            Filler::new(Data::Mixed, seed).fill(number, &mut block);
            block
        };
        assert_eq!(fill(1, 2), fill(1, 2));
        assert_ne!(fill(1, 2), fill(1, 3));
        assert_ne!(fill(1, 2), fill(2, 2));
    }
}
