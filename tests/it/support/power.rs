//! Power cuts: a process whose disk is watched, so that unsynced data can be thrown away after kill -9.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
};

/// The shim that records what was synced, compiled once.
pub fn shim() -> PathBuf {
    static MADE: Mutex<bool> = Mutex::new(false);
    let mut is_made = MADE.lock().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("synced.so");
    if !*is_made {
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&made).arg(root.join("chaos/shim.c")).arg("-ldl");
        assert!(compiler.status().unwrap().success());
        *is_made = true;
    }
    made
}

/// The shim's record of what was made durable.
pub struct Synced {
    log: PathBuf,
    /// Where the shim keeps files that a rename replaced.
    replaced: PathBuf,
}

impl Synced {
    /// The log is in this folder.
    pub fn new(folder: &Path) -> Self {
        Self { log: folder.join("synced"), replaced: folder.join("replaced") }
    }

    /// Has a command watched. The present contents of these folders count as durable.
    pub fn watch(&self, folders: &[&Path], command: &mut Command) {
        let mut known = String::new();
        for path in folders.iter().flat_map(|folder| all_files(folder)) {
            let size = fs::metadata(&path).unwrap().len();
            known.push_str(&format!("C {0}\nS {size} {0}\nD {1}\n", path.display(), path.parent().unwrap().display()));
        }
        fs::write(&self.log, known).unwrap();
        let _ = fs::remove_dir_all(&self.replaced);
        fs::create_dir(&self.replaced).unwrap();
        command.env("LD_PRELOAD", shim()).env("CHAOS_SYNCED", &self.log).env("CHAOS_REPLACED", &self.replaced);
    }

    /// Throws away everything in these folders that was not synced: bytes after a file's last sync, names of new files,
    /// and changes of names. Returns how many files and names lost something.
    pub fn cut(&self, folders: &[&Path]) -> usize {
        let mut disk = Disk::default();
        fs::read_to_string(&self.log).unwrap().lines().for_each(|line| disk.read(line));
        let mut lost = disk.undo_renames();
        for path in folders.iter().flat_map(|folder| all_files(folder)) {
            // RocksDB never syncs its info log, so losing it proves nothing.
            let counts = usize::from(path.file_name().is_some_and(|name| !name.to_string_lossy().starts_with("LOG")));
            let File { synced, is_named } = disk.files.get(&path).copied().unwrap_or_default();
            let size = fs::metadata(&path).unwrap().len();
            if !is_named {
                fs::remove_file(&path).unwrap();
                lost += counts;
            } else if size > synced {
                fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(synced).unwrap();
                lost += counts;
            }
        }
        lost
    }
}

/// The durable part of a file.
#[derive(Clone, Copy, Default)]
struct File {
    /// The length up to which it was synced.
    synced: u64,
    is_named: bool,
}

/// A rename whose folder was not synced since.
struct Rename {
    from: PathBuf,
    to: PathBuf,
    /// The file that had the name before, and where the shim keeps it.
    replaced: Option<(PathBuf, File)>,
}

/// The files by the names that the process saw last.
#[derive(Default)]
struct Disk {
    files: HashMap<PathBuf, File>,
    renames: Vec<Rename>,
}

impl Disk {
    /// Applies a line of the shim's log.
    fn read(&mut self, line: &str) {
        let (what, rest) = line.split_once(' ').unwrap();
        match what {
            "C" => drop(self.files.entry(rest.into()).or_default()),
            "T" => self.files.entry(rest.into()).or_default().synced = 0,
            "S" => {
                let (size, path) = rest.split_once(' ').unwrap();
                self.files.entry(path.into()).or_default().synced = size.parse().unwrap();
            }
            "D" => {
                let is_inside = |path: &Path| path.parent() == Some(Path::new(rest));
                self.files.iter_mut().filter(|(path, _)| is_inside(path)).for_each(|(_, file)| file.is_named = true);
                self.renames.retain(|rename| !is_inside(&rename.to));
            }
            "L" => {
                let (from, to) = rest.split_once('\t').unwrap();
                let synced = self.files.get(Path::new(from)).map_or(0, |file| file.synced);
                self.files.insert(to.into(), File { synced, is_named: false });
            }
            "R" => {
                let mut words = rest.split('\t').map(PathBuf::from);
                let (from, to) = (words.next().unwrap(), words.next().unwrap());
                let replaced = words.next().and_then(|kept| Some((kept, self.files.remove(&to)?)));
                self.move_names(&from, &to);
                self.renames.push(Rename { from, to, replaced });
            }
            _ => panic!("{line}"),
        }
    }

    /// Renames a file or folder, with all its contents.
    fn move_names(&mut self, from: &Path, to: &Path) {
        let moved = |path: &Path| match path.strip_prefix(from).ok()? {
            itself if itself.as_os_str().is_empty() => Some(to.to_owned()),
            within => Some(to.join(within)),
        };
        let names: Vec<_> = self.files.keys().filter(|path| path.starts_with(from)).cloned().collect();
        for path in names {
            let file = self.files.remove(&path).unwrap();
            self.files.insert(moved(&path).unwrap(), file);
        }
        for rename in &mut self.renames {
            rename.to = moved(&rename.to).unwrap_or_else(|| rename.to.clone());
            // An earlier file that had exactly this name was another file.
            if rename.from != from {
                rename.from = moved(&rename.from).unwrap_or_else(|| rename.from.clone());
            }
        }
    }

    /// Undoes renames that were not synced, the last one first. Returns how many.
    fn undo_renames(&mut self) -> usize {
        let mut undone = 0;
        while let Some(Rename { from, to, replaced }) = self.renames.pop() {
            if to.exists() {
                fs::rename(&to, &from).unwrap();
                self.move_names(&to, &from);
                undone += 1;
            }
            if let Some((kept, file)) = replaced {
                fs::rename(kept, &to).unwrap();
                self.files.insert(to, file);
            }
        }
        undone
    }
}

/// Every file in a folder and those below it.
pub fn all_files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return vec![] };
    let entries = entries.map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { all_files(&path) } else { vec![path] }).collect()
}

/// Copies a folder with all its contents.
pub fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    fs::set_permissions(to, fs::metadata(from).unwrap().permissions()).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
