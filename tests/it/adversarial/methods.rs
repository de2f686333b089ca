//! Methods: none hides behind another.

use super::{Case, case, caught, hold, request, write};

pub(super) fn cases() -> Vec<Case> {
    let body = "Content-Length: 5\r\n\r\nvalue";
    let mut cases = vec![];
    for name in
        ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "x_http_method_override", "X-HTTP_Method"]
    {
        for method in ["GET", "POST", "PUT"] {
            let (line, rest) = (format!("{method} /users/1"), if method == "GET" { "\r\n" } else { body });
            let bytes = write(&line, &format!("{name}: DELETE\r\n{rest}"));
            cases.push(case(format!("{name} on {method}"), bytes).refused(400, "METHOD_OVERRIDE_REFUSED"));
        }
    }
    for query in [
        "_method=DELETE",
        "_METHOD=x",
        "a=b&_method=PUT",
        "%5fmethod=PUT",
        "%5Fmeth%6fd=PUT",
        "x-http-method-override=PUT",
        "_method",
    ] {
        for method in ["GET", "POST"] {
            let (line, rest) = (format!("{method} /users/1?{query}"), if method == "GET" { "\r\n" } else { body });
            cases.push(case(format!("{line} overrides"), write(&line, rest)).refused(400, "METHOD_OVERRIDE_REFUSED"));
        }
    }
    for method in ["put", "get", "Get", "PURGE", "X", "M-SEARCH", "PROPPATCH", "UNLOCK", "LINK", "BIND", "ACL"] {
        let line = format!("{method} /users/1");
        cases.push(
            case(format!("{method} without a token is a write"), request(&line, "\r\n")).refused(428, "WRITE_UNFENCED"),
        );
        cases.push(case(format!("{method} with a token"), write(&line, "\r\n")).passes(&line));
    }
    for method in ["G@T", "GE(T", "\"GET\"", "G\0T", "GET,", "G\u{e4}T", "GET/", "[GET]"] {
        cases.push(case(format!("{method:?} is no method"), write(&format!("{method} /users/1"), "\r\n")).bare());
    }
    cases
}

#[test]
fn every_method_is_what_it_says() {
    hold(&cases(), |_| {});
}

/// A gate that judges nothing forwards them.
#[test]
fn a_gate_that_is_off_is_caught() {
    let off = |settings: &mut fencegate::config::Settings| {
        let mode = fencegate::config::Mode::Off;
        settings.route = vec![fencegate::config::RouteSettings { mode, ..Default::default() }];
    };
    caught(&cases(), off, &["PURGE without a token is a write", "get without a token is a write"]);
}
