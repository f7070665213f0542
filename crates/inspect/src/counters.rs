//! The counters of a page as plain numbers, and as fields of JSON.

use memfold_pager::control::{ControlPage, Costs, Counters as Group, Pages, Sizes};
use serde::ser::{Serialize, Serializer};

/// All counters at one moment, each read once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes by what became of them.
    pub sizes: Sizes,
    /// Pages by what happened to them.
    pub pages: Pages,
    /// What folding costs.
    pub costs: Costs,
}

impl Counters {
    /// Those of a page.
    pub fn of(page: &ControlPage) -> Counters {
        Counters { sizes: Sizes::of(page), pages: Pages::of(page), costs: Costs::of(page) }
    }
}

/// By the names that they have on the page.
impl Serialize for Counters {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut all = Vec::new();
        let mut note = |_, name, number| all.push((name, number));
        self.sizes.each(&mut note);
        self.pages.each(&mut note);
        self.costs.each(&mut note);
        serializer.collect_map(all)
    }
}

/// Writes one group, by the names that they have in it; for `#[serde(serialize_with)]`.
///
/// # Errors
/// The serializer's.
pub fn fields<S: Serializer>(group: &impl Group, serializer: S) -> Result<S::Ok, S::Error> {
    let mut all = Vec::new();
    group.each(|name, _, number| all.push((name, number)));
    serializer.collect_map(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Serialize)]
    struct Row {
        #[serde(flatten, serialize_with = "fields")]
        sizes: Sizes,
        #[serde(serialize_with = "fields")]
        pages: Pages,
    }

    #[test]
    fn a_group_has_short_names_and_all_of_them_those_of_the_page() {
        let sizes = Sizes { managed_bytes: 1, ..Sizes::default() };
        let pages = Pages { evicted: 2, ..Pages::default() };
        let json = serde_json::to_value(Row { sizes, pages }).unwrap();
        assert_eq!((&json["managed_bytes"], &json["pages"]["evicted"]), (&1.into(), &2.into()));
        let json = serde_json::to_value(Counters { sizes, pages, ..Counters::default() }).unwrap();
        assert_eq!((&json["managed_bytes"], &json["pages_evicted"]), (&1.into(), &2.into()));
    }
}
