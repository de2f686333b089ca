//! A gibibyte each way, every byte compared at the other end, while the gate's memory stays flat.

use std::{io::Write, process::Stdio};

use super::{HTTP_1, HTTP_2, Line, Text, printed, settled, whole};
use crate::support::run::output_of;

const GIB: u64 = 1 << 30;
/// The most memory by which the gate may grow.
const FLAT: u64 = 16 << 20;
/// Memory that a gate allocates once does not count as growth.
const FIRST: u64 = 16 << 20;

/// curl sends the body as it comes from a pipe, so its length is not known.
fn upload(line: &Line, protocol: &str, size: u64) {
    let mut command = line.fenced_curl(protocol, "/users/1");
    command.args(["-T", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut curl = command.spawn().unwrap();
    let mut input = curl.stdin.take().unwrap();
    let sent = Text::each(size, |piece| input.write_all(piece));
    drop(input);
    let output = output_of("curl with an upload", &mut curl);
    let came = whole(printed(&output), size);
    sent.unwrap();
    assert_eq!(came["framing"], "chunked", "it was streamed, not collected");
}

/// On a plain socket, with the length in the head.
fn upload_of_known_length(line: &Line, size: u64) {
    let mut conn = line.conn();
    let head =
        format!("PUT /users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {}\r\ncontent-length: {size}\r\n\r\n", line.token);
    conn.send_raw(head.as_bytes()).unwrap();
    Text::each(size, |piece| conn.send_raw(piece)).unwrap();
    let came = settled(&conn.receive().unwrap(), size);
    assert_eq!(came["framing"], "length");
}

fn download(line: &Line, protocol: &str, size: u64) {
    let mut command = line.curl(protocol, &format!("/users/{size}"));
    let mut curl = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    assert_eq!(Text::check(curl.stdout.take().unwrap()), size);
    printed(&output_of("curl with a download", &mut curl));
}

#[track_caller]
fn is_flat(line: &Line, what: &str, transfer: impl Fn(&Line, u64)) {
    transfer(line, FIRST);
    let growth = line.growth(|| transfer(line, GIB));
    assert!(growth < FLAT, "{what}: {} MiB more", growth >> 20);
}

#[test]
fn a_gibibyte_goes_up_and_down_over_http_1_with_flat_memory() {
    let line = Line::new();
    is_flat(&line, "up, in chunks", |line, size| upload(line, HTTP_1, size));
    is_flat(&line, "up, of known length", upload_of_known_length);
    is_flat(&line, "down", |line, size| download(line, HTTP_1, size));
}

#[test]
fn a_gibibyte_goes_up_and_down_over_http_2_with_flat_memory() {
    let line = Line::new();
    is_flat(&line, "up", |line, size| upload(line, HTTP_2, size));
    is_flat(&line, "down", |line, size| download(line, HTTP_2, size));
}
