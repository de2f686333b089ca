//! How settings are read: a file's tree, the environment over it, and every mistake recorded under its key.

use serde::{Serialize, de::DeserializeOwned};
use toml::{Table, Value};

use super::Fault;

const ELSE: &str = "the file has something else there";

/// Settings that are read from a file and the environment.
pub trait Loadable: Default + Serialize + DeserializeOwned {
    /// The prefix of the names of its variables.
    const PREFIX: &'static str;

    /// Its sections that are lists, each with every key that an item can have.
    fn lists() -> Vec<(&'static str, Table)>;

    /// The faults that no single value shows.
    fn faults(&self) -> Vec<Fault>;
}

/// Reads settings from a file's tree and the environment, with everything that is wrong.
#[must_use]
pub fn read<S: Loadable>(mut tree: Table, environment: Vec<(String, String)>) -> (S, Vec<Fault>) {
    let mut faults = vec![];
    overlay::<S>(&mut tree, environment, &mut faults);
    let settings: S = deserialize(tree, &mut faults);
    faults.extend(settings.faults());
    (settings, faults)
}

/// Puts `FENCEGATE__SECTION__KEY` over what the file says.
fn overlay<S: Loadable>(tree: &mut Table, environment: Vec<(String, String)>, faults: &mut Vec<Fault>) {
    let known = Table::try_from(S::default()).expect("the defaults are TOML");
    let lists = S::lists();
    let mut given: Vec<_> = environment.into_iter().filter(|(name, _)| name.starts_with(S::PREFIX)).collect();
    given.sort();
    for (name, value) in given {
        let path = name[S::PREFIX.len()..].to_lowercase();
        let words: Vec<&str> = path.split("__").collect();
        let item = |section: &str| lists.iter().find(|(each, _)| *each == section).map(|(_, item)| item);
        let placed = match words.as_slice() {
            [section, index, key @ ..] if !key.is_empty() && item(section).is_some() => {
                match item(section).and_then(|item| like(item, key)) {
                    Some(default) => put_item(tree, section, index, key, typed(&value, default)),
                    None => Err("there is no such setting".to_owned()),
                }
            }
            [section, key] => match like(&known, &[section, key]) {
                Some(default) => put(tree, &[section, key], typed(&value, default)),
                None => Err("there is no such setting".to_owned()),
            },
            _ => Err(format!("expected {0}SECTION__KEY, or {0}ROUTE__0__KEY", S::PREFIX)),
        };
        if let Err(what) = placed {
            faults.push(Fault::new(name, what));
        }
    }
}

/// The default at a path: it shows whether the path is a setting, and its type.
fn like<'a>(known: &'a Table, path: &[&str]) -> Option<&'a Value> {
    match path {
        [] => None,
        [key] => known.get(*key).filter(|value| !value.is_table()),
        [section, rest @ ..] => known.get(*section).and_then(Value::as_table).and_then(|section| like(section, rest)),
    }
}

fn put(tree: &mut Table, path: &[&str], value: Value) -> Result<(), String> {
    match path {
        [] => Ok(()),
        [key] => {
            tree.insert((*key).to_owned(), value);
            Ok(())
        }
        [section, rest @ ..] => match tree.entry((*section).to_owned()).or_insert_with(|| Value::Table(Table::new())) {
            Value::Table(section) => put(section, rest, value),
            _ => Err(ELSE.to_owned()),
        },
    }
}

fn put_item(tree: &mut Table, section: &str, index: &str, key: &[&str], value: Value) -> Result<(), String> {
    let index: usize = index.parse().map_err(|_| "expected a number behind the section, as in ROUTE__0__KEY")?;
    let Value::Array(items) = tree.entry(section).or_insert_with(|| Value::Array(vec![])) else {
        return Err(ELSE.to_owned());
    };
    if index > items.len() {
        return Err(format!("items of [[{section}]] are numbered from 0, without a gap"));
    }
    if index == items.len() {
        items.push(Value::Table(Table::new()));
    }
    match &mut items[index] {
        Value::Table(item) => put(item, key, value),
        _ => Err(ELSE.to_owned()),
    }
}

/// A variable's text as the type that its setting has. Other text stays text, and is then found wrong like any other
/// value.
fn typed(text: &str, like: &Value) -> Value {
    let parsed = match like {
        Value::Integer(_) => text.parse().ok().map(Value::Integer),
        Value::Boolean(_) => text.parse().ok().map(Value::Boolean),
        Value::Float(_) => text.parse().ok().map(Value::Float),
        Value::Array(_) => {
            let items = text.split(',').map(|item| item.parse().map_or_else(|_| item.into(), Value::Integer));
            Some(Value::Array(items.collect()))
        }
        Value::String(_) | Value::Datetime(_) | Value::Table(_) => None,
    };
    parsed.unwrap_or_else(|| Value::String(text.to_owned()))
}

/// Reads the tree. A value that does not fit is recorded and taken out, and the rest is read again, so that one
/// mistake does not hide the next.
fn deserialize<S: Loadable>(mut tree: Table, faults: &mut Vec<Fault>) -> S {
    loop {
        let attempt: Result<S, _> = serde_path_to_error::deserialize(Value::Table(tree.clone()));
        let error = match attempt {
            Ok(settings) => return settings,
            Err(error) => error,
        };
        let path = error.path().to_string();
        faults.push(Fault::new(path.clone(), error.inner().to_string().trim_end().replace('\n', " ")));
        if !remove(&mut tree, &path) {
            return S::default();
        }
    }
}

/// Removes the value at a path such as `route[1].store.url`, or as much of the path as exists.
fn remove(tree: &mut Table, path: &str) -> bool {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let (key, index) = match first.split_once('[') {
        None => (first, None),
        Some((key, index)) => (key, index.trim_end_matches(']').parse::<usize>().ok()),
    };
    let inner = match (tree.get_mut(key), index) {
        (Some(Value::Array(items)), Some(index)) => items.get_mut(index),
        (found, _) => found,
    };
    match (inner, rest) {
        (Some(Value::Table(section)), Some(rest)) => remove(section, rest),
        _ => tree.remove(key).is_some(),
    }
}
