//! What a store may see: the judge of every case. It knows the wire, and nothing of the gate.

use percent_encoding::percent_decode_str;

use super::store::Seen;

/// A request that the store is to see.
#[derive(Clone, Debug)]
pub struct Sight {
    /// `METHOD /path`, with `CUT ` before it where the store sees only its beginning.
    pub line: String,
    /// The whole body. Of what is cut it is not said.
    pub body: Option<Vec<u8>>,
}

impl Sight {
    /// A request without a body.
    pub fn of(line: &str) -> Self {
        Self { line: line.to_owned(), body: Some(vec![]) }
    }

    pub fn with(line: &str, body: impl AsRef<[u8]>) -> Self {
        Self { line: line.to_owned(), body: Some(body.as_ref().to_vec()) }
    }

    pub fn cut(line: &str) -> Self {
        Self { line: format!("CUT {line}"), body: None }
    }
}

/// What the store saw is what it may see: these requests with these bodies, and these trailers. Each write was judged, for
/// each object that it names; here every lease has the number 1.
#[track_caller]
pub fn judge(seen: &[Seen], sees: &[Sight], trailers: &[String]) {
    let lines = |seen: &[Seen]| seen.iter().map(|seen| seen.line.clone()).collect::<Vec<_>>();
    assert_eq!(lines(seen), sees.iter().map(|sight| sight.line.clone()).collect::<Vec<_>>(), "what the store saw");
    for (seen, sight) in seen.iter().zip(sees) {
        // A store that answers without reading a body has nothing to compare.
        if let (Some(came), Some(sent)) = (&seen.body, &sight.body) {
            assert!(came == sent, "another body reached the store: {} instead of {}", brief(came), brief(sent));
        }
        was_judged(seen);
    }
    let came: Vec<&String> = seen.iter().flat_map(|seen| &seen.trailers).collect();
    assert_eq!(came, trailers.iter().collect::<Vec<_>>(), "the trailers that the store saw");
}

/// The store gets the fence of each object that it writes, once, and of no other. Some stores read `_` in a name as
/// `-`, so a client's own `fence_object` would be a second one.
#[track_caller]
fn was_judged(seen: &Seen) {
    let mut wanted: Vec<(String, String)> = vec![];
    for object in objects(seen) {
        wanted.extend([("fence-object".to_owned(), object), ("fence-seq".to_owned(), "1".to_owned())]);
    }
    let plain = |name: &str| name.replace('_', "-");
    let is_fence = |(name, _): &&(String, String)| plain(name).starts_with("fence-");
    let mut sent: Vec<_> = seen.fields.iter().filter(is_fence).cloned().collect();
    wanted.sort();
    sent.sort();
    assert_eq!(sent, wanted, "the fences that the store gets with {:?}", seen.line);
}

/// The objects that a request writes, as the store spells them.
fn objects(seen: &Seen) -> Vec<String> {
    let line = seen.line.strip_prefix("CUT ").unwrap_or(&seen.line);
    let (method, path) = line.split_once(' ').unwrap_or((line, ""));
    if ["GET", "HEAD", "OPTIONS"].contains(&method) {
        return vec![];
    }
    let destinations = seen.fields.iter().filter(|(name, _)| name == "destination").map(|(_, value)| value.as_str());
    let paths = [path].into_iter().chain(destinations);
    let mut objects: Vec<String> = paths.map(object).collect();
    objects.sort();
    objects.dedup();
    objects
}

/// The first segment of a path, also where a host stands before it.
fn object(target: &str) -> String {
    let path = target.split_once("://").map_or(target, |(_, rest)| rest.find('/').map_or("", |at| &rest[at..]));
    let segment = path.split('/').nth(1).unwrap_or_default();
    percent_decode_str(segment).decode_utf8_lossy().into_owned()
}

fn brief(body: &[u8]) -> String {
    format!("{} bytes, {:?}", body.len(), String::from_utf8_lossy(&body[..body.len().min(40)]))
}

/// A write as a gate forwards it, and the fields of another one.
fn write(line: &str, body: &[u8], fields: &[(&str, &str)]) -> Seen {
    let fields = [&[("host", "store")], fields].concat();
    let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    Seen { line: line.to_owned(), fields, body: Some(body.to_vec()), trailers: vec![] }
}

const PUT: &str = "PUT /users/1";
const USERS: [(&str, &str); 2] = [("fence-seq", "1"), ("fence-object", "users")];
const OTHER: [(&str, &str); 2] = [("fence-seq", "1"), ("fence-object", "other")];

#[test]
fn what_was_judged_and_came_whole_is_let_pass() {
    judge(&[write(PUT, b"value", &USERS)], &[Sight::with(PUT, "value")], &[]);
    let cut = Seen { body: None, ..write("CUT PUT /users/1", b"", &USERS) };
    judge(&[cut], &[Sight::cut(PUT)], &[]);
    judge(&[write("GET /users/1", b"", &[])], &[Sight::of("GET /users/1")], &[]);
    for destination in ["/other/1", "http://store/other/1", "/%6fther/1"] {
        let both = [&USERS[..], &OTHER, &[("destination", destination)]].concat();
        judge(&[write("MOVE /users/1", b"", &both)], &[Sight::of("MOVE /users/1")], &[]);
    }
}

/// The judge's own controls: each of these gets past a gate that has gone wrong in its own way.
#[test]
fn each_thing_that_the_judge_looks_at_is_seen_when_it_is_wrong() {
    let plus = |more: &[(&'static str, &'static str)]| [&USERS[..], more].concat();
    let to_other = [("destination", "/other/1")];
    for (what, seen, said) in [
        ("a body cut", write(PUT, b"val", &USERS), "another body"),
        ("a body changed", write(PUT, b"valuf", &USERS), "another body"),
        ("a body longer", write(PUT, b"value!", &USERS), "another body"),
        ("no fence", write(PUT, b"value", &[]), "the fences"),
        ("no number", write(PUT, b"value", &USERS[1..]), "the fences"),
        ("another object's fence", write(PUT, b"value", &OTHER), "the fences"),
        ("another number", write(PUT, b"value", &[("fence-seq", "2"), USERS[1]]), "the fences"),
        ("a second number", write(PUT, b"value", &plus(&[("fence-seq", "99")])), "the fences"),
        ("a second object", write(PUT, b"value", &plus(&OTHER)), "the fences"),
        ("the same object twice", write(PUT, b"value", &plus(&USERS)), "the fences"),
        ("an underscore", write(PUT, b"value", &plus(&[("fence_object", "other")])), "the fences"),
        ("a token", write(PUT, b"value", &plus(&[("fence-token", "x")])), "the fences"),
        ("a token with an underscore", write(PUT, b"value", &plus(&[("fence_token", "x")])), "the fences"),
        ("any other fence field", write(PUT, b"value", &plus(&[("fence-x", "x")])), "the fences"),
        ("a destination not judged", write(PUT, b"value", &plus(&to_other)), "the fences"),
        ("a second request", write("PUT /users/2", b"value", &USERS), "what the store saw"),
        ("a trailer", Seen { trailers: vec!["x: y".to_owned()], ..write(PUT, b"value", &USERS) }, "the trailers"),
    ] {
        let panic = std::panic::catch_unwind(|| judge(&[seen], &[Sight::with(PUT, "value")], &[]));
        let panic = panic.expect_err(what);
        let text = panic.downcast_ref::<String>().map_or("", String::as_str);
        assert!(text.contains(said), "{what}: {text}");
    }
    // With a read, the store gets no fence.
    let read = [write("GET /users/1", b"", &USERS)];
    std::panic::catch_unwind(|| judge(&read, &[Sight::of("GET /users/1")], &[])).expect_err("a read with a fence");
}
