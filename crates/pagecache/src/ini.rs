//! The form of a configuration file: sections of `key = value` lines, with the line of each.
//!
//! What it is not: the meaning of a key, which is [`crate::workload`]'s affair.
//!
//! Invariants: no section or key appears twice; any text gives sections or an error with its line, never a panic.

use std::fmt;

/// What is wrong with a configuration file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Mistake {
    /// The line, counted from 1; `None` where the file as a whole is meant.
    pub line: Option<usize>,
    /// The key that is meant, where it is one.
    pub key: Option<String>,
    /// What is wrong, and what is allowed instead.
    pub what: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if let Some(key) = &self.key {
            write!(f, "{key}: ")?;
        }
        f.write_str(&self.what)
    }
}

/// A section with its name in square brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Its name.
    pub name: String,
    /// The line of its name, counted from 1.
    pub line: usize,
    /// What it says, in the order of the file.
    pub entries: Vec<Entry>,
}

/// One `key = value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The value, without the blanks around it.
    pub value: String,
    /// Its line, counted from 1.
    pub line: usize,
}

/// Reads the sections of `text`. Lines that are empty or begin with `#` or `;` say nothing.
///
/// # Errors
/// The first line that is neither a section nor an entry of one, or that repeats a name.
pub fn parse(text: &str) -> Result<Vec<Section>, Mistake> {
    let mut sections: Vec<Section> = Vec::new();
    for (line, content) in text.lines().enumerate().map(|(number, line)| (number + 1, line.trim())) {
        let wrong =
            |key: Option<&str>, what: String| Mistake { line: Some(line), key: key.map(str::to_owned), what };
        if content.is_empty() || content.starts_with(['#', ';']) {
            continue;
        }
        if let Some(rest) = content.strip_prefix('[') {
            let name = rest
                .strip_suffix(']')
                .map(str::trim)
                .ok_or_else(|| wrong(None, format!("{content:?} lacks its closing bracket")))?;
            if let Some(first) = sections.iter().find(|section| section.name == name) {
                return Err(wrong(None, format!("[{name}] is already there in line {}", first.line)));
            }
            sections.push(Section { name: name.to_owned(), line, entries: Vec::new() });
            continue;
        }
        let (key, value) = content
            .split_once('=')
            .map(|(key, value)| (key.trim(), value.trim()))
            .filter(|(key, _)| !key.is_empty())
            .ok_or_else(|| wrong(None, format!("{content:?} is neither [name] nor key = value")))?;
        let section = sections
            .last_mut()
            .ok_or_else(|| wrong(Some(key), "it stands before the first [name]".to_owned()))?;
        if let Some(first) = section.entries.iter().find(|entry| entry.key == key) {
            return Err(wrong(Some(key), format!("it is already given in line {}", first.line)));
        }
        section.entries.push(Entry { key: key.to_owned(), value: value.to_owned(), line });
    }
    Ok(sections)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sections_and_entries_come_with_their_lines() {
        let sections = parse("# c\n\n[a]\n x = 1 = 2 \n; c\n[ b ]\n").unwrap();
        assert_eq!(sections.len(), 2);
        assert_eq!((sections[0].name.as_str(), sections[0].line), ("a", 3));
        let entry = Entry { key: "x".into(), value: "1 = 2".into(), line: 4 };
        assert_eq!(sections[0].entries, [entry]);
        assert_eq!((sections[1].name.as_str(), sections[1].line), ("b", 6));
    }

    #[test]
    fn a_mistake_names_its_line_and_key() {
        let say = |text| parse(text).unwrap_err().to_string();
        assert_eq!(say("x = 1"), "line 1: x: it stands before the first [name]");
        assert_eq!(say("[a\n"), "line 1: \"[a\" lacks its closing bracket");
        assert_eq!(say("[a]\nhello"), "line 2: \"hello\" is neither [name] nor key = value");
        assert_eq!(say("[a]\n= 3"), "line 2: \"= 3\" is neither [name] nor key = value");
        assert_eq!(say("[a]\nx = 1\nx = 2"), "line 3: x: it is already given in line 2");
        assert_eq!(say("[a]\n[b]\n[a]"), "line 3: [a] is already there in line 1");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_answered_with_a_line_of_it(text in any::<String>()) {
            if let Err(mistake) = parse(&text) {
                let line = mistake.line.unwrap();
                prop_assert!(line >= 1 && line <= text.lines().count());
            }
        }

        #[test]
        fn what_is_written_comes_back(
            sections in prop::collection::btree_map(
                "[a-z_]{1,8}", prop::collection::btree_map("[a-z_]{1,8}", "[a-zA-Z0-9=#]{0,8}", 0..4), 0..4),
        ) {
            let mut text = String::new();
            for (name, entries) in &sections {
                text += &format!("[{name}]\n");
                entries.iter().for_each(|(key, value)| text += &format!("  {key}={value}\n\n"));
            }
            let read = parse(&text).unwrap();
            let back = read.into_iter().map(|section| {
                (section.name, section.entries.into_iter().map(|entry| (entry.key, entry.value)).collect())
            });
            prop_assert_eq!(back.collect::<std::collections::BTreeMap<_, _>>(), sections);
        }
    }
}
