//! docs/reference/settings.md, of `config/fencegate.toml` and `config/agent.toml`: they hold every key with its default,
//! which a test in `config/` compares with the program's, and the advice.
//!
//! A comment in front of a `[section]` is about the section, one in front of a key about the key. Lists of tables are
//! commented out: `# [[route]]`, then `# key = example   # what it is`, and what goes on in the next line has no key.

use toml::Table as Tree;

use super::{Table, code, fill};
use crate::config::{AgentRoute, GrantSettings, IdentitySettings, PartySettings, RouteSettings, Settings};

const GATE: &str = include_str!("../../../config/fencegate.toml");
const AGENT: &str = include_str!("../../../config/agent.toml");

/// A section, or one item of a list.
#[derive(Debug, Default)]
struct Section {
    name: String,
    is_list: bool,
    about: String,
    keys: Vec<Key>,
}

#[derive(Debug, Default)]
struct Key {
    name: String,
    /// The default; of a list's item an example.
    value: String,
    about: String,
}

pub(super) fn page() -> String {
    fill(include_str!("templates/settings.md"), |place, _| match place {
        "gate" => tables(GATE, Some(&Settings::fixed_keys())),
        "agent" => tables(AGENT, None),
        _ => panic!("{place} is no place of this page"),
    })
}

/// Every section with its keys. `fixed`: what a reload cannot change, where there is a reload.
fn tables(file: &str, fixed: Option<&[&str]>) -> String {
    let shown = sections(file).iter().map(|section| shown(section, fixed)).collect::<Vec<_>>();
    shown.join("\n")
}

fn shown(section: &Section, fixed: Option<&[&str]>) -> String {
    let name = &section.name;
    let heading = if section.is_list { format!("### `[[{name}]]`\n") } else { format!("### `[{name}]`\n") };
    let mut parts = vec![heading];
    if !section.about.is_empty() {
        parts.push(format!("{}\n", linked(&section.about)));
    }
    if section.keys.is_empty() {
        return parts.join("\n");
    }
    let defaults = if section.is_list { defaults_of(name, fixed.is_some()) } else { Tree::new() };
    let mut columns = vec!["key", "default"];
    columns.extend(section.is_list.then_some("example"));
    columns.extend(fixed.map(|_| "reload"));
    columns.push("meaning");
    let mut table = Table::new(&columns);
    for key in &section.keys {
        let mut cells = vec![code(&key.name)];
        if section.is_list {
            cells.push(defaults.get(&key.name).map_or_else(String::new, written));
        }
        cells.push(code(&key.value));
        if let Some(fixed) = fixed {
            let path = format!("{name}.{}", key.name);
            let is_fixed = fixed.iter().any(|each| *each == name || *each == path);
            cells.push(if is_fixed { String::new() } else { "yes".to_owned() });
        }
        cells.push(linked(&key.about));
        table.row(cells);
    }
    parts.push(table.text);
    parts.join("\n")
}

/// A text in which `docs/NAME.md` is a link.
fn linked(text: &str) -> String {
    let (first, rest) = text.split_once("docs/").unwrap_or((text, ""));
    match rest.split_once(".md") {
        Some((name, rest)) => format!("{first}[{name}.md](../{name}.md){}", linked(rest)),
        None => text.to_owned(),
    }
}

/// A default as it would stand in a file. What is absent by default is not there.
fn written(value: &toml::Value) -> String {
    match value {
        toml::Value::Table(table) if table.is_empty() => String::new(),
        toml::Value::Table(table) => {
            let keys = table.iter().map(|(key, value)| format!("{key} = {value}")).collect::<Vec<_>>();
            code(format!("{{ {} }}", keys.join(", ")))
        }
        other => code(other),
    }
}

/// The defaults of a list's items.
fn defaults_of(list: &str, is_gate: bool) -> Tree {
    let defaults = match (list, is_gate) {
        ("route", true) => Tree::try_from(RouteSettings::default()),
        ("route", false) => Tree::try_from(AgentRoute::default()),
        ("identity", true) => Tree::try_from(IdentitySettings::default()),
        ("grant", true) => Tree::try_from(GrantSettings::default()),
        _ => Tree::try_from(PartySettings::default()),
    };
    defaults.expect("the defaults are TOML")
}

fn sections(file: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = vec![];
    let (mut about, mut lines) = (String::new(), file.lines());
    // What is above the first section is about the file.
    let mut in_list = false;
    while let Some(line) = lines.next() {
        let comment = line.strip_prefix('#').map(str::trim_start);
        if let Some(name) = comment.and_then(|text| text.strip_prefix("[[")?.strip_suffix("]]")) {
            let (name, about) = (name.to_owned(), std::mem::take(&mut about));
            sections.push(Section { name, is_list: true, about, keys: vec![] });
            in_list = true;
        } else if let (Some(text), true) = (comment.filter(|text| !text.is_empty()), in_list) {
            let keys = &mut sections.last_mut().expect("a list was begun").keys;
            match (text.strip_prefix("# "), text.split_once(" = ")) {
                (Some(more), _) => keys.last_mut().expect("what goes on has begun").about.extend([" ", more]),
                (None, Some((name, rest))) => {
                    let (value, about) = rest.split_once(" # ").unwrap_or((rest, ""));
                    let (value, about) = (value.trim().to_owned(), about.to_owned());
                    keys.push(Key { name: name.to_owned(), value, about });
                }
                // Three dots: the keys are those of the list above.
                (None, None) => keys.clear(),
            }
        } else if let Some(text) = comment {
            in_list = false;
            let gap = if about.is_empty() || text.is_empty() { "" } else { " " };
            about = format!("{about}{gap}{text}");
        } else if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let about = std::mem::take(&mut about);
            sections.push(Section { name: name.to_owned(), is_list: false, about, keys: vec![] });
        } else if let Some((name, value)) = line.split_once(" = ") {
            let mut value = value.to_owned();
            while value.starts_with('[') && !value.ends_with(']') {
                value.push_str(lines.next().expect("a list ends").trim());
                value = value.replace(",]", "]").replace(",\"", ", \"");
            }
            let section = sections.last_mut().expect("a key is in a section");
            let key = Key { name: name.to_owned(), value, about: std::mem::take(&mut about) };
            section.keys.push(key);
        } else {
            in_list = false;
            if sections.is_empty() {
                about.clear();
            }
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys_of(tree: &Tree) -> Vec<&String> {
        let mut keys: Vec<_> = tree.keys().collect();
        keys.sort();
        keys
    }

    #[test]
    fn every_key_is_read_and_says_what_it_is() {
        for (file, is_gate) in [(GATE, true), (AGENT, false)] {
            let tree: Tree = file.parse().unwrap();
            for section in sections(file) {
                let Section { name, is_list, keys, .. } = section;
                let known = if is_list { defaults_of(&name, is_gate) } else { tree[&name].as_table().unwrap().clone() };
                let mut read: Vec<_> = keys.iter().map(|key| &key.name).collect();
                read.sort();
                // The keys of requesters are those of issuers.
                if name != "requester" {
                    assert_eq!(read, keys_of(&known), "[{name}]");
                }
                let silent: Vec<_> = keys.iter().filter(|key| key.about.is_empty()).collect();
                assert!(silent.is_empty(), "[{name}]: {silent:?} say nothing");
            }
            let read: Vec<_> = sections(file).into_iter().filter(|each| !each.is_list).map(|each| each.name).collect();
            assert_eq!(read.len(), tree.len(), "{read:?}");
        }
    }
}
