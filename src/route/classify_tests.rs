//! Requests, and how they are classified.

use http::{Request, Version};

use super::*;
use crate::{
    config::{RouteSettings, Settings},
    route::{form::is_host, source::gate_token},
};

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
        Ok(Class::Write(write)) => objects(&write),
        Err(unfit) => unfit.code.as_str().to_owned(),
    }
}

fn presented_by(headers: &HeaderMap) -> Presented {
    Target { object: "users".into(), brought: gate_token(headers, Marks::of(headers)) }.presented()
}

fn objects(write: &Write<'_>) -> String {
    let all = std::iter::once(&write.target).chain(&write.others);
    all.map(|target| target.object.to_string()).collect::<Vec<_>>().join(" and ")
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
    assert_eq!(status(&head("GET", &long, &[])), Code::TargetTooLarge);
    let large = "x".repeat(40_000);
    assert_eq!(status(&head("GET", "/users", &[("x", &large)])), Code::HeadersTooLarge);
    assert_eq!(status(&head("PUT", "/users", &[("content-length", "11")])), Code::BodyTooLarge);
}

#[test]
fn a_token_is_one_header_that_only_the_gate_sees() {
    let seen = |headers: &[(&str, &str)]| match presented_by(&head("PUT", "/users/1", headers).headers) {
        Presented::Nothing => Err(None),
        Presented::Unreadable(fault) => Err(Some(fault)),
        Presented::Token(_) | Presented::Outside(_) => Ok(()),
    };
    let fault = |fault| Err(Some(fault));
    assert_eq!(seen(&[]), Err(None));
    assert_eq!(seen(&[("Fence-Token", TOKEN)]), Ok(()));
    assert_eq!(seen(&[("Fence-Token", "")]), fault(TokenFault::Shape));
    assert!(seen(&[("Fence-Token", &format!("{TOKEN}, {TOKEN}"))]).is_err_and(|fault| fault.is_some()));
    assert_eq!(seen(&[("Fence-Token", TOKEN), ("Fence-Token", TOKEN)]), fault(TokenFault::Twice));
    let named = [("Fence-Token", TOKEN), ("Connection", "close, Fence-Token")];
    assert_eq!(seen(&named), fault(TokenFault::InConnection));
    assert_eq!(seen(&[("Trailer", "x, fence-token")]), fault(TokenFault::InTrailer));
    let signed = "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=fence-token;host, Signature=c";
    assert_eq!(seen(&[("Fence-Token", TOKEN), ("Authorization", signed)]), fault(TokenFault::Signed));
    let unsigned = "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host;x-amz-date, Signature=c";
    assert_eq!(seen(&[("Fence-Token", TOKEN), ("Authorization", unsigned)]), Ok(()));
}

#[test]
fn no_header_makes_a_store_write_elsewhere_or_something_else() {
    assert_eq!(class("GET", "/users/1", &[("X_HTTP_Method_Override", "DELETE")]), "METHOD_OVERRIDE_REFUSED");
    for name in ["X-Original-URL", "x_rewrite_url"] {
        assert_eq!(class("PUT", "/users/1", &[(name, "/orders/1")]), "PATH_AMBIGUOUS");
        assert_eq!(class("GET", "/users/1", &[(name, "/orders/1")]), "read");
    }
    assert_eq!(class("PUT", "/users/1", &[("transfer-encoding", "gzip, chunked")]), "REQUEST_INVALID");
    assert_eq!(class("PUT", "/users/1", &[("transfer-encoding", "Chunked")]), "users");
}

#[test]
fn http_1_1_names_its_host() {
    let mut without = head("PUT", "/users/1", &[]);
    without.headers.remove("host");
    let code = |head: &Parts| classify(head, &routes(), &GateSettings::default()).err().map(|unfit| unfit.code);
    assert_eq!(code(&without), Some(Code::RequestInvalid));
    without.version = Version::HTTP_10;
    assert_eq!(code(&without), Some(Code::RequestInvalid));
    let lax = GateSettings { strict: false, ..GateSettings::default() };
    assert!(classify(&without, &routes(), &lax).is_ok());
    // A host in the target does not make up for it.
    for (version, is_refused) in [(Version::HTTP_10, true), (Version::HTTP_11, true), (Version::HTTP_2, false)] {
        let mut absolute = head("PUT", "http://store/users/1", &[]);
        absolute.headers.remove("host");
        absolute.version = version;
        assert_eq!(code(&absolute).is_some(), is_refused, "{version:?}");
    }
}

#[test]
fn a_host_is_one_name_or_address() {
    for host in ["h", "h.example:80", "127.0.0.1", "[::1]", "[2001:db8::1]:443", "a_b-c"] {
        assert!(is_host(host.as_bytes()), "{host}");
    }
    for host in ["", ":80", "h:", "h:x", "h/p", "h,o", "h o", "u@h", "[::1", "[::1]x", "[h]", "::1", "h:123456", "h%41"]
    {
        assert!(!is_host(host.as_bytes()), "{host}");
    }
}

#[test]
fn a_read_has_no_body_unless_its_route_says_so() {
    for fields in [[("content-length", "1")], [("content-length", "00")], [("transfer-encoding", "chunked")]] {
        assert_eq!(class("GET", "/users/1", &fields), "REQUEST_INVALID");
        assert_eq!(class("GET", "/", &fields), "REQUEST_INVALID");
        assert_eq!(class("DELETE", "/users/1", &fields), "users");
        let route = RouteSettings { bodies_on_reads: true, ..RouteSettings::default() };
        let routes = Routes::new(&Settings { route: vec![route], ..Settings::default() }).unwrap();
        let head = head("GET", "/users/1", &fields);
        let class = classify(&head, &routes, &GateSettings::default());
        assert!(matches!(class, Ok(Class::Read { may_have_body: true, .. })), "{class:?}");
    }
    assert_eq!(class("GET", "/users/1", &[("content-length", "0")]), "read");
}

#[test]
fn a_second_path_may_belong_to_a_second_object() {
    let to = |destination: &str| class("MOVE", "/users/1", &[("destination", destination)]);
    assert_eq!(to("/users/2"), "users");
    assert_eq!(to("http://store/users/2"), "users");
    assert_eq!(to("/orders/2"), "orders and users");
    assert_eq!(to("/"), "LEASE_OBJECT_MISMATCH");
    for odd in ["/users/../orders", "/users/2?/../../orders/1", "/users/2#/../../orders/1", "http://other/users/2"] {
        assert_eq!(to(odd), "PATH_AMBIGUOUS", "{odd}");
    }
    for odd in ["http://me@store/users/2", "//store/users/2", "store", "*"] {
        assert_eq!(to(odd), "PATH_AMBIGUOUS", "{odd}");
    }
    assert_eq!(to("HTTP://STORE/users/2"), "users");
    assert_eq!(to(""), "PATH_AMBIGUOUS");
    let twice = [("destination", "/users/2"), ("destination", "/users/3")];
    assert_eq!(class("COPY", "/users/1", &twice), "PATH_AMBIGUOUS");
}

#[test]
fn nothing_is_deleted_together_with_objects_below_it() {
    let route = |name: &str, path: &str, object: &str| crate::config::RouteSettings {
        name: name.to_owned(),
        path: path.to_owned(),
        object: object.to_owned(),
        ..crate::config::RouteSettings::default()
    };
    let any = route("any", "/{object}/{rest...}", "{object}");
    let data = route("data", "/data/{domain}/{rest...}", "/data/{domain}/");
    let routes = Routes::new(&Settings { route: vec![any, data], ..Settings::default() }).unwrap();
    let class_to = |method: &str, path: &str, headers: &[(&str, &str)]| match classify(
        &head(method, path, headers),
        &routes,
        &GateSettings::default(),
    ) {
        Ok(Class::Write(write)) => objects(&write),
        Ok(Class::Read { .. }) => "read".to_owned(),
        Err(unfit) => unfit.code.as_str().to_owned(),
    };
    let class = |method: &str, path: &str| class_to(method, path, &[]);
    assert_eq!(class_to("MOVE", "/data/users/1", &[("destination", "/data/users/2")]), "/data/users/");
    assert_eq!(class_to("MOVE", "/other/1", &[("destination", "/other")]), "other");
    for parent in ["/data", "/data/"] {
        for method in ["DELETE", "MOVE", "COPY", "delete", "PURGE", "PROPPATCH"] {
            assert_eq!(class(method, parent), "OBJECT_UNMAPPED", "{method} {parent}");
        }
        for method in ["PUT", "POST", "PATCH"] {
            assert_eq!(class(method, parent), "data", "{method} does not reach below");
        }
    }
    assert_eq!(class("DELETE", "/data/users"), "/data/users/");
    assert_eq!(class("DELETE", "/other"), "other");
}
