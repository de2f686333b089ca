//! The target: the object that the gate judges is the object that the store writes. `cases` is a table of cases, and is
//! not split for its length.

use super::{Case, case, caught, caught_with, hold, request, write};

pub(super) fn cases() -> Vec<Case> {
    let body = "Content-Length: 5\r\n\r\nvalue";
    let mut cases = vec![];
    for path in [
        "/users/../other/1",
        "/users/./1",
        "/users/%2e%2e/other/1",
        "/users/.%2e/other/1",
        "/users//1",
        "//users/1",
        "/users/a%2fb",
        "/users/a%2Fb",
        "/users%2f..%2fother/1",
        "/users/a%5cb",
        "/users/a\\b",
        "/users\\..\\other/1",
        "/users/a;b",
        "/users;x/1",
        "/users/a%3bb",
        "/users/a%00b",
        "/users/a%0d%0ab",
        "/users/a%7f",
        "/users/%252e%252e/1",
        "/users/%25%32%65",
        "/users/%",
        "/users/%4",
        "/users/%zz",
        "/users/%u0041",
        "/users/%c0%ae%c0%ae/1",
        "/users/%ff",
        "/users/..",
        "/users/.",
        "/users/..;/other/1",
    ] {
        cases.push(case(format!("PUT {path}"), write(&format!("PUT {path}"), body)).refused(422, "PATH_AMBIGUOUS"));
    }
    for (name, raw) in [
        ("Latin-1", &b"/users\xe4/1"[..]),
        ("UTF-8", b"/\xc3\xa4/1"),
        ("in the rest of a path", b"/users/\xc3\xa4"),
        ("half a character", b"/users/\xc3"),
    ] {
        let head = write("PUT @", body).into_bytes();
        let at = head.iter().position(|byte| *byte == b'@').unwrap();
        let bytes = [&head[..at], raw, &head[at + 1..]].concat();
        let expected = if std::str::from_utf8(raw).is_ok() {
            case(format!("raw bytes above 0x7e: {name}"), bytes).refused(422, "PATH_AMBIGUOUS")
        } else {
            case(format!("raw bytes above 0x7e: {name}"), bytes).bare()
        };
        cases.push(expected);
    }
    for target in ["/users/1#x", "/users/#ment", "/users/#", "/users/1?a#b", "/#"] {
        cases.push(case(format!("PUT {target}"), write(&format!("PUT {target}"), body)).doubted());
        cases.push(case(format!("GET {target}"), request(&format!("GET {target}"), "\r\n")).doubted());
    }
    // A missing space makes up for the length of a fragment.
    let bytes = "PUT /users/# HTTP/1.1\r\nHost:store\r\nFence-Token: {users}\r\nContent-Length: 5\r\n\r\nvalue";
    cases.push(case("a fragment made up for by a missing space", bytes).doubted());
    for target in ["users/1", "", "1", "?x", "users", "\"/users/1\"", "/users/<1>", "#x", "/users/a b"] {
        let name = format!("PUT {target:?}, which is no path");
        cases.push(match target {
            // A name of a host: no path at all.
            "users" | "1" => case(name, write(&format!("PUT {target}"), body)).refused(422, "PATH_AMBIGUOUS"),
            _ => case(name, write(&format!("PUT {target}"), body)).bare(),
        });
    }
    for path in [
        "/users/1?a=b",
        "/users/a%20b",
        "/users/%C3%A4",
        "/users/a+b",
        "/users/~a",
        "/users/a:b",
        "/users/a@b",
        "/users/%41",
        "/users/{1}",
    ] {
        let line = format!("PUT {path}");
        cases.push(case(format!("{line} is plain"), write(&line, body)).stores(&line, "value"));
    }
    for path in ["/other/1", "/USERS/1", "/%6fther/1"] {
        cases.push(
            case(format!("PUT {path} with another object's token"), write(&format!("PUT {path}"), body))
                .refused(409, "LEASE_OBJECT_MISMATCH"),
        );
    }
    cases
        .push(case("PUT /%75sers/1, the same object", write("PUT /%75sers/1", body)).stores("PUT /%75sers/1", "value"));
    for name in ["X-Original-URL", "X-Rewrite-URL", "x_original_url", "X_Rewrite-Url"] {
        let bytes = write("PUT /users/1", &format!("{name}: /other/1\r\n{body}"));
        cases.push(case(format!("{name} on a write"), bytes).refused(422, "PATH_AMBIGUOUS"));
    }
    cases
}

#[test]
fn what_is_judged_is_what_is_written() {
    hold(&cases(), |_| {});
}

#[test]
fn a_gate_that_cuts_fragments_off_is_caught() {
    caught(&cases(), |settings| settings.gate.strict = false, &["PUT /users/#ment", "GET /users/1#x"]);
}

/// Writes to what a store could read as another object's path.
#[test]
fn a_gate_that_takes_any_path_is_caught() {
    caught_with(
        &cases(),
        "any-path",
        &["PUT /users/../other/1", "PUT /users/%2e%2e/other/1", "PUT /users\\..\\other/1", "x_original_url on a write"],
    );
}
