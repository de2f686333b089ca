//! Raw heads, compared with what a parser makes of them.

use http::{HeaderMap, HeaderName, HeaderValue, Request};
use proptest::prelude::*;

use std::fmt::Write as _;

use super::*;

/// What hyper makes of a head: it drops a length beside another length, and the fragment.
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

/// Checks a head that comes alone.
fn alone(raw: &str) -> Result<(), Doubt> {
    let mut heads = RawHeads::default();
    heads.has_read(raw.as_bytes());
    check(&mut heads, raw, BodyLength::Known(0))
}

#[test]
fn plain_heads_are_known_by_their_length() {
    for raw in [
        "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        "PUT /a/b?c HTTP/1.0\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nhost: h\r\n\r\n",
        "PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nx-forwarded-for: h\r\ncontent-languag: c\r\n\r\n",
    ] {
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
        "GET / HTTP/1.1\r\nHost: h\r\nx: 1\r\nx: 2\r\n\r\n",
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

/// A head with two lengths. All its lines end where they would end without the second length. Hyper drops the second
/// length; the fields without a space after their colon are a byte shorter than expected, and make up the difference.
/// `x` is there twice, so a map of the fields has all of them in other places than the head.
fn hidden_length() -> String {
    let (hidden, twice) = ("Content-Length: 5", "x".repeat(14));
    let steps = hidden.len() + 1;
    let mut head =
        format!("PUT /users/1 HTTP/1.1\r\nHost: store\r\nTransfer-Encoding: chunked\r\n{twice}: 1\r\n{hidden}\r\n");
    for (step, letter) in ('a'..).take(steps).enumerate() {
        let colon = if step == 0 { ":" } else { ":: " };
        let begun = letter.to_string().repeat(14 + steps - step) + colon;
        write!(head, "{begun:v<0$}\r\n", 35 + step).expect("a string takes it");
    }
    head + &format!("{:v<1$}\r\n\r\n", twice + ":: ", 35 + steps)
}

/// The same for a line that ends in LF alone. The body completes what a map of the fields takes for the head.
fn hidden_line_feed() -> (String, &'static str) {
    let mut head = "PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: 7\r\nxx: 1\r\nyy: 1\n".to_owned();
    for (step, (long, short)) in [('a', 'b'), ('c', 'd'), ('e', 'f'), ('g', 'h'), ('i', 'j')].into_iter().enumerate() {
        let colon = if step == 0 { ":" } else { ":: " };
        let begun = long.to_string().repeat(7 - step) + colon;
        write!(head, "{begun:v<0$}\r\n{short}{short}: 1\r\n", 11 + step).expect("a string takes it");
    }
    (head + "xx:: vvvvvvvvvvv\r\n\r\n", ": 1\r\n\r\n")
}

#[test]
fn a_line_that_hides_in_the_place_of_another_is_found() {
    assert_eq!(alone(&hidden_length()), Err(Doubt::TwoLengths));
    let (head, body) = hidden_line_feed();
    let mut heads = RawHeads::default();
    heads.has_read(format!("{head}{body}").as_bytes());
    assert_eq!(check(&mut heads, &head, BodyLength::Known(7)), Err(Doubt::BareLineFeed));
}

/// A field: its name, the space after the colon, its value, and the line end.
fn field() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        4 => "[a-c]{1,3}",
        2 => "[a-c]{13,16}",
        2 => "[a-c]{30,36}",
        3 => Just("Content-Length".to_owned()),
        1 => Just("Transfer-Encoding".to_owned()),
    ];
    let (before, value) = (prop_oneof![Just(""), Just(" "), Just("  ")], "(v|: |v: v){0,6}v?");
    let end = prop_oneof![8 => Just("\r\n"), 1 => Just("\n"), 1 => Just(" \r\n"), 1 => Just(" \n")];
    (name, before, value, end).prop_map(|(name, before, value, end)| {
        let value = match name.as_str() {
            "Content-Length" => "5",
            "Transfer-Encoding" => "chunked",
            _ => value.trim(),
        };
        format!("{name}:{before}{value}{end}")
    })
}

proptest! {
    /// Where the quick check of a head finds its length, the check line by line finds the same.
    #[test]
    fn a_quick_look_says_nothing_that_a_long_one_does_not(
        lines in prop::collection::vec(field(), 0..12),
        empty in prop_oneof![Just("\r\n"), Just("\n")],
        behind in "(\r\n|: |v){0,8}",
    ) {
        let head = format!("PUT /a HTTP/1.1\r\n{}{empty}", lines.concat());
        let raw = format!("{head}{behind}");
        if let Some(length) = plain_length(raw.as_bytes(), &parsed(&head)) {
            prop_assert_eq!(read_lines(raw.as_bytes()), Ok(length), "{:?}", raw);
        }
    }
}

#[test]
fn a_second_length_in_the_place_of_a_field_of_its_size_is_found() {
    let fields = ["aaaaaaaaaaaaaa: 5\r\n", "Content-Length: 5\r\n"];
    for lines in
        [[fields[1], fields[1], fields[0]], [fields[1], fields[0], fields[1]], [fields[0], fields[1], fields[1]]]
    {
        assert_eq!(alone(&format!("PUT /a HTTP/1.1\r\n{}\r\n", lines.concat())), Err(Doubt::TwoLengths), "{lines:?}");
    }
}

/// Bytes after the head do not make up for a line without its CR.
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
            // Like hyper, checks the head once all of it has come.
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
