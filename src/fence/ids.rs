//! Names of things: object, holder, lease and request ids.
//!
//! Each is a string that its only constructor (`new`) has checked: not empty, bounded, no control characters.
//! Because of the last rule, the table can use byte 0 as a separator in its keys. Cloning copies a pointer.

use std::{fmt, sync::Arc};

use thiserror::Error;

/// Why a string is not an id.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum IdFault {
    #[error("must not be empty")]
    Empty,
    #[error("must be at most {max} bytes, this is {len}")]
    TooLong { max: usize, len: usize },
    #[error("must not contain control characters (byte {at})")]
    Control { at: usize },
}

fn check(text: &str, max: usize) -> Result<(), IdFault> {
    if text.is_empty() {
        return Err(IdFault::Empty);
    }
    if text.len() > max {
        return Err(IdFault::TooLong { max, len: text.len() });
    }
    // The loop has no early exit, so that the compiler can check many bytes at a time.
    if text.bytes().fold(true, |is_plain, byte| is_plain & matches!(byte, 0x20..=0x7e)) {
        return Ok(());
    }
    match text.char_indices().find(|(_, c)| c.is_control()) {
        Some((at, _)) => Err(IdFault::Control { at }),
        None => Ok(()),
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, max = $max:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The longest id accepted, in bytes of UTF-8.
            pub const MAX_BYTES: usize = $max;

            /// Whether `text` is a valid id.
            #[must_use]
            pub fn is_valid(text: &str) -> bool {
                check(text, Self::MAX_BYTES).is_ok()
            }

            /// Checks `text` and makes an id of it.
            ///
            /// # Errors
            /// When the text is empty, too long, or holds a control character.
            pub fn new(text: &str) -> Result<Self, IdFault> {
                check(text, Self::MAX_BYTES)?;
                Ok(Self(Arc::from(text)))
            }

            /// The id's text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

id!(
    /// What a lease governs: a bucket, a table, or a domain such as `/data/users/`.
    ObjectId, max = 1024
);
id!(
    /// The holder of a lease: a pod name, a host, a process.
    HolderId, max = 1024
);
id!(
    /// One grant of one lease. Gate-issued ones are UUIDv7 text.
    LeaseId, max = 128
);
id!(
    /// An authority with its own key, which may fence and grant leases on its domains.
    IssuerId, max = 128
);
id!(
    /// One migration of an object from one holder to another: UUIDv7 text.
    MigrationId, max = 64
);
id!(
    /// The caller's name for one acquire. A caller whose answer was lost repeats it and gets the same lease.
    RequestId, max = 256
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_one_to_max_bytes_of_text_without_control_characters() {
        assert_eq!(ObjectId::new("users").unwrap().as_str(), "users");
        assert_eq!(ObjectId::new("/data/käse/ 漢").unwrap().as_str(), "/data/käse/ 漢");
        assert_eq!(ObjectId::new(""), Err(IdFault::Empty));
        assert!(ObjectId::new(&"x".repeat(1024)).is_ok());
        assert_eq!(ObjectId::new(&"x".repeat(1025)), Err(IdFault::TooLong { max: 1024, len: 1025 }));
        // 512 two-byte characters fit, one more does not: the limit is bytes.
        assert!(HolderId::new(&"ä".repeat(512)).is_ok());
        assert!(HolderId::new(&"ä".repeat(513)).is_err());
        for bad in ["a\0b", "a\nb", "\u{7f}", "a\u{85}"] {
            assert!(matches!(ObjectId::new(bad), Err(IdFault::Control { .. })), "{bad:?}");
        }
    }
}
