//! Modules under `src/` import downwards only. [`ORDER`] is the only place where the allowed order is written.
//!
//! The order is total, so every cycle of modules has an upward import in it. The test reads the `use` lines and every
//! other path that begins with `crate` or `super`. Test files and items under `#[cfg(test)]` may import anything.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// The modules under `src/`, the lowest first. A module may import those above it in this list.
const ORDER: [&str; 28] = [
    "sync",
    "files",
    "fence",
    "clock",
    "config",
    "failpoints",
    "tls",
    "metrics",
    "wire",
    "audit",
    "authority",
    "route",
    "upstream",
    "client",
    "barrier",
    "table",
    "problem",
    "kubernetes",
    "access",
    "gate",
    "sources",
    "write_path",
    "migration",
    "api",
    "agent",
    "app",
    "demo",
    "cli",
];

/// Known upward imports that are to be removed.
const EXCEPTIONS: [(&str, &str); 0] = [];

/// The program and the list of modules: they may import anything.
const ROOTS: [&str; 2] = ["lib.rs", "main.rs"];

/// A source's text as words and signs, without comments and literals.
pub(super) fn tokens(text: &str) -> Vec<String> {
    let (chars, mut all, mut at) = (text.chars().collect::<Vec<_>>(), vec![], 0);
    let is_word = |at: usize| chars.get(at).is_some_and(|char| char.is_alphanumeric() || *char == '_');
    let begins = |at: usize, with: &str| with.chars().enumerate().all(|(n, char)| chars.get(at + n) == Some(&char));
    while at < chars.len() {
        let begin = at;
        if begins(at, "//") {
            at += chars[at..].iter().take_while(|char| **char != '\n').count();
        } else if begins(at, "/*") {
            at += 2;
            while at < chars.len() && !begins(at, "*/") {
                at += 1;
            }
            at += 2;
        } else if chars[at] == 'r' && (begins(at, "r\"") || begins(at, "r#\"") || begins(at, "r##\"")) {
            let hashes = chars[at + 1..].iter().take_while(|char| **char == '#').count();
            let end = format!("\"{}", "#".repeat(hashes));
            at += 2 + hashes;
            while at < chars.len() && !begins(at, &end) {
                at += 1;
            }
            at += end.len();
        } else if chars[at] == '"' {
            at += 1;
            while at < chars.len() && chars[at] != '"' {
                at += if chars[at] == '\\' { 2 } else { 1 };
            }
            at += 1;
        } else if begins(at, "'\\") {
            // A character with a backslash; the next one may be a quote.
            at += 3;
            at += chars[at..].iter().take_while(|char| **char != '\'').count() + 1;
        } else if chars[at] == '\'' && chars.get(at + 2) == Some(&'\'') {
            at += 3;
        } else if is_word(at) {
            while is_word(at) {
                at += 1;
            }
            all.push(chars[begin..at].iter().collect());
        } else if begins(at, "::") {
            all.push("::".to_owned());
            at += 2;
        } else {
            if !chars[at].is_whitespace() {
                all.push(chars[at].to_string());
            }
            at += 1;
        }
    }
    all
}

/// The position after the block or the statement that begins at or after `at`.
fn end_of_item(tokens: &[String], mut at: usize) -> usize {
    let mut depth = 0;
    while at < tokens.len() {
        match tokens[at].as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        let ends = if depth == 0 { matches!(tokens[at].as_str(), ";" | "}") } else { false };
        at += 1;
        if ends {
            break;
        }
    }
    at
}

/// Removes the parts that only tests have.
pub(super) fn without_tests(tokens: Vec<String>) -> Vec<String> {
    const TEST: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut left, mut at) = (vec![], 0);
    while at < tokens.len() {
        if tokens[at..].iter().take(TEST.len()).eq(TEST.iter()) {
            at = end_of_item(&tokens, at + TEST.len());
        } else {
            left.push(tokens[at].clone());
            at += 1;
        }
    }
    left
}

/// Follows a path from a module that is `depth` below the root, and adds the modules below the root that it names.
fn follow(tokens: &[String], at: &mut usize, mut depth: usize, named: &mut BTreeSet<String>) {
    while *at < tokens.len() {
        let (token, next) = (tokens[*at].as_str(), tokens.get(*at + 1).map(String::as_str));
        match token {
            "{" => {
                *at += 1;
                while *at < tokens.len() && tokens[*at] != "}" {
                    follow(tokens, at, depth, named);
                    // The rest of this path is below the module that was named.
                    let mut inner = 0;
                    while *at < tokens.len() && (inner > 0 || !matches!(tokens[*at].as_str(), "," | "}")) {
                        inner += match tokens[*at].as_str() {
                            "{" => 1,
                            "}" => -1,
                            _ => 0,
                        };
                        *at += 1;
                    }
                    *at += usize::from(tokens.get(*at).is_some_and(|token| token == ","));
                }
                *at += 1;
                return;
            }
            "crate" if next == Some("::") => depth = 0,
            "super" if next == Some("::") => depth = depth.saturating_sub(1),
            "self" if next == Some("::") => {}
            "crate" | "super" | "self" => return,
            _ => {
                if depth == 0 {
                    named.insert(token.to_owned());
                }
                *at += 1;
                return;
            }
        }
        *at += 2;
    }
}

/// The modules below the root that a source names. `depth`: how far the source is below the root.
fn named_by(text: &str, depth: usize) -> BTreeSet<String> {
    let tokens = without_tests(tokens(text));
    let (mut named, mut at) = (BTreeSet::new(), 0);
    // The ends of the modules inside this file, by their braces.
    let (mut inner, mut braces) = (vec![], 0);
    while at < tokens.len() {
        match tokens[at].as_str() {
            "{" => {
                braces += 1;
                if at >= 2 && tokens[at - 2] == "mod" {
                    inner.push(braces);
                }
            }
            "}" => {
                if inner.last() == Some(&braces) {
                    inner.pop();
                }
                braces -= 1;
            }
            "crate" | "super" if at == 0 || tokens[at - 1] != "::" => {
                follow(&tokens, &mut at, depth + inner.len(), &mut named);
                // A single word, as in `pub(super)`.
                at += usize::from(tokens.get(at).is_some_and(|token| token == "crate" || token == "super"));
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    named
}

/// The modules that `from` names and may not import.
fn upwards(from: &str, named: &BTreeSet<String>) -> Vec<String> {
    let place = |module: &str| ORDER.iter().position(|each| *each == module);
    let may = |to: &str| match (place(from), place(to)) {
        (Some(own), Some(other)) => other <= own || EXCEPTIONS.contains(&(from, to)),
        _ => false,
    };
    named.iter().filter(|to| !may(to)).map(|to| format!("{from} imports {to}")).collect()
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// Each source outside tests: the modules that it is in, and its text.
pub(super) fn sources() -> Vec<(Vec<String>, String)> {
    let (root, mut found) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), vec![]);
    walk(&root, &mut found);
    let modules = |path: &Path| -> Vec<String> {
        let path = path.strip_prefix(&root).unwrap().with_extension("");
        path.iter().map(|part| part.to_str().unwrap().to_owned()).filter(|part| part != "mod").collect()
    };
    let is_test = |path: &Path| path.file_stem().unwrap().to_str().unwrap().ends_with("tests");
    let is_root = |path: &Path| path.parent() == Some(&root) && ROOTS.iter().any(|name| path.ends_with(name));
    let sources = found.iter().filter(|path| !is_test(path) && !is_root(path));
    sources.map(|path| (modules(path), fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn modules_import_downwards_only() {
    let (mut wrong, mut modules, mut used) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (path, text) in sources() {
        let named = named_by(&text, path.len());
        wrong.extend(upwards(&path[0], &named).into_iter().map(|what| format!("{}: {what}", path.join("::"))));
        used.extend(named.into_iter().map(|to| (path[0].clone(), to)));
        modules.insert(path[0].clone());
    }
    assert!(wrong.is_empty(), "imports upwards, by the order in tests/it/layers.rs:\n{wrong:#?}");
    assert_eq!(modules, ORDER.map(str::to_owned).into(), "the order in tests/it/layers.rs has other modules than src/");
    for (from, to) in EXCEPTIONS {
        assert!(
            used.contains(&(from.to_owned(), to.to_owned())),
            "{from} does not import {to} any more: strike it out"
        );
    }
    // A reader that finds nothing would report no fault, so it must find these known imports.
    for (from, to) in [("api", "gate"), ("table", "fence"), ("cli", "app")] {
        assert!(used.contains(&(from.to_owned(), to.to_owned())), "the import of {to} by {from} is not seen");
    }
}

#[test]
fn an_import_upwards_is_found_however_it_is_written() {
    let wrong = |text: &str| upwards("table", &named_by(text, 3));
    for text in [
        "use crate::api::routes;",
        "pub(crate) use crate::api::{routes, wire as other};",
        "use crate::{\n    fence::{Code, time::Frame}, // not api\n    api,\n    sync::Mutex,\n};",
        "use crate::{fence::{Code, time::{Frame, Now}}, api::{self, routes::{RouteBody}}};",
        "use super::super::super::api::routes;",
        "use super::{super::super::api, Core};",
        "fn one() -> u64 { crate::api::describe().0 }",
        "mod inner { use super::super::super::super::api; }\n",
        "const QUOTE: char = '\"'; const SLASH: char = '\\''; use crate::api; const END: char = '\"';",
        "const RAW: &str = r#\"a \" b\"#; impl<'a> From<crate::api::Gate> for Core<'a> {}",
        "#[cfg(test)]\nmod tests { fn two() { if true { } } }\nuse crate::api;",
        "#[cfg(any(test, feature = \"failpoints\"))]\nuse crate::api;",
    ] {
        assert_eq!(wrong(text), ["table imports api"], "{text}");
    }
    assert_eq!(wrong("use crate::unheard_of;"), ["table imports unheard_of"]);
    for text in [
        "use crate::{fence::api, clock::Clock};",
        "pub(super) fn api() {}\npub(in crate::table) fn api() {}",
        "use super::{api, Core};\nuse self::api::Gate;",
        "use super::super::api;",
        "// use crate::api;\n/* crate::api */\nconst TEXT: &str = \"use crate::api; \\\" crate::api\";",
        "#[cfg(test)]\nuse crate::{api};\n#[cfg(test)]\nmod tests { use crate::api; }\n#[cfg(test)]\nmod more;",
        "let text = \"https://crate::api\"; use crate::table::codec;",
    ] {
        assert_eq!(wrong(text), Vec::<String>::new(), "{text}");
    }
    assert!(upwards("api", &named_by("use crate::{table::api, gate};", 2)).is_empty());
}
