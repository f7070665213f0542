//! Reading a file of settings.

use super::reading::{kind, Entry, Fault, Reading};
use crate::options;
use glob::Pattern;
use std::path::PathBuf;
use toml::de::{DeTable, DeValue};

/// A file as it was read.
#[derive(Debug, Default)]
pub struct File {
    /// Where it is.
    pub path: PathBuf,
    /// The defaults, as a rule without conditions, and the rules, in their order.
    pub rules: Vec<Rule>,
    /// What could not be read and is left out.
    pub faults: Vec<Fault>,
}

/// What holds for some programs.
#[derive(Debug, Default)]
pub struct Rule {
    /// The program: its file's name, or its whole path where the pattern has a slash.
    pub program: Option<Pattern>,
    /// The user who starts it, by name or number.
    pub user: Option<String>,
    /// The control group in which it is started.
    pub cgroup: Option<Pattern>,
    /// What is set.
    pub entries: Vec<Entry>,
}

impl File {
    /// Reads a text. Never fails: what cannot be read is among the faults, and a text that is no TOML has nothing else.
    pub fn parse(path: PathBuf, text: &str) -> File {
        let mut reader = Reader { reading: Reading::of(text), rules: Vec::new() };
        if let Some(table) = reader.reading.table() {
            reader.top(table.get_ref());
        }
        File { path, rules: reader.rules, faults: reader.reading.faults }
    }
}

struct Reader<'t> {
    reading: Reading<'t>,
    rules: Vec<Rule>,
}

impl Reader<'_> {
    fn top(&mut self, table: &DeTable<'_>) {
        for (name, value) in table {
            let (at, found) = (value.span().start, value.get_ref());
            match (name.get_ref().as_ref(), found) {
                ("defaults", DeValue::Table(table)) => {
                    let rule = self.rule(table, false);
                    self.rules.insert(0, rule);
                }
                ("defaults", _) => {
                    self.reading.fault(at, format!("expected a table, [defaults], and found {}", kind(found)))
                }
                ("rule", _) => {
                    for (at, table) in self.reading.rules(value) {
                        let read = self.rule(table, true);
                        if read.program.is_none() && read.user.is_none() && read.cgroup.is_none() {
                            self.reading
                                .fault(at, "expected a condition in this rule: program, user or cgroup");
                        } else {
                            self.rules.push(read);
                        }
                    }
                }
                (other, _) => {
                    let message = format!("expected [defaults] or [[rule]], and found '{other}'");
                    self.reading.fault(name.span().start, message);
                }
            }
        }
    }

    fn rule(&mut self, table: &DeTable<'_>, conditional: bool) -> Rule {
        let mut rule = Rule::default();
        for (name, value) in table {
            match name.get_ref().as_ref() {
                "program" if conditional => rule.program = self.reading.pattern(value),
                "cgroup" if conditional => rule.cgroup = self.reading.pattern(value),
                "user" if conditional => rule.user = self.reading.condition(value),
                key => match options::named().find(|named| named.option == key) {
                    Some(key) => rule.entries.extend(self.reading.entry(key, value)),
                    None => {
                        let conditions: &[&str] =
                            if conditional { &["program", "user", "cgroup"] } else { &[] };
                        self.reading.unknown(name.span().start, key, conditions, options::named());
                    }
                },
            }
        }
        rule
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        File::parse("x".into(), text).faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn defaults_come_first_and_rules_keep_their_order() {
        let text = "[[rule]]\nprogram = \"a\"\ncold-age = \"2s\"\n[[rule]]\nuser = 7\nno-pager = true\n[defaults]\nmax-stall = 0.5\nquiet = false\n";
        let file = File::parse("x".into(), text);
        assert_eq!(file.faults, []);
        let of = |rule: &Rule| -> Vec<_> {
            rule.entries
                .iter()
                .map(|entry| (entry.key.option, entry.value.clone(), entry.place.line))
                .collect()
        };
        assert_eq!(of(&file.rules[0]), [("max-stall", Some("0.5".into()), 8), ("quiet", None, 9)]);
        assert_eq!(of(&file.rules[1]), [("cold-age", Some("2s".into()), 3)]);
        assert_eq!(of(&file.rules[2]), [("no-pager", Some("off".into()), 6)]);
        assert_eq!(file.rules[2].user.as_deref(), Some("7"));
    }

    #[test]
    fn a_broken_text_is_answered_with_line_column_and_what_was_expected() {
        let broken = faults("[defaults]\ncold-age \"2s\"\n");
        assert!(broken[0].starts_with("2:10: ") && broken[0].contains("expected"), "{broken:?}");
        let open = faults("[defaults]\ncold-age = \"2s\n");
        assert!(open[0].starts_with("2:") && open.len() == 1, "{open:?}");
        assert_eq!(faults("[default]\n"), ["1:2: expected [defaults] or [[rule]], and found 'default'"]);
        assert_eq!(
            faults("[defaults]\ncold_age = 1\n"),
            ["2:1: there is no key 'cold_age'; expected 'cold-age'"]
        );
        assert!(faults("[defaults]\nfast = 1\n")[0]
            .starts_with("2:1: there is no key 'fast'; expected one of cold-age,"));
        assert_eq!(
            faults("[defaults]\nno-pager = \"yes\"\n"),
            ["2:12: no-pager: expected true or false, and found a text"]
        );
        assert_eq!(
            faults("[[rule]]\ncold-age = \"1s\"\n"),
            ["1:1: expected a condition in this rule: program, user or cgroup"]
        );
        assert!(faults("rule = 1\n")[0].starts_with("1:8: expected [[rule]]"));
        assert!(faults("[[rule]]\nprogram = \"[\"\n")[0].starts_with("2:11: expected a pattern"));
    }

    #[test]
    fn a_rule_whose_condition_cannot_be_read_meets_nothing() {
        let file = File::parse("x".into(), "[[rule]]\nprogram = [1]\nno-pager = true\n");
        assert_eq!(file.faults.len(), 1);
        assert!(!file.rules[0].program.as_ref().unwrap().matches("redis-server"));
    }
}
