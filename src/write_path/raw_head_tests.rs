//! Heads as they come, beside what a parser makes of them.

use http::{HeaderMap, HeaderName, HeaderValue, Request};

use super::*;

/// What hyper makes of a head: it leaves out a length beside another one, and the fragment.
fn parsed(raw: &str) -> Parts {
    let head = raw.split("\n\r\n").next().unwrap().split("\n\n").next().unwrap();
    let mut lines = head.trim_start().lines();
    let line = lines.next().unwrap();
    let (method, rest) = line.split_once(' ').unwrap();
    let target = rest.rsplit_once(' ').unwrap().0;
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = line.split_once(':').unwrap();
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        let is_second = name == "content-length"
            && (headers.contains_key("content-length") || headers.contains_key("transfer-encoding"));
        if name == "transfer-encoding" {
            headers.remove("content-length");
        }
        if !is_second {
            headers.append(name, HeaderValue::from_str(value.trim()).unwrap());
        }
    }
    let mut head = Request::builder().method(method).uri(target).body(()).unwrap().into_parts().0;
    head.headers = headers;
    head
}

fn check(heads: &mut RawHeads, raw: &str, body: BodyLength) -> Result<(), Doubt> {
    heads.check(&parsed(raw), body)
}

/// A head that comes alone.
fn alone(raw: &str) -> Result<(), Doubt> {
    let mut heads = RawHeads::default();
    heads.has_read(raw.as_bytes());
    check(&mut heads, raw, BodyLength::Known(0))
}

#[test]
fn plain_heads_are_known_by_their_length() {
    for raw in
        ["GET / HTTP/1.1\r\nHost: h\r\n\r\n", "PUT /a/b?c HTTP/1.0\r\n\r\n", "OPTIONS * HTTP/1.1\r\nhost: h\r\n\r\n"]
    {
        assert_eq!(plain_length(raw.as_bytes(), &parsed(raw)), Some(raw.len()), "{raw:?}");
        assert_eq!(alone(raw), Ok(()));
    }
}

#[test]
fn other_heads_are_read_line_by_line() {
    for raw in [
        "\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET / HTTP/1.1\r\nHost:h\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: \t h \t\r\n\r\n",
        "GET http://h/a HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\nx: #\r\n\r\n",
    ] {
        assert_eq!(alone(raw), Ok(()), "{raw:?}");
    }
}

#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    for (raw, doubt) in [
        ("GET / HTTP/1.1\nHost: h\r\n\r\n", Doubt::BareLineFeed),
        ("GET / HTTP/1.1\r\nHost: h\n\r\n", Doubt::BareLineFeed),
        ("GET / HTTP/1.1\r\nHost: h\r\n\n", Doubt::BareLineFeed),
        ("GET / HTTP/1.1\nHost: h\n\n", Doubt::BareLineFeed),
        ("\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", Doubt::BareLineFeed),
        // As long as a plain head would be.
        ("GET / HTTP/1.1\nHost:  h\r\n\r\n", Doubt::BareLineFeed),
        ("GET / HTTP/1.1\r\nHost:h\n\r\n\r\n", Doubt::BareLineFeed),
        ("GET / HTTP/1.1\r\nHost: h \n\r\n", Doubt::BareLineFeed),
        ("GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n", Doubt::Fragment),
        ("GET /a?c#b HTTP/1.1\r\nHost: h\r\n\r\n", Doubt::Fragment),
        ("GET /a# HTTP/1.1\r\nHost:h\r\n\r\n", Doubt::Fragment),
        ("PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", Doubt::TwoLengths),
        ("PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", Doubt::TwoLengths),
        ("PUT /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\ncontent-length: 1\r\n\r\n", Doubt::TwoLengths),
    ] {
        assert_eq!(alone(raw), Err(doubt), "{raw:?}");
    }
}

/// A line without its CR is not made up for by anything that stands behind the head.
#[test]
fn a_body_does_not_make_up_for_what_a_head_lacks() {
    for body in ["\r\n\r\n", "x\r\n\r\n", "\r\n\r\n\r\n\r\n", "\r\r\r\r", "\n\n\r\n\r\n"] {
        for head in ["PUT /a HTTP/1.1\nHost:h\nx:y\r\n\r\n", "PUT /a HTTP/1.1\r\nHost:h\nx:y\n\r\n"] {
            let mut heads = RawHeads::default();
            heads.has_read(format!("{head}{body}").as_bytes());
            assert_eq!(check(&mut heads, head, BodyLength::Known(9)), Err(Doubt::BareLineFeed), "{head:?} {body:?}");
        }
    }
}

#[test]
fn the_next_head_is_found_behind_the_body_however_the_bytes_are_cut() {
    let chunked = "PUT /b HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunks = "5;x=y\r\nab\r\nc\r\n1F\r\n0123456789012345678901234567890\r\n0\r\nx: y\r\nz: \r\n\r\n";
    let sized = "PUT /a HTTP/1.1\r\nhost: h\r\ncontent-length: 7\r\n\r\n";
    let plain = "GET /c HTTP/1.1\r\nhost: h\r\n\r\n";
    let bad = "GET /c#d HTTP/1.1\r\nhost: h\r\n\r\n";
    let requests = [
        (sized, "a\r\n\r\nbc", BodyLength::Known(7)),
        (chunked, chunks, BodyLength::Chunks),
        (plain, "", BodyLength::Known(0)),
        (chunked, "0\r\n\r\n", BodyLength::Chunks),
        (sized, "1234567", BodyLength::Known(7)),
        (bad, "", BodyLength::Known(0)),
    ];
    let all: String = requests.iter().flat_map(|(head, body, _)| [*head, *body]).collect();
    for step in 1..=all.len() {
        let (mut heads, mut read, mut end) = (RawHeads::default(), 0, 0);
        for (head, body, length) in &requests {
            // As hyper does, it is looked at once all of the head is there.
            end += head.len();
            while read < end {
                let next = (read + step).min(all.len());
                heads.has_read(&all.as_bytes()[read..next]);
                read = next;
            }
            let wanted = if *head == bad { Err(Doubt::Fragment) } else { Ok(()) };
            assert_eq!(check(&mut heads, head, *length), wanted, "{head:?} in steps of {step}");
            end += body.len();
        }
    }
}
