//! What is made of files, and made anew when they have changed: whoever needs it has them looked at first.
//!
//! No watch and no timer: a look costs a stat(2) for each file, and a certificate is needed once per connection. Files
//! that are exchanged one after the other do not go together for a moment; until they do, what was made last is used.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

/// Which key of the settings is wrong, and what is; never what is in a file.
pub(super) type Wrong = (&'static str, String);

/// What tells a file from the one that was there before: Kubernetes swaps a link, others write into the file.
type Mark = (u64, u64, u64, i64, i64);

fn mark(path: &Path) -> Option<Mark> {
    let it = fs::metadata(path).ok()?;
    Some((it.dev(), it.ino(), it.size(), it.mtime(), it.mtime_nsec()))
}

/// Something that is made of files.
pub(super) struct Renewed<T> {
    paths: Vec<PathBuf>,
    make: Box<dyn Fn() -> Result<T, Wrong> + Send + Sync>,
    last: Mutex<Last<T>>,
}

struct Last<T> {
    made: Arc<T>,
    /// Of the files that it was made of.
    marks: Vec<Option<Mark>>,
    /// What is wrong with those that came after; said once.
    fault: Option<Wrong>,
}

impl<T> Renewed<T> {
    /// Makes it for the first time.
    pub(super) fn new(
        paths: Vec<PathBuf>,
        make: impl Fn() -> Result<T, Wrong> + Send + Sync + 'static,
    ) -> Result<Self, Wrong> {
        // Looked at before they are read: what changes in between is read once more.
        let marks = paths.iter().map(|path| mark(path)).collect();
        let last = Mutex::new(Last { made: Arc::new(make()?), marks, fault: None });
        Ok(Self { paths, make: Box::new(make), last })
    }

    /// As the files have it now.
    pub(super) fn get(&self) -> Arc<T> {
        let marks: Vec<Option<Mark>> = self.paths.iter().map(|path| mark(path)).collect();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if marks != last.marks {
            match (self.make)() {
                Ok(made) => {
                    tracing::info!(files = ?self.paths, "certificates have changed, and were read again");
                    *last = Last { made: Arc::new(made), marks, fault: None };
                }
                // Whoever comes next looks again.
                Err(wrong) if last.fault.as_ref() != Some(&wrong) => {
                    let (key, what) = &wrong;
                    tracing::warn!(key, what, "certificates have changed and cannot be used; the last ones still are");
                    last.fault = Some(wrong);
                }
                Err(_) => {}
            }
        }
        Arc::clone(&last.made)
    }
}
