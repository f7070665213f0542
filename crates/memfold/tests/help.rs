//! What a user asks first: every command explains itself, with examples that name it.

use std::process::Command;

/// What memfold prints.
fn printed(words: &[&str]) -> String {
    let output =
        Command::new(env!("CARGO_BIN_EXE_memfold")).args(words).output().expect("memfold can be executed");
    assert!(output.status.success() && output.stderr.is_empty(), "memfold {} fails", words.join(" "));
    String::from_utf8(output.stdout).expect("help is text")
}

/// All that `memfold help WORDS` says.
fn help(words: &[String]) -> String {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let short = printed(&[&words[..], &["--help"]].concat());
    assert!(
        short.lines().count() <= 24,
        "memfold {} --help does not fit a screen:\n{short}",
        words.join(" ")
    );
    assert!(short.contains("`memfold help "), "{short}");
    printed(&[&["help"], &words[..]].concat())
}

/// The commands that a page of help lists.
fn commands(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = lines.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    names
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(String::from)
        .collect()
}

/// Checks the page of a command and those of the commands below it; how many there are. An example is on the page itself or,
/// for the likes of `ctl PID pause`, on the one above, whose text is `above`.
fn check(words: &[String], above: &str) -> usize {
    let help = help(words);
    let below = commands(&help);
    let examples = help.split_once("\nExamples:\n").map_or("", |(_, rest)| rest);
    if below.is_empty() {
        let shown = examples.contains(&format!("memfold {}", words.join(" ")));
        let shown_above = words.last().is_some_and(|name| above.contains(&format!(" {name}")));
        assert!(shown || shown_above, "no example of memfold {}:\n{help}", words.join(" "));
    }
    1 + below.into_iter().map(|name| check(&[words, &[name]].concat(), examples)).sum::<usize>()
}

#[test]
fn every_command_has_help_with_an_example_of_itself() {
    assert!(check(&[], "") > 10, "the list of commands was not read");
}

#[test]
fn every_command_is_listed_or_named_on_the_first_page() {
    let (page, all) = (printed(&["--help"]), commands(&printed(&["help"])));
    let listed = commands(&page);
    let more = page.split_once("\nMore: ").expect("it names the others").1;
    let named = |name: &String| more.split([' ', ',', '.', '\n']).any(|word| word == name);
    assert!(all.len() > 15, "{all:?}");
    for name in all.iter().filter(|name| !listed.contains(name)) {
        assert!(named(name), "{name} is neither listed nor named:\n{page}");
    }
}

#[test]
fn without_a_command_it_says_what_to_try_in_ten_lines() {
    let first = printed(&[]);
    assert!(first.lines().count() <= 10, "{first}");
    for word in ["doctor", "demo", "run -- CMD", "stat"] {
        assert!(first.contains(&format!("memfold {word}")), "{first}");
    }
}

#[test]
fn an_unknown_command_ends_with_2_and_is_named() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_memfold")).arg("fold").output().expect("memfold can be executed");
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty() && String::from_utf8_lossy(&output.stderr).contains("'fold'"));
}

#[test]
fn a_program_that_is_called_like_an_action_is_reached_by_its_name() {
    let said = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_memfold"))
            .args(words)
            .output()
            .expect("memfold can be executed");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = said(&["ctl", "why", "why"]);
    assert!(code == Some(2) && text.contains("`memfold ctl name:why`"), "{text}");
    let (code, text) = said(&["ctl", "name:why", "why"]);
    assert!(code == Some(1) && text.contains("no process named 'why'"), "{text}");
}
