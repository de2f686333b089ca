//! Requests, and what they are.

use http::Request;

use super::*;
use crate::config::Settings;

const TOKEN: &str = "fg1.1.dXNlcnM.AAAAAAAAAAAAAAAAAAAAAA";

fn routes() -> Routes {
    Routes::new(&Settings::default()).unwrap()
}

fn head(method: &str, uri: &str, headers: &[(&str, &str)]) -> Parts {
    let mut request = Request::builder().method(method).uri(uri).header("host", "store");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

/// `read`, the object of a write, or the code of a refusal.
fn class(method: &str, uri: &str, headers: &[(&str, &str)]) -> String {
    match classify(&head(method, uri, headers), &routes(), &GateSettings::default()) {
        Ok(Class::Read { .. }) => "read".to_owned(),
        Ok(Class::Write(target)) => target.object.to_string(),
        Err(unfit) => unfit.code.as_str().to_owned(),
    }
}

#[test]
fn three_methods_read_and_all_others_write() {
    for method in ["GET", "HEAD", "OPTIONS"] {
        assert_eq!(class(method, "/users/1", &[]), "read");
    }
    for method in ["PUT", "POST", "PATCH", "DELETE", "COPY", "MKCOL", "PROPFIND", "put", "get", "PURGE"] {
        assert_eq!(class(method, "/users/1", &[]), "users", "{method}");
    }
    for method in ["CONNECT", "TRACE"] {
        assert_eq!(class(method, "/users/1", &[]), "TUNNEL_REFUSED");
    }
}

#[test]
fn a_path_that_can_be_read_in_two_ways_may_be_read_but_not_written() {
    for path in ["/a//b", "/a/../b", "/a%2fb", "/a;b", "/a/%2e"] {
        assert_eq!(class("PUT", path, &[]), "PATH_AMBIGUOUS", "{path}");
        assert_eq!(class("GET", path, &[]), "read", "{path}");
    }
    assert_eq!(class("PUT", "/", &[]), "OBJECT_UNMAPPED");
    assert_eq!(class("PUT", "http://store/users/1", &[]), "users");
    assert_eq!(class("PUT", "http://other/users/1", &[]), "PATH_AMBIGUOUS");
    assert_eq!(class("PUT", "/users/1", &[("host", "two")]), "REQUEST_INVALID");
}

#[test]
fn no_method_hides_behind_another() {
    for name in ["X-HTTP-Method-Override", "x-http-method", "X-Method-Override"] {
        for method in ["GET", "POST"] {
            assert_eq!(class(method, "/users/1", &[(name, "DELETE")]), "METHOD_OVERRIDE_REFUSED");
        }
    }
    for query in ["_method=DELETE", "a=b&_METHOD=x", "%5fmethod=PUT"] {
        assert_eq!(class("POST", &format!("/users/1?{query}"), &[]), "METHOD_OVERRIDE_REFUSED", "{query}");
    }
    assert_eq!(class("POST", "/users/1?method=x", &[]), "users");
}

#[test]
fn upgrades_are_refused_and_offers_of_h2c_are_not() {
    assert_eq!(class("GET", "/users/1", &[("upgrade", "websocket"), ("connection", "upgrade")]), "TUNNEL_REFUSED");
    assert_eq!(class("GET", "/users/1", &[("upgrade", "h2c")]), "read");
    assert_eq!(class("PUT", "/users/1", &[("upgrade", "h2c, websocket")]), "TUNNEL_REFUSED");
}

#[test]
fn what_is_too_large_is_said_to_be() {
    let limits = GateSettings { body_bytes_max: 10, ..GateSettings::default() };
    let status = |head: &Parts| classify(head, &routes(), &limits).unwrap_err().code;
    let long = format!("/users/{}", "x".repeat(9_000));
    assert_eq!(status(&head("GET", &long, &[])), Code::RequestLimit(Limit::Uri));
    let large = "x".repeat(40_000);
    assert_eq!(status(&head("GET", "/users", &[("x", &large)])), Code::RequestLimit(Limit::Headers));
    assert_eq!(status(&head("PUT", "/users", &[("content-length", "11")])), Code::RequestLimit(Limit::Body));
}

#[test]
fn a_token_is_one_header_that_only_the_gate_sees() {
    let seen = |headers: &[(&str, &str)]| match classify(
        &head("PUT", "/users/1", headers),
        &routes(),
        &GateSettings::default(),
    ) {
        Ok(Class::Write(target)) => match target.presented {
            Presented::Nothing => "nothing",
            Presented::Unreadable(_) => "unreadable",
            Presented::Token(_) => "token",
        },
        Ok(Class::Read { .. }) => "read",
        Err(unfit) => unfit.code.as_str(),
    };
    assert_eq!(seen(&[]), "nothing");
    assert_eq!(seen(&[("Fence-Token", TOKEN)]), "token");
    assert_eq!(seen(&[("Fence-Token", "")]), "unreadable");
    assert_eq!(seen(&[("Fence-Token", &format!("{TOKEN}, {TOKEN}"))]), "unreadable");
    let malformed = "FENCE_TOKEN_MALFORMED";
    assert_eq!(seen(&[("Fence-Token", TOKEN), ("Fence-Token", TOKEN)]), malformed);
    assert_eq!(seen(&[("Fence-Token", TOKEN), ("Connection", "close, Fence-Token")]), malformed);
    assert_eq!(seen(&[("Fence-Token", TOKEN), ("Trailer", "fence-token")]), malformed);
    let signed = "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=fence-token;host, Signature=c";
    assert_eq!(seen(&[("Fence-Token", TOKEN), ("Authorization", signed)]), malformed);
    let unsigned = "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host;x-amz-date, Signature=c";
    assert_eq!(seen(&[("Fence-Token", TOKEN), ("Authorization", unsigned)]), "token");
}
