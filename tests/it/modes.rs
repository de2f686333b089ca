//! The table's files and its copies are readable by the gate's own user only.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
};

use super::support::{
    gate::acquire,
    power::all_files,
    process::{Site, binary},
    run::Ends,
};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

/// The program, started with the usual umask, under which all users may read new files.
fn with_usual_umask() -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg("umask 022; exec \"$0\" \"$@\"").arg(binary());
    command
}

fn folders(data: &Path) -> Vec<PathBuf> {
    let inside = fs::read_dir(data).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    [data.to_owned()].into_iter().chain(inside).collect()
}

/// Checks that only the owner may use the files in a folder.
#[track_caller]
fn is_closed(folder: &Path) {
    let open: Vec<_> = all_files(folder).into_iter().filter(|file| mode(file) != 0o600).collect();
    assert!(open.is_empty(), "{open:?}");
    for folder in folders(folder) {
        assert_eq!(mode(&folder), 0o700, "{}", folder.display());
    }
}

#[test]
fn a_table_and_its_copies_are_the_gates_alone() {
    let site = Site::new();
    let run = |arguments: &[&str]| {
        let done = with_usual_umask().args(arguments).arg("--config").arg(site.config()).ends();
        assert!(done.status.success(), "{done:?}");
    };
    run(&["table", "init"]);
    is_closed(&site.data());
    let gate = site.serve_with(with_usual_umask());
    acquire(&mut gate.api(), "users", "a", 60_000);
    let copies: Vec<_> = ["running", "stopped"].map(|name| site.folder.path().join(name)).into();
    let made = serde_json::json!({ "folder": copies[0] });
    gate.api().post("/v1/backups", &made).expect(201);
    gate.stop();
    run(&["table", "backup", "--to", copies[1].to_str().unwrap()]);
    for copy in &copies {
        is_closed(copy);
    }
    is_closed(&site.data());
    // A backup that every user can read, as earlier versions made it, is restored with closed modes. So is the table
    // that it replaces.
    let open = |folder: &Path| {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
        for path in all_files(folder) {
            fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
        }
    };
    let (table, aside) = (site.data().join("table"), site.data().join("table.replaced-1"));
    open(&copies[0]);
    open(&table);
    run(&["table", "restore", "--replace", "--from", copies[0].to_str().unwrap()]);
    let others =
        |folder: &Path| all_files(folder).iter().map(|file| mode(file)).fold(mode(folder), |all, mode| all | mode);
    assert_eq!(others(&aside) & 0o007, 0, "it was set aside, and is open");
    // The modes that earlier versions left.
    open(&aside);
    site.serve_with(with_usual_umask()).stop();
    is_closed(&table);
    assert_eq!(others(&aside) & 0o007, 0, "it was set aside long ago, and is open");
}

#[test]
fn a_table_that_was_open_to_all_is_closed_by_the_next_start_and_the_group_keeps_its_rights() {
    let site = Site::with_table();
    let table = site.data().join("table");
    let set = |folder: u32, file: u32| {
        fs::set_permissions(site.data(), fs::Permissions::from_mode(folder)).unwrap();
        fs::set_permissions(&table, fs::Permissions::from_mode(folder)).unwrap();
        for path in all_files(&table) {
            fs::set_permissions(path, fs::Permissions::from_mode(file)).unwrap();
        }
    };
    set(0o755, 0o644);
    site.serve().stop();
    assert!(site.log().contains("open to all users"), "{}", site.log());
    assert_eq!((mode(&site.data()), mode(&table)), (0o750, 0o750));
    let open: Vec<_> = all_files(&table).into_iter().filter(|file| mode(file) & 0o007 != 0).collect();
    assert!(open.is_empty(), "{open:?}");
    // The modes that Kubernetes sets on a volume with an fsGroup.
    set(0o770, 0o660);
    site.serve().stop();
    assert_eq!((mode(&site.data()), mode(&table)), (0o770, 0o770));
    assert!(all_files(&table).iter().any(|file| mode(file) == 0o660));
}
