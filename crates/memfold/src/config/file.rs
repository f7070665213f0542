//! Reading a file of settings: TOML, whose every part keeps the line and the column where it stands.

use crate::options::{self, Named};
use glob::Pattern;
use std::fmt;
use std::path::PathBuf;
use toml::de::{DeTable, DeValue};
use toml::Spanned;

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

/// One setting.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Which.
    pub key: Named,
    /// Its value as text; `None` for a flag that is off.
    pub value: Option<String>,
    /// Where the value stands.
    pub place: Place,
}

/// Where something stands in a file, both from 1 on; columns are characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

/// Something that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where.
    pub place: Place,
    /// What was found, and what was expected.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.place.line, self.place.column, self.message)
    }
}

impl File {
    /// Reads a text. Never fails: what cannot be read is among the faults, and a text that is no TOML has nothing else.
    pub fn parse(path: PathBuf, text: &str) -> File {
        let mut reader = Reader { text, file: File { path, ..File::default() } };
        let (table, errors) = DeTable::parse_recoverable(text);
        if errors.is_empty() {
            reader.top(table.get_ref());
        }
        for error in errors {
            let at = error.span().map_or(0, |span| span.start);
            reader.fault(at, error.message().replace('\n', ", "));
        }
        reader.file
    }
}

struct Reader<'t> {
    text: &'t str,
    file: File,
}

impl Reader<'_> {
    fn place(&self, at: usize) -> Place {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Place { line, column }
    }

    fn fault(&mut self, at: usize, message: impl Into<String>) {
        let place = self.place(at);
        self.file.faults.push(Fault { place, message: message.into() });
    }

    fn top(&mut self, table: &DeTable<'_>) {
        for (name, value) in table {
            let (at, found) = (value.span().start, value.get_ref());
            match (name.get_ref().as_ref(), found) {
                ("defaults", DeValue::Table(table)) => {
                    let rule = self.rule(table, false);
                    self.file.rules.insert(0, rule);
                }
                ("defaults", _) => {
                    self.fault(at, format!("expected a table, [defaults], and found {}", kind(found)))
                }
                ("rule", DeValue::Array(rules)) => {
                    for rule in rules {
                        match rule.get_ref() {
                            DeValue::Table(table) => {
                                let read = self.rule(table, true);
                                if read.program.is_none() && read.user.is_none() && read.cgroup.is_none() {
                                    self.fault(
                                        rule.span().start,
                                        "expected a condition in this rule: program, user or cgroup",
                                    );
                                } else {
                                    self.file.rules.push(read);
                                }
                            }
                            other => self.fault(
                                rule.span().start,
                                format!("expected a rule, [[rule]], and found {}", kind(other)),
                            ),
                        }
                    }
                }
                ("rule", _) => self.fault(
                    at,
                    format!("expected [[rule]], in two pairs of brackets, and found {}", kind(found)),
                ),
                (other, _) => {
                    let message = format!("expected [defaults] or [[rule]], and found '{other}'");
                    self.fault(name.span().start, message);
                }
            }
        }
    }

    fn rule(&mut self, table: &DeTable<'_>, conditional: bool) -> Rule {
        let mut rule = Rule::default();
        for (name, value) in table {
            match name.get_ref().as_ref() {
                "program" if conditional => rule.program = self.pattern(value),
                "cgroup" if conditional => rule.cgroup = self.pattern(value),
                "user" if conditional => rule.user = self.condition(value),
                key => match options::named().find(|named| named.option == key) {
                    Some(key) => rule.entries.extend(self.entry(key, value)),
                    None => self.fault(name.span().start, unknown(key, conditional)),
                },
            }
        }
        rule
    }

    fn condition(&mut self, value: &Spanned<DeValue<'_>>) -> Option<String> {
        match value.get_ref() {
            DeValue::String(text) => Some(text.to_string()),
            DeValue::Integer(number) => Some(number.as_str().to_owned()),
            other => {
                self.fault(
                    value.span().start,
                    format!("expected a text in quotation marks, and found {}", kind(other)),
                );
                // Of a condition that cannot be read none is known to be met.
                Some(String::new())
            }
        }
    }

    fn pattern(&mut self, value: &Spanned<DeValue<'_>>) -> Option<Pattern> {
        let text = self.condition(value)?;
        match Pattern::new(&text) {
            Ok(pattern) => Some(pattern),
            Err(error) => {
                self.fault(
                    value.span().start,
                    format!("expected a pattern, and '{text}' is none: {}", error.msg),
                );
                Some(Pattern::default())
            }
        }
    }

    fn entry(&mut self, key: Named, value: &Spanned<DeValue<'_>>) -> Option<Entry> {
        let at = value.span().start;
        let text = match (value.get_ref(), key.flag) {
            (DeValue::Boolean(on), Some(flag)) => on.then(|| flag.to_owned()),
            (found, Some(_)) => {
                self.fault(at, format!("{}: expected true or false, and found {}", key.option, kind(found)));
                return None;
            }
            (DeValue::String(text), None) => Some(text.to_string()),
            (DeValue::Integer(number), None) => Some(number.as_str().to_owned()),
            (DeValue::Float(number), None) => Some(number.as_str().to_owned()),
            (found, None) => {
                self.fault(
                    at,
                    format!(
                        "{}: expected a text in quotation marks or a number, and found {}",
                        key.option,
                        kind(found)
                    ),
                );
                return None;
            }
        };
        Some(Entry { key, value: text, place: self.place(at) })
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

fn unknown(key: &str, conditional: bool) -> String {
    let meant = key.replace('_', "-").to_lowercase();
    let names: Vec<_> = options::named().map(|named| named.option).collect();
    if names.contains(&meant.as_str()) {
        return format!("there is no key '{key}'; expected '{meant}'");
    }
    let conditions = if conditional { "program, user, cgroup, " } else { "" };
    format!("there is no key '{key}'; expected one of {conditions}{}", names.join(", "))
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
