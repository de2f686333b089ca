//! docs/reference/codes.md, of the rows in `fence/code.rs`.

use super::{Table, code, fill};
use crate::fence::code::{Group, Row};

pub(super) fn page() -> String {
    fill(include_str!("templates/codes.md"), |_, _| {
        let sections = Group::ALL.iter().map(|group| format!("## {}\n\n{}", group.title, table(group.rows)));
        sections.collect::<Vec<_>>().join("\n")
    })
}

fn table(rows: &[Row]) -> String {
    let mut table = Table::new(&["code", "from", "status", "retryable", "side effect", "when", "what to do"]);
    for row in rows {
        let status = if row.data_status == row.api_status {
            row.data_status.to_string()
        } else {
            format!("{} / {}", row.data_status, row.api_status)
        };
        let retryable = if row.retryable { "yes" } else { "no" };
        table.row([&code(row.name), row.from, &status, retryable, row.side_effect, row.when, row.remedy]);
    }
    table.text
}
