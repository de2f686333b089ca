//! A value made from files, and made again when they have changed: the files are checked each time the value is
//! needed.
//!
//! This needs no watch and no timer: a check costs one stat(2) for each file, and a certificate is needed once per
//! connection, a file of bearer tokens once per call. Files that are replaced one after the other do not match for a moment; until they do, the last good
//! value is used.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use crate::clock::Stopwatch;

/// How soon a file that could not be used is read again, if its mark stays: another file that it names may have changed.
const TRY_AGAIN_S: f64 = 1.0;

/// The wrong key of the settings, and what is wrong with it; never the text of a file.
pub type Wrong = (&'static str, String);

/// Distinguishes a file from its earlier version: Kubernetes swaps a link, other programs write into the file.
type Mark = (u64, u64, u64, i64, i64);

fn mark(path: &Path) -> Option<Mark> {
    let it = fs::metadata(path).ok()?;
    Some((it.dev(), it.ino(), it.size(), it.mtime(), it.mtime_nsec()))
}

/// A value made from files.
pub struct Renewed<T> {
    /// What the files hold, for the log.
    what: &'static str,
    paths: Vec<PathBuf>,
    make: Box<dyn Fn() -> Result<T, Wrong> + Send + Sync>,
    last: Mutex<Last<T>>,
}

struct Last<T> {
    made: Arc<T>,
    /// The marks of the files that the value was made from.
    marks: Vec<Option<Mark>>,
    /// What is wrong with the newer files, and since when; logged once.
    fault: Option<(Wrong, Vec<Option<Mark>>, Stopwatch)>,
}

impl<T> Last<T> {
    /// Whether these files were read a moment ago, and could not be used.
    fn was_just_refused(&self, marks: &[Option<Mark>]) -> bool {
        self.fault.as_ref().is_some_and(|(_, faulty, since)| faulty == marks && since.seconds() < TRY_AGAIN_S)
    }
}

impl<T> Renewed<T> {
    /// Makes the value for the first time. `what` the files hold is for the log.
    ///
    /// # Errors
    /// When the files cannot be used.
    pub fn new(
        what: &'static str,
        paths: Vec<PathBuf>,
        make: impl Fn() -> Result<T, Wrong> + Send + Sync + 'static,
    ) -> Result<Self, Wrong> {
        // The marks are taken before the files are read, so a change between the two causes another read.
        let marks = paths.iter().map(|path| mark(path)).collect();
        let last = Mutex::new(Last { made: Arc::new(make()?), marks, fault: None });
        Ok(Self { what, paths, make: Box::new(make), last })
    }

    /// The value from the present files.
    pub fn get(&self) -> Arc<T> {
        let marks: Vec<Option<Mark>> = self.paths.iter().map(|path| mark(path)).collect();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if marks != last.marks && !last.was_just_refused(&marks) {
            match (self.make)() {
                Ok(made) => {
                    tracing::info!(files = ?self.paths, "{} have changed, and were read again", self.what);
                    *last = Last { made: Arc::new(made), marks, fault: None };
                }
                // A later call tries again.
                Err(wrong) => {
                    if last.fault.as_ref().is_none_or(|(before, ..)| *before != wrong) {
                        let (key, what) = &wrong;
                        tracing::warn!(
                            key,
                            what,
                            "{} have changed and cannot be used; the last usable ones stay in use",
                            self.what
                        );
                    }
                    last.fault = Some((wrong, marks, Stopwatch::start()));
                }
            }
        }
        Arc::clone(&last.made)
    }
}
