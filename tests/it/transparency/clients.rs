//! Independent clients. curl is in the other files.

use std::{io::Write, path::Path, process::Command};

use super::{Line, Text, printed};
use crate::support::run::Ends;

#[test]
fn h2load_gets_an_answer_to_every_write_on_both_protocols() {
    let line = Line::new();
    let mut body = tempfile::NamedTempFile::new().unwrap();
    body.write_all(&Text::first(1_000)).unwrap();
    for (path, protocol) in [("/users/1", &["-m", "20"][..]), ("/users/2", &["--h1"][..])] {
        let mut command = Command::new("h2load");
        command.args(["-n", "2000", "-c", "10"]).args(protocol).arg("-d").arg(body.path());
        command.arg("-H").arg(format!("fence-token: {}", line.token)).arg(line.url(path));
        let output = command.ends();
        let said = String::from_utf8(printed(&output).to_vec()).unwrap();
        assert!(said.contains(" 2000 succeeded, 0 failed, 0 errored, 0 timeout"), "{said}");
        assert!(said.contains("status codes: 2000 2xx, 0 3xx, 0 4xx, 0 5xx"), "{said}");
        let report = line.store.report();
        assert_eq!((report["written"][path].as_u64(), report["wrong"].as_u64()), (Some(2_000), Some(0)), "{report}");
    }
}

#[test]
fn pythons_http_client_reads_and_writes_on_one_connection() {
    let line = Line::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/client/python_client.py");
    let gate = line.gate.gate;
    // -B: it leaves no compiled files in the source tree.
    let mut python = Command::new("python3");
    python.arg("-B").arg(script).args([&gate.ip().to_string(), &gate.port().to_string(), &line.token]);
    let output = python.ends();
    assert_eq!(String::from_utf8_lossy(printed(&output)), "60 answers are right\n");
}
