//! First contact: what a person sees who types `memfold` alone, and help that fits a screen.
//!
//! `memfold help COMMAND` prints all there is; `memfold COMMAND --help` as many options as a screen has room for, the first ones of the
//! command, and says how many there are besides.

use clap::{Arg, ArgAction, Command};
use std::ffi::OsString;

/// Lines of a screen (that of a VT100).
const SCREEN: usize = 24;

/// Beside the name of a command, so many characters fit into a line.
const BESIDE: usize = 76;

/// What the root's page only names, and `memfold help` lists: what is seldom needed, and the laboratory.
const SELDOM: [&str; 8] = ["setup", "heap", "detach", "metrics", "daemon", "core", "config", "completions"];
const LABORATORY: [&str; 6] = ["bench", "report", "sim", "pagecache", "trace", "record"];

/// What a person is told who gives no command.
pub const FIRST: &str = "\
memfold makes a Linux program need less memory, without changing it. Try:

  memfold doctor                  can programs be folded here, and if not, what to do
  memfold demo                    a real redis-server, plain and folded, in a minute or two
  memfold run -- CMD              start a program: what it does not touch for 10 s is folded
  memfold run --now --progress -- CMD    the same within seconds, with what is saved so far
  memfold stat                    the folded programs, now
  memfold service NAME --dry-run  what would fold a service of systemd
  memfold help                    all commands; each has --help, and `memfold help CMD` says more
";

/// Whether a page of help is asked for by an option, of memfold's and not of a program that is to be started.
pub fn is_asked(words: impl IntoIterator<Item = OsString>) -> bool {
    words.into_iter().take_while(|word| word != "--").any(|word| word == "--help" || word == "-h")
}

/// Has `--help` print what fits a screen, of the command and all below it.
pub fn fit(command: Command) -> Command {
    let (name, words) = (command.get_name().to_owned(), String::new());
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    let shown: Vec<String> = shown.map(|command| command.get_name().to_owned()).collect();
    let mut root = below(command, &words);
    for command in shown {
        let named = SELDOM.iter().chain(&LABORATORY).any(|other| *other == command);
        root = root.mut_subcommand(command, |command| command.hide(named));
    }
    root.after_help(format!(
        "More: {}.\nThe laboratory: {}.\n`{name} help COMMAND` says all, with examples. Settings: memfold.toml(5)",
        SELDOM.join(", "),
        LABORATORY.join(", ")
    ))
}

/// The same below `above`, such as `bench `.
fn below(command: Command, above: &str) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let is_root = command.get_name() == "memfold" && above.is_empty();
    let words = if is_root { String::new() } else { format!("{above}{} ", command.get_name()) };
    let mut fitted = short(command.mut_subcommands(one_line), words.trim_end());
    for name in names.iter().filter(|name| *name != "help") {
        fitted = fitted.mut_subcommand(name, |command| below(command, &words));
    }
    fitted
}

/// Has a command say what it does in a line of the list that it is in.
fn one_line(command: Command) -> Command {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    match about.split_once([',', ';', ':']) {
        Some((first, _)) if about.len() > BESIDE => command.about(first.to_owned()),
        _ => command,
    }
}

fn short(command: Command, words: &str) -> Command {
    let full = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let example =
        full.lines().skip_while(|line| *line != "Examples:").nth(1).map(|line| format!("Example:{line}\n"));
    let help = Arg::new("help").short('h').long("help").action(ArgAction::HelpShort).help("Print this");
    let mut fitted = command.after_long_help(full).disable_help_flag(true).arg(help);
    let is_option = |arg: &&Arg| {
        !arg.is_positional() && !arg.is_hide_set() && !arg.is_required_set() && arg.get_id() != "help"
    };
    let all = fitted.get_arguments().filter(is_option).count();
    let options: Vec<String> = fitted
        .get_arguments()
        .filter(|arg| is_option(arg) && !arg.is_hide_short_help_set())
        .map(|arg| arg.get_id().to_string())
        .collect();
    let commands: Vec<String> =
        fitted.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    // The last options give way, then the example, then the last commands, which are named.
    let shown = (0..=options.len())
        .rev()
        .map(|shown| (shown, example.as_deref().unwrap_or_default(), commands.len()));
    for (shown, example, listed) in shown.chain((0..=commands.len()).rev().map(|listed| (0, "", listed))) {
        if let Some(option) = options.get(shown) {
            fitted = fitted.mut_arg(option, |arg| arg.hide_short_help(true));
        }
        if let Some(command) = commands.get(listed) {
            fitted = fitted.mut_subcommand(command, |command| command.hide(true));
        }
        let named = match &commands[listed..] {
            [] => String::new(),
            rest => format!("More: {}.\n", rest.join(", ")),
        };
        let more = match all - shown {
            0 => String::new(),
            1 => "one more option, and ".to_owned(),
            more => format!("{more} more options, and "),
        };
        fitted = fitted.after_help(format!("{named}{example}`memfold help {words}`: {more}all about these."));
        if fitted.clone().render_help().to_string().lines().count() <= SCREEN {
            break;
        }
    }
    fitted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_that_is_meant_for_a_program_is_not_ours() {
        let asked = |words: &str| is_asked(words.split(' ').map(OsString::from));
        assert!(asked("memfold run --help") && asked("memfold -h") && !asked("memfold run -- ls --help"));
    }

    #[test]
    fn first_contact_takes_ten_lines() {
        assert!(FIRST.lines().count() <= 10);
    }
}
