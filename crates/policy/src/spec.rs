//! Policies by name: which there are, and their parameters.
//!
//! What it is not: a policy. It makes them, for requests one by one and as page daemons.

use crate::daemon::{Adapter, BonChance, FreeBsd, PageDaemon, Parameters, Simulated};
use crate::replace::{
    adaptive, belady, clock, frequency, mglru, queues, recency, s3fifo, tinylfu, Replacement,
};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// A policy by name, with its parameters.
#[derive(Clone, PartialEq, Debug)]
pub struct Spec {
    name: &'static str,
    parameters: Vec<(&'static str, f64)>,
}

/// Why a text names no policy.
#[derive(Clone, PartialEq, Debug)]
pub enum BadSpec {
    /// There is no policy of that name.
    Name(String),
    /// The policy has no such parameter.
    Parameter(String),
    /// The value is no number, or out of the parameter's range.
    Value(String),
}

type Make = fn(&Spec, usize, usize) -> Box<dyn Replacement + Send>;

struct Kind {
    name: &'static str,
    /// Name, default, least and most.
    parameters: &'static [(&'static str, f64, f64, f64)],
    make: Make,
}

const KINDS: &[Kind] = &[
    Kind { name: "lru", parameters: &[], make: |_, c, u| Box::new(recency::Lru::new(c, u)) },
    Kind { name: "fifo", parameters: &[], make: |_, c, u| Box::new(recency::Fifo::new(c, u)) },
    Kind { name: "clock", parameters: &[], make: |_, c, u| Box::new(clock::Clock::new(c, u)) },
    Kind { name: "sieve", parameters: &[], make: |_, c, u| Box::new(clock::Sieve::new(c, u)) },
    Kind {
        name: "slru",
        parameters: &[("protected", 0.8, 0.0, 1.0)],
        make: |s, c, u| Box::new(queues::Slru::new(c, u, s.get("protected"))),
    },
    Kind {
        name: "twoq",
        parameters: &[("in", 0.25, 0.01, 0.99), ("out", 0.5, 0.0, 8.0)],
        make: |s, c, u| Box::new(queues::TwoQ::new(c, u, s.get("in"), s.get("out"))),
    },
    Kind { name: "arc", parameters: &[], make: |_, c, u| Box::new(adaptive::Arc::new(c, u)) },
    Kind {
        name: "lirs",
        parameters: &[("hir", 0.01, 0.001, 0.5)],
        make: |s, c, u| Box::new(adaptive::Lirs::new(c, u, s.get("hir"))),
    },
    Kind {
        name: "s3fifo",
        parameters: &[
            ("small", 0.1, 0.001, 0.9),
            ("ghost", 0.9, 0.0, 8.0),
            ("move", 2.0, 1.0, 3.0),
            ("fill", 0.0, 0.0, 1.0),
        ],
        make: |s, c, u| {
            let [small, ghost, threshold] = ["small", "ghost", "move"].map(|name| s.get(name));
            Box::new(s3fifo::S3Fifo::new(c, u, small, ghost, threshold as u8, s.is_on("fill")))
        },
    },
    Kind { name: "lfu", parameters: &[], make: |_, c, u| Box::new(frequency::Lfu::new(c, u)) },
    Kind {
        name: "wtinylfu",
        parameters: &[
            ("window", 0.01, 0.001, 0.9),
            ("protected", 0.8, 0.0, 1.0),
            ("libcachesim", 0.0, 0.0, 1.0),
        ],
        make: |s, c, u| {
            let (window, protected) = (s.get("window"), s.get("protected"));
            match s.is_on("libcachesim") {
                true => Box::new(tinylfu::Sketched::new(c, u, window, protected)),
                false => Box::new(tinylfu::WTinyLfu::new(c, u, window, protected)),
            }
        },
    },
    Kind {
        name: "mglru",
        parameters: &[("descriptors", 0.0, 0.0, 1.0)],
        make: |s, c, u| Box::new(mglru::MgLru::new(c, u, s.is_on("descriptors"))),
    },
    Kind {
        name: "random",
        parameters: &[("seed", 1.0, 0.0, 4_294_967_295.0)],
        make: |s, c, u| Box::new(recency::Random::new(c, u, s.get("seed") as u64)),
    },
    Kind {
        name: "freebsd",
        parameters: &[("free", 0.02, 0.0, 0.5), ("period", 600.0, 0.001, 1e6)],
        make: |s, c, u| Box::new(Simulated::new(FreeBsd::freebsd(s.daemon_parameters(), u), c)),
    },
    Kind {
        name: "bonchance",
        parameters: &[
            ("free", 0.02, 0.0, 0.5),
            ("period", 600.0, 0.001, 1e6),
            ("seed", 1.0, 0.0, 4_294_967_295.0),
        ],
        make: |s, c, u| {
            let daemon = BonChance::bonchance(s.daemon_parameters(), s.get("seed") as u64, u);
            Box::new(Simulated::new(daemon, c))
        },
    },
    Kind { name: "belady", parameters: &[], make: |_, c, u| Box::new(belady::Belady::new(c, u)) },
];

/// The names of all policies.
pub fn names() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|kind| kind.name)
}

impl Spec {
    /// Reads `NAME` or `NAME:PARAMETER=VALUE,…`, such as `s3fifo:small=0.05,ghost=1`.
    pub fn parse(text: &str) -> Result<Spec, BadSpec> {
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        let kind = KINDS.iter().find(|kind| kind.name == name).ok_or_else(|| BadSpec::Name(name.into()))?;
        let mut parameters: Vec<_> = kind.parameters.iter().map(|p| (p.0, p.1)).collect();
        for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
            let (key, value) = setting.split_once('=').ok_or_else(|| BadSpec::Parameter(setting.into()))?;
            let at =
                parameters.iter().position(|p| p.0 == key).ok_or_else(|| BadSpec::Parameter(key.into()))?;
            let (_, _, least, most) = kind.parameters[at];
            parameters[at].1 = value
                .parse()
                .ok()
                .filter(|value| (least..=most).contains(value))
                .ok_or_else(|| BadSpec::Value(setting.into()))?;
        }
        Ok(Spec { name: kind.name, parameters })
    }

    /// Whether the policy looks at the future.
    pub fn needs_future(&self) -> bool {
        self.name == "belady"
    }

    /// The policy's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Makes the policy for `capacity` pages, at least 1, of page numbers below `universe`.
    pub fn make(&self, capacity: usize, universe: usize) -> Box<dyn Replacement + Send> {
        assert!(capacity > 0 && universe <= u32::MAX as usize / 2, "a cache of at least one page");
        let kind = KINDS.iter().find(|kind| kind.name == self.name);
        (kind.expect("a spec names a policy").make)(self, capacity, universe)
    }

    /// Makes the policy as a page daemon for `limit` resident pages, at least 1, of page numbers below `universe`. `None`
    /// for a policy that must know the future.
    pub fn make_daemon(&self, limit: usize, universe: usize) -> Option<Box<dyn PageDaemon + Send>> {
        match self.name {
            _ if self.needs_future() => None,
            "freebsd" => Some(Box::new(FreeBsd::freebsd(self.daemon_parameters(), universe))),
            "bonchance" => {
                let seed = self.get("seed") as u64;
                Some(Box::new(BonChance::bonchance(self.daemon_parameters(), seed, universe)))
            }
            _ => {
                let spec = self.clone();
                Some(Box::new(Adapter::new(move |c, u| spec.make(c, u), limit, universe)))
            }
        }
    }

    fn daemon_parameters(&self) -> Parameters {
        Parameters { free: self.get("free"), period: self.get("period"), ..Parameters::default() }
    }

    /// A parameter that is a switch: 0 or 1.
    fn is_on(&self, parameter: &str) -> bool {
        self.get(parameter) >= 0.5
    }

    fn get(&self, parameter: &str) -> f64 {
        self.parameters.iter().find(|p| p.0 == parameter).map_or(0.0, |p| p.1)
    }
}

impl fmt::Display for Spec {
    /// As [`Spec::parse`] reads it, without the parameters that have their defaults.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        let defaults =
            KINDS.iter().find(|kind| kind.name == self.name).map_or(&[][..], |kind| kind.parameters);
        let set = self.parameters.iter().zip(defaults).filter(|(given, default)| given.1 != default.1);
        for (number, ((name, value), _)) in set.enumerate() {
            write!(f, "{}{name}={value}", if number == 0 { ':' } else { ',' })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_policy_says_the_parameters_that_are_not_the_defaults() {
        for text in ["lru", "mglru:descriptors=1", "s3fifo:small=0.2,fill=1", "wtinylfu:libcachesim=1"] {
            assert_eq!(Spec::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Spec::parse("s3fifo:small=0.1").unwrap().to_string(), "s3fifo");
    }

    #[test]
    fn a_policy_is_named_with_its_parameters_or_the_mistake_is() {
        assert_eq!(Spec::parse("s3fifo:small=0.2,ghost=1").unwrap().get("small"), 0.2);
        assert_eq!(Spec::parse("s3fifo").unwrap().get("small"), 0.1);
        assert_eq!(Spec::parse("plru"), Err(BadSpec::Name("plru".into())));
        assert_eq!(Spec::parse("lru:small=1"), Err(BadSpec::Parameter("small".into())));
        assert_eq!(Spec::parse("s3fifo:small=2"), Err(BadSpec::Value("small=2".into())));
        assert_eq!(Spec::parse("s3fifo:small=x"), Err(BadSpec::Value("small=x".into())));
    }
}
