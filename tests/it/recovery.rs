//! Damaged, lost and foreign tables: each ends as docs/specification.md (S9) says.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use super::support::{
    gate::{acquire, renewal, text, wanted},
    power::copy_folder,
    process::{Gate, Site, binary, stderr, stdout},
    run::{Ends, finish},
};

pub const STRIDE: u64 = 1 << 32;

/// Files of the table whose name ends like this, oldest first.
fn files(site: &Site, ending: &str) -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(site.data().join("table"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(ending))
        .collect();
    found.sort();
    found
}

pub fn fence(gate: &Gate, object: &str) -> u64 {
    gate.api().get(&format!("/v1/objects/{object}")).expect(200)["fence"].as_u64().unwrap()
}

pub fn flip(path: &Path, place: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[place] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

/// A table with `objects` leases in its log, its gate killed.
pub fn killed_with_leases(objects: usize) -> (Site, Vec<Value>) {
    let site = Site::with_table();
    let gate = site.serve();
    let mut api = gate.api();
    let leases = (0..objects).map(|n| acquire(&mut api, &format!("o{n}"), "a", 3_600_000)).collect();
    gate.kill();
    (site, leases)
}

pub fn refuses_to_start(site: &Site, why: &str) {
    let mut command = Command::new(binary());
    command.arg("serve").arg("--config").arg(site.config());
    let output = finish(&format!("a gate that must not start ({why})"), &mut command);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stderr(&output).contains(why), "{why} is not in {}", stderr(&output));
}

#[test]
fn a_lost_tail_starts_a_new_incarnation_that_voids_every_lease() {
    let (site, leases) = killed_with_leases(20);
    let log = files(&site, ".log").pop().unwrap();
    let whole = fs::metadata(&log).unwrap().len();
    fs::OpenOptions::new().write(true).open(&log).unwrap().set_len(whole - 7).unwrap();
    let gate = site.serve();
    assert!(site.log().contains("THE END OF THE FENCE TABLE'S LOG WAS LOST"), "{}", site.log());
    let metrics = String::from_utf8(gate.ops().get("/metrics").body).unwrap();
    assert!(metrics.contains("fencegate_table_incarnation 1") && metrics.contains("fencegate_table_unclean_start 1"));
    // The last grant was in the lost tail; its object's floor still rises.
    assert_eq!((fence(&gate, "o0"), fence(&gate, "o19"), fence(&gate, "never")), (STRIDE + 1, STRIDE, STRIDE));
    let (renew, body) = renewal(&leases[0], 1_000);
    gate.api().post(&renew, &body).refusal(409, "LEASE_FENCED");
    let (lost, body) = renewal(&leases[19], 1_000);
    gate.api().post(&lost, &body).refusal(404, "LEASE_NOT_FOUND");
    let new = acquire(&mut gate.api(), "o19", "b", 60_000);
    assert_eq!(new["lease_seq"], STRIDE + 1);
    gate.stop();
    // The next start is an ordinary one.
    let gate = site.serve();
    assert_eq!(fence(&gate, "o19"), STRIDE + 1);
    let shown = gate.api().get(&format!("/v1/leases/{}", text(&leases[0], "lease_id"))).expect(200);
    assert_eq!(text(&shown, "state"), "fenced");
}

pub fn cut_the_tail(site: &Site) {
    let log = files(site, ".log").pop().unwrap();
    let whole = fs::metadata(&log).unwrap().len();
    fs::OpenOptions::new().write(true).open(&log).unwrap().set_len(whole - 7).unwrap();
}

#[test]
fn a_lost_tail_is_not_forgotten_whatever_command_opens_the_table_first() {
    // Opening the table repairs the log, so the loss must be remembered until a gate has raised the floors.
    let (site, _) = killed_with_leases(5);
    cut_the_tail(&site);
    let mut backup = Command::new(binary());
    backup.args(["table", "backup", "--config"]).arg(site.config()).arg("--to").arg(site.folder.path().join("backup"));
    assert!(backup.ends().status.success());
    assert_eq!(fence(&site.serve(), "o4"), STRIDE);

    let (site, _) = killed_with_leases(5);
    cut_the_tail(&site);
    let key = site.data().join("key");
    let own = fs::read(&key).unwrap();
    fs::write(&key, [9; 32]).unwrap();
    refuses_to_start(&site, "belongs to another table");
    fs::write(&key, own).unwrap();
    assert_eq!(fence(&site.serve(), "o4"), STRIDE);
}

#[test]
fn zeros_in_the_log_are_never_passed_over_in_silence() {
    // RocksDB reads zeros as unused space, in every mode.
    let (site, _) = killed_with_leases(6);
    let log = files(&site, ".log").pop().unwrap();
    let whole = fs::read(&log).unwrap();
    let mut starts = vec![];
    let mut at = 0;
    while at + 7 <= whole.len() {
        starts.push(at);
        at += 7 + usize::from(u16::from_le_bytes([whole[at + 4], whole[at + 5]]));
    }
    let mut holed = whole.clone();
    holed[starts[2]..starts[2] + 7].fill(0);
    fs::write(&log, holed).unwrap();
    refuses_to_start(&site, "zeros");
    let mut tail = whole.clone();
    tail[starts[starts.len() - 2]..].fill(0);
    fs::write(&log, tail).unwrap();
    let gate = site.serve();
    assert_eq!((fence(&gate, "o0"), fence(&gate, "never")), (STRIDE + 1, STRIDE));
}

#[test]
fn a_tail_lost_twice_never_uses_an_incarnation_again() {
    let (site, _) = killed_with_leases(3);
    for incarnation in 1..=3 {
        let log = files(&site, ".log").pop().unwrap();
        let whole = fs::metadata(&log).unwrap().len();
        fs::OpenOptions::new().write(true).open(&log).unwrap().set_len(whole - 3).unwrap();
        let gate = site.serve();
        let lease = acquire(&mut gate.api(), "o0", "a", 3_600_000);
        assert!(lease["lease_seq"].as_u64().unwrap() > incarnation * STRIDE);
        gate.kill();
    }
}

#[test]
fn a_flipped_bit_in_the_log_is_never_passed_over_in_silence() {
    // For every bit, the gate either refuses to start or starts a new incarnation: it never ignores the fault.
    let (site, _) = killed_with_leases(40);
    let log = files(&site, ".log").pop().unwrap();
    let whole = fs::read(&log).unwrap();
    let (mut refused, mut raised) = (0, 0);
    let copy = tempfile::tempdir().unwrap();
    copy_folder(&site.data(), &copy.path().join("data"));
    for place in (0..whole.len()).step_by(whole.len() / 24) {
        fs::remove_dir_all(site.data()).unwrap();
        copy_folder(&copy.path().join("data"), &site.data());
        flip(&log, place);
        let mut command = Command::new(binary());
        command.arg("serve").arg("--config").arg(site.config());
        match site.spawn(command) {
            Err((status, said)) => {
                assert_eq!(status.code(), Some(2));
                assert!(said.contains("corrupt"), "{said}");
                refused += 1;
            }
            Ok(gate) => {
                assert_eq!(fence(&gate, "never"), STRIDE, "a flip at {place} of {} went unnoticed", whole.len());
                raised += 1;
            }
        }
    }
    assert!(refused > 0, "{refused} {raised}");
}

#[test]
fn a_flipped_bit_in_a_table_file_refuses_its_objects_and_no_others() {
    let site = Site::with_table();
    let gate = site.serve();
    let mut api = gate.api();
    // Long names, so that the rows need several blocks.
    let name = |n: usize| format!("{n:03}-{}", "x".repeat(400));
    for n in 0..100 {
        acquire(&mut api, &name(n), "a", 3_600_000);
    }
    gate.kill();
    site.serve().kill();
    // The log was moved into a table file when that gate started.
    let table = files(&site, ".sst").into_iter().max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    // Records sort after all other rows, so this part of the file has only records.
    let size = usize::try_from(fs::metadata(&table).unwrap().len()).unwrap();
    flip(&table, size * 8 / 10);
    let gate = site.serve();
    let mut api = gate.api();
    let mut refused = 0;
    for n in 0..100 {
        let answer = api.get(&format!("/v1/objects/{}", name(n)));
        if answer.status == 503 {
            answer.refusal(503, "TABLE_UNAVAILABLE");
            api.post("/v1/leases", &wanted(&name(n), "b", 1_000)).refusal(503, "TABLE_UNAVAILABLE");
            refused += 1;
        } else {
            assert_eq!(answer.expect(200)["fence"], 1);
        }
    }
    assert!((1..100).contains(&refused), "{refused} objects were refused");
    acquire(&mut api, "unrelated", "b", 1_000);
    gate.stop();
    let verified = site.run(&["table", "verify"]);
    assert_eq!(verified.status.code(), Some(1));
    assert!(stdout(&verified).contains("corrupt"), "{verified:?}");
}

#[test]
fn a_damaged_manifest_refuses_to_start() {
    let (site, _) = killed_with_leases(3);
    let manifest = fs::read_dir(site.data().join("table"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.file_name().unwrap().to_string_lossy().starts_with("MANIFEST"))
        .unwrap();
    flip(&manifest, 20);
    refuses_to_start(&site, "corrupt");
}

#[test]
fn a_missing_short_open_or_foreign_key_refuses_to_start() {
    use std::os::unix::fs::PermissionsExt;
    let (site, leases) = killed_with_leases(1);
    let key = site.data().join("key");
    let own = fs::read(&key).unwrap();
    fs::remove_file(&key).unwrap();
    refuses_to_start(&site, "is missing");
    fs::write(&key, &own[..31]).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    refuses_to_start(&site, "has 31 bytes instead of 32");
    fs::write(&key, [7; 32]).unwrap();
    refuses_to_start(&site, "belongs to another table");
    fs::write(&key, &own).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    refuses_to_start(&site, "open to all users");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let gate = site.serve();
    let (renew, body) = renewal(&leases[0], 60_000);
    gate.api().post(&renew, &body).expect(200);
}

#[test]
fn a_key_without_its_table_is_not_taken_for_a_new_installation() {
    let (site, _) = killed_with_leases(1);
    fs::remove_dir_all(site.data().join("table")).unwrap();
    refuses_to_start(&site, "its table is lost");
    let init = site.run(&["table", "init"]);
    assert_eq!(init.status.code(), Some(2));
    assert!(stderr(&init).contains("its table is lost"), "{}", stderr(&init));
}

#[test]
fn a_stopped_table_is_backed_up_without_a_gate() {
    let (site, _) = killed_with_leases(2);
    let backup = site.folder.path().join("backup");
    let made =
        Command::new(binary()).args(["table", "backup", "--config"]).arg(site.config()).arg("--to").arg(&backup).ends();
    assert!(made.status.success() && backup.join("CURRENT").exists(), "{made:?}");
}

#[test]
fn starting_reads_as_little_of_a_large_table_as_of_a_small_one() {
    use fencegate::{
        clock::Clock,
        fence::{Fence, Incarnation, ObjectId, Record},
        route::RouteFingerprint,
        table::{Batch, codec, data_folder, open, rocks::RocksTable},
    };
    let reads_at = |objects: u64| {
        let folder = tempfile::tempdir().unwrap();
        open::init(folder.path()).unwrap();
        let table = RocksTable::open(&data_folder::table_folder(folder.path())).unwrap().0;
        for chunk in (0..objects).collect::<Vec<_>>().chunks(10_000) {
            let mut batch = Batch::default();
            for n in chunk {
                let object = ObjectId::new(&format!("object-{n}")).unwrap();
                let mut record = Record::unknown(object.clone(), Incarnation::default());
                record.fence = Fence::new(1);
                batch.put(&codec::Key::Record(object), codec::encode_record(&record, 1));
            }
            fencegate::table::Table::commit(&table, batch).unwrap();
        }
        drop(table);
        let begun = open::begin(folder.path(), false, &Clock::machine(), RouteFingerprint::default()).unwrap();
        begun.table.reads()
    };
    let (small, large) = (reads_at(10), reads_at(100_000));
    assert_eq!((small, large), (2, 2), "meta and the mark");
}
