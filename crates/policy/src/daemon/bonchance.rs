//! Bon Chance: FreeBSD's page daemon with a faster decay and left to luck.

use super::queues::{End, FourQueues, Parameters, Rules};

/// Bon Chance (Huynh, Lin, Mirijanyan and Calaimany, 2019): as [`FreeBsd`](super::FreeBsd), but the activity count of a page
/// that was not referenced is halved, and a page enters the inactive and the free queue at the front or the back at random.
///
/// Parameters: those of `freebsd`, and `seed` of the random numbers (1).
pub type BonChance = FourQueues<Luck>;

/// What Bon Chance does instead.
pub struct Luck {
    state: u64,
}

impl Rules for Luck {
    fn decay(&mut self, activity: u8) -> u8 {
        activity / 2
    }

    fn end(&mut self) -> End {
        // Marsaglia's xorshift (2003), whose state is never 0.
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        if self.state >> 32 & 1 == 0 {
            End::Tail
        } else {
            End::Head
        }
    }
}

impl BonChance {
    /// For page numbers below `universe`.
    pub fn bonchance(parameters: Parameters, seed: u64, universe: usize) -> BonChance {
        let state = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        FourQueues::new(Luck { state }, parameters, universe)
    }
}
