//! What hyper does not show of an HTTP/1.1 head: lines that end in LF alone, a fragment in the target, a length beside
//! another length. Two parsers could read such a request in two ways, so it is refused (`gate.strict`).
//!
//! A connection keeps a copy of what was read until its head is checked. Hyper has parsed that head by then. So most
//! heads are compared with what hyper made of them, by where their lines must end. Only heads that differ are read line
//! by line.

use http::{header, request::Parts};

use crate::route::doubt::Doubt;

/// How long a request's body is on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    Known(u64),
    Chunks,
}

/// What was read of a connection, as far as it may be a head.
#[derive(Debug, Default)]
pub struct RawHeads {
    raw: Vec<u8>,
    body: Body,
}

/// What is still to come of the body after the last head.
#[derive(Debug, Default)]
enum Body {
    #[default]
    Over,
    Left(u64),
    Chunks(ChunkEnd),
}

/// An idle connection keeps no more room than this.
const ROOM_KEPT: usize = 4 << 10;

impl RawHeads {
    fn clear(&mut self) {
        self.raw.clear();
        if self.raw.capacity() > ROOM_KEPT {
            self.raw = Vec::new();
        }
    }

    /// Takes the bytes that were read.
    #[inline]
    pub fn has_read(&mut self, bytes: &[u8]) {
        let skipped = match &mut self.body {
            Body::Over => 0,
            Body::Left(left) => {
                let skipped = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= skipped as u64;
                if *left == 0 {
                    self.body = Body::Over;
                }
                skipped
            }
            Body::Chunks(end) => match end.find(bytes) {
                Some(skipped) => {
                    self.body = Body::Over;
                    skipped
                }
                None => bytes.len(),
            },
        };
        self.raw.extend_from_slice(&bytes[skipped..]);
    }

    /// Whether the body after the last head is complete. Asked when hyper says that it is.
    #[must_use]
    pub fn body_is_over(&self) -> bool {
        matches!(self.body, Body::Over)
    }

    /// Checks the head that hyper has just parsed.
    ///
    /// # Errors
    /// With the reason why it could be read in two ways. The connection must then be closed.
    pub fn check(&mut self, head: &Parts, body: BodyLength) -> Result<(), Doubt> {
        let length = match plain_length(&self.raw, head) {
            Some(length) => length,
            None => read_lines(&self.raw)?,
        };
        let behind = self.raw.len() - length;
        match body {
            // Nothing of the next request has come.
            BodyLength::Known(known) if behind as u64 <= known => {
                self.clear();
                let left = known - behind as u64;
                self.body = if left == 0 { Body::Over } else { Body::Left(left) };
            }
            BodyLength::Known(_) | BodyLength::Chunks => {
                let rest = self.raw.split_off(length);
                self.raw.clear();
                self.body = match body {
                    BodyLength::Known(0) => Body::Over,
                    BodyLength::Known(known) => Body::Left(known),
                    BodyLength::Chunks => Body::Chunks(ChunkEnd::default()),
                };
                self.has_read(&rest);
            }
        }
        Ok(())
    }
}

/// What is around the method and the target in a request line.
const REQUEST_LINE: usize = "  HTTP/1.1\r\n".len();

/// How long a head is whose lines all have the usual form; `None` where one has another form.
///
/// Hyper has read a method, a target and fields from these bytes, so each must be where the ones before it end. A line
/// that ends in LF alone, more or less than one space, or a fragment moves what follows, and the space, the colon or
/// the CRLF is not where it is expected. This holds as long as the fields come in the order of their lines:
/// - Hyper keeps values of one name together, wherever their lines were. So a head with a name twice is not plain.
/// - Hyper drops a Content-Length beside another length, and may change the order of the fields after it. So a plain
///   head has none where another field is expected.
fn plain_length(raw: &[u8], head: &Parts) -> Option<usize> {
    let is = |at: usize, wanted: &[u8; 2]| raw.get(at..).and_then(<[u8]>::first_chunk) == Some(wanted);
    let target = head.method.as_str().len() + 1;
    let version = target + head.uri.path_and_query()?.as_str().len();
    if *raw.get(target - 1)? != b' ' || *raw.get(version)? != b' ' || head.headers.len() != head.headers.keys_len() {
        return None;
    }
    let mut end = version - 1 + REQUEST_LINE - 2;
    for (name, value) in &head.headers {
        let length = name.as_str().len();
        let colon = end + 2 + length;
        let line = raw.get(end..colon + 2)?;
        if line.first_chunk() != Some(b"\r\n") || line.last_chunk() != Some(b": ") {
            return None;
        }
        // A shorter name has its colon where `Content-Length` has a letter.
        if length >= LENGTH.len() && *name != header::CONTENT_LENGTH && is_length(&line[2..]) {
            return None;
        }
        end = colon + 2 + value.len();
    }
    (is(end, b"\r\n") && is(end + 2, b"\r\n")).then_some(end + 4)
}

const LENGTH: &[u8] = b"content-length";

fn is_length(line: &[u8]) -> bool {
    line.get(..LENGTH.len()).is_some_and(|name| name.eq_ignore_ascii_case(LENGTH))
}

/// Reads a head line by line, and returns its length.
fn read_lines(raw: &[u8]) -> Result<usize, Doubt> {
    let (mut at, mut is_first, mut lengths) = (0, true, 0);
    loop {
        let rest = &raw[at..];
        let end = rest.iter().position(|byte| *byte == b'\n').ok_or(Doubt::Bounds)?;
        let line = rest[..end].strip_suffix(b"\r").ok_or(Doubt::BareLineFeed)?;
        at += end + 1;
        match line {
            // Some clients send an empty line after the body before.
            [] if is_first => {}
            [] if lengths > 1 => return Err(Doubt::TwoLengths),
            [] => return Ok(at),
            line if is_first => {
                is_first = false;
                if line.contains(&b'#') {
                    return Err(Doubt::Fragment);
                }
            }
            line => lengths += usize::from(says_length(line)),
        }
    }
}

fn says_length(line: &[u8]) -> bool {
    let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
    name.eq_ignore_ascii_case(LENGTH) || name.eq_ignore_ascii_case(b"transfer-encoding")
}

/// Finds the end of a body in chunks. An invalid body has no end: hyper closes the connection after it.
#[derive(Debug, Default)]
struct ChunkEnd {
    at: At,
    /// How much of a chunk's data is left.
    left: u64,
    /// Whether the present line of trailers has text.
    has_text: bool,
    /// Whether the byte before was a CR.
    behind_cr: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    /// The digits of a size.
    #[default]
    Size,
    /// The rest of the line after the digits.
    Extension,
    Data,
    /// The line end after a chunk's data.
    Behind,
    Trailers,
    Lost,
}

impl ChunkEnd {
    /// How many of these bytes belong to the body; `None` where its end is not among them.
    fn find(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            if self.at == At::Data {
                let skipped = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len() - at);
                (at, self.left) = (at + skipped, self.left - skipped as u64);
                if self.left == 0 {
                    self.at = At::Behind;
                }
                continue;
            }
            at += 1;
            if self.step(*byte) {
                return Some(at);
            }
        }
        None
    }

    /// Takes a byte that is not data. Returns whether it is the last one of the body.
    fn step(&mut self, byte: u8) -> bool {
        match (self.at, byte) {
            (At::Size, b'\r') => self.at = At::Extension,
            (At::Size, byte) => match char::from(byte).to_digit(16) {
                Some(digit) if self.left <= u64::MAX >> 4 => self.left = self.left << 4 | u64::from(digit),
                Some(_) => self.at = At::Lost,
                None => self.at = At::Extension,
            },
            (At::Extension, b'\n') if self.left == 0 => (self.at, self.has_text) = (At::Trailers, false),
            (At::Extension, b'\n') => self.at = At::Data,
            (At::Behind, b'\n') => self.at = At::Size,
            // Some parsers end the body at this byte, and hyper does not.
            (At::Trailers, b'\n') if !self.behind_cr => self.at = At::Lost,
            (At::Trailers, b'\n') if !self.has_text => return true,
            (At::Trailers, b'\n') => self.has_text = false,
            (At::Trailers, b'\r') | (At::Extension | At::Behind | At::Lost, _) => {}
            (At::Trailers, _) => self.has_text = true,
            (At::Data, _) => unreachable!("data is skipped"),
        }
        self.behind_cr = byte == b'\r';
        false
    }
}

#[cfg(test)]
#[path = "raw_head_tests.rs"]
mod tests;
