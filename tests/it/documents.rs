//! The documents against what they are about: the pages of docs/reference, the contract's codes, the paths that
//! CONTRIBUTING.md names.

use std::{fs, path::Path, process::Command};

use fencegate::fence::code::{Group, Plane};

use super::support::{
    process::{binary, stdout},
    run::Ends,
};

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_reference_pages_are_what_the_program_prints() {
    for page in ["codes", "api", "metrics", "settings", "command-line"] {
        let printed = stdout(&Command::new(binary()).args(["reference", page]).ends());
        let file = read(&format!("docs/reference/{page}.md"));
        let differs = printed.lines().zip(file.lines()).find(|(printed, there)| printed != there);
        assert!(
            printed == file,
            "docs/reference/{page}.md is not what `fencegate reference {page}` prints; run `make reference`. {differs:#?}"
        );
    }
}

/// The specification says what a code means, and the program must do so.
#[test]
fn the_contract_has_the_row_of_every_code() {
    let contract = read("docs/specification.md");
    let cells = |line: &str| line.split(" | ").map(|cell| cell.trim_matches(['|', ' ']).to_owned()).collect::<Vec<_>>();
    for row in Group::ALL.iter().flat_map(|group| group.rows) {
        let name = format!("`{}`", row.name);
        let line = contract.lines().find(|line| line.starts_with("| S5.") && line.contains(&format!("| {name} |")));
        let line = line.unwrap_or_else(|| panic!("docs/specification.md has no row for {name}"));
        let [_, _, status, retryable, side_effect, _] = &cells(line)[..] else { panic!("{line}") };
        for plane in [Plane::Data, Plane::Api] {
            assert!(status.contains(&row.code.status(plane).to_string()), "{line}");
        }
        assert!(retryable.starts_with(if row.retryable { "yes" } else { "no" }), "{line}");
        assert!(side_effect.starts_with(row.side_effect), "{line}");
    }
}

/// What stands between backticks there and looks like a path, but for patterns, commands and places to fill in.
#[test]
fn the_paths_that_contributing_names_exist() {
    let text = read("CONTRIBUTING.md");
    let is_path = |word: &&str| {
        let known = ["rs", "md", "toml", "json", "py", "yaml", "tpl"];
        let has_ending = word.rsplit_once('.').is_some_and(|(_, ending)| known.contains(&ending));
        !word.contains(' ') && (has_ending || word.ends_with('/'))
    };
    let named: Vec<_> = text.split('`').skip(1).step_by(2).filter(is_path).collect();
    assert!(named.len() > 50, "{named:?}");
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let missing: Vec<_> = named.into_iter().filter(|path| !top.join(path).exists()).collect();
    assert!(missing.is_empty(), "CONTRIBUTING.md names what is not there: {missing:#?}");
}
