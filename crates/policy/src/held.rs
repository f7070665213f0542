//! Where rounds over all extents begin while what they may do does not suffice for all that is due.
//!
//! Every other round begins with the first that went without, and the others at the beginning: if all began there, what comes first would have what is allowed
//! for ever, and if none did, it would wait for who is behind.
//!
//! What it is not: the round, of which each part has an allowance of its own.

/// Places are addresses; 0 is the beginning.
#[derive(Clone, Copy, Debug, Default)]
pub struct Held {
    /// The first that went without.
    at: Option<usize>,
    /// The last round began there.
    had_turn: bool,
}

impl Held {
    /// Nobody went without.
    pub const fn new() -> Held {
        Held { at: None, had_turn: false }
    }

    /// Where the round begins; at the beginning where it must come to `all`.
    pub fn begin(&mut self, all: bool) -> usize {
        self.had_turn = !all && !self.had_turn && self.at.is_some();
        let at = if self.had_turn { self.at.take() } else { None };
        at.unwrap_or(0)
    }

    /// A part of the round is over, in which this was the first that went without. Who did so before still does: the next part has another allowance, and comes
    /// to who is behind.
    pub fn note(&mut self, at: Option<usize>) {
        self.at = self.at.or(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    const EXTENTS: usize = 100;
    /// A part of a round comes to so many of them, and may look at so many.
    const SLICE: usize = 10;
    const LOOKS: usize = 3;

    /// How often each of them was looked at in so many rounds, all of which are due at all times.
    fn looks(held: &mut Held, rounds: usize, all: bool) -> Vec<usize> {
        let mut looked = vec![0; EXTENTS];
        for _ in 0..rounds {
            let mut at = held.begin(all);
            while at < EXTENTS {
                let part = at..(at + SLICE).min(EXTENTS);
                part.clone().take(LOOKS).for_each(|extent| looked[extent] += 1);
                held.note(part.clone().nth(LOOKS));
                at = part.end;
            }
        }
        looked
    }

    #[test]
    fn each_has_its_turn_though_rounds_are_interrupted_and_what_comes_first_is_always_due() {
        let looked = looks(&mut Held::new(), 80, false);
        assert!(looked.iter().all(|&looks| looks != 0), "{looked:?}");
        // Half of the rounds are for the beginning.
        assert!(looked[0] >= 40, "{looked:?}");
    }

    #[test]
    fn rounds_that_must_come_to_all_begin_at_the_beginning_and_what_went_without_has_the_next_other_one() {
        let mut held = Held::new();
        let looked = looks(&mut held, 9, true);
        assert_eq!(looked[0], 9);
        assert_eq!([held.begin(true), held.begin(false), held.begin(false)], [0, LOOKS, 0]);
        held.note(None);
        assert_eq!(held.begin(false), 0);
    }
}
