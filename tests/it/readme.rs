//! The README's `sh` blocks, unchanged, run by a shell.

use std::{
    fs,
    net::TcpListener,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process_group};

use super::support::{
    process::binary,
    run::{Lines, end_of},
};

fn blocks() -> Vec<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    text.split("\n```sh\n").skip(1).map(|rest| rest.split("\n```\n").next().unwrap().to_owned() + "\n").collect()
}

/// Killed when dropped.
struct Demo {
    child: Child,
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the program of `make run`, and reads its ready line.
fn demo() -> (Demo, String) {
    let mut child = Command::new(binary()).arg("demo").stdout(Stdio::piped()).spawn().unwrap();
    let ready = Lines::of("the demo", child.stdout.take().unwrap()).next().unwrap_or_default();
    (Demo { child }, ready)
}

fn address<'a>(ready: &'a str, name: &str) -> &'a str {
    ready.split_whitespace().find_map(|part| part.strip_prefix(name)?.strip_prefix('=')).unwrap()
}

#[test]
fn the_readmes_commands_work_when_copied() {
    let (_demo, ready) = demo();
    let blocks = blocks();
    assert_eq!(blocks.len(), 7, "{blocks:#?}");
    let agent = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    // The demo may use other ports than a reader's, and the gate of the last block has to be started.
    let script = blocks
        .concat()
        .replace("127.0.0.1:8080", address(&ready, "gate"))
        .replace("127.0.0.1:8081", address(&ready, "api"))
        .replace("127.0.0.1:8082", &agent);
    // The gate of the last block runs on in the background; its ready line is the last output.
    let script = format!("{script}\nwait\n");
    let folder = tempfile::tempdir().unwrap();
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", binary().parent().unwrap().display());
    let mut command = Command::new("bash");
    command.args(["-euc", &script]).current_dir(&folder).env("PATH", path).stdout(Stdio::piped()).process_group(0);
    for port in ["GATE", "API", "OPS"] {
        command.env(format!("FENCEGATE__{port}__LISTEN"), "127.0.0.1:0");
    }
    command.env("FENCEGATE_AGENT__AGENT__LISTEN", &agent).env("FENCEGATE_AGENT__STATUS__LISTEN", "127.0.0.1:0");
    let mut shell = command.spawn().unwrap();
    let lines = Lines::of("the README's commands", shell.stdout.take().unwrap());
    let mut said = String::new();
    while !said.contains("ready gate=")
        && let Some(line) = lines.next()
    {
        said.push_str(&line);
    }
    kill_process_group(Pid::from_child(&shell), Signal::TERM).unwrap();
    end_of("the README's commands", &mut shell);
    for part in [
        "HTTP/1.1 201 Created",
        "fence-outcome: settled",
        "HTTP/1.1 428",
        "WRITE_UNFENCED",
        "}hello",
        "HTTP/1.1 412",
        "\"error\":\"WRITE_STALE_FENCE\"",
        "orders",
        "pod-a",
        "done under lease_seq 3",
        "fence-seq: 4",
        "ready gate=",
    ] {
        assert!(said.contains(part), "{part} is not in:\n{said}");
    }
}
