//! Where a request ends: lengths that contradict each other, line ends, chunks.

use super::{Case, case, caught, caught_with, hold, request, write};

fn put(rest: &str) -> String {
    write("PUT /users/1", rest)
}

/// Heads that say a length twice, or in a way that some parsers take for one.
fn lengths() -> Vec<Case> {
    let mut cases = vec![];
    let chunks = "\r\n5\r\nvalue\r\n0\r\n\r\n";
    for (name, fields) in [
        ("a length before chunked", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
        ("a length behind chunked", "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"),
        ("a length of 0 beside chunked", "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n"),
        ("a length in other case beside chunked", "transfer-ENCODING: chunked\r\ncontent-LENGTH: 5\r\n"),
        ("chunked twice, in two fields", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
        ("chunked and identity", "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n"),
        ("transfer_encoding beside nothing", "transfer_encoding: chunked\r\n"),
        ("content_length beside chunked", "content_length: 5\r\nTransfer-Encoding: chunked\r\n"),
    ] {
        cases.push(case(name, put(&format!("{fields}{chunks}"))).doubted());
    }
    for (name, fields) in [
        ("the same length twice", "Content-Length: 5\r\nContent-Length: 5\r\n"),
        ("the same length three times", "Content-Length: 5\r\nContent-Length: 5\r\nContent-Length: 5\r\n"),
        ("content_length beside the length", "Content-Length: 5\r\ncontent_length: 5\r\n"),
        ("transfer_encoding beside the length", "Content-Length: 5\r\ntransfer_encoding: chunked\r\n"),
        ("Content_Length in other case", "Content-Length: 5\r\nContent_Length: 0\r\n"),
        ("content_length alone", "content_length: 5\r\n"),
    ] {
        cases.push(case(name, put(&format!("{fields}\r\nvalue"))).doubted());
    }
    for (name, fields) in [
        ("two lengths that differ", "Content-Length: 5\r\nContent-Length: 6\r\n"),
        ("a list of lengths", "Content-Length: 5, 5\r\n"),
        ("a list of lengths that differ", "Content-Length: 5, 6\r\n"),
        ("a length with a sign", "Content-Length: +5\r\n"),
        ("a negative length", "Content-Length: -5\r\n"),
        ("a length in hex", "Content-Length: 0x5\r\n"),
        ("a length with a dot", "Content-Length: 5.0\r\n"),
        ("a length with a space in it", "Content-Length: 5 5\r\n"),
        ("an empty length", "Content-Length:\r\n"),
        ("a length that is no number", "Content-Length: five\r\n"),
        ("a length beyond 64 bits", "Content-Length: 99999999999999999999\r\n"),
        ("a length with a space before its colon", "Content-Length : 5\r\n"),
        ("a length with a tab before its colon", "Content-Length\t: 5\r\n"),
        ("a folded length", "Content-Length:\r\n 5\r\n"),
        ("a field without a colon", "Content-Length 5\r\n"),
        ("a field without a name", ": 5\r\nContent-Length: 5\r\n"),
        ("a NUL in a name", "Content\0-Length: 5\r\n"),
        ("a NUL in a value", "x: a\0b\r\nContent-Length: 5\r\n"),
        ("a CR in a value", "x: a\rb\r\nContent-Length: 5\r\n"),
        ("a folded field", "x: a\r\n b\r\nContent-Length: 5\r\n"),
        ("a folded field by a tab", "x: a\r\n\tContent-Length: 9\r\nContent-Length: 5\r\n"),
        ("a field that begins with a space", " x: a\r\nContent-Length: 5\r\n"),
    ] {
        cases.push(case(name, put(&format!("{fields}\r\nvalue"))).bare());
    }
    cases
}

/// Codings other than `chunked`.
fn codings() -> Vec<Case> {
    let mut cases = vec![];
    for coding in
        ["gzip, chunked", "chunked, chunked", "\"chunked\", chunked", ", chunked", "chunked;a=b, chunked", "x, chunked"]
    {
        let bytes = put(&format!("Transfer-Encoding: {coding}\r\n\r\n5\r\nvalue\r\n0\r\n\r\n"));
        cases.push(case(format!("Transfer-Encoding: {coding}"), bytes).doubted());
    }
    for coding in [
        "gzip",
        "identity",
        "chunked, gzip",
        "chunkedx",
        "xchunked",
        "chunked;a=b",
        "chunked,",
        "\u{b}chunked",
        "chu nked",
        "\"chunked\"",
        "",
    ] {
        let bytes = put(&format!("Transfer-Encoding: {coding}\r\n\r\n5\r\nvalue\r\n0\r\n\r\n"));
        cases.push(case(format!("Transfer-Encoding: {coding:?}, which is not chunked at its end"), bytes).bare());
    }
    let old = "PUT /users/1 HTTP/1.0\r\nHost: store\r\nFence-Token: {users}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nvalue\r\n0\r\n\r\n";
    cases.push(case("chunked in HTTP/1.0", old).bare());
    for coding in ["chunked", "CHUNKED", " chunked", "chunked "] {
        let bytes = put(&format!("Transfer-Encoding: {coding}\r\n\r\n5\r\nvalue\r\n0\r\n\r\n"));
        cases.push(case(format!("Transfer-Encoding: {coding:?}"), bytes).stores("PUT /users/1", "value"));
    }
    cases
}

/// Lines that end in LF alone, and other things that stand for a line's end somewhere.
fn lines() -> Vec<Case> {
    let whole = put("X-Other: a\r\nContent-Length: 5\r\n\r\nvalue");
    let mut cases = vec![];
    for (place, _) in whole.match_indices("\r\n") {
        let mut bytes = whole.clone();
        bytes.remove(place);
        let line = whole[..place].rsplit('\n').next().unwrap().split([':', ' ']).next().unwrap().to_owned();
        let line = if line.is_empty() { "the empty line".to_owned() } else { line };
        cases.push(case(format!("LF alone behind {line}"), bytes).doubted());
    }
    cases.extend([
        case("LF alone behind every line", whole.replace("\r\n", "\n")).doubted(),
        case("LF alone before the request line", format!("\n{whole}")).doubted(),
        case("LF alone, made up for by a space", whole.replace("store\r\n", "store \n")).doubted(),
        case("LF alone in a read", request("GET /users/x", "").replace("store\r\n", "store\n\r\n")).doubted(),
        case("CRLF before the request line", format!("\r\n{whole}")).stores("PUT /users/1", "value"),
        case("two CRLF before the request line", format!("\r\n\r\n{whole}")).stores("PUT /users/1", "value"),
        case("CR alone behind a line", whole.replace("store\r\n", "store\r")).bare(),
        case("CR CR LF behind a line", whole.replace("store\r\n", "store\r\r\n")).bare(),
        case("a space before the request line", format!(" {whole}")).bare(),
        case("two spaces in the request line", whole.replacen(' ', "  ", 1)).bare(),
        case("a tab in the request line", whole.replacen(' ', "\t", 1)).bare(),
        case("a vertical tab in the request line", whole.replacen(" HTTP", "\u{b}HTTP", 1)).bare(),
        case("no version", whole.replacen(" HTTP/1.1", "", 1)).bare(),
        case("another version", whole.replacen("HTTP/1.1", "HTTP/1.2", 1)).bare(),
        case("a version in lower case", whole.replacen("HTTP/1.1", "http/1.1", 1)).bare(),
        case("a version with two digits", whole.replacen("HTTP/1.1", "HTTP/01.1", 1)).bare(),
        case("HTTP/2.0 in a request line", whole.replacen("HTTP/1.1", "HTTP/2.0", 1)).bare(),
        case("something behind the version", whole.replacen("HTTP/1.1", "HTTP/1.1 x", 1)).bare(),
        case("fields without a space behind their colon", whole.replace(": ", ":")).stores("PUT /users/1", "value"),
        case("fields with spaces around their values", whole.replace(": ", ": \t ")).stores("PUT /users/1", "value"),
    ]);
    cases
}

/// Chunks that are none. What came of the body before is not written.
fn chunks() -> Vec<Case> {
    let mut cases = vec![];
    for (name, body) in [
        ("a size that is no number", "zz\r\nvalue\r\n0\r\n\r\n"),
        ("a negative size", "-5\r\nvalue\r\n0\r\n\r\n"),
        ("a size with a sign", "+5\r\nvalue\r\n0\r\n\r\n"),
        ("a size with 0x", "0x5\r\nvalue\r\n0\r\n\r\n"),
        ("a size beyond 64 bits", "10000000000000005\r\nvalue\r\n0\r\n\r\n"),
        ("an empty size", "\r\nvalue\r\n0\r\n\r\n"),
        ("LF alone behind a size", "5\nvalue\r\n0\r\n\r\n"),
        ("CR alone behind a size", "5\rvalue\r\n0\r\n\r\n"),
        ("LF alone behind an extension", "5;a=b\nvalue\r\n0\r\n\r\n"),
        ("CR alone in an extension", "5;a\rb\r\nvalue\r\n0\r\n\r\n"),
        ("LF alone behind the data", "5\r\nvalue\n0\r\n\r\n"),
        ("nothing behind the data", "5\r\nvalue0\r\n\r\n"),
        ("data longer than its size", "3\r\nvalue\r\n0\r\n\r\n"),
        ("a comma behind a size", "5,5\r\nvalue\r\n0\r\n\r\n"),
        ("an underscore in a size", "0_5\r\nvalue\r\n0\r\n\r\n"),
    ] {
        let bytes = put(&format!("Transfer-Encoding: chunked\r\n\r\n{body}"));
        cases.push(case(format!("chunks: {name}"), bytes).refused(422, "BODY_UNREADABLE"));
    }
    for (name, body) in [
        ("data shorter than its size", "7\r\nvalue\r\n0\r\n\r\n"),
        ("no last chunk", "5\r\nvalue\r\n"),
        ("no end of the trailers", "5\r\nvalue\r\n0\r\n"),
        ("half a size", "5"),
        ("nothing at all", ""),
    ] {
        let bytes = put(&format!("Transfer-Encoding: chunked\r\n\r\n{body}"));
        cases.push(case(format!("chunks: {name}"), bytes).ends().refused(422, "BODY_UNREADABLE"));
    }
    for (name, body, data) in [
        ("one", "5\r\nvalue\r\n0\r\n\r\n", "value"),
        ("two", "3\r\nval\r\n2\r\nue\r\n0\r\n\r\n", "value"),
        ("with an extension", "5;a=b\r\nvalue\r\n0\r\n\r\n", "value"),
        ("with zeros before a size", "0005\r\nvalue\r\n000\r\n\r\n", "value"),
        ("in capitals", "A\r\n0123456789\r\n0\r\n\r\n", "0123456789"),
    ] {
        let bytes = put(&format!("Transfer-Encoding: chunked\r\n\r\n{body}"));
        cases.push(case(format!("chunks: {name}"), bytes).stores("PUT /users/1", data));
    }
    cases
}

/// Several requests in the same bytes: each begins where the one before ends.
fn pipelines() -> Vec<Case> {
    let sized = put("Content-Length: 5\r\n\r\nvalue");
    let chunked = put("Transfer-Encoding: chunked\r\n\r\n5;x\r\nva\r\nl\r\n0\r\nx: y\r\n\r\n");
    let get = request("GET /users/x", "\r\n");
    let evil = request("PUT /other/evil", "Content-Length: 4\r\n\r\nevil");
    let (puts, gets) = ("PUT /users/1", "GET /users/x");
    // What stands in a chunk is data, also where it looks like a line's end.
    let (value, data) = ("value", "va\r\nl");
    vec![
        case("two writes", sized.clone() + &sized).stores(puts, value).stores(puts, value),
        case("a write in chunks and another", chunked.clone() + &sized).stores(puts, data).stores(puts, value),
        case("writes and reads", get.clone() + &chunked + &get + &sized + &get)
            .passes(gets)
            .stores(puts, data)
            .passes(gets)
            .stores(puts, value)
            .passes(gets),
        case("a write without a token behind one with", sized.clone() + &evil)
            .stores(puts, value)
            .refused(428, "WRITE_UNFENCED"),
        case("a write without a token behind chunks", chunked.clone() + &evil)
            .stores(puts, data)
            .refused(428, "WRITE_UNFENCED"),
        case("LF alone in the second head", sized.clone() + &evil.replace("store\r\n", "store\n"))
            .stores(puts, value)
            .doubted(),
        case("LF alone behind chunks", chunked.clone() + &evil.replace("store\r\n", "store\n"))
            .stores(puts, data)
            .doubted(),
        case(
            "two lengths in the second head",
            get.clone() + &sized.replace("Content-Length: 5\r\n", "Content-Length: 5\r\nContent-Length: 5\r\n") + &evil,
        )
        .passes(gets)
        .doubted(),
        case(
            "LF alone as the end of the trailers",
            put("Transfer-Encoding: chunked\r\n\r\n5\r\nvalue\r\n0\r\n\n") + &evil,
        )
        .ends()
        .refused(422, "BODY_UNREADABLE"),
        case(
            "LF alone in the trailers",
            put("Transfer-Encoding: chunked\r\n\r\n5\r\nvalue\r\n0\r\nx: y\n\r\n") + &evil,
        )
        .ends()
        .refused(422, "BODY_UNREADABLE"),
        case(
            "LF alone in the trailers of a long body",
            put(&format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{}\r\n0\r\n\n", 70_000, "v".repeat(70_000)))
                + &evil,
        )
        .ends()
        .refused(504, "OUTCOME_UNKNOWN")
        .sees_cut("PUT /users/1"),
        case("what is no request behind one", get.clone() + "nonsense\r\n\r\n").passes(gets).bare(),
        case("a write behind a request that is closed", request("GET /users/x", "Connection: close\r\n\r\n") + &sized)
            .passes(gets)
            .closed(),
        case("a write behind HTTP/1.0", "GET /users/x HTTP/1.0\r\nHost: store\r\n\r\n".to_owned() + &sized)
            .passes(gets)
            .closed(),
    ]
}

/// Heads whose lines all end where those of another head would, so that a look at where lines end finds nothing: a name
/// that is there twice changes the order of the fields in a map of them, and a field without a space behind its colon is a
/// byte shorter than one with it.
fn disguises() -> Vec<Case> {
    let (hidden, twice) = ("Content-Length: 5", "x".repeat(14));
    let steps = hidden.len() + 1;
    let mut length = put(&format!("Transfer-Encoding: chunked\r\n{twice}: 1\r\n{hidden}\r\n"));
    for (step, letter) in ('a'..).take(steps).enumerate() {
        let begun = letter.to_string().repeat(14 + steps - step) + if step == 0 { ":" } else { ":: " };
        length += &format!("{begun:v<0$}\r\n", 35 + step);
    }
    length += &format!("{:v<1$}\r\n\r\n", twice + ":: ", 35 + steps);
    let mut line = put("Content-Length: 7\r\nxx: 1\r\nyy: 1\n");
    for (step, (long, short)) in [('a', 'b'), ('c', 'd'), ('e', 'f'), ('g', 'h'), ('i', 'j')].into_iter().enumerate() {
        let begun = long.to_string().repeat(7 - step) + if step == 0 { ":" } else { ":: " };
        line += &format!("{begun:v<0$}\r\n{short}{short}: 1\r\n", 11 + step);
    }
    line += "xx:: vvvvvvvvvvv\r\n\r\n: 1\r\n\r\n";
    vec![
        case("a length beside chunked, in the place of another field", length.clone() + "5\r\nvalue\r\n0\r\n\r\n")
            .doubted(),
        case(
            "a length beside chunked, in the place of another field, in the second head",
            request("GET /users/x", "\r\n") + &length + "0\r\n\r\n",
        )
        .passes("GET /users/x")
        .doubted(),
        case("LF alone, in the place of another field", line).doubted(),
        case("a name twice, with others between", put("x: 1\r\ny: 2\r\nx: 3\r\nContent-Length: 5\r\n\r\nvalue"))
            .stores("PUT /users/1", "value"),
    ]
}

pub(super) fn cases() -> Vec<Case> {
    [lengths(), codings(), lines(), chunks(), pipelines(), disguises()].concat()
}

#[test]
fn a_request_ends_where_every_parser_says() {
    hold(&cases(), |_| {});
}

#[test]
fn a_gate_that_is_not_strict_is_caught() {
    caught(
        &cases(),
        |settings| settings.gate.strict = false,
        &[
            "a length before chunked",
            "chunked twice, in two fields",
            "content_length beside the length",
            "LF alone behind Host",
            "LF alone behind chunks",
            "a length beside chunked, in the place of another field",
            "LF alone, in the place of another field",
        ],
    );
}

/// A body that is not the one that came.
#[test]
fn a_gate_that_cuts_bodies_is_caught() {
    caught_with(
        &cases(),
        "cut-body",
        &[
            "chunks: one",
            "chunks: in capitals",
            "Transfer-Encoding: \"CHUNKED\"",
            "two writes",
            "a write in chunks and another",
            "a name twice, with others between",
        ],
    );
}

/// Half a write, of which the client said that it is not whole.
#[test]
fn a_gate_that_takes_half_a_body_for_a_whole_one_is_caught() {
    caught_with(
        &cases(),
        "short-body",
        &["chunks: data shorter than its size", "chunks: no last chunk", "chunks: a size that is no number"],
    );
}
