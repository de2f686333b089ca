//! The log as a whole: its chain over rotations, restarts and crashes, and what tampering with it shows.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    chain::Link,
    check,
    entry::{Entry, OK, START, STOP, TORN},
    files::rotated,
    start,
    verify::{Broken, Verified, in_order, verify},
};
use crate::{
    clock::Clock,
    config::{AuditSettings, AuditTo},
    fence::WallMs,
    metrics::{AuditMetrics, Metrics},
};

/// A log in a folder of its own.
pub(super) struct Log {
    folder: tempfile::TempDir,
    pub(super) settings: AuditSettings,
    pub(super) metrics: AuditMetrics,
}

pub(super) fn entry(name: &str) -> Entry {
    let mut entry = Entry::of_gate("acquireLease", OK, WallMs(1_800_000_000_000));
    entry.objects = vec![name.to_owned()];
    entry
}

impl Log {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o700)).unwrap();
        let file = folder.path().join("audit.log");
        let settings = AuditSettings { to: AuditTo::File, file, rotate_bytes: 65_536, keep_files: 3 };
        Self { folder, settings, metrics: Metrics::new().audit }
    }

    pub(super) fn path(&self) -> &Path {
        &self.settings.file
    }

    /// A run that writes these lines and stops.
    fn run(&self, names: impl IntoIterator<Item = String>) {
        let (audit, thread) = start(&self.settings, &Clock::machine(), &self.metrics).unwrap();
        names.into_iter().for_each(|name| audit.record(None, entry(&name)));
        thread.unwrap().stop();
    }

    fn run_few(&self) {
        self.run((0..5).map(|n| format!("/data/{n}")));
    }

    fn text(&self) -> String {
        fs::read_to_string(self.path()).unwrap()
    }

    /// The field of each line of the present file.
    pub(super) fn each(&self, field: &str) -> Vec<Value> {
        let value = |line: &str| serde_json::from_str::<Value>(line).map(|line| line[field].clone());
        self.text().lines().filter_map(|line| value(line).ok()).collect()
    }

    pub(super) fn verify(&self) -> Result<Verified, Broken> {
        verify(&in_order(&[self.path().to_owned()])?)
    }

    fn add(&self, bytes: &[u8]) {
        let mut all = fs::read(self.path()).unwrap();
        all.extend_from_slice(bytes);
        fs::write(self.path(), all).unwrap();
    }
}

#[test]
fn a_log_is_one_chain_over_restarts() {
    let log = Log::new();
    log.run_few();
    log.run_few();
    let calls = log.each("call");
    assert_eq!((calls.len(), &calls[0], &calls[6], &calls[7]), (14, &START.into(), &STOP.into(), &START.into()));
    assert_eq!(log.each("n"), (1..=14).map(Value::from).collect::<Vec<_>>());
    assert_eq!(log.each("prev")[0], Link::START.hex());
    let last = Link::of(14, log.text().lines().last().unwrap().as_bytes());
    assert_eq!(log.verify(), Ok(Verified { files: 1, lines: 14, torn: 0, unfinished: 0, begins: Some(1), last }));
    assert_eq!(fs::metadata(log.path()).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn a_log_is_one_chain_over_rotations_and_keeps_so_many_files() {
    let log = Log::new();
    // About 300 bytes each: five files.
    log.run((0..1_000).map(|n| format!("/data/{n}")));
    let verified = log.verify().unwrap();
    assert_eq!((verified.files, verified.last.n), (4, 1_002));
    let begins = verified.begins.unwrap();
    assert!(begins > 1 && verified.lines == 1_003 - begins, "{verified:?}");
    assert!(rotated(log.path(), 3).exists() && !rotated(log.path(), 4).exists());
    for number in 1..=3 {
        assert!(fs::metadata(rotated(log.path(), number)).unwrap().len() <= 65_536);
    }
    // Named one by one, in any order, they are the same.
    let mut names: Vec<PathBuf> = (1..=3).map(|number| rotated(log.path(), number)).collect();
    names.insert(1, log.path().to_owned());
    assert_eq!(verify(&in_order(&names).unwrap()), Ok(verified.clone()));
    // A crash between the two steps of a rotation: the chain goes on from the newest rotated file.
    fs::rename(rotated(log.path(), 2), rotated(log.path(), 3)).unwrap();
    fs::rename(rotated(log.path(), 1), rotated(log.path(), 2)).unwrap();
    fs::rename(log.path(), rotated(log.path(), 1)).unwrap();
    log.run_few();
    assert_eq!(log.verify().unwrap().last.n, verified.last.n + 7);
}

#[test]
fn a_file_that_is_missing_between_others_is_noticed() {
    for missing in [1, 2] {
        let log = Log::new();
        log.run((0..1_000).map(|n| format!("/data/{n}")));
        fs::remove_file(rotated(log.path(), missing)).unwrap();
        let broken = log.verify().unwrap_err();
        let behind = if missing == 1 { log.path().to_owned() } else { rotated(log.path(), missing - 1) };
        assert_eq!((broken.file, broken.line), (behind, 1), "{}", broken.what);
    }
}

#[test]
fn other_files_beside_the_log_are_none_of_its_own() {
    let log = Log::new();
    log.run_few();
    for name in ["audit.log.2027", "audit.log.01", "audit.log.old", "audit.log.1.gz"] {
        fs::write(log.folder.path().join(name), "something else\n").unwrap();
    }
    assert_eq!(log.verify().unwrap().files, 1);
    // A log whose own name ends with a number.
    let mut other = Log::new();
    other.settings.file = other.folder.path().join("audit.27");
    other.run((0..1_000).map(|n| format!("/data/{n}")));
    let verified = other.verify().unwrap();
    assert_eq!((verified.files, verified.last.n), (4, 1_002));
    let names: Vec<_> = (1..=3).map(|number| rotated(other.path(), number)).chain([other.path().to_owned()]).collect();
    assert_eq!(verify(&in_order(&names).unwrap()), Ok(verified));
}

#[test]
fn fewer_kept_files_leave_no_gap() {
    let mut log = Log::new();
    log.run((0..1_000).map(|n| format!("/data/{n}")));
    let stays = log.folder.path().join("audit.log.2027");
    fs::write(&stays, "").unwrap();
    log.settings.keep_files = 1;
    assert_eq!(log.verify().unwrap().files, 4);
    log.run((0..300).map(|n| format!("/data/{n}")));
    let verified = log.verify().unwrap();
    assert_eq!((verified.files, verified.last.n), (2, 1_304));
    assert!(!rotated(log.path(), 2).exists() && !rotated(log.path(), 3).exists() && stays.exists());
}

#[test]
fn a_rotation_behind_the_listing_does_no_harm() {
    let log = Log::new();
    log.run_few();
    let names = in_order(&[log.path().to_owned()]).unwrap();
    log.run((0..300).map(|n| format!("/data/{n}")));
    assert!(verify(&names).unwrap().begins > Some(1), "the rotated file was not listed");
}

#[test]
fn what_was_done_to_the_lines_is_noticed() {
    let log = Log::new();
    log.run_few();
    let lines: Vec<String> = log.text().lines().map(str::to_owned).collect();
    let after = |change: &dyn Fn(&mut Vec<String>)| {
        let mut changed = lines.clone();
        change(&mut changed);
        fs::write(log.path(), changed.join("\n") + "\n").unwrap();
        log.verify()
    };
    let line = |change: &dyn Fn(&mut Vec<String>)| after(change).unwrap_err().line;
    assert_eq!(line(&|all| drop(all.remove(3))), 4, "removed");
    assert_eq!(line(&|all| all[3] = all[3].replace("/data/2", "/data/9")), 5, "changed");
    assert_eq!(line(&|all| all[0] = all[0].replace("\"prev\":\"00", "\"prev\":\"01")), 1, "the first line's hash");
    assert_eq!(line(&|all| all.insert(3, all[2].clone())), 4, "inserted");
    assert_eq!(line(&|all| all.insert(3, all[3].replace("/data/2", "/data/9"))), 5, "inserted where it fits");
    assert_eq!(line(&|all| all.insert(3, String::new())), 4, "an empty line");
    assert_eq!(line(&|all| all.swap(3, 4)), 4, "moved");
    assert_eq!(line(&|all| all[3] = "{}".to_owned()), 4, "no line of a log");
    let front = after(&|all| drop(all.drain(..3))).unwrap();
    assert_eq!((front.begins, front.lines), (Some(4), 4), "missing at the front");
    // Only the last number and hash show this.
    let end = after(&|all| all.truncate(5)).unwrap();
    assert_eq!(end.last, Link::of(5, lines[4].as_bytes()));
    assert_eq!(after(&|_| {}).unwrap().last, Link::of(7, lines[6].as_bytes()));
}

#[test]
fn a_torn_line_is_kept_and_a_line_says_so() {
    for torn in [&b"{\"n\":8,\"time\":\"20"[..], b"\xff\xfe", b"{\"n\":8,\"ti\nme\n"] {
        let log = Log::new();
        log.run_few();
        log.add(torn);
        match log.verify() {
            Ok(verified) => assert_eq!((verified.lines, verified.unfinished), (7, torn.len() as u64)),
            Err(broken) => assert!(broken.line == 8 && torn.ends_with(b"\n"), "no line says so yet"),
        }
        log.run_few();
        let bytes = fs::read(log.path()).unwrap();
        assert!(bytes.windows(torn.len()).any(|each| each == torn));
        let verified = log.verify().unwrap();
        assert_eq!((verified.torn, verified.lines, verified.unfinished), (1, 15, 0), "{torn:?}");
        let changed: Vec<u8> = bytes.iter().map(|byte| if *byte == torn[1] { byte ^ 1 } else { *byte }).collect();
        fs::write(log.path(), changed).unwrap();
        log.verify().unwrap_err();
    }
}

/// A log whose last line was torn where the next line does not fit into the file.
fn torn_at_the_end_of_a_file() -> Log {
    let log = Log::new();
    log.run_few();
    log.add(format!("{{\"n\":8,\"object\":\"{}", "x".repeat(65_000)).as_bytes());
    log
}

#[test]
fn what_was_torn_before_a_rotation_is_noted_in_the_next_file() {
    let log = torn_at_the_end_of_a_file();
    log.run((0..10).map(|n| format!("/data/{n}")));
    assert!(rotated(log.path(), 1).exists());
    assert_eq!(log.each("call")[0], TORN);
    let verified = log.verify().unwrap();
    assert_eq!((verified.files, verified.torn, verified.lines), (2, 1, 20));
    // The torn bytes were changed later.
    let changed = fs::read_to_string(rotated(log.path(), 1)).unwrap().replace("xxx", "xyx");
    fs::write(rotated(log.path(), 1), changed).unwrap();
    let broken = log.verify().unwrap_err();
    assert_eq!((broken.file, broken.line), (rotated(log.path(), 1), 8));
}

#[test]
fn a_crash_between_a_rotation_and_the_note_is_noted_later() {
    for begun in ["", "{\"n\":8,\"ti", "{\"n\":8,\"ti\n{\"n\":8,"] {
        let log = torn_at_the_end_of_a_file();
        fs::rename(log.path(), rotated(log.path(), 1)).unwrap();
        fs::write(log.path(), begun).unwrap();
        fs::set_permissions(log.path(), Permissions::from_mode(0o600)).unwrap();
        log.run_few();
        let verified = log.verify().unwrap();
        assert_eq!((verified.torn, verified.lines, verified.begins), (1, 15, Some(1)), "{begun}");
    }
}

#[test]
fn a_crash_during_the_first_line_does_not_stop_the_gate() {
    for begun in ["{\"n\":1,\"ti", "{\"n\":1,\"ti\n{\"n\":1,\"time\":\"20"] {
        let log = Log::new();
        fs::write(log.path(), begun).unwrap();
        fs::set_permissions(log.path(), Permissions::from_mode(0o600)).unwrap();
        log.run_few();
        let verified = log.verify().unwrap();
        assert_eq!((verified.torn, verified.lines, verified.begins), (1, 8, Some(1)), "{begun}");
    }
}

#[test]
fn a_line_that_misses_only_its_end_is_whole() {
    let log = Log::new();
    log.run_few();
    let text = log.text();
    fs::write(log.path(), text.trim_end()).unwrap();
    log.run_few();
    let verified = log.verify().unwrap();
    assert_eq!((verified.torn, verified.lines), (0, 14));
}

#[test]
fn a_file_that_others_can_open_or_use_is_refused() {
    let log = Log::new();
    let refused = || start(&log.settings, &Clock::machine(), &log.metrics).map(drop).unwrap_err().what;
    fs::set_permissions(log.folder.path(), Permissions::from_mode(0o755)).unwrap();
    assert!(refused().contains("its folder is open to all users (mode 755)"), "{}", refused());
    fs::set_permissions(log.folder.path(), Permissions::from_mode(0o750)).unwrap();
    log.run_few();
    fs::set_permissions(log.path(), Permissions::from_mode(0o644)).unwrap();
    assert!(refused().contains("open to all users (mode 644)"), "{}", refused());
    fs::set_permissions(log.path(), Permissions::from_mode(0o640)).unwrap();
    let running = start(&log.settings, &Clock::machine(), &log.metrics).unwrap();
    assert!(refused().contains("another process writes to it"), "{}", refused());
    running.1.unwrap().stop();
    fs::write(log.path(), "root:x:0:0\n").unwrap();
    assert!(refused().contains("no audit log's"), "{}", refused());
    let settings = AuditSettings { file: log.folder.path().join("no/no/audit.log"), ..log.settings.clone() };
    assert!(check(&settings).unwrap_err().what.contains("its folder"));
    let what = start(&settings, &Clock::machine(), &log.metrics).map(drop).unwrap_err();
    assert!(what.key == "audit.file" && what.what.contains("its folder"), "{what:?}");
}

#[test]
fn a_folder_that_is_missing_is_created_for_the_owner_alone() {
    let mut log = Log::new();
    // A volume of Kubernetes.
    fs::set_permissions(log.folder.path(), Permissions::from_mode(0o777)).unwrap();
    let folder = log.folder.path().join("log");
    log.settings.file = folder.join("audit.log");
    check(&log.settings).unwrap();
    assert!(!folder.exists(), "a check changes nothing");
    log.run_few();
    log.run_few();
    assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
    assert_eq!(log.verify().unwrap().lines, 14);
}
