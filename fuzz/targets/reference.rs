//! A strict parser of HTTP/1.1 requests, made only to be compared with: it reads a request in the one way that every
//! parser would, or not at all.
#![allow(dead_code, reason = "not every target needs all of it")]

/// A request, as it is on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    pub method: Vec<u8>,
    pub target: Vec<u8>,
    pub fields: Vec<Field>,
    pub body: Vec<u8>,
    pub trailers: Vec<Field>,
}

/// A name in small letters, and a value without the spaces around it.
pub type Field = (Vec<u8>, Vec<u8>);

impl Read {
    /// The values of a field.
    pub fn values<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.fields.iter().filter(move |(each, _)| each == name).map(|(_, value)| &value[..])
    }
}

/// All requests up to the first that is not read in one way only, or that is the connection's last.
pub fn requests(mut bytes: &[u8]) -> Vec<Read> {
    let mut all = vec![];
    while let Some((request, is_last, rest)) = request(bytes) {
        all.push(request);
        bytes = rest;
        if is_last {
            break;
        }
    }
    all
}

/// The first request, and what follows it.
pub fn first(bytes: &[u8]) -> Option<(Read, &[u8])> {
    request(bytes).map(|(request, _, rest)| (request, rest))
}

fn request(mut bytes: &[u8]) -> Option<(Read, bool, &[u8])> {
    while let Some(rest) = bytes.strip_prefix(b"\r\n") {
        bytes = rest;
    }
    let (first, mut rest) = line(bytes)?;
    let parts: Vec<&[u8]> = first.split(|byte| *byte == b' ').collect();
    let [method, target, version @ (b"HTTP/1.1" | b"HTTP/1.0")] = parts[..] else { return None };
    if target.contains(&b'#') {
        return None;
    }
    let mut fields = vec![];
    let (mut length, mut is_chunked, mut is_last, mut is_kept) = (None, false, false, version == b"HTTP/1.1");
    loop {
        let (text, behind) = line(rest)?;
        rest = behind;
        if text.is_empty() {
            break;
        }
        let (name, value) = field(text)?;
        match &name[..] {
            b"content-length" if length.is_some() || is_chunked => return None,
            b"content-length" => length = Some(number(&value, 10)?),
            b"transfer-encoding" if length.is_some() || is_chunked => return None,
            b"transfer-encoding" if value.eq_ignore_ascii_case(b"chunked") => is_chunked = true,
            b"transfer-encoding" => return None,
            b"connection" => {
                let value = value.to_ascii_lowercase();
                is_last |= value.windows(5).any(|word| word == b"close");
                is_kept |= value.windows(10).any(|word| word == b"keep-alive");
            }
            _ => {}
        }
        fields.push((name, value));
    }
    let (body, trailers, rest) = match (is_chunked, length) {
        (true, _) => chunks(rest)?,
        (false, length) => {
            let length = usize::try_from(length.unwrap_or(0)).ok()?;
            (rest.get(..length)?.to_vec(), vec![], &rest[length..])
        }
    };
    let read = Read { method: method.to_vec(), target: target.to_vec(), fields, body, trailers };
    Some((read, is_last || !is_kept, rest))
}

fn field(line: &[u8]) -> Option<Field> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    Some((line[..colon].to_ascii_lowercase(), line[colon + 1..].trim_ascii().to_vec()))
}

/// A line that ends in CRLF and has no other CR or LF.
fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n'))?;
    let rest = bytes[end..].strip_prefix(b"\r\n")?;
    Some((&bytes[..end], rest))
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    let text = std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    u64::from_str_radix(text, radix).ok()
}

/// A body in chunks, its trailers, and what follows them.
pub fn chunks(mut bytes: &[u8]) -> Option<(Vec<u8>, Vec<Field>, &[u8])> {
    let (mut body, mut trailers) = (vec![], vec![]);
    loop {
        let (first, rest) = line(bytes)?;
        let digits = first.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(first.len());
        let size = usize::try_from(number(&first[..digits], 16)?).ok()?;
        bytes = rest;
        if size == 0 {
            break;
        }
        body.extend_from_slice(bytes.get(..size)?);
        bytes = bytes[size..].strip_prefix(b"\r\n")?;
    }
    loop {
        let (trailer, rest) = line(bytes)?;
        bytes = rest;
        if trailer.is_empty() {
            return Some((body, trailers, bytes));
        }
        trailers.push(field(trailer)?);
    }
}
