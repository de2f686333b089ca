//! Places on the path of a write or of an advance where a test can kill the process or hold a thread.
//! `FENCEGATE_TEST_POINT` is a list, separated by commas, of `POINT=kill:N` (the process kills itself when it
//! reaches the point for the N-th time) and `POINT=hold:FILE` (while FILE exists, a thread that reaches the point
//! makes `FILE.reached` and waits until FILE is gone).

/// The places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// A row was read from the table, and is not in memory yet.
    Loaded,
    /// Objects are sealed; nothing of their advance is durable.
    Sealed,
    /// A round is durable, and is not published.
    Persisted,
    /// A round is published; no caller has been answered.
    Published,
    /// A round that changes no record is durable, such as a journal's or a migration's; no caller has been
    /// answered.
    Noted,
    /// The last older write has ended; the second step of the advance is not durable.
    Drained,
    /// A write was judged and counted.
    Admitted,
    /// A write may be sent; no part of it was.
    Committed,
    /// A write was sent; the head of its answer has come.
    Sent,
    /// The whole answer to a write has come; the write is not settled.
    Answered,
    /// The clean flag is about to be set.
    Stopping,
    /// The clean flag has been set.
    Stopped,
}

impl Point {
    pub const ALL: [Self; 12] = [
        Self::Loaded,
        Self::Sealed,
        Self::Persisted,
        Self::Published,
        Self::Noted,
        Self::Drained,
        Self::Admitted,
        Self::Committed,
        Self::Sent,
        Self::Answered,
        Self::Stopping,
        Self::Stopped,
    ];

    /// The point's name in `FENCEGATE_TEST_POINT`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loaded => "loaded",
            Self::Sealed => "sealed",
            Self::Persisted => "persisted",
            Self::Published => "published",
            Self::Noted => "noted",
            Self::Drained => "drained",
            Self::Admitted => "admitted",
            Self::Committed => "committed",
            Self::Sent => "sent",
            Self::Answered => "answered",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
        }
    }
}

/// A thread has reached a point. Does nothing in this build.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub const fn reach(_: Point) {}

#[cfg(feature = "failpoints")]
pub use asked::reach;

/// Checks that a list of points can be read.
///
/// # Errors
/// With the part that cannot be read.
#[cfg(feature = "failpoints")]
pub(super) fn check(list: &str) -> Result<(), String> {
    asked::read(list).map(drop)
}

#[cfg(feature = "failpoints")]
mod asked {
    use std::{
        path::{Path, PathBuf},
        sync::{
            OnceLock,
            atomic::{AtomicU64, Ordering},
        },
        time::Duration,
    };

    use super::Point;

    /// What a test asked for at a point.
    pub(super) struct ArmedPoint {
        point: Point,
        what: What,
    }

    enum What {
        /// Kill the process after this many more arrivals.
        Kill(AtomicU64),
        Hold(PathBuf),
    }

    pub(super) fn read(list: &str) -> Result<Vec<ArmedPoint>, String> {
        let unknown = |entry: &str| format!("FENCEGATE_TEST_POINT: {entry:?} is not POINT=kill:N or POINT=hold:FILE");
        let one = |entry: &str| {
            let (name, what) = entry.split_once('=')?;
            let point = Point::ALL.into_iter().find(|point| point.name() == name)?;
            let what = match what.split_once(':')? {
                ("kill", number) => What::Kill(AtomicU64::new(number.parse().ok()?)),
                ("hold", file) => What::Hold(file.into()),
                _ => return None,
            };
            Some(ArmedPoint { point, what })
        };
        list.split(',').map(|entry| one(entry).ok_or_else(|| unknown(entry))).collect()
    }

    /// A thread has reached a point: does what a test asked for.
    pub fn reach(point: Point) {
        static ARMED: OnceLock<Vec<ArmedPoint>> = OnceLock::new();
        let armed = ARMED
            .get_or_init(|| crate::config::test_point().map_or_else(Vec::new, |list| read(&list).unwrap_or_default()));
        for asked in armed.iter().filter(|asked| asked.point == point) {
            match &asked.what {
                What::Kill(left) => {
                    if left.fetch_sub(1, Ordering::SeqCst) == 1 {
                        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
                    }
                }
                What::Hold(file) => hold(file),
            }
        }
    }

    fn hold(file: &Path) {
        while file.exists() {
            let _ = std::fs::write(file.with_added_extension("reached"), "");
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }
}
