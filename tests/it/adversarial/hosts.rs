//! The Host: one name, which two parsers cannot read in two ways.

use super::{Case, case, caught, caught_with, hold};

fn with(host: &str) -> String {
    format!("PUT /users/1 HTTP/1.1\r\n{host}Fence-Token: {{users}}\r\nContent-Length: 5\r\n\r\nvalue")
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![];
    for host in [
        "h/path",
        "h/",
        "/h",
        "h, other",
        "h,other",
        "",
        "h h",
        "user@h",
        "h?x",
        "h#x",
        "h\\x",
        "h:",
        "h:x",
        "h:8080x",
        "h:123456",
        "h:80:80",
        ":80",
        "[::1",
        "::1",
        "[::1]x",
        "[::1].evil",
        "[x]",
        "h%2fpath",
        "h;x",
        "h'",
        "h\u{e4}",
        "http://h",
    ] {
        cases.push(case(format!("Host: {host:?}"), with(&format!("Host: {host}\r\n"))).doubted());
    }
    for host in ["h", "H", "h.example", "h:8080", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:8080", "a_b", "a-b.c"] {
        cases.push(
            case(format!("Host: {host:?} is a host"), with(&format!("Host: {host}\r\n")))
                .stores("PUT /users/1", "value"),
        );
    }
    let absolute = |target: &str, host: &str| {
        format!("PUT {target} HTTP/1.1\r\n{host}Fence-Token: {{users}}\r\nContent-Length: 5\r\n\r\nvalue")
    };
    cases.extend([
        case("no Host", with("")).doubted(),
        case("no Host in HTTP/1.0", with("").replace("1.1", "1.0")).doubted(),
        case("two Hosts", with("Host: h\r\nHost: h\r\n")).doubted(),
        case("two Hosts that differ", with("Host: h\r\nHost: other\r\n")).doubted(),
        case("the same host in the target", absolute("http://h/users/1", "Host: h\r\n"))
            .stores("PUT /users/1", "value"),
        case("another host in the target", absolute("http://other/users/1", "Host: h\r\n"))
            .refused(422, "PATH_AMBIGUOUS"),
        case("a host in the target alone", absolute("http://h/users/1", "")).doubted(),
        case("a host in the target alone, in HTTP/1.0", absolute("http://h/users/1", "").replace("1.1", "1.0"))
            .doubted(),
        case("a user in the target", absolute("http://u@h/users/1", "Host: u@h\r\n")).doubted(),
    ]);
    cases
}

#[test]
fn a_host_is_one_name() {
    hold(&cases(), |_| {});
}

#[test]
fn a_gate_that_takes_any_host_is_caught() {
    caught(
        &cases(),
        |settings| settings.gate.strict = false,
        &["Host: \"h/path\"", "Host: \"h, other\"", "Host: \"\""],
    );
}

#[test]
fn a_gate_that_does_not_look_at_the_host_is_caught() {
    caught_with(
        &cases(),
        "any-host",
        &["two Hosts that differ", "another host in the target", "Host: \"user@h\"", "Host: \"h\\\\x\""],
    );
}
