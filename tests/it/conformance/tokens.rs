//! Invalid tokens, and tokens in places where they may not be.

use crate::support::{
    bench::Bench,
    h2::{PROTOCOL_ERROR, RawH2},
};

const ALPHABET: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// A good token with one of its four parts replaced.
fn with_part(token: &str, place: usize, part: &str) -> String {
    let mut parts: Vec<&str> = token.split('.').collect();
    parts[place] = part;
    parts.join(".")
}

fn part(token: &str, place: usize) -> &str {
    token.split('.').nth(place).unwrap()
}

/// The same bytes in another spelling: bits that mean nothing are set.
fn non_canonical(base64: &str) -> String {
    let (rest, last) = base64.split_at(base64.len() - 1);
    let place = ALPHABET.find(last).unwrap();
    format!("{rest}{}", &ALPHABET[place + 1..place + 2])
}

/// Tokens that differ slightly from the valid one.
fn spellings(token: &str) -> Vec<(&'static str, String)> {
    let seqs = ["-1", "1.0", "0x1", "+1", "01", "0", "18446744073709551616", "", "1e0", "1_0"];
    let mut all: Vec<_> = seqs.map(|seq| ("lease_seq", with_part(token, 1, seq))).to_vec();
    let (object, secret) = (part(token, 2), part(token, 3));
    all.extend([
        ("blank", String::new()),
        ("a space", " ".to_owned()),
        ("padded object", with_part(token, 2, &format!("{object}="))),
        ("padded secret", with_part(token, 3, &format!("{secret}=="))),
        ("another spelling of the object", with_part(token, 2, &non_canonical(object))),
        ("another spelling of the secret", with_part(token, 3, &non_canonical(secret))),
        ("the other base64 alphabet", with_part(token, 2, "dXNl+/M")),
        ("no object", with_part(token, 2, "")),
        ("no secret", with_part(token, 3, "")),
        ("half a secret", with_part(token, 3, &secret[..10])),
        ("a field too many", format!("{token}.x")),
        ("an empty field too many", format!("{token}.")),
        ("a field too few", token.rsplit_once('.').unwrap().0.to_owned()),
        ("another version", with_part(token, 0, "fg2")),
        ("upper case", with_part(token, 0, "FG1")),
        ("9 KiB", "x".repeat(9 * 1024)),
        ("9 KiB of a token", with_part(token, 2, &"A".repeat(9 * 1024))),
        ("joined by a comma", format!("{token},{token}")),
        ("joined by a comma and a space", format!("{token}, {token}")),
        ("quoted", format!("\"{token}\"")),
        ("with a scheme", format!("Bearer {token}")),
    ]);
    all
}

#[test]
fn a_token_has_one_spelling_and_all_others_are_malformed() {
    let bench = Bench::new();
    for (what, token) in spellings(bench.token()) {
        println!("{what}");
        let answer = bench.put("/users/1", &[("fence-token", &token)]);
        let refusal = bench.refused(&answer, 400, "FENCE_TOKEN_MALFORMED");
        assert_eq!(refusal["object_id"], "users", "{what}");
    }
    // Bytes that are not text.
    let request = b"PUT /users/1 HTTP/1.1\r\nhost: x\r\nfence-token: fg1.\xff\r\ncontent-length: 0\r\n\r\n";
    bench.refused(&bench.raw(request), 400, "FENCE_TOKEN_MALFORMED");
    // A NUL in a header is not valid HTTP.
    let request = b"PUT /users/1 HTTP/1.1\r\nhost: x\r\nfence-token: fg1.\0\r\ncontent-length: 0\r\n\r\n";
    bench.turned_away(&bench.raw(request));
}

#[test]
fn a_token_has_one_spelling_on_http_2_too() {
    let bench = Bench::new();
    let mut h2 = bench.h2();
    for (what, token) in spellings(bench.token()) {
        println!("{what}");
        let answer = h2.call("PUT", "/users/1", &[("fence-token", &token)], b"value");
        // HTTP/1.1 cuts a space at the edge of a value off; HTTP/2 does not.
        let code = if token.trim() == token { "FENCE_TOKEN_MALFORMED" } else { "REQUEST_INVALID" };
        bench.refused(&answer, 400, code);
    }
    assert_eq!(h2.call("PUT", "/users/1", &[("fence-token", bench.token())], b"value").status, 200);
    assert_eq!(bench.store.story(), ["PUT /users/1"]);
}

#[test]
fn the_largest_number_is_a_number() {
    let bench = Bench::new();
    let token = with_part(bench.token(), 1, "18446744073709551615");
    let refusal = bench.refused(&bench.put("/users/1", &[("fence-token", &token)]), 412, "WRITE_FENCE_AHEAD");
    assert_eq!((refusal["lease_seq"].as_u64(), refusal["fence"].as_u64()), (Some(u64::MAX), Some(1)));
}

/// A valid token, and beside it a second field that makes its owner unclear.
fn misplaced(token: &str) -> Vec<(&str, &str)> {
    vec![
        ("fence-token", token),
        ("trailer", "Fence-Token"),
        ("trailer", "x-checksum, fence-token"),
        ("authorization", "AWS4-HMAC-SHA256 Credential=a/b/c, SignedHeaders=fence-token;host;x-amz-date, Signature=0"),
    ]
}

#[test]
fn a_token_that_is_sent_twice_dropped_announced_or_signed_is_malformed() {
    let bench = Bench::new();
    let token = bench.token();
    let mut all = misplaced(token);
    all.extend([
        ("connection", "fence-token"),
        ("connection", "close, Fence-Token"),
        ("Fence-Token", ""),
        ("FENCE-TOKEN", token),
    ]);
    for second in all {
        println!("{second:?}");
        let answer = bench.put("/users/1", &[("fence-token", token), second]);
        bench.refused(&answer, 400, "FENCE_TOKEN_MALFORMED");
    }
}

#[test]
fn a_token_that_is_sent_twice_announced_or_signed_is_malformed_on_http_2_too() {
    let bench = Bench::new();
    let mut h2 = bench.h2();
    let token = bench.token();
    for second in misplaced(token) {
        println!("{second:?}");
        let answer = h2.call("PUT", "/users/1", &[("fence-token", token), second], b"value");
        bench.refused(&answer, 400, "FENCE_TOKEN_MALFORMED");
    }
    // HTTP/2 has no Connection field: hyper resets the stream.
    let mut raw = RawH2::open(bench.gate.running().listens);
    let head = [(":method", "PUT"), (":scheme", "http"), (":path", "/users/1"), (":authority", "x")];
    let fields = [&head[..], &[("fence-token", token), ("connection", "fence-token")]].concat();
    raw.send_headers(1, &fields, true);
    assert_eq!(raw.expect_reset(1), PROTOCOL_ERROR);
    assert_eq!(bench.store.saw("begun"), 0);
}

#[test]
fn a_trailer_is_no_place_for_a_token() {
    let bench = Bench::new();
    let token = bench.token();
    let chunked = |head: &str| {
        let request = format!(
            "PUT /users/1 HTTP/1.1\r\nhost: x\r\n{head}transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nfence-token: {token}\r\n\r\n"
        );
        bench.raw(request.as_bytes())
    };
    // The trailer was not announced, so the gate finds it only at the end of the body.
    bench.refused(&chunked(&format!("fence-token: {token}\r\n")), 400, "FENCE_TOKEN_MALFORMED");
    // The token is in the trailer only: there is no token when the write is judged, and the body is not read.
    bench.refused(&chunked(""), 428, "WRITE_UNFENCED");
    let mut h2 = bench.h2();
    for (headers, status, code) in
        [(&[("fence-token", token)][..], 400, "FENCE_TOKEN_MALFORMED"), (&[][..], 428, "WRITE_UNFENCED")]
    {
        let mut stream = h2.begin("PUT", "/users/1", headers);
        stream.send(b"a", false);
        stream.send_trailer("fence-token", token);
        bench.refused(&stream.receive().unwrap(), status, code);
    }
}
