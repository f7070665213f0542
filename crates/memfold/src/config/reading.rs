//! Reading TOML whose every part keeps the line and the column where it stands: what files of settings and of rules have in common.
//!
//! Invariants: nothing fails; what cannot be read is a [`Fault`] that says where it stands and what was expected.

use crate::options::Named;
use glob::Pattern;
use std::fmt;
use toml::de::{DeTable, DeValue};
use toml::Spanned;

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

/// A text that is being read.
pub struct Reading<'t> {
    text: &'t str,
    /// What could not be read.
    pub faults: Vec<Fault>,
}

impl<'t> Reading<'t> {
    /// Begins.
    pub fn of(text: &'t str) -> Reading<'t> {
        Reading { text, faults: Vec::new() }
    }

    /// All of it; `None` where it is no TOML.
    pub fn table(&mut self) -> Option<Spanned<DeTable<'t>>> {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        if errors.is_empty() {
            return Some(table);
        }
        for error in errors {
            let at = error.span().map_or(0, |span| span.start);
            self.fault(at, error.message().replace('\n', ", "));
        }
        None
    }

    /// Where something stands that is so many bytes from the beginning.
    pub fn place(&self, at: usize) -> Place {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Place { line, column }
    }

    /// Something that cannot be read, at so many bytes from the beginning.
    pub fn fault(&mut self, at: usize, message: impl Into<String>) {
        let place = self.place(at);
        self.faults.push(Fault { place, message: message.into() });
    }

    /// The tables of `[[rule]]`, and where each stands.
    pub fn rules<'v, 'd>(&mut self, value: &'v Spanned<DeValue<'d>>) -> Vec<(usize, &'v DeTable<'d>)> {
        let DeValue::Array(rules) = value.get_ref() else {
            let found = kind(value.get_ref());
            self.fault(
                value.span().start,
                format!("expected [[rule]], in two pairs of brackets, and found {found}"),
            );
            return Vec::new();
        };
        let mut tables = Vec::new();
        for rule in rules {
            match rule.get_ref() {
                DeValue::Table(table) => tables.push((rule.span().start, table)),
                other => self.fault(
                    rule.span().start,
                    format!("expected a rule, [[rule]], and found {}", kind(other)),
                ),
            }
        }
        tables
    }

    /// A key that there is not.
    pub fn unknown(&mut self, at: usize, key: &str, conditions: &[&str], named: impl Iterator<Item = Named>) {
        let meant = key.replace('_', "-").to_lowercase();
        let names: Vec<_> = conditions.iter().copied().chain(named.map(|named| named.option)).collect();
        let expected = match names.contains(&meant.as_str()) {
            true => format!("'{meant}'"),
            false => format!("one of {}", names.join(", ")),
        };
        self.fault(at, format!("there is no key '{key}'; expected {expected}"));
    }

    /// A text to compare with; an empty one where it cannot be read.
    pub fn condition(&mut self, value: &Spanned<DeValue<'_>>) -> Option<String> {
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

    /// A pattern of the shell's kind; one that nothing meets where it cannot be read.
    pub fn pattern(&mut self, value: &Spanned<DeValue<'_>>) -> Option<Pattern> {
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

    /// The value of a setting.
    pub fn entry(&mut self, key: Named, value: &Spanned<DeValue<'_>>) -> Option<Entry> {
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

/// What kind of value it is, in words.
pub fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
