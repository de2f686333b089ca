//! docs/reference/command-line.md, of what clap knows: commands, options, defaults, help texts. Hidden commands are left
//! out.

use clap::{Arg, Command, CommandFactory};

use super::{Table, code, codes, fill};
use crate::cli::Cli;

pub(super) fn page() -> String {
    let mut cli = Cli::command();
    cli.build();
    fill(include_str!("templates/command-line.md"), |place, _| {
        let command = cli.find_subcommand(place).unwrap_or_else(|| panic!("{place} is no command"));
        section(command)
    })
}

/// The subcommands that people use.
fn subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|each| !each.is_hide_set() && each.get_name() != "help")
}

/// A command, or a group of commands, with all options.
fn section(command: &Command) -> String {
    let each: Vec<&Command> = subcommands(command).collect();
    let mut parts = vec![format!("### `{}`\n", command.get_name())];
    if each.is_empty() {
        parts.push(format!("{}\n", about(command)));
    } else {
        let mut table = Table::new(&["command", "what it does"]);
        for sub in &each {
            let names = [command.get_name().to_owned(), sub.get_name().to_owned()];
            let words: Vec<_> = names.into_iter().chain(sub.get_positionals().map(spelling)).collect();
            table.row([code(words.join(" ")), about(sub)]);
        }
        parts.push(table.text);
    }
    let options = options(if each.is_empty() { std::slice::from_ref(&command) } else { &each });
    if !options.is_empty() {
        let of_some = options.iter().any(|option| option.of.len() < each.len());
        let mut columns = vec!["option", "default", "meaning"];
        columns.extend(of_some.then_some("of"));
        let mut table = Table::new(&columns);
        for Described { spelling, default, meaning, of } in options {
            let mut cells = vec![code(spelling), default, meaning];
            cells.extend(of_some.then(|| if of.len() < each.len() { codes(&of) } else { "all".to_owned() }));
            table.row(cells);
        }
        parts.push(table.text);
    }
    if let Some(more) = command.get_after_long_help() {
        parts.push(format!("```text\n{}\n```\n", more.to_string().trim()));
    }
    parts.join("\n")
}

/// What a command does: the first sentence of its help, and the rest.
fn about(command: &Command) -> String {
    let text = command.get_long_about().or_else(|| command.get_about());
    text.map(ToString::to_string).unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// An option, and the commands that have it.
struct Described {
    spelling: String,
    default: String,
    meaning: String,
    of: Vec<String>,
}

/// The options of these commands. What several have in common is there once.
fn options(commands: &[&Command]) -> Vec<Described> {
    let mut all: Vec<Described> = vec![];
    for command in commands {
        let of = command.get_name().to_owned();
        for arg in command.get_arguments().filter(|arg| !matches!(arg.get_id().as_str(), "help" | "version")) {
            let (spelling, default, meaning) = (spelling(arg), default(arg), meaning(arg));
            let same = |each: &&mut Described| {
                (&each.spelling, &each.default, &each.meaning) == (&spelling, &default, &meaning)
            };
            match all.iter_mut().find(same) {
                Some(each) => each.of.push(of.clone()),
                None => all.push(Described { spelling, default, meaning, of: vec![of.clone()] }),
            }
        }
    }
    all
}

/// How an option is written: `--ttl MS`, `--json`, `LEASE_ID`.
fn spelling(arg: &Arg) -> String {
    let values: Vec<_> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    let names = arg.get_value_names().unwrap_or_default();
    let value = if values.is_empty() || !arg.get_action().takes_values() {
        names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    } else {
        values.join("|")
    };
    match arg.get_long() {
        Some(long) if arg.get_action().takes_values() => format!("--{long} {value}"),
        Some(long) => format!("--{long}"),
        None if arg.is_last_set() => format!("-- {value}"),
        None => value,
    }
}

fn default(arg: &Arg) -> String {
    if arg.is_required_set() {
        return "required".to_owned();
    }
    let values = arg.get_default_values().iter().filter(|value| !value.is_empty());
    if arg.get_action().takes_values() { codes(values.map(|value| value.to_string_lossy())) } else { String::new() }
}

fn meaning(arg: &Arg) -> String {
    let text = arg.get_long_help().or_else(|| arg.get_help());
    text.map(ToString::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_on_the_page_and_every_option_says_what_it_is() {
        let mut cli = Cli::command();
        cli.build();
        for command in subcommands(&cli) {
            let name = command.get_name();
            let place = format!("\n{{{{{name}}}}}\n");
            assert!(include_str!("templates/command-line.md").contains(&place), "{name} is not on the page");
            for each in subcommands(command).chain([command]) {
                assert!(!about(each).is_empty(), "{name} {}", each.get_name());
                let silent: Vec<_> = options(&[each]).into_iter().filter(|option| option.meaning.is_empty()).collect();
                let silent = codes(silent.iter().map(|option| &option.spelling));
                assert!(silent.is_empty(), "{name} {}: {silent} say nothing", each.get_name());
            }
        }
    }
}
