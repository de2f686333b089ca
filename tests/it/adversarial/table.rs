//! All cases, by group. They are written to `target/artifacts/adversarial.txt`, which `make test` prints.

use std::{collections::HashSet, fmt::Write, fs, path::Path};

use super::{Play, bodies, destinations, framing, hosts, http2, methods, slow, targets, tokens, trailers, tunnels};

/// The name of each case, and what is expected of it.
type Rows = Vec<(String, String)>;

fn rows<P: Play>(cases: &[P]) -> Rows {
    cases.iter().map(|case| (case.name().to_owned(), case.expected())).collect()
}

fn groups() -> [(&'static str, Rows); 12] {
    [
        ("bodies", rows(&bodies::cases())),
        ("unread bodies", rows(&bodies::unread())),
        ("framing", rows(&framing::cases())),
        ("hosts", rows(&hosts::cases())),
        ("targets", rows(&targets::cases())),
        ("destinations", rows(&destinations::cases())),
        ("methods", rows(&methods::cases())),
        ("trailers", rows(&trailers::cases())),
        ("tokens", rows(&tokens::cases())),
        ("tunnels", rows(&tunnels::cases())),
        ("http2", rows(&http2::cases())),
        ("slow", rows(&slow::cases())),
    ]
}

#[test]
fn the_table_of_cases_is_written_down() {
    let groups = groups();
    let mut text = "Attacks on the gate (tests/it/adversarial), each before two kinds of stores.\n".to_owned();
    for (group, rows) in &groups {
        let names: HashSet<&str> = rows.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names.len(), rows.len(), "two cases of {group} have one name");
        writeln!(text, "\n{group}: {} cases", rows.len()).unwrap();
        for (name, expected) in rows {
            writeln!(text, "  {name:<72} {expected}").unwrap();
        }
    }
    let all: usize = groups.iter().map(|(_, rows)| rows.len()).sum();
    assert!(all >= 300, "{all} cases");
    let counts: Vec<String> = groups.iter().map(|(group, rows)| format!("{group} {}", rows.len())).collect();
    writeln!(text, "\n{all} cases: {}", counts.join(", ")).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/artifacts");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("adversarial.txt"), text).unwrap();
}
