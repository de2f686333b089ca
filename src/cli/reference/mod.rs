//! `fencegate reference`: the pages of docs/reference, made of the code that they describe.
//!
//! Each page is a template, `templates/PAGE.md`, with the prose that no item of the code has, and with places such as
//! `{{calls leases}}` that are filled from the code. Codes come from `fence/code.rs`, calls from the api's description,
//! metrics from a scrape, settings from `config/*.toml`, commands from clap. Nothing here depends on the machine or on
//! the features of the build.

mod api;
mod codes;
mod command_line;
mod metrics;
mod settings;

use super::output;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The page to print.
    page: Page,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Page {
    /// Every answer code.
    Codes,
    /// The calls of the lease api, and of the ops port.
    Api,
    /// What Prometheus scrapes.
    Metrics,
    /// Every setting of the gate and of the agent.
    Settings,
    /// Every command with its options.
    CommandLine,
}

pub(super) fn run(args: &Args) {
    output::bytes(page(args.page).as_bytes());
}

fn page(page: Page) -> String {
    match page {
        Page::Codes => codes::page(),
        Page::Api => api::page(),
        Page::Metrics => metrics::page(),
        Page::Settings => settings::page(),
        Page::CommandLine => command_line::page(),
    }
}

/// A template with its places filled. `{{NAME ARGUMENTS}}` stands in a line of its own.
fn fill(template: &str, mut with: impl FnMut(&str, &[&str]) -> String) -> String {
    let mut page = String::new();
    for line in template.lines() {
        match line.strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}")) {
            Some(place) => {
                let words: Vec<&str> = place.split_whitespace().collect();
                let (name, arguments) = words.split_first().expect("a place has a name");
                page.push_str(with(name, arguments).trim_end());
            }
            None => page.push_str(line),
        }
        page.push('\n');
    }
    page
}

/// A table in Markdown.
struct Table {
    text: String,
}

impl Table {
    fn new(columns: &[&str]) -> Self {
        let mut table = Self { text: String::new() };
        table.row(columns.iter().copied());
        table.text.extend(["|", &"---|".repeat(columns.len()), "\n"]);
        table
    }

    fn row<T: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.text.push('|');
        for cell in cells {
            let words: Vec<&str> = cell.as_ref().split_whitespace().collect();
            if !words.is_empty() {
                self.text.extend([" ", &words.join(" ").replace('|', "\\|")]);
            }
            self.text.push_str(" |");
        }
        self.text.push('\n');
    }
}

/// `text` between backticks.
fn code(text: impl std::fmt::Display) -> String {
    format!("`{text}`")
}

/// Names between backticks, with commas.
fn codes<T: std::fmt::Display>(names: impl IntoIterator<Item = T>) -> String {
    names.into_iter().map(code).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn a_cell_is_one_line_and_holds_no_bar() {
        let mut table = Table::new(&["a", "b"]);
        table.row(["x\n  | y", ""]);
        assert_eq!(table.text, "| a | b |\n|---|---|\n| x \\| y | |\n");
    }

    #[test]
    fn no_place_is_left_open_and_no_line_is_trailed_by_spaces() {
        for each in Page::value_variants() {
            let text = page(*each);
            assert!(!text.contains("{{") && !text.contains(" \n"), "{each:?}");
            assert!(text.starts_with("<!--") && text.ends_with('\n') && !text.ends_with("\n\n"), "{each:?}");
        }
    }
}
