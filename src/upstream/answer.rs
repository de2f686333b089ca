//! The head of a store's answer, and how its body ends. Pure; the only file that knows httparse.
//!
//! Strict where two readers could see two bodies: lengths that differ, a length that is not a number, and codings other
//! than `chunked` make an answer unreadable. Hop-by-hop headers are not passed on.

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use httparse::{ParserConfig, Status};

use super::{copies::Copies, hop::is_hop_by_hop, trailer::may_follow_an_answer};

/// The most lines that a head may have, and the most bytes.
pub const LINES_MAX: usize = 100;
pub const HEAD_BYTES_MAX: usize = 256 << 10;

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// There is no body.
    AtOnce,
    After(u64),
    WithLastChunk,
    WithConnection,
}

/// The head of an answer.
#[derive(Debug)]
pub struct Head {
    pub status: StatusCode,
    /// The store's own text for its status, where that is not the usual one.
    pub reason: Option<Bytes>,
    pub headers: HeaderMap,
    pub ends: Ends,
    /// Whether the connection may carry another request after this answer.
    pub keeps_alive: bool,
}

/// Why an answer cannot be read.
pub type Unreadable = &'static str;

/// Reads a head, and returns it with its length; `None` while it is not complete. `to_head`: it answers a HEAD.
///
/// # Errors
/// With what is wrong with the head.
pub fn parse(bytes: &[u8], to_head: bool, copies: &mut Copies) -> Result<Option<(usize, Box<Head>)>, Unreadable> {
    let mut lines = [const { MaybeUninit::uninit() }; LINES_MAX];
    let mut parsed = httparse::Response::new(&mut []);
    let config = ParserConfig::default();
    let length = match config.parse_response_with_uninit_headers(&mut parsed, bytes, &mut lines) {
        Ok(Status::Complete(length)) => length,
        Ok(Status::Partial) if bytes.len() > HEAD_BYTES_MAX => return Err("the head of its answer has no end"),
        Ok(Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err("its answer has more than 100 header lines"),
        Err(_) => return Err("its answer is not HTTP/1.1"),
    };
    let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or("its answer has no status")?;
    let is_old = parsed.version != Some(1);
    let reason = parsed.reason.filter(|reason| status.canonical_reason() != Some(reason));
    let reason = reason.map(|reason| Bytes::copy_from_slice(reason.as_bytes()));
    // One copy for all values, since the buffer is used again.
    let shared = copies.copy(&bytes[..length]);
    let mut headers = HeaderMap::with_capacity(parsed.headers.len() + 6);
    let mut hop = Hop::default();
    for line in parsed.headers.iter() {
        let at = line.value.as_ptr() as usize - bytes.as_ptr() as usize;
        if hop.takes(line.name.as_bytes(), line.value)? {
            continue;
        }
        let name = HeaderName::from_bytes(line.name.as_bytes()).map_err(|_| "a header of its answer has no name")?;
        let value = HeaderValue::from_maybe_shared(shared.slice(at..at + line.value.len()));
        headers.append(name, value.map_err(|_| "a header of its answer cannot be read")?);
    }
    for named in &hop.named {
        headers.remove(named);
    }
    if hop.is_chunked {
        // The chunks say how long the body is.
        headers.remove(header::CONTENT_LENGTH);
    }
    if let Some(length) = hop.length.filter(|_| hop.is_odd && !hop.is_chunked) {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    if is_old && hop.is_chunked {
        return Err("its answer is in chunks, which HTTP/1.0 does not have");
    }
    let has_no_body = to_head || status.is_informational() || matches!(status.as_u16(), 204 | 304);
    let ends = match (has_no_body, hop.is_chunked, hop.length) {
        (true, ..) | (_, false, Some(0)) => Ends::AtOnce,
        (_, true, _) => Ends::WithLastChunk,
        (_, false, Some(length)) => Ends::After(length),
        (_, false, None) => Ends::WithConnection,
    };
    // A length beside chunks is a mistake of the store, so nothing more is read after this answer.
    let is_sound = !(hop.is_chunked && hop.length.is_some());
    let keeps_alive = !is_old && !hop.closes && is_sound && ends != Ends::WithConnection;
    Ok(Some((length, Box::new(Head { status, reason, headers, ends, keeps_alive }))))
}

/// The headers of an answer that are for one hop only.
#[derive(Default)]
struct Hop {
    length: Option<u64>,
    is_odd: bool,
    is_chunked: bool,
    closes: bool,
    /// Further headers that `Connection` makes hop-by-hop.
    named: Vec<HeaderName>,
}

impl Hop {
    /// Notes a header. Returns whether it is not passed on.
    fn takes(&mut self, name: &[u8], value: &[u8]) -> Result<bool, Unreadable> {
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted.as_bytes());
        Ok(match name.len() {
            10 if is("connection") => {
                self.connection(value);
                true
            }
            14 if is("content-length") => {
                let is_second = self.length.is_some();
                self.length(value)?;
                // A length that is written in an odd way is written anew.
                self.is_odd |= is_second || !value.iter().all(u8::is_ascii_digit) || value.starts_with(b"0");
                false
            }
            17 if is("transfer-encoding") => {
                if self.is_chunked || !value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                    return Err("its answer is coded in another way than in chunks");
                }
                self.is_chunked = true;
                true
            }
            _ => is_hop_by_hop(name),
        })
    }

    fn length(&mut self, value: &[u8]) -> Result<(), Unreadable> {
        const BAD: Unreadable = "its answer has a length that is none, or several";
        for each in value.split(|byte| *byte == b',') {
            let digits = each.trim_ascii();
            let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
            let length = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
            let length: u64 = length.filter(|_| is_number).ok_or(BAD)?;
            if self.length.replace(length).is_some_and(|before| before != length) {
                return Err(BAD);
            }
        }
        Ok(())
    }

    fn connection(&mut self, value: &[u8]) {
        for each in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            if each.eq_ignore_ascii_case(b"close") {
                self.closes = true;
            } else if let Ok(name) = HeaderName::from_bytes(each)
                && name != header::CONTENT_LENGTH
            {
                self.named.push(name);
            }
        }
    }
}

/// Reads the trailers after the last chunk, and returns them with their length; `None` while they are not complete.
///
/// # Errors
/// With what is wrong with the trailers.
pub fn parse_trailers(bytes: &[u8]) -> Result<Option<(usize, HeaderMap)>, Unreadable> {
    const BAD: Unreadable = "the trailers of its answer cannot be read";
    let mut lines = [httparse::EMPTY_HEADER; LINES_MAX];
    let parsed = httparse::parse_headers(bytes, &mut lines).map_err(|_| BAD)?;
    let read = match &parsed {
        Status::Complete((length, _)) => &bytes[..*length],
        Status::Partial => bytes,
    };
    // httparse takes a line that ends in LF alone. A strict reader would find the end of the body elsewhere.
    if read.iter().zip([&b' '].into_iter().chain(read)).any(|(byte, before)| *byte == b'\n' && *before != b'\r') {
        return Err(BAD);
    }
    match parsed {
        Status::Partial if bytes.len() > HEAD_BYTES_MAX => Err("the trailers of its answer have no end"),
        Status::Partial => Ok(None),
        Status::Complete((length, lines)) => {
            let field = |line: &httparse::Header<'_>| {
                Some((HeaderName::from_bytes(line.name.as_bytes()).ok()?, HeaderValue::from_bytes(line.value).ok()?))
            };
            let mut trailers = HeaderMap::new();
            for line in lines {
                let (name, value) = field(line).ok_or(BAD)?;
                if may_follow_an_answer(&name) {
                    trailers.append(name, value);
                }
            }
            Ok(Some((length, trailers)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<(usize, Box<Head>)>, Unreadable> {
        parse(text.as_bytes(), false, &mut Copies::default())
    }

    fn head(lines: &str) -> Box<Head> {
        let text = format!("HTTP/1.1 200 OK\r\n{lines}\r\n");
        let (length, head) = read(&text).unwrap().unwrap();
        assert_eq!(length, text.len());
        head
    }

    #[test]
    fn a_head_is_read_when_it_is_whole_and_never_before() {
        let text = "HTTP/1.1 201 Created\r\ncontent-length: 2\r\nETag: \"a\"\r\nx-two: 1\r\nX-Two: 2\r\n\r\nok";
        let end = text.len() - 2;
        for cut in 0..end {
            assert!(read(&text[..cut]).unwrap().is_none(), "{cut}");
        }
        let (length, head) = read(text).unwrap().unwrap();
        assert_eq!((length, head.status, head.ends), (end, StatusCode::CREATED, Ends::After(2)));
        assert!(head.keeps_alive);
        assert_eq!(head.headers["etag"], "\"a\"");
        assert_eq!(head.headers.get_all("x-two").iter().collect::<Vec<_>>(), ["1", "2"]);
    }

    #[test]
    fn how_a_body_ends_is_said_in_one_way_only() {
        assert_eq!(head("content-length: 0\r\n").ends, Ends::AtOnce);
        let odd = head("content-length: 7, 7\r\ncontent-length: 007\r\n");
        assert_eq!(odd.ends, Ends::After(7));
        assert_eq!(odd.headers.get_all("content-length").iter().collect::<Vec<_>>(), ["7"]);
        let chunked = head("Transfer-Encoding: Chunked\r\ncontent-length: 7\r\n");
        assert_eq!((chunked.ends, chunked.keeps_alive), (Ends::WithLastChunk, false));
        assert!(!chunked.headers.contains_key("content-length") && !chunked.headers.contains_key("transfer-encoding"));
        assert!(head("transfer-encoding: chunked\r\n").keeps_alive);
        let closed = head("");
        assert_eq!((closed.ends, closed.keeps_alive), (Ends::WithConnection, false));
        for bad in [
            "content-length: 7\r\ncontent-length: 8\r\n",
            "content-length: 7, 8\r\n",
            "content-length: +7\r\n",
            "content-length: \r\n",
            "content-length: 7 7\r\n",
            "content-length: 0x7\r\n",
            "content-length: 99999999999999999999\r\n",
            "transfer-encoding: gzip, chunked\r\n",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: identity\r\n",
            "transfer-encoding : chunked\r\n",
            "x: a\r\n b\r\n",
            "x: a\0b\r\n",
        ] {
            assert!(read(&format!("HTTP/1.1 200 OK\r\n{bad}\r\n")).is_err(), "{bad:?}");
        }
        for bad in [
            "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/2.0 200 OK\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "220 smtp\r\n",
        ] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn some_answers_have_no_body_whatever_their_length_says() {
        let text = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n";
        let (_, to_head) = parse(text.as_bytes(), true, &mut Copies::default()).unwrap().unwrap();
        assert_eq!((to_head.ends, to_head.keeps_alive), (Ends::AtOnce, true));
        assert_eq!(to_head.headers["content-length"], "9");
        for status in ["100 Continue", "103 Early Hints", "204 No Content", "304 Not Modified"] {
            let (_, head) = read(&format!("HTTP/1.1 {status}\r\ncontent-length: 9\r\n\r\n")).unwrap().unwrap();
            assert_eq!(head.ends, Ends::AtOnce, "{status}");
        }
    }

    #[test]
    fn what_is_of_one_hop_stays_here() {
        let head = head(
            "connection: close, X-Private, content-length\r\nkeep-alive: timeout=5\r\nx-private: 1\r\nupgrade: h2c\r\nte: x\r\nproxy-connection: x\r\nproxy-authenticate: x\r\ncontent-length: 3\r\nx-kept: 2\r\n",
        );
        let mut names: Vec<_> = head.headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!((names, head.keeps_alive), (vec!["content-length", "x-kept"], false));
    }

    #[test]
    fn a_head_has_limits() {
        let lines = |count: usize| format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(count));
        assert!(read(&lines(LINES_MAX)).is_ok());
        assert!(read(&lines(LINES_MAX + 1)).is_err());
        assert!(read(&format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(HEAD_BYTES_MAX))).is_err());
    }
}
