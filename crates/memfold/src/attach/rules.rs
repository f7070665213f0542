//! Rules that say which programs are to be attached to: a file of TOML.
//!
//! The first rule that a program meets decides. A rule without options attaches with those of the command line.
//!
//! Invariants: a file with anything that cannot be read is refused as a whole, with the line and column of each; one that another user could write, by its
//! group too, is not read.

use super::candidate::Candidate;
use crate::config::decide;
use crate::config::reading::{kind, Entry, Reading};
use crate::options::{self, Named};
use crate::{exit, run::launch};
use glob::Pattern;
use memfold_pager::config::{parse_size, Setting};
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// What a rule may say besides options.
const CONDITIONS: [&str; 6] = ["name", "user", "cgroup", "unit", "min", "exclude"];

/// The rules of a file, in their order.
#[derive(Debug)]
pub struct Rules {
    path: PathBuf,
    rules: Vec<Rule>,
}

/// What holds for some programs.
#[derive(Debug, Default)]
pub struct Rule {
    /// Where it begins.
    line: usize,
    /// The program: its name or its file's, or its whole path where the pattern has a slash.
    name: Option<Pattern>,
    /// Its user, by name or number.
    user: Option<String>,
    /// Its control group.
    cgroup: Option<Pattern>,
    /// A unit of the system's manager that it is in.
    unit: Option<Pattern>,
    /// The least that it has resident, bytes.
    min: u64,
    /// It is not to be attached to.
    pub exclude: bool,
    /// What the agent is told, by variable.
    chosen: Vec<(String, String)>,
}

impl Rules {
    /// Reads a file.
    ///
    /// # Errors
    /// It is missing, not to be trusted or broken; the message has a line for each fault. Exit code 2.
    pub fn read(path: &Path) -> anyhow::Result<Rules> {
        let said = |why: &str| exit::usage(format!("{}: {why}", path.display()));
        let text = decide::read_closed(path).map_err(|why| said(&format!("not read: {why}")))?;
        let text = text.ok_or_else(|| said("there is no such file"))?;
        Rules::parse(path.to_owned(), &text).map_err(|faults| exit::usage(faults.join("\n")))
    }

    fn parse(path: PathBuf, text: &str) -> Result<Rules, Vec<String>> {
        let mut reader = Reader { reading: Reading::of(text), rules: Vec::new() };
        if let Some(table) = reader.reading.table() {
            reader.top(table.get_ref());
        }
        let mut faults = reader.reading.faults;
        if faults.is_empty() {
            return Ok(Rules { path, rules: reader.rules });
        }
        faults.sort_by_key(|fault| (fault.place.line, fault.place.column));
        Err(faults.iter().map(|fault| format!("{}:{fault}", path.display())).collect())
    }

    /// The rule that decides for a program, if it meets any.
    pub fn decide(&self, candidate: &Candidate) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.is_met_by(candidate))
    }

    /// Where a rule stands.
    pub fn place(&self, rule: &Rule) -> String {
        format!("{}:{}", self.path.display(), rule.line)
    }
}

impl Rule {
    fn is_met_by(&self, candidate: &Candidate) -> bool {
        let meets =
            |pattern: &Option<Pattern>, of: &str| pattern.as_ref().is_none_or(|pattern| pattern.matches(of));
        let name = |pattern: &Pattern| {
            let file = candidate.file.as_deref();
            match pattern.as_str().contains('/') {
                true => file.is_some_and(|file| pattern.matches_path(file)),
                false => {
                    let file = file.and_then(Path::file_name).map(|name| name.to_string_lossy());
                    pattern.matches(&candidate.name) || file.is_some_and(|name| pattern.matches(&name))
                }
            }
        };
        candidate.resident >= self.min
            && self.name.as_ref().is_none_or(name)
            && self.user.as_ref().is_none_or(|user| candidate.is_of(user))
            && meets(&self.cgroup, &candidate.cgroup)
            && self.unit.as_ref().is_none_or(|unit| candidate.units().any(|name| unit.matches(name)))
    }

    /// What the agent is told: what the rule says, else `usual`.
    pub fn choices(&self, usual: &[(String, String)]) -> Vec<(String, String)> {
        let others = usual.iter().filter(|(name, _)| self.chosen.iter().all(|(own, _)| own != name));
        self.chosen.iter().chain(others).cloned().collect()
    }
}

/// The options that a rule may have.
fn named() -> impl Iterator<Item = Named> {
    options::settings().chain([options::POLICY, options::TIER, options::WIPE])
}

/// A value of that option as the agent is told it: a directory by its whole path, as the process is in another one.
fn check(entry: &Entry, value: String) -> Result<String, String> {
    match entry.key {
        options::POLICY => return launch::known_policy(&value),
        options::TIER => return launch::disk_tier(&value),
        _ => {}
    }
    let setting = Setting::ALL.into_iter().find(|setting| setting.variable() == entry.key.variable);
    setting.map_or(Ok(()), |setting| options::parse(setting, &value).map(drop)).map(|()| value)
}

struct Reader<'t> {
    reading: Reading<'t>,
    rules: Vec<Rule>,
}

impl Reader<'_> {
    fn top(&mut self, table: &DeTable<'_>) {
        for (name, value) in table {
            match name.get_ref().as_ref() {
                "rule" => self.reading.rules(value).into_iter().for_each(|(at, table)| self.rule(at, table)),
                other => {
                    self.reading.fault(name.span().start, format!("expected [[rule]], and found '{other}'"));
                }
            }
        }
    }

    fn rule(&mut self, at: usize, table: &DeTable<'_>) {
        let mut rule = Rule { line: self.reading.place(at).line, ..Rule::default() };
        let mut has_condition = false;
        for (name, value) in table {
            let (key, start) = (name.get_ref().as_ref(), value.span().start);
            has_condition |= ["name", "user", "cgroup", "unit"].contains(&key);
            match key {
                "name" => rule.name = self.reading.pattern(value),
                "cgroup" => rule.cgroup = self.reading.pattern(value),
                "unit" => rule.unit = self.reading.pattern(value),
                "user" => rule.user = self.reading.condition(value),
                "min" => {
                    let text = self.reading.condition(value).unwrap_or_default();
                    match parse_size(&text) {
                        Some(bytes) => rule.min = bytes,
                        None if text.is_empty() => {}
                        None => self.reading.fault(start, "min: a size such as 64M or 1G is needed"),
                    }
                }
                "exclude" => match value.get_ref() {
                    DeValue::Boolean(exclude) => rule.exclude = *exclude,
                    found => self
                        .reading
                        .fault(start, format!("exclude: expected true or false, and found {}", kind(found))),
                },
                key => match named().find(|named| named.option == key) {
                    Some(key) => {
                        let entry = self.reading.entry(key, value);
                        let Some((entry, value)) =
                            entry.and_then(|entry| Some((entry.clone(), entry.value?)))
                        else {
                            continue;
                        };
                        match check(&entry, value) {
                            Ok(value) => rule.chosen.push((key.variable.to_owned(), value)),
                            Err(why) => self.reading.fault(start, format!("{}: {why}", key.option)),
                        }
                    }
                    None => self.reading.unknown(name.span().start, key, &CONDITIONS, named()),
                },
            }
        }
        if !has_condition {
            self.reading.fault(at, "expected a condition in this rule: name, user, cgroup or unit");
        }
        self.rules.push(rule);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Rules {
        Rules::parse("x".into(), text).unwrap()
    }

    fn faults(text: &str) -> Vec<String> {
        Rules::parse("x".into(), text).unwrap_err()
    }

    fn redis() -> Candidate {
        Candidate {
            name: "redis-server".into(),
            file: Some("/usr/bin/redis-check-rdb".into()),
            user: "redis".into(),
            uid: 112,
            cgroup: "/system.slice/redis.service".into(),
            resident: 64 << 20,
            ..Candidate::default()
        }
    }

    #[test]
    fn the_first_rule_that_is_met_decides() {
        let text = "[[rule]]\nname = \"redis*\"\nmin = \"65M\"\n[[rule]]\nuser = 112\nunit = \"*.service\"\nexclude = true\n[[rule]]\nname = \"*\"\n";
        let read = rules(text);
        let line = |candidate: &Candidate| read.decide(candidate).map(|rule| read.place(rule));
        assert_eq!(line(&redis()).as_deref(), Some("x:4"));
        assert!(read.decide(&redis()).unwrap().exclude);
        assert_eq!(line(&Candidate { resident: 65 << 20, ..redis() }).as_deref(), Some("x:1"));
        assert_eq!(line(&Candidate { uid: 7, ..redis() }).as_deref(), Some("x:8"));
        for met in [
            "name = \"/usr/bin/*\"",
            "name = \"redis-check-rdb\"",
            "user = \"redis\"",
            "cgroup = \"/system.slice/*\"",
        ] {
            assert!(rules(&format!("[[rule]]\n{met}\n")).decide(&redis()).is_some(), "{met}");
        }
        for other in [
            "name = \"redis\"",
            "user = \"root\"",
            "cgroup = \"/\"",
            "unit = \"nginx.service\"",
            "name = \"/bin/*\"",
        ] {
            assert!(rules(&format!("[[rule]]\n{other}\n")).decide(&redis()).is_none(), "{other}");
        }
    }

    #[test]
    fn the_options_of_a_rule_come_before_the_usual_ones() {
        let read = rules("[[rule]]\nname = \"*\"\ncold-age = \"1m\"\nwipe = true\n");
        let pair = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let usual = [pair("MEMFOLD_COLD_AGE", "10s"), pair("MEMFOLD_MAX_CPU", "5")];
        let chosen = read.decide(&redis()).unwrap().choices(&usual);
        assert_eq!(
            chosen,
            [pair("MEMFOLD_COLD_AGE", "1m"), pair("MEMFOLD_WIPE", "on"), pair("MEMFOLD_MAX_CPU", "5")]
        );
    }

    #[test]
    fn the_directory_of_a_tier_is_told_by_its_whole_path_and_one_on_the_network_is_refused() {
        let chosen = rules("[[rule]]\nname = \"*\"\ntier = \"disk=.,after=1m\"\n").rules[0].chosen.clone();
        let here = std::env::current_dir().unwrap();
        assert_eq!(chosen, [("MEMFOLD_TIER".to_owned(), format!("disk={},after=1m", here.display()))]);
        assert!(faults("[[rule]]\nname = \"*\"\ntier = \"redis://a:1\"\n")[0].contains("memfold run --tier"));
    }

    #[test]
    fn a_broken_file_is_answered_with_line_column_and_what_was_expected() {
        assert!(faults("[[rule]]\nname \"x\"\n")[0].starts_with("x:2:6: "));
        assert_eq!(faults("[rules]\n"), ["x:1:2: expected [[rule]], and found 'rules'"]);
        assert_eq!(
            faults("[[rule]]\nmin = \"1M\"\n"),
            ["x:1:1: expected a condition in this rule: name, user, cgroup or unit"]
        );
        assert_eq!(
            faults("[[rule]]\nname = \"x\"\nmin = \"much\"\nexclude = 1\ncold-age = \"soon\"\n"),
            [
                "x:3:7: min: a size such as 64M or 1G is needed",
                "x:4:11: exclude: expected true or false, and found a number",
                "x:5:12: cold-age: a time such as 500ms, 10s or 5m is needed",
            ]
        );
        assert!(faults("[[rule]]\nname = \"x\"\nunits = 1\n")[0]
            .starts_with("x:3:1: there is no key 'units'; expected one of name, user, cgroup, unit, min, exclude, cold-age"));
    }
}
