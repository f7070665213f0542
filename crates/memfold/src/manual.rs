//! The manual: a page for each command, from the same words as its `--help`, and one for the file of settings.
//!
//! What it is not: a second place for words. What a page lacks is missing in the help.

use crate::config::keys::{Keys, SYSTEM_FILE};
use crate::exit;
use clap::Command;
use clap_mangen::roff::{bold, roman, Roff};
use clap_mangen::Man;

/// What every page is called after, at its foot.
const MANUAL: &str = "memfold";

/// A page of the manual.
pub struct Page {
    /// The file's name, such as `memfold-run.1`.
    pub name: String,
    /// Its text, for roff(7).
    pub text: Vec<u8>,
}

/// All pages: of the command, of every command below it that is shown, and of the file of settings.
///
/// # Errors
/// None but those of writing to memory.
pub fn pages(command: Command) -> std::io::Result<Vec<Page>> {
    let keys = Keys::of(&command);
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add(&command, &mut pages)?;
    let mut text = Vec::new();
    settings(&keys).to_writer(&mut text)?;
    pages.push(Page { name: "memfold.toml.5".into(), text });
    Ok(pages)
}

fn add(command: &Command, pages: &mut Vec<Page>) -> std::io::Result<()> {
    let title = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let man = Man::new(command.clone()).title(title.to_uppercase()).source(source()).manual(MANUAL);
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    let shown: Vec<_> = command.get_subcommands().filter(|command| !command.is_hide_set()).collect();
    if !shown.is_empty() {
        man.render_subcommands_section(&mut text)?;
    }
    let help = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    let mut end = Roff::new();
    for section in sections(&help.unwrap_or_else(|| exit::HELP.to_owned())) {
        section.write(&mut end);
    }
    end.control("SH", ["SEE ALSO"]);
    let also = if title == "memfold" { "memfold.toml" } else { "memfold" };
    let section = if title == "memfold" { "(5), userfaultfd(2)" } else { "(1), memfold.toml(5)" };
    end.text([bold(also), roman(section)]);
    end.to_writer(&mut text)?;
    pages.push(Page { name: format!("{title}.1"), text });
    shown.into_iter().try_for_each(|command| add(command, pages))
}

fn source() -> String {
    format!("memfold {}", env!("CARGO_PKG_VERSION"))
}

/// A part of the words below a help text.
#[derive(Debug, PartialEq, Eq)]
struct Section {
    heading: &'static str,
    paragraphs: Vec<Vec<String>>,
}

impl Section {
    fn write(&self, roff: &mut Roff) {
        roff.control("SH", [self.heading]);
        for (at, lines) in self.paragraphs.iter().enumerate() {
            if at > 0 {
                roff.control("PP", []);
            }
            // What is laid out in columns stays so.
            let laid_out = lines.iter().any(|line| line.starts_with(' '));
            if laid_out {
                roff.control("nf", []);
            }
            for line in lines {
                roff.text([roman(if laid_out { line.strip_prefix("  ").unwrap_or(line) } else { line })]);
            }
            if laid_out {
                roff.control("fi", []);
            }
        }
    }
}

/// The words below a help text by what they are about: examples, exit codes and the rest.
fn sections(help: &str) -> Vec<Section> {
    let mut all =
        ["EXAMPLES", "NOTES", "EXIT STATUS"].map(|heading| Section { heading, paragraphs: Vec::new() });
    for paragraph in help.split("\n\n") {
        let mut lines: Vec<String> = paragraph.lines().map(str::to_owned).collect();
        let which = match lines.first().map(String::as_str) {
            Some("Examples:") => {
                lines.remove(0);
                0
            }
            Some(first) if first.starts_with("Exit codes:") => 2,
            _ => 1,
        };
        if lines.iter().any(|line| !line.trim().is_empty()) {
            all[which].paragraphs.push(lines);
        }
    }
    all.into_iter().filter(|section| !section.paragraphs.is_empty()).collect()
}

const EXAMPLE: &str = r#"[defaults]
cold-age = "30s"
max-stall = 0.2

[[rule]]
program = "redis-server"
cold-age = "2s"
tier = "disk=/var/tmp"

[[rule]]
user = "ann"
cgroup = "/user.slice/*"
profile = "lean"

[[rule]]
program = "/opt/games/*"
no-pager = true"#;

fn settings(keys: &Keys) -> Roff {
    let mut page = Roff::new();
    page.control("TH", ["MEMFOLD.TOML", "5", "", source().as_str(), MANUAL]);
    page.control("SH", ["NAME"]);
    page.text([roman("memfold.toml - what memfold run does where neither an option nor a variable says")]);
    page.control("SH", ["SYNOPSIS"]);
    page.text([roman(SYSTEM_FILE)]);
    page.control("PP", []);
    page.text([roman("~/.config/memfold/memfold.toml")]);
    page.control("SH", ["DESCRIPTION"]);
    for paragraph in DESCRIPTION {
        page.control("PP", []);
        page.text([roman(paragraph)]);
    }
    page.control("SH", ["CONDITIONS OF A RULE"]);
    for (name, text) in CONDITIONS {
        page.control("TP", []);
        page.text([bold(name)]);
        page.text([roman(text)]);
    }
    page.control("SH", ["KEYS"]);
    page.text([roman(
        "Each is an option of memfold run by the same name. An option without a value takes true or false.",
    )]);
    for key in keys.all() {
        page.control("TP", []);
        page.text([bold(key.option)]);
        page.text([roman(keys.help(key))]);
    }
    page.control("SH", ["EXAMPLES"]);
    page.control("nf", []);
    for line in EXAMPLE.lines() {
        page.text([roman(line)]);
    }
    page.control("fi", []);
    page.control("SH", ["SEE ALSO"]);
    page.text([bold("memfold-run"), roman("(1), "), bold("memfold-config"), roman("(1)")]);
    page
}

const DESCRIPTION: [&str; 4] = [
    "memfold run reads both files if they are there, first the system's, then the user's. The table [defaults] holds for every program, a \
     [[rule]] for those that meet all of its conditions. What is said later wins: a rule over the defaults, a later rule over an earlier \
     one, the user's file over the system's.",
    "An option on the command line overrides a variable of the environment, and a variable overrides the files.",
    "What cannot be read is said, with its line and column, and left out; the program runs with the rest. memfold config check says it \
     beforehand; memfold config show says for each setting of a process which line decided it.",
    "The variable MEMFOLD_CONFIG names a file that is read instead of both, or is off for none.",
];

const CONDITIONS: [(&str, &str); 3] = [
    ("program", "The name of the program's file as it was given, or its whole path where the pattern has a slash; *, ? and [a-z] as in a shell."),
    ("user", "The name or the number of the user who starts the program."),
    ("cgroup", "The path of the control group in which the program is started, a pattern too; * stands for slashes as well."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_below_a_help_text_are_told_apart() {
        let found = sections("Examples:\n  a b    c\n\nExit codes: 0 done,\n1 failed.\n\nA word more.");
        let of = |heading, lines: &[&str]| Section {
            heading,
            paragraphs: vec![lines.iter().map(|line| (*line).to_owned()).collect()],
        };
        let wanted = [
            of("EXAMPLES", &["  a b    c"]),
            of("NOTES", &["A word more."]),
            of("EXIT STATUS", &["Exit codes: 0 done,", "1 failed."]),
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn the_example_of_the_file_of_settings_can_be_read() {
        let file = crate::config::file::File::parse("example".into(), EXAMPLE);
        assert_eq!(file.faults, []);
        assert_eq!(file.rules.len(), 4);
    }
}
