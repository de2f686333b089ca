//! Power cuts: a process whose disk is watched, so that what was not synced can be thrown away after kill -9.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
};

/// The shim that writes down what was synced, compiled once.
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

/// What was made durable, as the shim has written it down.
pub struct Synced {
    log: PathBuf,
}

impl Synced {
    /// The log lies in this folder.
    pub fn new(folder: &Path) -> Self {
        Self { log: folder.join("synced") }
    }

    /// Has a command watched. What is there when it begins is durable.
    pub fn watch(&self, data: &Path, command: &mut Command) {
        let mut known = String::new();
        for path in all_files(data) {
            let size = fs::metadata(&path).unwrap().len();
            known.push_str(&format!("C {0}\nS {size} {0}\nD {1}\n", path.display(), path.parent().unwrap().display()));
        }
        fs::write(&self.log, known).unwrap();
        command.env("LD_PRELOAD", shim()).env("CHAOS_SYNCED", &self.log);
    }

    /// Which files are durable, and up to where.
    fn durable(&self) -> HashMap<PathBuf, (u64, bool)> {
        let mut files: HashMap<PathBuf, (u64, bool)> = HashMap::new();
        for line in fs::read_to_string(&self.log).unwrap().lines() {
            let (what, rest) = line.split_once(' ').unwrap();
            match what {
                "C" => drop(files.entry(rest.into()).or_default()),
                "S" => {
                    let (size, path) = rest.split_once(' ').unwrap();
                    files.entry(path.into()).or_default().0 = size.parse().unwrap();
                }
                "D" => files
                    .iter_mut()
                    .filter(|(path, _)| path.parent() == Some(Path::new(rest)))
                    .for_each(|(_, file)| file.1 = true),
                "R" => {
                    let (from, to) = rest.split_once('\t').unwrap();
                    let inside: Vec<_> = files.keys().filter(|path| path.starts_with(from)).cloned().collect();
                    for path in inside {
                        let (size, is_named) = files.remove(&path).unwrap();
                        match path.strip_prefix(from).unwrap() {
                            itself if itself.as_os_str().is_empty() => files.insert(to.into(), (size, true)),
                            within => files.insert(Path::new(to).join(within), (size, is_named)),
                        };
                    }
                    files.entry(to.into()).or_insert((0, true));
                    // Names change in their order: where this one is durable, those before it in the folder are.
                    let folder = Path::new(to).parent();
                    let beside = files.iter_mut().filter(|(path, _)| path.parent() == folder);
                    beside.for_each(|(_, file)| file.1 = true);
                }
                _ => panic!("{line}"),
            }
        }
        files
    }

    /// Throws away what was not synced: bytes behind a file's last sync, and files whose names were not.
    pub fn cut(&self, data: &Path) -> usize {
        let files = self.durable();
        let mut lost = 0;
        for path in all_files(data) {
            // RocksDB never syncs its own diary, so losing that shows nothing.
            let counts = usize::from(path.file_name().is_some_and(|name| !name.to_string_lossy().starts_with("LOG")));
            let (synced, is_named) = files.get(&path).copied().unwrap_or_default();
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

/// Every file in a folder and those below it.
pub fn all_files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return vec![] };
    let entries = entries.map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { all_files(&path) } else { vec![path] }).collect()
}

/// Copies a folder with all that is in it.
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
