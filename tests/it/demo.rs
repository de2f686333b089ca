//! `fencegate demo`: its printed commands work when copied, and its story can fail.

use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::support::{
    process::{binary, failpoints_binary, stderr},
    run::{Ends, Lines, end_of},
};

fn story(mut command: Command) -> std::process::Output {
    command.args(["demo", "--story"]).ends()
}

#[test]
fn the_story_ends_well() {
    let played = story(Command::new(binary()));
    let text = String::from_utf8(played.stdout.clone()).unwrap();
    assert!(played.status.success(), "{text}{}", stderr(&played));
    for part in ["lease_seq 1", "lease_seq 2", "412 WRITE_STALE_FENCE", "The store holds \"from B\""] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn the_story_ends_badly_if_stale_writes_are_forwarded() {
    let mut command = Command::new(failpoints_binary());
    command.env("FENCEGATE_TEST_FAULT", "forward-stale");
    let played = story(command);
    assert_eq!(played.status.code(), Some(1), "{}", stderr(&played));
    let text = String::from_utf8(played.stdout).unwrap();
    assert!(text.contains("The store holds \"late, from A\""), "{text}");
}

#[test]
fn a_default_build_refuses_the_switch() {
    let mut command = Command::new(binary());
    command.env("FENCEGATE_TEST_FAULT", "forward-stale");
    let refused = story(command);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("this build has no test faults"), "{}", stderr(&refused));
}

#[test]
fn the_lines_to_try_work_when_copied() {
    let mut demo = Command::new(binary()).arg("demo").stdout(Stdio::piped()).spawn().unwrap();
    let said = Lines::of("the demo", demo.stdout.take().unwrap());
    let mut lines = vec![];
    // The demo prints this line last: everything has started, and everything has been said.
    while lines.last().is_none_or(|line: &String| !line.contains("Ctrl-C")) {
        lines.push(said.next().unwrap_or_else(|| panic!("it has ended: {lines:?}")));
    }
    let script: String =
        lines.iter().filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with('#'))).collect();
    assert_eq!(script.lines().count(), 5, "{script}");
    let done = Command::new("sh").arg("-euc").arg(&script).ends();
    let text = String::from_utf8(done.stdout.clone()).unwrap();
    assert!(done.status.success(), "{text}{}", stderr(&done));
    for part in ["HTTP/1.1 201", "fence-outcome: settled", "HTTP/1.1 428", "\"WRITE_UNFENCED\"", "}Ada{\"receipts\":[{"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    kill_process(Pid::from_child(&demo), Signal::INT).unwrap();
    assert!(end_of("the demo", &mut demo).success());
}
