//! What benchmark and verification pages hold: a function of a seed and a tag, so that any page can be
//! checked at any time against nothing but two numbers.
//!
//! What it is not: a model of one program's data. A page compresses to about half, as LZ4 finds the heap of a
//! server; the tag may also ask for the two extremes, a page of one repeated word and a page of noise.
//!
//! Invariants: tag 0 is the untouched page, all zeros; different tags give different pages.

use memfold_sys::PAGE_SIZE;

/// Words of eight bytes in a page.
pub const WORDS: usize = PAGE_SIZE / 8;

/// The tag of a page that nobody has written.
pub const ZERO: u64 = 0;

/// How well a page compresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Texture {
    /// One word repeated.
    Same,
    /// Noise that no codec shrinks.
    Noise,
    /// Every second group of four words is noise, the others are small numbers.
    Half,
}

/// Describes the contents of pages: equal values, equal bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    seed: u64,
    varied: bool,
}

impl Content {
    /// Pages that all compress to about half.
    pub fn uniform(seed: u64) -> Content {
        Content { seed, varied: false }
    }

    /// One page in eight is a repeated word and one in eight is noise.
    pub fn varied(seed: u64) -> Content {
        Content { seed, varied: true }
    }

    /// Word number `index` (below [`WORDS`]) of the page with this tag.
    #[inline]
    pub fn word(self, tag: u64, index: usize) -> u64 {
        if tag == ZERO {
            return 0;
        }
        let key = mix(self.seed ^ mix(tag));
        match self.texture(key) {
            Texture::Same => key | 1,
            Texture::Noise => mix(key.wrapping_add(index as u64)),
            Texture::Half if index % 8 < 4 => mix(key.wrapping_add(index as u64)),
            Texture::Half => (key >> 56) + (index as u64 / 64),
        }
    }

    /// Fills a page.
    pub fn fill(self, tag: u64, page: &mut [u64]) {
        for (index, word) in page.iter_mut().enumerate() {
            *word = self.word(tag, index);
        }
    }

    fn texture(self, key: u64) -> Texture {
        match key >> 61 {
            0 if self.varied => Texture::Same,
            1 if self.varied => Texture::Noise,
            _ => Texture::Half,
        }
    }
}

/// SplitMix64's output function: each bit of the result depends on every bit of `z`.
#[inline]
fn mix(z: u64) -> u64 {
    let z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(content: Content, tag: u64) -> Vec<u64> {
        let mut page = vec![u64::MAX; WORDS];
        content.fill(tag, &mut page);
        page
    }

    #[test]
    fn an_untouched_page_is_zeros_and_no_other_page_is() {
        let content = Content::varied(3);
        assert!(page(content, ZERO).iter().all(|&w| w == 0));
        assert!((1..1000).all(|tag| page(content, tag).iter().any(|&w| w != 0)));
    }

    #[test]
    fn pages_with_different_tags_or_seeds_differ() {
        let content = Content::varied(3);
        let pages: std::collections::HashSet<Vec<u64>> = (0..1000).map(|tag| page(content, tag)).collect();
        assert_eq!(pages.len(), 1000);
        assert_ne!(page(Content::varied(4), 1), page(content, 1));
    }

    #[test]
    fn varied_pages_are_same_valued_noisy_and_mixed() {
        let content = Content::varied(3);
        let same =
            (1..=800).filter(|&tag| page(content, tag).iter().all(|&w| w == content.word(tag, 0))).count();
        let small = |tag| page(content, tag).iter().filter(|&&w| w < 512).count();
        let noise = (1..=800).filter(|&tag| small(tag) == 0).count() - same;
        assert!((50..150).contains(&same) && (50..150).contains(&noise), "{same} same, {noise} noise of 800");
    }

    #[test]
    fn half_of_a_uniform_page_is_small_numbers() {
        let content = Content::uniform(9);
        assert!((1..100).all(|tag| page(content, tag).iter().filter(|&&w| w < 512).count() == WORDS / 2));
    }
}
