//! Paths that every parser reads in the same way.
//!
//! The object that the gate judges must be the object that the store writes. So a write is refused if two parsers could
//! read its path in two ways, and the exact bytes that were judged are forwarded.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use smallvec::SmallVec;

/// A path's segments. Most paths have few enough to need no heap memory.
pub type Segments<'a> = SmallVec<[Cow<'a, str>; 6]>;

/// Why a path can be read in more than one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ambiguous {
    /// Not of the form `/...`.
    Form,
    /// An encoded slash or backslash.
    EncodedSlash,
    /// An encoded NUL or other control byte, or a raw one.
    Control,
    /// `%25` before two hex digits: decoded twice, it is another character.
    DoubleEncoding,
    /// `%` without two hex digits after it.
    BadEncoding,
    /// A byte above 0x7e that is not encoded: one server reads UTF-8, another Latin-1.
    NotEncoded,
    /// Bytes that are not UTF-8 when decoded.
    NotUtf8,
    /// `.` or `..`, also encoded.
    DotSegment,
    /// `//`.
    EmptySegment,
    /// `;`, which some servers take for parameters, also encoded.
    Semicolon,
    /// `\`, which some servers take for a slash.
    Backslash,
}

impl Ambiguous {
    #[must_use]
    pub const fn what(self) -> &'static str {
        match self {
            Self::Form => "it is not of the form /path",
            Self::EncodedSlash => "it has an encoded slash or backslash",
            Self::Control => "it has a control character",
            Self::DoubleEncoding => "it is encoded twice",
            Self::BadEncoding => "it has a % without two hex digits",
            Self::NotEncoded => "it has a byte above 0x7e that is not percent-encoded",
            Self::NotUtf8 => "it is not UTF-8",
            Self::DotSegment => "it has a dot segment",
            Self::EmptySegment => "it has an empty segment",
            Self::Semicolon => "it has a semicolon",
            Self::Backslash => "it has a backslash",
        }
    }
}

/// The decoded segments of a path that can be read in only one way.
///
/// # Errors
/// With the first part that can be read in two ways.
pub fn segments(path: &str) -> Result<Segments<'_>, Ambiguous> {
    let mut rest = path.strip_prefix('/').ok_or(Ambiguous::Form)?;
    let mut segments = Segments::new();
    loop {
        let mut is_plain = true;
        let end = rest.bytes().position(|byte| {
            is_plain &= PLAIN[usize::from(byte)];
            byte == b'/'
        });
        let (raw, behind) = match end {
            Some(end) => (&rest[..end], Some(&rest[end + 1..])),
            None => (rest, None),
        };
        segments.push(match raw {
            // A slash at the end makes an empty last segment. No other segment may be empty.
            "" if behind.is_some() => return Err(Ambiguous::EmptySegment),
            "." | ".." => return Err(Ambiguous::DotSegment),
            raw if raw.is_empty() || is_plain => Cow::Borrowed(raw),
            raw => segment(raw)?,
        });
        match behind {
            Some(behind) => rest = behind,
            None => return Ok(segments),
        }
    }
}

/// Bytes that every server reads as themselves, and the slash.
const PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0x21;
    while byte < 0x7f {
        plain[byte as usize] = !matches!(byte, b'%' | b';' | b'\\');
        byte += 1;
    }
    plain
};

/// A segment that is not plain.
fn segment(raw: &str) -> Result<Cow<'_, str>, Ambiguous> {
    check_encoding(raw.as_bytes())?;
    let decoded = percent_decode_str(raw).decode_utf8().map_err(|_| Ambiguous::NotUtf8)?;
    match decoded.chars().find_map(fault_of) {
        Some(fault) => Err(fault),
        None if has_escape(decoded.as_bytes()) => Err(Ambiguous::DoubleEncoding),
        None if &*decoded == "." || &*decoded == ".." => Err(Ambiguous::DotSegment),
        None => Ok(decoded),
    }
}

/// The fault of a decoded character, if it is one.
fn fault_of(c: char) -> Option<Ambiguous> {
    match c {
        '/' => Some(Ambiguous::EncodedSlash),
        '\\' => Some(Ambiguous::Backslash),
        ';' => Some(Ambiguous::Semicolon),
        c if c.is_control() => Some(Ambiguous::Control),
        _ => None,
    }
}

fn check_encoding(raw: &[u8]) -> Result<(), Ambiguous> {
    if !raw.is_ascii() {
        return Err(Ambiguous::NotEncoded);
    }
    let hex = |at: usize| raw.get(at).is_some_and(u8::is_ascii_hexdigit);
    for at in raw.iter().enumerate().filter(|(_, byte)| **byte == b'%').map(|(at, _)| at) {
        if !hex(at + 1) || !hex(at + 2) {
            return Err(Ambiguous::BadEncoding);
        }
        if matches!(&raw[at + 1..at + 3], b"5c" | b"5C") {
            return Err(Ambiguous::EncodedSlash);
        }
    }
    Ok(())
}

/// Whether decoding the result once more would change it.
fn has_escape(decoded: &[u8]) -> bool {
    decoded.windows(3).any(|bytes| bytes[0] == b'%' && bytes[1].is_ascii_hexdigit() && bytes[2].is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_paths_are_split_and_decoded() {
        let read = |path| segments(path).unwrap();
        assert_eq!(read("/").as_slice(), [""]);
        assert_eq!(read("/a").as_slice(), ["a"]);
        assert_eq!(read("/a/b/").as_slice(), ["a", "b", ""]);
        assert_eq!(read("/a%20b/%C3%A4/..c/.d/e%25").as_slice(), ["a b", "ä", "..c", ".d", "e%"]);
        assert!(read("/plain/path").iter().all(|segment| matches!(segment, Cow::Borrowed(_))));
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_not_read() {
        for (path, fault) in [
            ("", Ambiguous::Form),
            ("a", Ambiguous::Form),
            ("*", Ambiguous::Form),
            ("/a//b", Ambiguous::EmptySegment),
            ("//a", Ambiguous::EmptySegment),
            ("/a/./b", Ambiguous::DotSegment),
            ("/a/../b", Ambiguous::DotSegment),
            ("/a/%2e%2E/b", Ambiguous::DotSegment),
            ("/a/.%2e", Ambiguous::DotSegment),
            ("/a%2fb", Ambiguous::EncodedSlash),
            ("/a%2Fb", Ambiguous::EncodedSlash),
            ("/a%5cb", Ambiguous::EncodedSlash),
            ("/a%00b", Ambiguous::Control),
            ("/a%0ab", Ambiguous::Control),
            ("/a%7Fb", Ambiguous::Control),
            ("/a%252fb", Ambiguous::DoubleEncoding),
            ("/a%2541", Ambiguous::DoubleEncoding),
            ("/a%25%32%66b", Ambiguous::DoubleEncoding),
            ("/a%25%32f", Ambiguous::DoubleEncoding),
            ("/\u{e4}", Ambiguous::NotEncoded),
            ("/a/b\u{7f}", Ambiguous::Control),
            ("/a%ff", Ambiguous::NotUtf8),
            ("/a%c3", Ambiguous::NotUtf8),
            ("/a;b=c/d", Ambiguous::Semicolon),
            ("/a%3bb", Ambiguous::Semicolon),
            ("/a\\b", Ambiguous::Backslash),
            ("/a%", Ambiguous::BadEncoding),
            ("/a%4", Ambiguous::BadEncoding),
            ("/a%zz", Ambiguous::BadEncoding),
        ] {
            assert_eq!(segments(path), Err(fault), "{path}");
        }
    }
}
