//! Which headers are written for the store, and which are sent to the client.

use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;

use super::*;
use crate::write_path::hold::Source;

fn origin(forwarded: Forwarded) -> Origin {
    Origin::new("10.1.2.3".parse().unwrap(), false, forwarded)
}

fn parts(version: Version, headers: &[(&str, &str)]) -> Parts {
    let mut request = Request::builder().method("PUT").uri("/a%20b?c=d").version(version);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

/// The framing of a body, where only the trailer `x-sum` is allowed.
fn length_of(head: &Parts, body: &StoreBody, streams: Option<u64>) -> Length {
    Length::of(head, body, streams, &[HeaderName::from_static("x-sum")])
}

/// The request line, and the header lines in their order.
fn written(head: &Parts, forwarded: Forwarded, body: &StoreBody, length: Option<u64>) -> (String, Vec<String>) {
    let mut out = vec![];
    to_store(&mut out, head, &origin(forwarded), None, (&length_of(head, body, length), false), &RequestIds::new());
    let text = String::from_utf8(out).unwrap();
    let mut lines = text.strip_suffix("\r\n\r\n").unwrap().split("\r\n").map(str::to_owned);
    (lines.next().unwrap(), lines.collect())
}

fn lines(version: Version, headers: &[(&str, &str)], forwarded: Forwarded) -> Vec<String> {
    written(&parts(version, headers), forwarded, &StoreBody::Empty, None).1
}

#[test]
fn what_is_of_one_hop_stays_there() {
    let head = parts(
        Version::HTTP_11,
        &[
            ("host", "store"),
            ("connection", "close, X-Private, host, content-length"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("x-private", "1"),
            ("x-kept", "2"),
            ("expect", "100-continue"),
            ("proxy-authorization", "secret"),
            ("traceparent", "00-a-b-01"),
            ("x-request-id", "mine"),
            ("fence-token", "secret"),
            ("fence-seq", "999"),
            ("fence-anything", "x"),
            ("fence_seq", "999"),
        ],
    );
    let (line, lines) = written(&head, Forwarded::Off, &StoreBody::Empty, None);
    assert_eq!(line, "PUT /a%20b?c=d HTTP/1.1");
    let wanted = [
        "host: store",
        "x-kept: 2",
        "traceparent: 00-a-b-01",
        "x-request-id: mine",
        "te: trailers",
        "content-length: 0",
        "via: 1.1 fencegate",
    ];
    assert_eq!(lines, wanted);
}

#[test]
fn where_a_request_came_from_is_added_to_what_is_known() {
    let known = [
        ("host", "store"),
        ("x-forwarded-for", "1.1.1.1"),
        ("x-forwarded-for", "2.2.2.2"),
        ("forwarded", "for=1.1.1.1"),
        ("x-request-id", "mine"),
    ];
    let both = lines(Version::HTTP_11, &known, Forwarded::Both);
    for line in [
        "x-forwarded-for: 1.1.1.1, 2.2.2.2, 10.1.2.3",
        "x-forwarded-proto: http",
        "x-forwarded-host: store",
        "forwarded: for=1.1.1.1, for=10.1.2.3;proto=http",
        "x-request-id: mine",
    ] {
        assert_eq!(both.iter().filter(|each| *each == line).count(), 1, "{line}: {both:?}");
    }
    let named = |of: &str| both.iter().filter(|each| each.starts_with(of)).count();
    assert_eq!((named("x-forwarded-"), named("forwarded"), named("x-request-id")), (3, 1, 1), "{both:?}");
    // Headers that the gate does not add to are passed on unchanged.
    let off = lines(Version::HTTP_11, &known, Forwarded::Off);
    assert!(off.contains(&"x-forwarded-for: 2.2.2.2".to_owned()) && off.contains(&"forwarded: for=1.1.1.1".to_owned()));
}

#[test]
fn the_store_is_asked_for_what_was_judged() {
    for (uri, wanted) in
        [("http://store?a=1", "PUT /?a=1 HTTP/1.1"), ("http://store", "PUT / HTTP/1.1"), ("*", "PUT * HTTP/1.1")]
    {
        let mut head = parts(Version::HTTP_11, &[]);
        head.uri = uri.parse().unwrap();
        assert_eq!(written(&head, Forwarded::Off, &StoreBody::Empty, None).0, wanted);
    }
    let mut named = parts(Version::HTTP_11, &[("x-private", "1")]);
    named.headers.insert("connection", HeaderValue::from_bytes(b"x-private, \xff").unwrap());
    let lines = written(&named, Forwarded::Off, &StoreBody::Empty, None).1;
    assert!(!lines.iter().any(|line| line.starts_with("x-private")), "{lines:?}");
}

#[test]
fn http_2_names_its_host_and_joins_its_cookies() {
    let mut head = parts(Version::HTTP_2, &[("cookie", "a=1"), ("cookie", "b=2")]);
    head.uri = "https://store:9/x".parse().unwrap();
    let (line, lines) = written(&head, Forwarded::Off, &StoreBody::Empty, None);
    assert_eq!(
        (line.as_str(), lines[0].as_str(), lines[1].as_str()),
        ("PUT /x HTTP/1.1", "host: store:9", "cookie: a=1; b=2")
    );
    assert!(lines.contains(&"via: 2.0 fencegate".to_owned()));
}

#[test]
fn a_body_is_framed_in_one_way() {
    let head = |headers: &[(&str, &str)]| parts(Version::HTTP_11, headers);
    let framed = |head: &Parts, body: &StoreBody, length| {
        let lines = written(head, Forwarded::Off, body, length).1;
        let frames = |each: &&String| {
            ["content-length", "transfer-encoding", "trailer"].iter().any(|name| each.starts_with(name))
        };
        lines.iter().filter(frames).cloned().collect::<Vec<_>>()
    };
    let body = |trailers| StoreBody::held(Bytes::from_static(b"abc"), [Bytes::from_static(b"de")].into(), trailers);
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", HeaderValue::from_static("1"));
    let chunked = [("transfer-encoding", "chunked"), ("content-length", "9")];
    assert_eq!(framed(&head(&chunked), &body(None), Some(9)), ["content-length: 5"]);
    assert_eq!(
        framed(&head(&[]), &body(Some(Box::new(trailers.clone()))), None),
        ["transfer-encoding: chunked", "trailer: x-sum"]
    );
    assert_eq!(
        framed(&head(&[("trailer", "x-other")]), &body(Some(Box::new(trailers))), None),
        ["transfer-encoding: chunked", "trailer: x-sum"]
    );
    let stream = || StoreBody::Stream(Box::pin(http_body_util::Empty::new().map_err(|never| match never {})));
    assert_eq!(framed(&head(&[]), &stream(), Some(7)), ["content-length: 7"]);
    assert_eq!(framed(&head(&[]), &stream(), None), ["transfer-encoding: chunked"]);
    // The length in the head does not matter.
    assert_eq!(framed(&head(&[("content-length", "9")]), &stream(), Some(7)), ["content-length: 7"]);
    assert_eq!(framed(&head(&[("content-length", "9")]), &stream(), None), ["transfer-encoding: chunked"]);
    assert_eq!(
        framed(&head(&[("trailer", "destination, x-sum")]), &stream(), Some(7)),
        ["transfer-encoding: chunked", "trailer: x-sum"]
    );
    assert_eq!(framed(&head(&[("trailer", "destination")]), &stream(), Some(7)), ["content-length: 7"]);
    let mut get = head(&[]);
    get.method = Method::GET;
    assert!(framed(&get, &StoreBody::Empty, None).is_empty());
}

/// A request as hyper reads it, when no byte of its body has come.
async fn received(head: &str) -> (Parts, Incoming) {
    let (mut client, served) = tokio::io::duplex(4 << 10);
    client.write_all(format!("PUT /a HTTP/1.1\r\nhost: h\r\n{head}\r\n\r\n").as_bytes()).await.unwrap();
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let sender = Cell::new(Some(sender));
    let service = service_fn(move |request: Request<Incoming>| {
        let _ = sender.take().expect("one request").send(request);
        std::future::pending::<Result<http::Response<String>, std::convert::Infallible>>()
    });
    let mut serving = Box::pin(http1::Builder::new().serve_connection(TokioIo::new(served), service));
    tokio::select! {
        _ = &mut serving => panic!("it is not answered"),
        request = receiver => request.unwrap().into_parts(),
    }
}

/// Hyper lets no such request through today. If it ever does, a write must not be cut short where its head says so.
#[tokio::test]
async fn the_length_of_a_body_that_streams_is_its_decoders_and_not_its_heads() {
    let long = 2 * crate::config::GateSettings::default().hold_bytes as u64;
    let stream = || StoreBody::Stream(Box::pin(http_body_util::Empty::new().map_err(|never| match never {})));
    for (sent, known) in
        [(format!("content-length: {long}"), Some(long)), ("transfer-encoding: chunked".to_owned(), None)]
    {
        for says in ["1", "70000", "99999999"] {
            let (mut head, body) = received(&sent).await;
            head.headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static(says));
            let Source::Coming { hold, .. } = Source::coming(&head, body) else { panic!("nothing has come of it") };
            assert_eq!(hold.length, known, "{sent}, and then {says}");
            match (length_of(&head, &stream(), hold.length), known) {
                (Length::Known(length), Some(known)) => assert_eq!(length, known),
                (Length::Chunks { trailers }, None) => assert!(trailers.is_empty()),
                (length, _) => panic!("{sent}, and then {says}: {length:?}"),
            }
        }
    }
}

#[test]
fn no_two_requests_get_the_same_id() {
    let (one, two) = (RequestIds::new(), RequestIds::new());
    let mut seen = std::collections::HashSet::new();
    for ids in [&one, &two, &one, &one, &two] {
        let mut out = vec![];
        ids.write_next(&mut out);
        let id = String::from_utf8(out).unwrap();
        assert!(id.len() > 32 && seen.insert(id));
    }
}
