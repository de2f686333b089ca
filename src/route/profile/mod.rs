//! Store profiles: what a store's protocol makes of a request and of an answer. The seam for profiles.
//!
//! A profile says which requests read, which writes reach below their own path, which requests name a second object,
//! which answers leave a write open, and what becomes of a body that broke off. Each is one function here that names
//! every profile, so that a new profile does not compile before it says all of this. `http.rs` has the plain one.

mod http;

use ::http::{Method, request::Parts};
use sha2::{Digest, Sha256};

use super::fields::Marks;
use crate::config::{PartialBody, Profile};

/// A second object that a request writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Second {
    /// The object of the path in the Destination field.
    Destination,
}

impl Profile {
    /// Whether a request only reads.
    pub(super) fn is_read(self, head: &Parts) -> bool {
        match self {
            Self::Http => http::is_read(&head.method),
        }
    }

    /// Whether a write may change everything below its path.
    pub(super) fn reaches_below(self, head: &Parts) -> bool {
        match self {
            Self::Http => http::reaches_below(&head.method),
        }
    }

    /// Where a write names a second object, if it does.
    pub(super) fn second(self, marks: Marks<'_>) -> Option<Second> {
        match self {
            Self::Http => http::second(marks),
        }
    }

    /// Statuses that do not say whether the store has done the write, or will. A route's `settles` may name some of
    /// them.
    #[must_use]
    pub fn unsettling(self) -> &'static [u16] {
        match self {
            Self::Http => &http::UNSETTLING,
        }
    }

    /// Whether the store discards a body that broke off. `given`: the route's setting.
    #[must_use]
    pub fn discards(self, given: PartialBody) -> bool {
        match self {
            Self::Http => given == PartialBody::Discards,
        }
    }
}

/// Adds to the hash of the routes what a profile makes of their writes. Nothing for the default one, whose hash is in
/// the tables that exist.
pub(super) fn hash(profile: Profile, hash: &mut Sha256) {
    if profile != Profile::default() {
        // No other part of the hash begins with this letter.
        hash.update([b'p', profile as u8]);
    }
}

/// Whether a request of this method only reads where no route says otherwise, for guesses before its route is known.
#[must_use]
pub fn is_read(method: &Method) -> bool {
    http::is_read(method)
}
