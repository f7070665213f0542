//! The access sources by name, with what is to be known of each before any is asked.

use memfold_policy::age::Timing;

/// An access source, as `--source` names it. The discriminant is the value of the setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// The one that is used where nobody says otherwise: [`Kind::Probe`].
    Auto = 0,
    /// Write tracking alone: `PAGEMAP_SCAN` with asynchronous write protection (Linux 6.7).
    Writes = 1,
    /// Write tracking, then pages are set aside, and those that are in use come back.
    Probe = 2,
    /// DAMON over the process's addresses; root, and `CONFIG_DAMON_VADDR`.
    DamonVaddr = 3,
    /// DAMON over physical memory, joined with the page map; root, and `CONFIG_DAMON_PADDR`.
    DamonPaddr = 4,
    /// Idle page tracking, joined with the page map; root, and `CONFIG_IDLE_PAGE_TRACKING`.
    Idle = 5,
}

impl Kind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Kind; 6] =
        [Kind::Auto, Kind::Writes, Kind::Probe, Kind::DamonVaddr, Kind::DamonPaddr, Kind::Idle];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Auto => "auto",
            Kind::Writes => "writes",
            Kind::Probe => "probe",
            Kind::DamonVaddr => "damon-vaddr",
            Kind::DamonPaddr => "damon-paddr",
            Kind::Idle => "idle",
        }
    }

    /// The one with this name.
    pub fn parse(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The one with this number; a number that none has is [`Kind::Auto`].
    pub fn from_number(number: u64) -> Kind {
        usize::try_from(number).ok().and_then(|number| Kind::ALL.get(number)).copied().unwrap_or(Kind::Auto)
    }

    /// Whether somebody outside of the process tells ([`crate::report`]).
    pub fn is_told(self) -> bool {
        matches!(self, Kind::DamonVaddr | Kind::DamonPaddr | Kind::Idle)
    }

    /// How long the steps take by it.
    pub fn timing(self) -> Timing {
        match self {
            Kind::Auto | Kind::Probe => Timing::PROBE,
            Kind::Writes => Timing::WRITES,
            Kind::DamonVaddr | Kind::DamonPaddr | Kind::Idle => Timing::TOLD,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_is_found_by_its_name_and_by_its_number() {
        for (number, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!((Kind::parse(kind.name()), kind as usize), (Some(kind), number));
            assert_eq!(Kind::from_number(number as u64), kind);
        }
        assert_eq!((Kind::parse("damon"), Kind::from_number(99)), (None, Kind::Auto));
    }
}
