//! `table restore`, `table backup`, `table init` and the start on a torn log, killed at each step that changes the
//! disk; also with unsynced data thrown away, including names and backups. In every case no fence is lost, no number is
//! granted twice, and the next command works or says what to do.

use std::{
    fmt, fs,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use fencegate::{
    clock::Clock,
    fence::{Fence, Incarnation, Now, ObjectId},
    route::RouteFingerprint,
    table::{
        backup::{self, BackupFault, How, Restored},
        codec::{Key, Meta, decode_record},
        data_folder::table_folder,
        epoch::{self, Epoch},
        open::{self, OpenFault, OpenedTable},
        rocks::RocksTable,
    },
};

use super::support::{
    gate::acquire,
    power::{Synced, copy_folder},
    process::{Site, binary},
    run::Ends,
    until,
};

/// More steps than any of these commands takes.
const STEPS_MAX: u64 = 2_000;

/// A data folder and a backup of an earlier state of it, before the command that is killed.
struct Scene {
    site: Site,
    /// The contents of the folder at the beginning of each round.
    first: PathBuf,
    /// The highest granted number of `users`.
    granted: u64,
}

impl Scene {
    /// A table with a lease in its log that is not in its backup.
    fn new() -> Self {
        let site = Site::with_table();
        let gate = site.serve();
        acquire(&mut gate.api(), "users", "a", 3_600_000);
        gate.stop();
        let to = site.folder.path().join("backup");
        let made = run(table(&["backup", "--to", to.to_str().unwrap()], &site));
        assert!(made.status.success(), "{made:?}");
        let gate = site.serve();
        let revoked = gate.api().post("/v1/objects/users/revoke", &serde_json::json!({ "reason": "a test" }));
        revoked.expect(200);
        let granted = acquire(&mut gate.api(), "users", "b", 3_600_000)["lease_seq"].as_u64().unwrap();
        gate.kill();
        let first = site.folder.path().join("first");
        copy_folder(&site.data(), &first.join("data"));
        copy_folder(&to, &first.join("backup"));
        // The backup was restored before: its note of that must not get lost either.
        fs::write(first.join("backup/RESTORED_AS"), "0").unwrap();
        Self { site, first, granted }
    }

    fn backup(&self) -> PathBuf {
        self.site.folder.path().join("backup")
    }

    fn reset(&self) {
        for name in ["data", "backup"] {
            let folder = self.site.folder.path().join(name);
            let _ = fs::remove_dir_all(&folder);
            copy_folder(&self.first.join(name), &folder);
        }
    }

    /// Panics if a number on this table is below a granted one. Returns the table's floor.
    fn holds(&self, begun: &OpenedTable, at: impl fmt::Display) -> Fence {
        let users = ObjectId::new("users").unwrap();
        let row = begun.table.get(&Key::Record(users.clone()).encode()).unwrap().expect("a record of users");
        let fence = decode_record(users, &row, &begun.context).unwrap().fence;
        assert!(fence.get() >= self.granted, "{at}: the fence went down to {fence}");
        begun.meta.incarnation.floor()
    }

    fn restore_again(&self) -> Incarnation {
        let how = How { replace: true, above: None };
        restore(&self.backup(), &self.site.data(), how).unwrap().incarnation
    }
}

fn now() -> Now {
    Clock::machine().now()
}

/// Retries: a process that another test is just starting may inherit this process's file locks for a moment.
fn once_it_is_free<T, E: std::fmt::Display>(mut attempt: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let mut last = attempt();
    until("the folder is free", || {
        let is_busy = last.as_ref().is_err_and(|fault| fault.to_string().contains("in use by another process"));
        if is_busy {
            last = attempt();
        }
        !is_busy
    });
    last
}

fn begin(data: &Path) -> Result<OpenedTable, OpenFault> {
    once_it_is_free(|| open::begin(data, false, &Clock::machine(), RouteFingerprint::default()))
}

fn restore(from: &Path, data: &Path, how: How) -> Result<Restored, BackupFault> {
    once_it_is_free(|| backup::restore(from, data, how, now()))
}

fn init(data: &Path) -> Result<(), OpenFault> {
    once_it_is_free(|| open::init(data))
}

fn table(arguments: &[&str], site: &Site) -> Command {
    let mut command = Command::new(binary());
    command.arg("table").args(arguments).arg("--config").arg(site.config());
    command
}

fn run(mut command: Command) -> Output {
    command.ends()
}

/// The step at which a command was killed.
struct At {
    step: u64,
    with_power: bool,
    /// The command had no such step: it ended normally.
    is_done: bool,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, with_power, is_done } = self;
        write!(f, "step {step}, with power: {with_power}, done: {is_done}")
    }
}

/// Kills a command at its first step, its second and so on, each time from `reset` on, until it has no further step.
/// `check` tests the result. Every other kill is also a power cut, which loses unsynced data in `folders`.
fn at_each_step(
    site: &Site,
    folders: &[&Path],
    command: impl Fn() -> Command,
    reset: impl Fn(),
    mut check: impl FnMut(&At),
) -> u64 {
    for step in 1..STEPS_MAX {
        for with_power in [true, false] {
            reset();
            let mut command = command();
            let disk = Synced::new(site.folder.path());
            disk.watch(folders, &mut command);
            let done = run({
                command.env("CHAOS_KILL_AT", step.to_string());
                command
            });
            let is_done = done.status.signal() != Some(9);
            assert!(!is_done || done.status.success(), "{done:?}");
            if !with_power {
                disk.cut(folders);
            }
            check(&At { step, with_power, is_done });
            if is_done && !with_power {
                return step - 1;
            }
        }
    }
    panic!("more than {STEPS_MAX} steps");
}

/// The tests below rely on this: the shim and `power` lose what a power cut may take.
#[test]
fn a_name_that_was_changed_is_lost_with_the_power_unless_its_folder_was_synced() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("data");
    let change = "import os, sys\nos.chdir(sys.argv[1])\nhere = os.open('.', os.O_RDONLY)\n\
        for word in sys.argv[2:]:\n    os.fsync(here) if word == 'sync' else os.rename(*(os.path.abspath(n) for n in word.split('>')))";
    for (steps, then) in [
        (&["new>old"][..], &[("new", "new"), ("old", "old")][..]),
        (&["new>old", "sync"], &[("old", "new")]),
        (&["old>third", "sync", "new>old"], &[("new", "new"), ("third", "old")]),
        (&["new>old", "old>third"], &[("new", "new"), ("old", "old")]),
        (&["new>old", "old>third", "sync"], &[("third", "new")]),
    ] {
        let _ = fs::remove_dir_all(&at);
        fs::create_dir(&at).unwrap();
        for name in ["new", "old"] {
            fs::write(at.join(name), name).unwrap();
        }
        let disk = Synced::new(folder.path());
        let mut command = Command::new("python3");
        command.arg("-c").arg(change).arg(&at).args(steps);
        disk.watch(&[&at], &mut command);
        let done = run(command);
        assert!(done.status.success(), "{done:?}");
        disk.cut(&[&at]);
        let mut left: Vec<_> = fs::read_dir(&at)
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap()))
            .collect();
        left.sort();
        let then: Vec<_> = then.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        assert_eq!(left, then, "{steps:?}");
    }
}

#[test]
fn a_restore_that_is_killed_at_any_step_loses_no_fence_and_says_what_to_do() {
    let scene = Scene::new();
    let data = scene.site.data();
    let from = scene.backup();
    let command = || table(&["restore", "--replace", "--from", from.to_str().unwrap()], &scene.site);
    let (mut started, mut refused) = (0, 0);
    let steps = at_each_step(
        &scene.site,
        &[&data, &from],
        command,
        || scene.reset(),
        |at| {
            let init = init(&data).expect_err("there was a table").to_string();
            assert!(!init.contains("remove"), "{at}: {init}");
            match begin(&data) {
                Ok(begun) => {
                    started += 1;
                    let floor = scene.holds(&begun, at);
                    assert!(floor.get() == 0 && !at.is_done || floor.get() > scene.granted, "{at}: {floor}");
                    let noted = fs::read_to_string(from.join("RESTORED_AS")).unwrap();
                    assert!(noted == "0" && floor.get() == 0 || noted == floor.to_string(), "{at}: {noted}, {floor}");
                    drop(begun);
                }
                Err(fault) => {
                    refused += 1;
                    assert!(!at.is_done, "{at}: {fault}");
                    let said = fault.to_string();
                    assert!(matches!(fault, OpenFault::RestoreCut { .. } | OpenFault::Lost { .. }), "{at}: {said}");
                    assert!(said.contains("table restore") && !said.contains("init"), "{at}: {said}");
                }
            }
            let again = scene.restore_again();
            assert!(again.floor().get() > scene.granted, "{at}");
            assert_eq!(scene.holds(&begin(&data).unwrap(), at), again.floor(), "{at}");
        },
    );
    println!("{steps} steps of a restore: {started} starts, {refused} refusals");
    assert!(started > 0 && refused > 0, "{started} {refused}");
}

#[test]
fn a_restore_onto_an_empty_disk_that_is_killed_at_any_step_can_be_done_again() {
    let scene = Scene::new();
    let (data, from) = (scene.site.data(), scene.backup());
    let above = (9_u64 << 32).to_string();
    let command = || table(&["restore", "--above", &above, "--from", from.to_str().unwrap()], &scene.site);
    let reset = || {
        scene.reset();
        fs::remove_dir_all(&data).unwrap();
    };
    let how = How { replace: true, above: Some(9 << 32) };
    let steps = at_each_step(&scene.site, &[&data, &from], command, reset, |at| {
        match begin(&data) {
            Ok(begun) => assert!(scene.holds(&begun, at).get() > 9 << 32, "{at}"),
            Err(fault) => assert!(!at.is_done && fault.to_string().contains("table restore"), "{at}: {fault}"),
        }
        restore(&from, &data, how).unwrap();
        assert!(scene.holds(&begin(&data).unwrap(), at).get() > 9 << 32, "{at}");
    });
    println!("{steps} steps of a restore onto an empty disk");
}

#[test]
fn an_init_that_is_killed_at_any_step_can_be_done_again() {
    let site = Site::new();
    let data = site.data();
    let reset = || drop(fs::remove_dir_all(&data));
    let steps = at_each_step(
        &site,
        &[&data],
        || table(&["init"], &site),
        reset,
        |at| {
            let is_there = RocksTable::exists(&table_folder(&data));
            match (begin(&data), is_there) {
                (Ok(begun), true) => assert_eq!(begun.meta.incarnation, Incarnation::default(), "{at}"),
                (Err(fault), false) => {
                    assert!(!at.is_done, "{at}: {fault}");
                    let said = fault.to_string();
                    assert!(said.contains("init") && !said.contains("remove"), "{at}: {said}");
                    init(&data).unwrap();
                    begin(&data).unwrap();
                }
                (Ok(_), false) => panic!("{at}: a run on no table"),
                (Err(fault), true) => panic!("{at}: {fault}"),
            }
            assert!(matches!(init(&data), Err(OpenFault::Exists { .. })), "{at}");
        },
    );
    println!("{steps} steps of an init");
}

#[test]
fn a_backup_that_is_killed_at_any_step_is_whole_or_none_and_the_table_is_as_it_was() {
    let scene = Scene::new();
    let data = scene.site.data();
    let to = scene.site.folder.path().join("second");
    let command = || table(&["backup", "--to", to.to_str().unwrap()], &scene.site);
    let reset = || {
        scene.reset();
        for name in ["second", "second.tmp", "copy"] {
            let _ = fs::remove_dir_all(scene.site.folder.path().join(name));
        }
    };
    let making = scene.site.folder.path().join("second.tmp");
    let steps = at_each_step(&scene.site, &[&data, &to, &making], command, reset, |at| {
        let begun = begin(&data).unwrap_or_else(|fault| panic!("{at}: {fault}"));
        assert_eq!(scene.holds(&begun, at), Fence::default(), "{at}: nothing was lost");
        let again = backup::create(&*begun.table, &to);
        assert_eq!(again.is_err(), matches!(again, Err(BackupFault::Exists(_))), "{at}: {again:?}");
        assert!(again.is_err() || !at.is_done, "{at}: there was none");
        drop(begun);
        // The copy may be the first or the second: both have all that was granted.
        let copy = scene.site.folder.path().join("copy");
        let how = How { replace: false, above: Some(0) };
        restore(&to, &copy, how).unwrap_or_else(|fault| panic!("{at}: {fault}"));
        scene.holds(&begin(&copy).unwrap(), at);
    });
    println!("{steps} steps of a backup");
}

#[test]
fn a_start_on_a_torn_log_that_is_killed_at_any_step_begins_a_new_incarnation_all_the_same() {
    let scene = Scene::new();
    let data = scene.site.data();
    let mut logs: Vec<PathBuf> = fs::read_dir(data.join("table"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    logs.sort();
    let log = logs.pop().unwrap();
    let reset = || {
        scene.reset();
        let whole = fs::metadata(&log).unwrap().len();
        fs::OpenOptions::new().write(true).open(&log).unwrap().set_len(whole - 7).unwrap();
    };
    let steps = at_each_step_of_a_start(&scene, reset, |step, begun, own, known| {
        assert!(own.incarnation <= known.incarnation, "step {step}: the table, {own:?}, is ahead of {known:?}");
        assert!(begun.meta.incarnation >= Incarnation::new(1), "step {step}");
    });
    println!("{steps} steps of a start on a torn log");
}

#[test]
fn a_start_that_is_killed_at_any_step_is_not_taken_for_an_older_copy() {
    let scene = Scene::new();
    let steps = at_each_step_of_a_start(
        &scene,
        || scene.reset(),
        |step, begun, own, known| {
            assert_eq!(begun.lost, None, "step {step}");
            assert!(known.run <= own.run, "step {step}: {known:?} is ahead of the table, {own:?}");
            assert!(begun.meta.run > own.run, "step {step}: a run's number is used once");
        },
    );
    println!("{steps} steps of a start");
}

/// Kills a gate at each step of its start, each time from `reset` on, until it runs. `check` gets the next run, and the
/// table's meta row and the epoch before it.
fn at_each_step_of_a_start(scene: &Scene, reset: impl Fn(), check: impl Fn(u64, &OpenedTable, &Meta, &Epoch)) -> u64 {
    let data = scene.site.data();
    let mut steps = 0;
    let mut is_up = false;
    while !is_up {
        steps += 1;
        for with_power in [true, false] {
            reset();
            let mut command = Command::new(binary());
            command.arg("serve").arg("--config").arg(scene.site.config()).env("CHAOS_KILL_AT", steps.to_string());
            let disk = Synced::new(scene.site.folder.path());
            disk.watch(&[&data], &mut command);
            match scene.site.spawn(command) {
                Err((status, said)) => assert_eq!(status.signal(), Some(9), "{said}"),
                Ok(gate) => {
                    is_up = true;
                    gate.kill();
                }
            }
            if !with_power {
                disk.cut(&[&data]);
            }
            let known = epoch::read(&data).unwrap().expect("an epoch");
            let table = RocksTable::open_to_salvage(&table_folder(&data)).and_then(|table| open::read_meta(&table));
            let own = table.unwrap().expect("a meta row");
            let begun = begin(&data).unwrap_or_else(|fault| panic!("step {steps}: {fault}"));
            scene.holds(&begun, format!("step {steps}"));
            check(steps, &begun, &own, &known);
        }
    }
    steps
}
