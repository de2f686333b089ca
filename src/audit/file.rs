//! Where the lines go: a file with its rotated ones, or standard error. No other file of this module writes.
//!
//! The file belongs to one process, which holds its lock. FILE.1 is the newest of the rotated files.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use super::{
    chain::{self, Link, Torn},
    files::{folder, rotated, rotated_beside},
};
use crate::{config::AuditSettings, files::sync_parent};

/// The bits of users who are neither the owner nor in the group. Kubernetes sets group bits on volumes.
const OTHER_USERS: u32 = 0o007;
/// How much of a file's end is read to find its last line. Every line is much shorter.
const TAIL_BYTES: u64 = 4 << 20;
/// How the first line of a file begins, also where a crash has torn it.
const BEGINNING: &[u8] = br#"{"n":"#;

/// Where lines go.
pub(super) trait Output: Send {
    /// Opens it, again if it was open.
    ///
    /// # Errors
    /// When no line can be added to it.
    fn open(&mut self) -> io::Result<Found>;

    /// Adds a line, whose end is added too. After an error no part of it is left, as far as that is possible.
    ///
    /// # Errors
    /// When the line is not there.
    fn append(&mut self, line: &[u8]) -> io::Result<()>;

    /// Makes the lines durable.
    ///
    /// # Errors
    /// When that is not known.
    fn sync(&mut self) -> io::Result<()>;
}

/// What an output has in it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Its last whole line.
    pub(super) last: Option<Link>,
    /// What is behind that.
    pub(super) torn: Option<Torn>,
}

/// Standard error. Its chain begins with each start.
pub(super) struct Stderr;

impl Output for Stderr {
    fn open(&mut self) -> io::Result<Found> {
        Ok(Found::default())
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        io::stderr().lock().write_all(&[line, b"\n"].concat())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file and its rotated ones.
pub(super) struct Files {
    path: PathBuf,
    rotate_bytes: u64,
    keep: u32,
    open: Option<Open>,
}

/// The file that lines are added to.
struct Open {
    file: File,
    len: u64,
    /// What is behind the last whole line has no end: the next line must not go on there.
    needs_end: bool,
}

impl Files {
    pub(super) fn new(settings: &AuditSettings) -> Self {
        let AuditSettings { file, rotate_bytes, keep_files, .. } = settings;
        Self { path: file.clone(), rotate_bytes: *rotate_bytes, keep: *keep_files, open: None }
    }

    /// Gives the file the number 1, and each rotated one the next number. The last one is deleted. Then begins a new
    /// file.
    fn rotate(&mut self) -> io::Result<()> {
        self.sync()?;
        self.remove_surplus()?;
        // A number that is free, since a rotation was broken off, is used: nothing behind it has to move.
        let free = (1..self.keep).find(|number| !rotated(&self.path, *number).exists());
        for number in (1..free.unwrap_or(self.keep)).rev() {
            fs::rename(rotated(&self.path, number), rotated(&self.path, number + 1))?;
        }
        fs::rename(&self.path, rotated(&self.path, 1))?;
        let file = File::options().append(true).create_new(true).mode(0o600).open(&self.path)?;
        lock(&file)?;
        sync_parent(&self.path)?;
        self.open = Some(Open { file, len: 0, needs_end: false });
        Ok(())
    }

    /// Deletes what was kept while more files were. The oldest goes first: the rest is one chain at all times.
    fn remove_surplus(&self) -> io::Result<()> {
        let all = rotated_beside(&self.path)?;
        all.into_iter().filter(|(number, _)| *number > self.keep).try_for_each(|(_, path)| fs::remove_file(path))
    }

    /// What there is, where the present file has no whole line, but these bytes. The chain ends in a rotated file, and
    /// what was torn may begin there.
    fn found_before(&self, bytes: &[u8]) -> io::Result<Found> {
        let mut torn = bytes.to_vec();
        for (_, path) in rotated_beside(&self.path)?.into_iter().rev() {
            let mut file = File::open(path)?;
            let len = file.metadata()?.len();
            let before = tail(&mut file, len)?;
            let End { last, whole } = End::of(&before);
            torn = [&before[whole..], &torn].concat();
            if last.is_some() {
                return Ok(Found { last, torn: Torn::of(&torn) });
            }
        }
        Ok(Found { last: None, torn: Torn::of(&torn) })
    }
}

impl Output for Files {
    fn open(&mut self) -> io::Result<Found> {
        // The lock of the file as it was open before, if it is the same one.
        self.open = None;
        create_folder(folder(&self.path))?;
        check(&self.path)?;
        let mut file = File::options().read(true).append(true).create(true).mode(0o600).open(&self.path)?;
        let found = file.metadata()?;
        if !found.is_file() {
            self.open = Some(Open { file, len: 0, needs_end: false });
            return Ok(Found::default());
        }
        lock(&file)?;
        sync_parent(&self.path)?;
        let bytes = tail(&mut file, found.len())?;
        let end = End::of(&bytes);
        let is_foreign = bytes.contains(&b'\n') && !bytes.starts_with(BEGINNING);
        if end.last.is_none() && (is_foreign || found.len() > TAIL_BYTES) {
            let what = "holds lines that are no audit log's; name another file, or move this one away";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let needs_end = bytes.last().is_some_and(|byte| *byte != b'\n');
        self.open = Some(Open { file, len: found.len(), needs_end });
        if end.last.is_none() { self.found_before(&bytes) } else { Ok(end.found(&bytes)) }
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let closed = || io::Error::new(io::ErrorKind::NotConnected, "the file is not open");
        let len = self.open.as_ref().ok_or_else(closed)?.len;
        if len > 0 && len.saturating_add(line.len() as u64 + 1) > self.rotate_bytes {
            self.rotate()?;
        }
        let open = self.open.as_mut().ok_or_else(closed)?;
        let end: &[u8] = if open.needs_end { b"\n" } else { b"" };
        let bytes = [end, line, b"\n"].concat();
        if let Err(error) = open.file.write_all(&bytes) {
            // A part of the line may be there. If it cannot be taken away, the next open finds it.
            let _ = open.file.set_len(open.len);
            return Err(error);
        }
        open.len += bytes.len() as u64;
        open.needs_end = false;
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        match &self.open {
            Some(open) if open.file.metadata()?.is_file() => open.file.sync_data(),
            Some(_) | None => Ok(()),
        }
    }
}

/// The end of a file's chain.
struct End {
    last: Option<Link>,
    /// How many bytes there are up to the end of the last whole line.
    whole: usize,
}

impl End {
    fn of(bytes: &[u8]) -> Self {
        let (mut found, mut at) = (Self { last: None, whole: 0 }, 0);
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            at += piece.len();
            let line = piece.strip_suffix(b"\n").unwrap_or(piece);
            if let Some(chained) = chain::read(line) {
                found = Self { last: Some(Link::of(chained.n, line)), whole: at };
            }
        }
        found
    }

    fn found(self, bytes: &[u8]) -> Found {
        Found { last: self.last, torn: Torn::of(&bytes[self.whole..]) }
    }
}

/// Creates the folder of the log. Its own folder has to be there.
fn create_folder(path: &Path) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let created = DirBuilder::new().mode(0o700).create(path);
    match created {
        Ok(()) => sync_parent(path),
        Err(error) => Err(io::Error::new(error.kind(), format!("its folder cannot be created: {error}"))),
    }
}

/// The last bytes of a file, from the beginning of a line on.
fn tail(file: &mut File, len: u64) -> io::Result<Vec<u8>> {
    let begin = len.saturating_sub(TAIL_BYTES);
    file.seek(SeekFrom::Start(begin))?;
    let mut bytes = vec![];
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    if begin > 0 {
        let first = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
        bytes.drain(..first);
    }
    Ok(bytes)
}

fn lock(file: &File) -> io::Result<()> {
    let used = || io::Error::new(io::ErrorKind::WouldBlock, "another process writes to it");
    file.try_lock().map_err(|error| match error {
        fs::TryLockError::WouldBlock => used(),
        fs::TryLockError::Error(error) => error,
    })
}

/// Whether other users keep off the file and its folder. The folder may be missing: `open` creates it.
///
/// # Errors
/// When they do not, or the folder cannot be created either.
pub(super) fn check(path: &Path) -> io::Result<()> {
    let open = |what: &str, mode: u32, way: &str| {
        let what = format!("{what} is open to all users (mode {:03o}); {way}", mode & 0o777);
        Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
    };
    let own = folder(path);
    let found = match fs::metadata(own) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && folder(own).is_dir() => return Ok(()),
        found => found.map_err(|error| io::Error::new(error.kind(), format!("its folder: {error}")))?,
    };
    if found.mode() & OTHER_USERS != 0 {
        return open("its folder", found.mode(), "give it a folder of its own, and chmod 700 that");
    }
    match fs::metadata(path) {
        // What a device is given is not kept there.
        Ok(found) if found.file_type().is_char_device() => Ok(()),
        Ok(found) if !found.is_file() => Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a file")),
        Ok(found) if found.mode() & OTHER_USERS != 0 => open("it", found.mode(), "chmod 600 it"),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
