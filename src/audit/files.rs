//! The names of the rotated files, and which ones there are.
//!
//! FILE.1 is the newest. The numbers go from 1 to 999, without leading zeros, so the log does not take other files for
//! its own: audit.log.2027, audit.log.20270115, audit.log.01.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
};

use crate::config::AUDIT_KEEP_MAX;

/// The name of the rotated file with this number.
#[must_use]
pub(super) fn rotated(path: &Path, number: u32) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

/// The folder that a file is in.
#[must_use]
pub(super) fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The number at the end of a rotated file's name. `None`: it has none.
#[must_use]
pub(super) fn rotated_number(path: &Path) -> Option<u32> {
    path.extension().and_then(number)
}

/// The number of `other` among the rotated files of `path`. `None`: it is none of them.
#[must_use]
pub(super) fn number_beside(path: &Path, other: &Path) -> Option<u32> {
    let found = rotated_number(other)?;
    (folder(path) == folder(other) && rotated(path, found).file_name() == other.file_name()).then_some(found)
}

fn number(text: &OsStr) -> Option<u32> {
    let text = text.to_str()?;
    let found = text.parse().ok().filter(|found| (1..=AUDIT_KEEP_MAX).contains(found))?;
    // No sign, and no leading zeros.
    (text == found.to_string()).then_some(found)
}

/// The rotated files beside a file, the oldest first.
///
/// # Errors
/// When the folder cannot be listed.
pub(super) fn rotated_beside(path: &Path) -> io::Result<Vec<(u32, PathBuf)>> {
    let mut all = vec![];
    for each in fs::read_dir(folder(path))? {
        let each = each?;
        // Its name alone: that of the folder may be written in several ways.
        let Some(found) =
            path.file_name().and_then(|name| number_beside(Path::new(name), Path::new(&each.file_name())))
        else {
            continue;
        };
        if each.file_type()?.is_file() {
            all.push((found, rotated(path, found)));
        }
    }
    all.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotated_file_has_the_name_a_dot_and_a_number() {
        let of = |other: &str| number_beside(Path::new("/var/audit.log"), Path::new(other));
        assert_eq!((of("/var/audit.log.1"), of("/var/audit.log.999")), (Some(1), Some(999)));
        let others = ["", ".0", ".01", ".+1", ".1000", ".2027", ".20270115", ".1.gz", ".old", ".1.2"];
        for end in others {
            assert_eq!(of(&format!("/var/audit.log{end}")), None, "{end}");
        }
        assert_eq!((of("/var/other.log.1"), of("/log/audit.log.1")), (None, None));
        assert_eq!(number_beside(Path::new("audit.2027"), Path::new("audit.2027.3")), Some(3));
    }
}
