//! A thread of the verification: the memory that it owns.

use super::area::Area;
use super::blocks::Block;
use super::calls::Pipe;
use super::findings::{Findings, Tags};
use anyhow::Result;
use memfold_stats::Rng;

/// What one thread owns. All of it is changed under the actor's lock only.
#[derive(Debug)]
pub(super) struct Actor {
    pub number: usize,
    pub rng: Rng,
    pub tags: Tags,
    pub areas: Vec<Area>,
    pub blocks: Vec<Block>,
    pub pipe: Pipe,
    /// How often this thread added to the tally.
    pub counted: u64,
}

impl Actor {
    pub fn new(number: usize, rng: Rng) -> Result<Actor> {
        let (tags, pipe) = (Tags::new(number as u64), Pipe::new()?);
        Ok(Actor { number, rng, tags, areas: Vec::new(), blocks: Vec::new(), pipe, counted: 0 })
    }

    /// Compares all that the thread owns with its model.
    pub fn check(&self, findings: &Findings) {
        for area in &self.areas {
            area.check(findings, "area", 0..area.pages());
        }
        self.blocks.iter().for_each(|block| block.check(findings));
    }

    /// Forgets, in a child, what was kept from it: something else may lie there. It allocates nothing.
    pub fn forget_kept(&mut self) {
        while let Some(at) = self.areas.iter().position(Area::is_kept) {
            std::mem::forget(self.areas.swap_remove(at));
        }
    }
}
