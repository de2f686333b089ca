//! Checks the chain over files, the oldest first.
//!
//! A line that was removed, changed, inserted or moved breaks the chain. Lines that are missing at the front show by
//! the first number. Lines that are missing at the end, and a change of the last line, do not show: the last number and
//! hash have to be compared with what is known from elsewhere.

use std::{
    cmp::Reverse,
    fs::{self, File, Metadata},
    io::{self, BufRead, BufReader},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::{
    chain::{self, Chained, Link, Torn},
    files::{number_beside, rotated_beside, rotated_number},
};

/// How often the files are opened again, where a gate has rotated them in between.
const OPENS_MAX: usize = 10;

/// What is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    pub files: usize,
    pub lines: u64,
    /// How often bytes were torn. A line says so each time.
    pub torn: u64,
    /// The bytes behind the last line, which have no end: a gate is writing them, or has stopped while it did.
    pub unfinished: u64,
    /// The number of the first line; `None`: there is no line.
    pub begins: Option<u64>,
    /// The last line.
    pub last: Link,
}

/// The first break of the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    pub file: PathBuf,
    /// The line in the file, counted from 1.
    pub line: u64,
    pub what: String,
}

impl Broken {
    fn unreadable(path: &Path, error: &io::Error) -> Self {
        Self { file: path.to_owned(), line: 0, what: format!("cannot be read: {error}") }
    }
}

/// What has been read so far.
#[derive(Default)]
struct Walk {
    last: Option<Link>,
    begins: Option<u64>,
    lines: u64,
    torn: u64,
    /// Bytes that are no whole line. They may go on in the next file.
    rest: Vec<u8>,
    /// Where they begin.
    rest_at: (PathBuf, u64),
}

/// The files in the order of their lines. Of the present file alone, its rotated files are found beside it.
///
/// # Errors
/// When its folder cannot be listed.
pub fn in_order(files: &[PathBuf]) -> Result<Vec<PathBuf>, Broken> {
    let mut all = files.to_vec();
    if let [live] = files {
        let found = listed(live).map_err(|error| Broken::unreadable(live, &error))?;
        all.extend(found.into_iter().map(|(_, path)| path));
    }
    // A file with rotated ones of its own is a present one, whatever its name ends with.
    let is_present = |path: &Path| files.len() == 1 && path == files[0] || has_rotated(path, files);
    // The highest number is the oldest. Present files are the newest, in the order that was given.
    all.sort_by_cached_key(|path| Reverse(if is_present(path) { 0 } else { rotated_number(path).unwrap_or(0) }));
    Ok(all)
}

/// The rotated files. They are listed again while a gate rotates them: a list may miss a file that gets another name.
fn listed(live: &Path) -> io::Result<Vec<(u32, PathBuf)>> {
    let mut found = rotated_beside(live)?;
    for _ in 1..OPENS_MAX {
        let again = rotated_beside(live)?;
        if again == found {
            break;
        }
        found = again;
    }
    Ok(found)
}

/// Whether one of these is a rotated file of this one.
fn has_rotated(path: &Path, files: &[PathBuf]) -> bool {
    files.iter().any(|other| number_beside(path, other).is_some())
}

/// Checks these files, the oldest first.
///
/// # Errors
/// With the first break.
pub fn verify(files: &[PathBuf]) -> Result<Verified, Broken> {
    let mut walk = Walk::default();
    for (path, file) in files.iter().zip(open_all(files)?) {
        walk.file(path, &mut BufReader::new(file))?;
    }
    walk.verified(files.len())
}

/// Opens all files before one is read: a gate may rotate them meanwhile. They are opened again if it has.
fn open_all(files: &[PathBuf]) -> Result<Vec<File>, Broken> {
    let mut opened = open_each(files);
    for _ in 1..OPENS_MAX {
        if opened.as_ref().is_ok_and(|opened| are_in_place(files, opened)) {
            break;
        }
        opened = open_each(files);
    }
    opened
}

fn open_each(files: &[PathBuf]) -> Result<Vec<File>, Broken> {
    files.iter().map(|path| open(path)).collect()
}

fn open(path: &Path) -> Result<File, Broken> {
    if fs::metadata(path).is_ok_and(|found| found.is_dir()) {
        return Err(Broken { file: path.to_owned(), line: 0, what: "is a folder".to_owned() });
    }
    File::open(path).map_err(|error| Broken::unreadable(path, &error))
}

/// Whether each file still has its name.
fn are_in_place(files: &[PathBuf], opened: &[File]) -> bool {
    let id = |found: io::Result<Metadata>| found.ok().map(|found| (found.dev(), found.ino()));
    let is_same = |(path, file): (&PathBuf, &File)| id(fs::metadata(path)) == id(file.metadata());
    files.iter().zip(opened).all(is_same)
}

impl Walk {
    /// Checks one file.
    fn file(&mut self, path: &Path, file: &mut impl BufRead) -> Result<(), Broken> {
        let (mut number, mut bytes) = (0, vec![]);
        loop {
            bytes.clear();
            number += 1;
            match file.read_until(b'\n', &mut bytes) {
                Ok(0) => return Ok(()),
                Ok(_) => self.line((path, number), &bytes)?,
                Err(error) => return Err(Broken { line: number, ..Broken::unreadable(path, &error) }),
            }
        }
    }

    /// What all files together say.
    fn verified(self, files: usize) -> Result<Verified, Broken> {
        if self.rest.contains(&b'\n') {
            let what = "is not a whole line, and no line says that it was torn (a gate says so when it starts again)";
            return Err(self.broken_rest(what));
        }
        let Self { last, begins, lines, torn, rest, .. } = self;
        let last = last.unwrap_or(Link::START);
        Ok(Verified { files, lines, torn, unfinished: rest.len() as u64, begins, last })
    }

    fn broken_rest(&self, what: &str) -> Broken {
        let (file, line) = self.rest_at.clone();
        Broken { file, line, what: what.to_owned() }
    }

    fn line(&mut self, (path, number): (&Path, u64), bytes: &[u8]) -> Result<(), Broken> {
        let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let Some(chained) = chain::read(line) else {
            if self.rest.is_empty() {
                self.rest_at = (path.to_owned(), number);
            }
            self.rest.extend_from_slice(bytes);
            return Ok(());
        };
        self.rest(&chained)?;
        self.follows(&chained).map_err(|what| Broken { file: path.to_owned(), line: number, what })?;
        self.begins.get_or_insert(chained.n);
        self.last = Some(Link::of(chained.n, line));
        self.lines += 1;
        Ok(())
    }

    /// Whether this line says what the bytes before it are.
    fn rest(&mut self, line: &Chained) -> Result<(), Broken> {
        if self.rest.is_empty() {
            return Ok(());
        }
        if !Torn::is_noted_by(&self.rest, line) {
            return Err(self.broken_rest("is not a line of an audit log, and was not torn by a crash"));
        }
        self.rest.clear();
        self.torn += 1;
        Ok(())
    }

    fn follows(&self, line: &Chained) -> Result<(), String> {
        let last = match self.last {
            Some(last) => last,
            None if line.n == 1 => Link::START,
            None => return Ok(()),
        };
        if last.is_before(line) {
            return Ok(());
        }
        if line.n == last.n.saturating_add(1) {
            return Err(format!("does not go on from line n={}: one of the two was changed", last.n));
        }
        Err(format!("has n={}, behind n={}: lines were removed, inserted or moved", line.n, last.n))
    }
}
