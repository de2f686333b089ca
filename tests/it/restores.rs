//! Restored tables: their numbers are above all used ones, also if these are unknown, and no two restores get the same
//! numbers.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use fencegate::{
    clock::Clock,
    table::{
        backup::{BackupFault, How, restore as restore_here},
        codec::Meta,
        open::{read_mark, read_meta, write_meta},
        rocks::RocksTable,
    },
};
use rustix::fs::{FileType, Mode, OFlags, inotify};

use super::{
    recovery::{STRIDE, cut_the_tail, fence, flip, killed_with_leases, refuses_to_start},
    support::{
        gate::{acquire, text},
        power::copy_folder,
        process::{Site, binary, stderr, stdout},
        run::Ends,
        until,
    },
};

#[test]
fn a_restored_backup_is_a_new_incarnation_under_a_new_key() {
    let site = Site::with_table();
    let gate = site.serve();
    let old = acquire(&mut gate.api(), "users", "a", 3_600_000);
    let backup = site.folder.path().join("backup");
    let made = Command::new(binary())
        .args(["table", "backup", "--api", &format!("http://{}", gate.api), "--to"])
        .arg(&backup)
        .ends();
    assert!(made.status.success(), "{made:?}");
    assert!(!backup.join("key").exists(), "a backup holds no secret");
    let twice = Command::new(binary())
        .args(["table", "backup", "--api", &format!("http://{}", gate.api), "--to"])
        .arg(&backup)
        .ends();
    assert!(!twice.status.success() && stderr(&twice).contains("exists already"), "{twice:?}");
    // Grants after the backup are unknown to it.
    let later = acquire(&mut gate.api(), "orders", "a", 3_600_000);
    gate.stop();
    let restore = |arguments: &[&str]| {
        let mut command = Command::new(binary());
        command.args(["table", "restore", "--config"]).arg(site.config()).arg("--from").arg(&backup).args(arguments);
        command.ends()
    };
    let refused = restore(&[]);
    assert!(refused.status.code() == Some(2) && stderr(&refused).contains("--replace"), "{refused:?}");
    let own_key = fs::read(site.data().join("key")).unwrap();
    let restored = restore(&["--replace"]);
    assert!(restored.status.success() && stdout(&restored).contains("every lease is void"), "{restored:?}");
    assert_ne!(fs::read(site.data().join("key")).unwrap(), own_key);
    let gate = site.serve();
    let floor = fence(&gate, "never");
    assert!(floor >= STRIDE);
    assert_eq!((fence(&gate, "users"), fence(&gate, "orders")), (floor + 1, floor));
    for lease in [&old, &later] {
        let check = serde_json::json!({ "fence_token": lease["fence_token"] });
        let verdict = gate.api().post("/v1/tokens/check", &check).expect(200);
        assert_eq!(text(&verdict, "code"), "WRITE_STALE_FENCE");
    }
    assert_eq!(acquire(&mut gate.api(), "orders", "b", 60_000)["lease_seq"], floor + 1);
    gate.stop();
    // A second restore is a further incarnation.
    assert!(restore(&["--replace"]).status.success());
    let gate = site.serve();
    assert!(fence(&gate, "never") > floor);
    let nothing = Command::new(binary())
        .args(["table", "restore", "--config"])
        .arg(site.config())
        .args(["--replace", "--from", "/nowhere"])
        .ends();
    assert!(stderr(&nothing).contains("holds no backup"), "{nothing:?}");
}

fn back_up(site: &Site) -> PathBuf {
    back_up_as(site, "backup")
}

fn back_up_as(site: &Site, name: &str) -> PathBuf {
    let backup = site.folder.path().join(name);
    let mut command = Command::new(binary());
    command.args(["table", "backup", "--config"]).arg(site.config()).arg("--to").arg(&backup);
    let made = command.ends();
    assert!(made.status.success(), "{made:?}");
    backup
}

fn restore(site: &Site, from: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(["table", "restore", "--config"]).arg(site.config()).arg("--from").arg(from).args(more);
    command.ends()
}

#[track_caller]
fn asks_for_above(site: &Site, from: &Path, why: &str) {
    let refused = restore(site, from, &["--replace"]);
    let said = stderr(&refused);
    assert!(refused.status.code() == Some(2) && said.contains("--above N") && said.contains(why), "{refused:?}");
    assert!(site.data().join("table").exists() && !site.data().join("table.restoring").exists(), "{said}");
}

#[test]
fn the_epoch_of_another_table_says_nothing_of_a_backup() {
    let (site, _) = killed_with_leases(1);
    let backup = back_up(&site);
    let (first, second) = (site.folder.path().join("first"), site.folder.path().join("second"));
    copy_folder(&backup, &first);
    copy_folder(&backup, &second);
    let lost = Site::new();
    assert!(restore(&lost, &first, &["--above", "1"]).status.success());
    let gate = lost.serve();
    let seq = acquire(&mut gate.api(), "o0", "b", 60_000)["lease_seq"].as_u64().unwrap();
    gate.kill();
    // The table's volume is lost, and on a new one a table is made before the backup is restored.
    for creates in [false, true] {
        let site = if creates { Site::new() } else { Site::with_table() };
        if creates {
            let text = fs::read_to_string(site.config()).unwrap();
            fs::write(site.config(), text.replace("[table]", "[table]\ncreate = true")).unwrap();
        }
        site.serve().stop();
        assert!(site.data().join("epoch").exists());
        asks_for_above(&site, &second, "another table");
        // The same without the epoch of that table.
        fs::remove_file(site.data().join("epoch")).unwrap();
        asks_for_above(&site, &second, "another table");
        let restored = restore(&site, &second, &["--replace", "--above", &seq.to_string()]);
        assert!(restored.status.success(), "{restored:?}");
        let gate = site.serve();
        assert!(acquire(&mut gate.api(), "o0", "c", 60_000)["lease_seq"].as_u64().unwrap() > seq);
        gate.stop();
        // From here on the folder belongs to the restored table.
        assert!(restore(&site, &second, &["--replace"]).status.success());
    }
}

#[test]
fn a_folder_that_is_older_than_the_backup_says_nothing_of_it() {
    let (site, _) = killed_with_leases(1);
    let snapshot = site.folder.path().join("snapshot");
    copy_folder(&site.data(), &snapshot);
    let put_back = || {
        fs::remove_dir_all(site.data()).unwrap();
        copy_folder(&snapshot, &site.data());
    };
    site.serve().stop();
    let later_run = back_up_as(&site, "later-run");
    assert!(restore(&site, &later_run, &["--replace"]).status.success());
    site.serve().stop();
    let later_incarnation = back_up_as(&site, "later-incarnation");
    put_back();
    // The first backup's floor is above the epoch; the second was restored above the epoch.
    asks_for_above(&site, &later_incarnation, "older than this backup");
    asks_for_above(&site, &later_run, "older than this backup");
    // Without that note the backup still belongs to a later run.
    fs::remove_file(later_run.join("RESTORED_AS")).unwrap();
    asks_for_above(&site, &later_run, "older than this backup");
    // The folder from which the backup was made is not older. Nor is a folder that has gone on since.
    site.serve().stop();
    assert!(restore(&site, &later_run, &["--replace"]).status.success());
}

#[test]
fn a_note_in_a_backup_that_does_not_read_says_what_to_do() {
    let (site, _) = killed_with_leases(1);
    let backup = back_up(&site);
    let note = backup.join("RESTORED_AS");
    for cut_short in [&b""[..], b"\0\0\0", b"\xff\xfe"] {
        fs::write(&note, cut_short).unwrap();
        let refused = restore(&site, &backup, &["--replace"]);
        let said = stderr(&refused);
        assert!(refused.status.code() == Some(2) && said.contains("RESTORED_AS does not read"), "{refused:?}");
        assert!(said.contains("--above N"), "{said}");
        assert!(restore(&site, &backup, &["--replace", "--above", "5"]).status.success());
        assert!(fs::read_to_string(&note).unwrap().parse::<u64>().unwrap() > STRIDE, "it says so again");
        assert!(restore(&site, &backup, &["--replace"]).status.success());
        assert!(!site.data().join("table/RESTORED_AS").exists());
    }
}

/// A backup as earlier versions left it.
fn take_its_name(table: &Path) {
    let (table, _) = RocksTable::open(table).unwrap();
    let meta = read_meta(&table).unwrap().unwrap();
    assert!(meta.lineage.is_some(), "a new table has a name");
    write_meta(&table, &Meta { lineage: None, ..meta }, read_mark(&table).unwrap()).unwrap();
    table.flush().unwrap();
}

#[test]
fn a_table_of_before_there_were_names_opens_and_is_restored_over_by_an_operators_word() {
    let (site, _) = killed_with_leases(1);
    take_its_name(&site.data().join("table"));
    fs::write(site.data().join("epoch"), format!("0 {:08x}\n", crc32c::crc32c(b"0"))).unwrap();
    let nameless = back_up_as(&site, "nameless");
    asks_for_above(&site, &nameless, "gave tables no name");
    // The next start names the table. An older backup stays without a name.
    let gate = site.serve();
    let seq = fence(&gate, "o0");
    gate.stop();
    let named = back_up_as(&site, "named");
    asks_for_above(&site, &nameless, "gave tables no name");
    assert!(restore(&site, &named, &["--replace"]).status.success());
    assert!(restore(&site, &nameless, &["--replace", "--above", "1"]).status.success());
    let gate = site.serve();
    assert!(fence(&gate, "o0") > seq);
    gate.stop();
    // The restored table has a new name.
    asks_for_above(&site, &named, "another table");
    let renamed = back_up_as(&site, "renamed");
    assert!(restore(&site, &renamed, &["--replace"]).status.success());
}

#[test]
fn a_backup_restored_onto_empty_disks_never_uses_a_number_twice() {
    let (site, _) = killed_with_leases(1);
    let backup = back_up(&site);
    let mut floors = vec![];
    for _ in 0..3 {
        let site = Site::new();
        // An empty disk does not say which numbers were used since the backup.
        let refused = restore(&site, &backup, &[]);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        let said = stderr(&refused);
        assert!(said.contains("--above") && said.contains("fencegate_table_floor"), "{said}");
        assert!(!site.data().join("table.restoring").exists(), "what was refused leaves nothing behind");
        let restored = restore(&site, &backup, &["--above", "1"]);
        assert!(restored.status.success(), "{restored:?}");
        floors.push(fence(&site.serve(), "never"));
    }
    assert!(floors.is_sorted() && floors[0] < floors[1] && floors[1] < floors[2], "{floors:?}");
}

#[test]
fn copies_of_one_backup_that_are_restored_apart_never_grant_the_same_number() {
    let (site, _) = killed_with_leases(1);
    let backup = back_up(&site);
    let mut granted = vec![];
    for n in 0..4 {
        // The copies do not know of each other, and the operator gives the same number for each.
        let copy = site.folder.path().join(format!("download-{n}"));
        copy_folder(&backup, &copy);
        let site = Site::new();
        let restored = restore(&site, &copy, &["--above", "1000"]);
        assert!(restored.status.success(), "{restored:?}");
        let gate = site.serve();
        granted.extend((0..3).map(|turn| {
            gate.api().post("/v1/objects/o0/revoke", &serde_json::json!({ "reason": "next" })).expect(200);
            acquire(&mut gate.api(), "o0", &format!("{n}-{turn}"), 60_000)["lease_seq"].as_u64().unwrap()
        }));
    }
    let different: std::collections::HashSet<_> = granted.iter().collect();
    assert_eq!(different.len(), granted.len(), "{granted:?}");
    assert!(granted.iter().all(|seq| (1_000..1 << 53).contains(seq)), "{granted:?}");
}

#[test]
fn a_restored_table_lies_above_what_an_operator_says() {
    let (site, _) = killed_with_leases(1);
    let backup = back_up(&site);
    let above = 1_u64 << 50;
    let other = Site::new();
    let restored = restore(&other, &backup, &["--above", &above.to_string()]);
    assert!(restored.status.success() && stdout(&restored).contains("above"), "{restored:?}");
    let gate = other.serve();
    let floor = fence(&gate, "never");
    assert!(floor > above && acquire(&mut gate.api(), "o0", "b", 1_000)["lease_seq"].as_u64().unwrap() > above);
    let metrics = String::from_utf8(gate.ops().get("/metrics").body).unwrap();
    assert!(metrics.contains(&format!("fencegate_table_floor {floor}\n")), "{metrics}");
    gate.stop();
    let stats = stdout(&other.run(&["table", "stats"]));
    assert!(stats.lines().any(|line| line.starts_with("floor ") && line.ends_with(&floor.to_string())), "{stats}");
    // There is no number above the last.
    let none = restore(&Site::new(), &backup, &["--above", &((1_u64 << 53) - 1).to_string()]);
    assert!(none.status.code() == Some(2) && stderr(&none).contains("no numbers left"), "{none:?}");
}

#[test]
fn a_fence_never_goes_down_after_torn_tails_and_a_restore_of_an_older_backup() {
    let (site, _) = killed_with_leases(2);
    let backup = back_up(&site);
    assert!(restore(&site, &backup, &["--replace"]).status.success());
    let mut granted = vec![];
    for _ in 0..3 {
        let gate = site.serve();
        granted.push(acquire(&mut gate.api(), "o1", "a", 3_600_000)["lease_seq"].as_u64().unwrap());
        gate.kill();
        cut_the_tail(&site);
    }
    // Also if the table itself cannot be read: the folder remembers.
    for damage in ["nothing", "CURRENT"] {
        if damage != "nothing" {
            fs::write(site.data().join("table").join(damage), "MANIFEST-999999\n").unwrap();
        }
        let restored = restore(&site, &backup, &["--replace"]);
        assert!(restored.status.success(), "{restored:?}");
        let gate = site.serve();
        granted.push(acquire(&mut gate.api(), "o1", "b", 3_600_000)["lease_seq"].as_u64().unwrap());
        gate.kill();
    }
    assert!(granted.is_sorted_by(|a, b| a < b), "{granted:?}");
}

#[test]
fn a_table_of_before_there_were_epochs_is_restored_over_only_if_it_reads() {
    let (site, _) = killed_with_leases(1);
    let backup = back_up(&site);
    fs::remove_file(site.data().join("epoch")).unwrap();
    assert!(restore(&site, &backup, &["--replace"]).status.success());
    fs::remove_file(site.data().join("epoch")).unwrap();
    fs::write(site.data().join("table/CURRENT"), "MANIFEST-999999\n").unwrap();
    let refused = restore(&site, &backup, &["--replace"]);
    assert!(refused.status.code() == Some(2) && stderr(&refused).contains("--above"), "{refused:?}");
    let restored = restore(&site, &backup, &["--replace", "--above", "100"]);
    assert!(restored.status.success(), "{restored:?}");
    site.serve().stop();
}

#[test]
fn an_older_table_that_was_put_back_by_hand_starts_a_new_incarnation() {
    let (site, _) = killed_with_leases(2);
    let older = site.folder.path().join("older");
    copy_folder(&site.data().join("table"), &older);
    cut_the_tail(&site);
    let gate = site.serve();
    let seq = acquire(&mut gate.api(), "o0", "b", 3_600_000)["lease_seq"].as_u64().unwrap();
    gate.stop();
    fs::remove_dir_all(site.data().join("table")).unwrap();
    copy_folder(&older, &site.data().join("table"));
    let gate = site.serve();
    assert!(site.log().contains("NOT THE NEWEST THAT ITS FOLDER HAS HAD"), "{}", site.log());
    assert!(acquire(&mut gate.api(), "o0", "c", 3_600_000)["lease_seq"].as_u64().unwrap() > seq);
    gate.stop();
    assert_eq!(fence(&site.serve(), "never"), 2 * STRIDE, "the next start is an ordinary one");
}

#[test]
fn an_older_table_of_the_same_incarnation_is_not_the_newest_either() {
    let (site, _) = killed_with_leases(1);
    let older = site.folder.path().join("older");
    copy_folder(&site.data().join("table"), &older);
    for is_clean in [true, false] {
        let gate = site.serve();
        gate.api().post("/v1/objects/o0/revoke", &serde_json::json!({ "reason": "next" })).expect(200);
        let seq = acquire(&mut gate.api(), "o0", "b", 3_600_000)["lease_seq"].as_u64().unwrap();
        if is_clean {
            gate.stop();
        } else {
            gate.kill();
        }
        fs::remove_dir_all(site.data().join("table")).unwrap();
        copy_folder(&older, &site.data().join("table"));
        let gate = site.serve();
        assert!(site.log().contains("NOT THE NEWEST THAT ITS FOLDER HAS HAD"), "{}", site.log());
        assert!(acquire(&mut gate.api(), "o0", "c", 3_600_000)["lease_seq"].as_u64().unwrap() > seq);
        let floor = fence(&gate, "never");
        gate.stop();
        let gate = site.serve();
        assert_eq!(fence(&gate, "never"), floor, "the next start is an ordinary one");
        gate.stop();
        // The run that has begun since is a separate incarnation, and its copy belongs to that.
        fs::remove_dir_all(&older).unwrap();
        copy_folder(&site.data().join("table"), &older);
    }
}

/// The second restore sees a folder without a table, since the first has set it aside; then the first ends.
#[test]
fn of_two_restores_at_once_the_second_changes_nothing() {
    let (site, _) = killed_with_leases(1);
    let (backup, data, aside) = (back_up(&site), site.data(), site.folder.path().join("aside"));
    let (lock, key) = (data.join("lock"), fs::read(data.join("key")).unwrap());
    fs::rename(data.join("table"), &aside).unwrap();
    // A process that opens this file to lock it waits until a reader opens it.
    fs::remove_file(&lock).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &lock, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let opens = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&opens, data.parent().unwrap(), inotify::WatchFlags::OPEN).unwrap();
    let second = {
        let (backup, data) = (backup.clone(), data.clone());
        std::thread::spawn(move || restore_here(&backup, &data, How::default(), Clock::machine().now()))
    };
    // The folder's own name is synced right before its lock is opened.
    until("it is about to take the lock", || rustix::io::read(&opens, &mut [0; 4_096]).is_ok_and(|size| size > 0));
    fs::rename(&aside, data.join("table")).unwrap();
    let reader = rustix::fs::open(&lock, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
    let refused = second.join().unwrap();
    assert!(matches!(refused, Err(BackupFault::TableExists(_))), "{refused:?}");
    assert_eq!(fs::read(data.join("key")).unwrap(), key);
    drop(reader);
    fs::remove_file(&lock).unwrap();
    site.serve().stop();
}

#[test]
fn an_epoch_that_does_not_read_refuses_to_start_and_its_remedy_works() {
    let (site, _) = killed_with_leases(2);
    flip(&site.data().join("epoch"), 0);
    refuses_to_start(&site, "--above N");
    let backup = back_up(&site);
    let refused = restore(&site, &backup, &["--replace"]);
    assert!(refused.status.code() == Some(2) && stderr(&refused).contains("--above"), "{refused:?}");
    assert!(restore(&site, &backup, &["--replace", "--above", "5"]).status.success());
    assert!(fence(&site.serve(), "o1") > STRIDE);
}

#[test]
fn no_new_table_is_made_beside_the_remains_of_another() {
    for remains in ["table.replaced-1", "table.restoring", "key.restoring", "epoch", "key"] {
        let site = Site::new();
        fs::create_dir(site.data()).unwrap();
        fs::write(site.data().join(remains), "").unwrap();
        for creates in ["", "create = true"] {
            site.configure("");
            let text = fs::read_to_string(site.config()).unwrap();
            fs::write(site.config(), text.replace("[table]", &format!("[table]\n{creates}"))).unwrap();
            refuses_to_start(&site, "fencegate table restore");
        }
        let init = site.run(&["table", "init"]);
        assert_eq!(init.status.code(), Some(2), "{remains}");
        assert!(stderr(&init).contains("table restore") && !stderr(&init).contains("remove"), "{}", stderr(&init));
        assert!(!site.data().join("table").exists() && !site.data().join("table.new").exists());
    }
}

#[test]
fn a_table_that_does_not_open_can_be_replaced() {
    let (site, _) = killed_with_leases(2);
    let backup = site.folder.path().join("backup");
    let mut command = Command::new(binary());
    command.args(["table", "backup", "--config"]).arg(site.config()).arg("--to").arg(&backup);
    assert!(command.ends().status.success());
    fs::write(site.data().join("table/CURRENT"), "MANIFEST-999999\n").unwrap();
    let restore = |from: &Path| {
        let mut command = Command::new(binary());
        command.args(["table", "restore", "--replace", "--config"]).arg(site.config()).arg("--from").arg(from);
        command.ends()
    };
    let restored = restore(&backup);
    assert!(restored.status.success(), "{restored:?}");
    let gate = site.serve();
    assert_eq!(fence(&gate, "o1"), fence(&gate, "never") + 1);
    // A restore is refused while a gate runs.
    let refused = restore(&backup);
    assert!(refused.status.code() == Some(2) && stderr(&refused).contains("in use"), "{refused:?}");
    // A table folder that lost its very beginning is set aside like any other.
    gate.stop();
    fs::remove_file(site.data().join("table/CURRENT")).unwrap();
    let restored = restore(&backup);
    assert!(restored.status.success(), "{restored:?}");
    site.serve().stop();
}
