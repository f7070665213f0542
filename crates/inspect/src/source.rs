//! The access source of a process: which was chosen, which is asked, and why it is another one.

use crate::plain;
use memfold_pager::config::Setting;
use memfold_pager::control::ControlPage;
use memfold_pager::report::NOT_YET;
use memfold_pager::source::Kind;
use serde::{Serialize, Serializer};
use std::sync::atomic::Ordering::Relaxed;

/// What tells which memory of a process is cold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Source {
    /// What was chosen.
    #[serde(serialize_with = "name")]
    pub asked: Kind,
    /// What is asked.
    #[serde(serialize_with = "name")]
    pub in_use: Kind,
    /// Why that is not what was chosen.
    pub why_not: Option<String>,
}

fn name<S: Serializer>(kind: &Kind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(kind.name())
}

impl Source {
    pub(crate) fn of(page: &ControlPage) -> Source {
        let why = plain(page.source_why.read(&mut [0; 256]));
        Source {
            asked: Kind::from_number(page.settings[Setting::Source as usize].load(Relaxed)),
            in_use: Kind::from_number(page.source.load(Relaxed)),
            why_not: (!why.is_empty()).then_some(why),
        }
    }

    /// Whether what was chosen is asked; the usual one is [`Kind::Probe`].
    pub fn is_as_asked(&self) -> bool {
        self.in_use == self.asked || self.asked == Kind::Auto
    }

    /// Whether the process has not yet come to ask what was chosen, and says nothing against it.
    pub fn is_on_its_way(&self) -> bool {
        !self.is_as_asked() && self.why_not.as_deref().is_none_or(|why| why == NOT_YET)
    }

    /// The one that is asked, and what speaks against the one that was chosen.
    pub fn words(&self) -> String {
        match &self.why_not {
            Some(why) if !self.is_as_asked() => {
                format!("{}, not {}: {why}", self.in_use.name(), self.asked.name())
            }
            _ => self.in_use.name().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_had_is_named_with_its_reason() {
        let source = |asked, in_use, why: &str| Source {
            asked,
            in_use,
            why_not: (!why.is_empty()).then(|| why.into()),
        };
        assert_eq!(source(Kind::Auto, Kind::Probe, "").words(), "probe");
        assert!(source(Kind::Auto, Kind::Probe, "").is_as_asked());
        let refused = source(Kind::Idle, Kind::Probe, "no root");
        assert_eq!(refused.words(), "probe, not idle: no root");
        assert!(!refused.is_as_asked() && !refused.is_on_its_way());
        assert!(source(Kind::Idle, Kind::Probe, NOT_YET).is_on_its_way());
        assert_eq!(
            serde_json::to_value(&refused).unwrap(),
            serde_json::json!({"asked": "idle", "in_use": "probe", "why_not": "no root"})
        );
    }
}
