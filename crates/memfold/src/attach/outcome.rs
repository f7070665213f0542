//! What came of one process that was meant: in a line for people, and for JSON.

use super::folding::{fold, Attaching, Folded};
use crate::text;
use memfold_attach::{Error, Target};
use serde::Serialize;
use std::fmt;

/// See the module.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// What became of it.
    pub result: Kind,
    /// Why, where nothing was done; or what is not as usual.
    pub reason: Option<String>,
    /// For how long a thread of it was stopped.
    pub stopped_ns: Option<u64>,
}

/// What became of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// It is folded from now on.
    Attached,
    /// It could be.
    Possible,
    /// It is folded already.
    Folded,
    /// It is not to be.
    Excluded,
    /// It cannot be attached to.
    Refused,
    /// It could have been, and something went wrong.
    Failed,
    /// It has ended meanwhile.
    Ended,
}

impl Outcome {
    fn new(pid: u32, name: &str, result: Kind, reason: Option<String>) -> Outcome {
        Outcome { pid, name: name.to_owned(), result, reason, stopped_ns: None }
    }

    /// One that nothing is done to.
    pub fn excluded(pid: u32, name: &str, why: impl Into<String>) -> Outcome {
        Outcome::new(pid, name, Kind::Excluded, Some(why.into()))
    }

    /// Attaches to a process, or looks whether it could be done.
    pub fn of(target: &Target, name: &str, attaching: &Attaching<'_>) -> Outcome {
        let pid = target.pid();
        let refused = |error: &Error| match error {
            Error::Folded(_) => Kind::Folded,
            Error::Ended(_) | Error::Zombie(_) | Error::NoProcess(_) => Kind::Ended,
            _ => Kind::Refused,
        };
        if let Err(error) = target.check() {
            return Outcome::new(pid, name, refused(&error), Some(error.to_string()));
        }
        let Some(image) = attaching.image else { return Outcome::new(pid, name, Kind::Possible, None) };
        match fold(target, image, attaching.choices) {
            Ok(Folded { stop, unseen }) => {
                let stopped_ns = Some(stop.0.as_nanos() as u64);
                let reason = unseen.map(|why| format!("it is seen and steered by nobody: {why}"));
                Outcome { stopped_ns, ..Outcome::new(pid, name, Kind::Attached, reason) }
            }
            Err(error) => {
                let kind = match error.downcast_ref::<Error>() {
                    Some(Error::AgentFailed(_)) | None => Kind::Failed,
                    Some(error) => {
                        Some(refused(error)).filter(|kind| *kind != Kind::Refused).unwrap_or(Kind::Failed)
                    }
                };
                Outcome::new(pid, name, kind, Some(format!("{error:#}")))
            }
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { pid, name, reason, .. } = self;
        let reason = reason.as_deref().unwrap_or_default();
        match self.result {
            Kind::Attached if !reason.is_empty() => {
                write!(f, "{name} (process {pid}) is folded from now on; {reason}")
            }
            Kind::Attached => write!(
                f,
                "{name} (process {pid}) is folded from now on; one thread of it was stopped for {} (`memfold stat {pid}` shows what is saved)",
                text::nanos(self.stopped_ns.unwrap_or(0))
            ),
            Kind::Possible => write!(f, "{name} (process {pid}) can be attached to"),
            Kind::Folded | Kind::Ended => write!(f, "skipped {name}: {reason}"),
            Kind::Excluded => write!(f, "skipped {name}: process {pid} {reason}"),
            Kind::Refused => write!(f, "skipped {name}: refused: {reason}"),
            Kind::Failed => write!(f, "{name}: {reason}"),
        }
    }
}

/// How many of each, in a line.
pub fn summary(outcomes: &[Outcome]) -> String {
    let words = [
        (Kind::Attached, "attached to"),
        (Kind::Possible, "can be attached to"),
        (Kind::Folded, "folded already"),
        (Kind::Excluded, "excluded"),
        (Kind::Refused, "refused"),
        (Kind::Failed, "failed"),
        (Kind::Ended, "ended"),
    ];
    let counted = words.into_iter().filter_map(|(kind, words)| {
        let number = outcomes.iter().filter(|outcome| outcome.result == kind).count();
        (number > 0).then(|| format!("{number} {words}"))
    });
    counted.collect::<Vec<_>>().join(", ")
}

/// Whether it went well on the whole: nothing failed, and something is or could be folded.
pub fn is_well(outcomes: &[Outcome]) -> bool {
    let has = |kinds: &[Kind]| outcomes.iter().any(|outcome| kinds.contains(&outcome.result));
    !has(&[Kind::Failed]) && has(&[Kind::Attached, Kind::Possible, Kind::Folded])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_of_many_is_counted_and_judged() {
        let of = |result| Outcome::new(7, "redis", result, Some("is so".into()));
        let some = [of(Kind::Attached), of(Kind::Refused), of(Kind::Attached)];
        assert_eq!(summary(&some), "2 attached to, 1 refused");
        assert!(is_well(&some) && is_well(&[of(Kind::Folded)]));
        assert!(!is_well(&[of(Kind::Attached), of(Kind::Failed)]));
        assert!(!is_well(&[of(Kind::Refused), of(Kind::Excluded)]) && !is_well(&[]));
        assert_eq!(of(Kind::Refused).to_string(), "skipped redis: refused: is so");
    }
}
