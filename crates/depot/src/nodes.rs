//! Which engines there are, and in a cluster which of them has what.
//!
//! What it is not: what is kept there. It knows a key by its name.

use crate::config::{Config, RENEWALS};
use crate::connection::Connection;
use crate::node::{is_at, moved_to, place_of, Failure, Node, Place, REST};
use crate::slots::{self, Range};
use redis::Value;
use std::time::{Duration, Instant};

/// For how long at most one that goes on so is given nothing, where others have what it has.
const LONGEST_REST: Duration = Duration::from_secs(30);

/// All of them, each with its connection.
pub struct Nodes {
    pub config: Config,
    pub all: Vec<Node>,
    /// Which node of a cluster has what, and when that was asked last.
    pub ranges: Vec<Range>,
    asked: Option<Instant>,
}

/// What a segment is called, and the number of the engine that has it.
pub struct Key {
    pub text: String,
    pub node: usize,
}

impl Nodes {
    /// No connection is made yet.
    pub fn new(config: Config) -> Nodes {
        let all = config.nodes.iter().cloned().map(Node::new).collect();
        Nodes { config, all, ranges: Vec::new(), asked: None }
    }

    /// Finds the nodes of a cluster if none of them is known to have anything. Nodes have other numbers afterwards.
    pub fn know(&mut self) {
        if self.config.cluster && self.ranges.is_empty() {
            self.find();
        }
    }

    /// The node of a cluster that has a key, as far as is known.
    pub fn owner(&self, key: &str) -> Option<usize> {
        let slot = slots::of(key);
        let range = self.ranges.iter().find(|range| (range.slots.0..=range.slots.1).contains(&slot))?;
        self.all.iter().position(|node| is_at(&node.info, &range.at))
    }

    /// Asks the nodes of a cluster that are known, and those that were named, which there are and what each has. Not again within a moment.
    pub fn find(&mut self) {
        if self.asked.is_some_and(|asked| asked.elapsed() < REST) {
            return;
        }
        self.asked = Some(Instant::now());
        for named in self.config.nodes.clone() {
            if !self.all.iter().any(|node| node.info.addr() == named.addr()) {
                self.all.push(Node::new(named));
            }
        }
        let mut numbers: Vec<usize> = (0..self.all.len()).collect();
        numbers.sort_by_key(|&number| self.all[number].away.is_some());
        for number in numbers {
            let mut ask = redis::cmd("CLUSTER");
            ask.arg("SLOTS");
            let Ok(answer) = self.ask(number, |connection| ask.query::<Value>(connection)) else { continue };
            let ranges = slots::parse(&answer, &place_of(&self.all[number].info).0);
            if !ranges.is_empty() {
                self.take_ranges(ranges);
                return;
            }
        }
    }

    /// From now on the nodes are those that have these.
    fn take_ranges(&mut self, ranges: Vec<Range>) {
        let mut before = std::mem::take(&mut self.all);
        for range in &ranges {
            if self.all.iter().any(|node| is_at(&node.info, &range.at)) {
                continue;
            }
            let known = before.iter().position(|node| is_at(&node.info, &range.at));
            self.all.push(match known {
                Some(known) => before.swap_remove(known),
                None => Node::new(moved_to(&self.config.nodes[0], &range.at)),
            });
        }
        self.ranges = ranges;
    }

    /// Whether any node says that the cluster stops as a whole when a part of it does.
    pub fn all_stop_with_one(&mut self) -> bool {
        let mut ask = redis::cmd("CONFIG");
        ask.arg("GET").arg("cluster-require-full-coverage");
        let says = |nodes: &mut Nodes, node: usize| {
            let answer = nodes.ask(node, |connection| ask.query::<Vec<String>>(connection));
            answer.is_ok_and(|words| words.get(1).is_some_and(|word| word == "yes"))
        };
        (0..self.all.len()).any(|node| says(self, node))
    }

    /// Asks the engine that has a key, and the one that has it now where it has moved to another node, or is on its way. Who that was. `ask` is told
    /// whether it is on its way.
    pub fn ask_for<T>(
        &mut self,
        key: Key,
        ask: impl Fn(&mut Connection, bool) -> redis::RedisResult<T>,
    ) -> Result<(T, Place), Failure> {
        let (mut node, mut answer) = (key.node, self.ask(key.node, |connection| ask(connection, false)));
        let is_elsewhere =
            |answer: &Result<T, Failure>| matches!(answer, Err(Failure::Moved | Failure::Away));
        if self.config.cluster && is_elsewhere(&answer) {
            // Another has taken its place, or will have in a moment.
            self.find();
            node = self.owner(&key.text).ok_or(Failure::Away)?;
            answer = self.ask(node, |connection| ask(connection, false));
        }
        if let (Err(Failure::Moving), Some(at)) = (&answer, self.all[node].moving_to.take()) {
            node = self.node_at(&at);
            answer = self.ask(node, |connection| ask(connection, true));
        }
        match answer {
            Err(Failure::Moved | Failure::Moving) => Err(Failure::Away),
            answer => Ok((answer?, place_of(&self.all[node].info))),
        }
    }

    /// The node there, which may be one that has nothing yet.
    fn node_at(&mut self, at: &Place) -> usize {
        self.all.iter().position(|node| is_at(&node.info, at)).unwrap_or_else(|| {
            self.all.push(Node::new(moved_to(&self.config.nodes[0], at)));
            self.all.len() - 1
        })
    }

    /// Asks one.
    ///
    /// # Errors
    /// What it says, or that it is away.
    pub fn ask<T>(
        &mut self,
        node: usize,
        ask: impl Fn(&mut Connection) -> redis::RedisResult<T>,
    ) -> Result<T, Failure> {
        // Where others have what it has, one that lets us wait is asked ever more seldom.
        let longest = match self.config.copies() {
            ..2 => REST,
            2.. => LONGEST_REST.min(self.config.expire / RENEWALS),
        };
        self.all[node].ask(longest, ask)
    }
}
