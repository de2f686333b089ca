//! The api's description against the api itself: each field of each call gets boundary values one by one. A value that
//! the schema forbids is refused for its form, and an allowed value is not. `texts` is a table of values, and is not split
//! for its length.

use regex::Regex;
use serde_json::{Map, Value, json};

use super::support::{
    gate::{TestGate, acquire, settings, text},
    http::{Conn, Response, segment},
};

/// A reader of the parts of JSON Schema that the description uses.
struct Description(Value);

impl Description {
    fn of(gate: &TestGate) -> Self {
        Self(gate.api().get("/v1/openapi.json").expect(200))
    }

    fn component(&self, name: &str) -> &Value {
        let schema = &self.0["components"]["schemas"][name];
        assert!(schema.is_object(), "{name} is not described");
        schema
    }

    fn body(&self, path: &str) -> &Value {
        let schema = &self.0["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
        assert!(schema.is_object(), "the body of {path} is not described");
        schema
    }

    fn parameter(&self, method: &str, path: &str, name: &str) -> &Value {
        let all = self.0["paths"][path][method]["parameters"].as_array().unwrap();
        &all.iter().find(|each| each["name"] == name).unwrap_or_else(|| panic!("{path}: no {name}"))["schema"]
    }

    fn allows(&self, schema: &Value, value: &Value) -> bool {
        if let Some(name) = schema["$ref"].as_str() {
            return self.allows(self.component(name.rsplit('/').next().unwrap()), value);
        }
        if let Some(ways) = schema["oneOf"].as_array() {
            return ways.iter().filter(|way| self.allows(way, value)).count() == 1;
        }
        if schema["enum"].as_array().is_some_and(|words| !words.contains(value)) {
            return false;
        }
        let kinds = match &schema["type"] {
            Value::Array(kinds) => kinds.clone(),
            kind => vec![kind.clone()],
        };
        kinds.iter().any(|kind| match (kind.as_str().unwrap(), value) {
            ("null", Value::Null) | ("boolean", Value::Bool(_)) => true,
            ("string", Value::String(text)) => allows_text(schema, text),
            ("integer", Value::Number(number)) => allows_number(schema, number),
            ("array", Value::Array(items)) => self.allows_items(schema, items),
            ("object", Value::Object(fields)) => self.allows_fields(schema, fields),
            _ => false,
        })
    }

    fn allows_items(&self, schema: &Value, items: &[Value]) -> bool {
        let is_there = |place: usize| items[..place].contains(&items[place]);
        schema["minItems"].as_u64().is_none_or(|min| items.len() as u64 >= min)
            && schema["maxItems"].as_u64().is_none_or(|max| items.len() as u64 <= max)
            && (schema["uniqueItems"] != true || !(0..items.len()).any(is_there))
            && items.iter().all(|item| self.allows(&schema["items"], item))
    }

    fn allows_fields(&self, schema: &Value, fields: &Map<String, Value>) -> bool {
        let (known, required) = (&schema["properties"], schema["required"].as_array());
        required.into_iter().flatten().all(|name| fields.contains_key(name.as_str().unwrap()))
            && fields.iter().all(|(name, value)| match known.get(name) {
                Some(schema) => self.allows(schema, value),
                None => schema["additionalProperties"] != false,
            })
    }
}

fn allows_text(schema: &Value, text: &str) -> bool {
    let length = text.chars().count() as u64;
    schema["minLength"].as_u64().is_none_or(|min| length >= min)
        && schema["maxLength"].as_u64().is_none_or(|max| length <= max)
        && schema["pattern"].as_str().is_none_or(|pattern| Regex::new(pattern).unwrap().is_match(text))
}

fn allows_number(schema: &Value, number: &serde_json::Number) -> bool {
    let whole = |number: &serde_json::Number| {
        let exact = number.as_u64().map(i128::from).or(number.as_i64().map(i128::from));
        exact.or(number.as_f64().filter(|number| number.fract() == 0.0).map(|number| number as i128))
    };
    let bound = |name: &str| schema[name].as_number().and_then(whole);
    whole(number).is_some_and(|number| {
        bound("minimum").is_none_or(|min| number >= min) && bound("maximum").is_none_or(|max| number <= max)
    })
}

/// Texts at and beyond the bounds of the fields.
fn texts() -> Vec<String> {
    let long = [63, 64, 65, 127, 128, 129, 255, 256, 257, 1_023, 1_024, 1_025].map(|length| "x".repeat(length));
    let hex = |prefix: &str, digits: usize| format!("{prefix}{}", "0a".repeat(digits / 2));
    let token = |seq: &str, object: &str, secret: &str| format!("fg1.{seq}.{object}.{secret}");
    let secret = "AAAAAAAAAAAAAAAAAAAAAA";
    let spelled = [
        hex("bls:0x", 192),
        hex("bls:0x", 190),
        hex("0x", 192),
        hex("bls:0x", 192).to_uppercase(),
        hex("sha256:0x", 64),
        hex("sha256:0x", 66),
        hex("sha256:0x", 64).to_uppercase(),
        token("1", "bw", secret),
        token("0", "bw", secret),
        token("01", "bw", secret),
        token("18446744073709551615", "bw", secret),
        token("18446744073709551616", "bw", secret),
        token("1", "", secret),
        token("1", "b", secret),
        token("1", "bx", secret),
        token("1", "bw==", secret),
        token("1", "bw", &secret[1..]),
        token("1", "bw", "AAAAAAAAAAAAAAAAAAAAAB"),
        token("1", &"eHh4".repeat(341), secret),
        token("1", &format!("{}eA", "eHh4".repeat(341)), secret),
        token("1", &format!("{}eHg", "eHh4".repeat(341)), secret),
        token("1", &"eHh4".repeat(342), secret),
        format!("{}.x", token("1", "bw", secret)),
        format!(" {}", token("1", "bw", secret)),
    ];
    let plain = [
        "",
        " ",
        "a",
        "a\nb",
        "a\u{0}",
        "a\u{1f}",
        "a\u{7f}",
        "a\u{80}",
        "a\u{9f}",
        "a\u{a0}",
        "ä",
        "/",
        "/a/b",
        "a/b",
        "0",
        "1",
        "-1",
        "1.5",
        "01",
        "9",
        "10",
        "999",
        "1000",
        "1001",
        "18446744073709551615",
        "18446744073709551616",
        "0:0",
        "1:1",
        "01:0",
        "0:00",
        "0:4294967295",
        "0:4294967296",
        "18446744073709551615:0",
        "18446744073709551616:0",
        "0",
        "0:",
        ":0",
        "-1:0",
        "held",
        "lost",
        "HELD",
        "flood",
        "direct",
        "relay",
        "gossip",
        "FENCE_REQUEST",
        "FENCE_CERTIFICATE",
        "FENCE_ACKNOWLEDGED",
        "LEASE_GRANT",
        "LEASE_ACTIVE",
        "RELAY_FENCE",
        "fence_certificate",
        "relative/path",
    ];
    long.into_iter().chain(spelled).chain(plain.map(str::to_owned)).collect()
}

/// Numbers at and beyond the bounds of the fields, and values that are neither numbers nor texts.
fn others() -> Vec<Value> {
    let names = |count: usize| (0..count).map(|n| format!("n{n}")).collect::<Vec<_>>();
    let mut all = vec![json!(null), json!(true), json!(false), json!({}), json!([]), json!(["a"]), json!(["a", "a"])];
    all.extend([json!(["a", ""]), json!(["a", 1]), json!(names(128)), json!(names(129)), json!({ "a": 1 })]);
    all.extend([-1, 0, 1, 9, 10, 11, 999, 1_000, 1_001, 4_294_967_295, 4_294_967_296].map(|number: i64| json!(number)));
    all.extend([300_000, 300_001, 3_600_000, 3_600_001, u64::MAX - 1, u64::MAX].map(|number: u64| json!(number)));
    all.extend([1.5, -0.5, 18_446_744_073_709_551_616.0, 1e300].map(|number: f64| json!(number)));
    all
}

fn values() -> Vec<Value> {
    texts().into_iter().map(Value::String).chain(others()).collect()
}

/// Whether the request was refused because of its form.
fn is_for_its_shape(answer: &Response) -> bool {
    let code = answer.header("fence-error");
    answer.status == 400 && matches!(code, Some("REQUEST_INVALID" | "FENCE_TOKEN_MALFORMED"))
}

/// A call, one valid body, and the fields with rules that a schema cannot express.
struct Call {
    /// The path in the description.
    path: &'static str,
    /// The path of the request.
    to: String,
    body: Value,
    /// The field that needs a new value in each request.
    fresh: &'static str,
    beyond: &'static [&'static str],
}

impl Call {
    fn new(path: &'static str, body: Value) -> Self {
        Self { path, to: path.to_owned(), body, fresh: "", beyond: &[] }
    }
}

/// Every body that differs from a valid one in one place, and that place.
fn altered(body: &Value) -> Vec<(String, Value)> {
    let mut all = vec![("unknown_field".to_owned(), with(body, "unknown_field", Some(json!(1))))];
    for (name, value) in body.as_object().unwrap() {
        all.push((name.clone(), with(body, name, None)));
        all.extend(values().into_iter().map(|value| (name.clone(), with(body, name, Some(value)))));
        if value.is_object() {
            let inner = altered(value).into_iter();
            all.extend(inner.map(|(inner, value)| (format!("{name}.{inner}"), with(body, name, Some(value)))));
        }
    }
    all
}

fn with(body: &Value, name: &str, value: Option<Value>) -> Value {
    let mut fields = body.as_object().unwrap().clone();
    match value {
        Some(value) => fields.insert(name.to_owned(), value),
        None => fields.remove(name),
    };
    Value::Object(fields)
}

/// Sends a request, and compares the answer with the description.
fn is_as_described(api: &mut Conn, description: &Description, call: &Call) -> (usize, usize) {
    let (schema, (mut allowed, mut forbidden)) = (description.body(call.path), (0, 0));
    assert!(description.allows(schema, &call.body), "{}: its own example is forbidden", call.path);
    for (place, (field, mut body)) in altered(&call.body).into_iter().enumerate() {
        if field != call.fresh {
            // The call would wait for an object that is held.
            match body.get_mut(call.fresh) {
                Some(Value::String(object)) => *object = format!("fresh {field} {place}"),
                Some(Value::Array(objects)) => *objects = vec![json!(format!("fresh {field} {place}"))],
                _ => {}
            }
        }
        let is_allowed = description.allows(schema, &body);
        let answer = api.post(&call.to, &body);
        let what = || format!("{}: {field} in {body}: {}", call.path, String::from_utf8_lossy(&answer.body));
        if is_allowed {
            allowed += 1;
            assert!(
                call.beyond.contains(&field.as_str()) || !is_for_its_shape(&answer),
                "allowed, refused: {}",
                what()
            );
        } else {
            forbidden += 1;
            assert!(is_for_its_shape(&answer), "forbidden, not refused: {}", what());
        }
    }
    (allowed, forbidden)
}

fn lease_calls(api: &mut Conn) -> Vec<Call> {
    let lease = acquire(api, "renewed", "h", 10_000);
    let (token, id) = (text(&lease, "fence_token"), text(&lease, "lease_id"));
    let wanted = json!({ "holder_id": "h", "ttl_ms": 1_000, "wait_ms": 0, "request_id": "r", "takeover": false });
    let renewal = json!({ "fence_token": token, "holder_id": "h", "ttl_ms": 1_000, "rotate": false });
    let check = json!({ "fence_token": token, "object_id": "renewed" });
    let reason = json!({ "reason": "because", "force": false });
    vec![
        Call { fresh: "object_id", ..Call::new("/v1/leases", with(&wanted, "object_id", Some(json!("o")))) },
        Call { fresh: "object_ids", ..Call::new("/v1/lease-batches", with(&wanted, "object_ids", Some(json!(["a"])))) },
        Call { to: format!("/v1/leases/{id}/renew"), ..Call::new("/v1/leases/{lease_id}/renew", renewal) },
        Call { to: "/v1/objects/o/revoke".to_owned(), ..Call::new("/v1/objects/{object_id}/revoke", reason) },
        // If the object's lock is kept by an outside service, a number is a valid token.
        Call { beyond: &["fence_token"], ..Call::new("/v1/tokens/check", check) },
        // A table in memory cannot be backed up.
        Call { beyond: &["folder"], ..Call::new("/v1/backups", json!({ "folder": "/nowhere/at/all" })) },
    ]
}

fn signed_calls() -> Vec<Call> {
    // It has the form of a signature. The gate checks signatures after the form of all other fields.
    let signature = format!("bls:0x{}", "0a".repeat(96));
    let origin = json!({ "cluster_id": "c", "key_epoch": 1, "signature": signature });
    let signed = |fields: Value| {
        let all = [fields, origin.clone()].into_iter().flat_map(|part| part.as_object().unwrap().clone());
        Value::Object(all.collect())
    };
    let request = signed(json!({
        "type": "FENCE_REQUEST", "domain": "d", "current_lease_id": "l", "reason": "why", "requester": "r",
        "next_holder": "n", "ttl_ms": 1_000, "timestamp": "1:1",
    }));
    let certificate = signed(json!({
        "type": "FENCE_CERTIFICATE", "domain": "d", "fenced_lease_id": "l", "lease_seq": 1, "lease_start_ms": 1,
        "fence_time": "1:1", "issuer": "i", "next_holder": "n", "propagation": "flood",
    }));
    let grant = signed(json!({
        "type": "LEASE_GRANT", "domain": "d", "lease_id": "l", "lease_seq": 1, "holder": "h", "start_ms": 1,
        "expiry_ms": 2, "predecessor": { "lease_id": "p", "fence_proof": signature }, "issuer": "i",
    }));
    let active = signed(json!({
        "type": "LEASE_ACTIVE", "domain": "d", "lease_id": "l", "lease_seq": 1, "holder": "h", "timestamp": "1:1",
        "state_hash": format!("sha256:0x{}", "0a".repeat(32)),
    }));
    let relayed = json!({ "type": "RELAY_FENCE", "to": "gate", "certificate": certificate });
    let parked = json!({ "domain": "d", "signature": signature, "discard": true });
    let activation = "/v1/migrations/{migration_id}/active";
    vec![
        Call::new("/v1/fence-requests", request.clone()),
        Call::new("/v1/migrations", request),
        Call::new("/v1/fences", certificate),
        Call::new("/v1/fences", relayed),
        Call::new("/v1/fences/confirm", parked),
        // `start_ms` must be before `expiry_ms`.
        Call { beyond: &["start_ms", "expiry_ms"], ..Call::new("/v1/grants", grant) },
        Call { to: "/v1/migrations/m/active".to_owned(), ..Call::new(activation, active) },
    ]
}

#[test]
fn bodies_are_refused_for_their_shape_exactly_where_the_description_forbids_it() {
    let gate = TestGate::start();
    let (mut api, description) = (gate.api(), Description::of(&gate));
    for call in lease_calls(&mut gate.api()).into_iter().chain(signed_calls()) {
        let (allowed, forbidden) = is_as_described(&mut api, &description, &call);
        println!("{}: {allowed} allowed, {forbidden} forbidden", call.path);
        assert!(allowed > 0 && forbidden > 10, "{}: {allowed} allowed, {forbidden} forbidden", call.path);
    }
}

/// The text of a body with one key twice, once for each of its keys.
fn doubled(body: &Value) -> Vec<(String, String)> {
    let fields = body.as_object().unwrap();
    let mut all = vec![];
    for (name, value) in fields {
        let text = body.to_string();
        all.push((name.clone(), text.replacen('{', &format!("{{{}:{value},", json!(name)), 1)));
        if value.is_object() {
            let rest = with(body, name, None).to_string();
            let inner = doubled(value).into_iter();
            all.extend(inner.map(|(inner, value)| {
                (format!("{name}.{inner}"), rest.replacen('{', &format!("{{{}:{value},", json!(name)), 1))
            }));
        }
    }
    all
}

/// Two readers could disagree: one may take the first of two equal keys, and another the last.
#[test]
fn a_key_that_stands_twice_is_refused_in_every_body() {
    let gate = TestGate::start();
    let mut api = gate.api();
    for call in lease_calls(&mut gate.api()).into_iter().chain(signed_calls()) {
        for (field, body) in doubled(&call.body) {
            let answer = api.call("POST", &call.to, &[("content-type", "application/json")], body.as_bytes());
            let problem = answer.refusal(400, "REQUEST_INVALID");
            let (detail, name) = (text(&problem, "detail"), field.rsplit('.').next().unwrap());
            let says = detail.contains("stands twice") || detail.contains("duplicate field");
            assert!(says && detail.contains(name), "{}: {field} twice: {problem}", call.path);
        }
    }
}

#[test]
fn so_are_tokens_of_a_lock_that_is_kept_elsewhere() {
    let mut settings = settings();
    settings.route = vec![super::external::route()];
    let gate = TestGate::with(&settings);
    let (mut api, description) = (gate.api(), Description::of(&gate));
    for what in ["advance", "confirm"] {
        let path =
            if what == "advance" { "/v1/objects/{object_id}/advance" } else { "/v1/objects/{object_id}/confirm" };
        let call = Call { to: format!("/v1/objects/o/{what}"), ..Call::new(path, json!({ "token": 1 })) };
        is_as_described(&mut api, &description, &call);
    }
}

/// A parameter's text as a value that its schema can check.
fn read_as(schema: &Value, description: &Description, text: &str) -> Value {
    let schema = match schema["$ref"].as_str() {
        Some(name) => description.component(name.rsplit('/').next().unwrap()),
        None => schema,
    };
    match text.parse::<u64>() {
        Ok(number) if schema["type"] == "integer" => json!(number),
        _ => json!(text),
    }
}

#[test]
fn parameters_are_refused_exactly_where_the_description_forbids_it() {
    let gate = TestGate::start();
    let (mut api, description) = (gate.api(), Description::of(&gate));
    // A cursor has more rules than its characters.
    let rows = [
        ("/v1/leases", "/v1/leases?holder_id=", "holder_id", false),
        ("/v1/leases", "/v1/leases?state=", "state", false),
        ("/v1/leases", "/v1/leases?limit=", "limit", false),
        ("/v1/leases", "/v1/leases?prefix=", "prefix", false),
        ("/v1/leases", "/v1/leases?cursor=", "cursor", true),
        ("/v1/fences", "/v1/fences?domain=", "domain", false),
        ("/v1/fences", "/v1/fences?domain=d&limit=", "limit", false),
        ("/v1/fences", "/v1/fences?domain=d&after=", "after", false),
        ("/v1/objects/{object_id}/journal", "/v1/objects/o/journal?after=", "after", false),
        ("/v1/objects/{object_id}/journal", "/v1/objects/o/journal?limit=", "limit", false),
        ("/v1/leases/{lease_id}", "/v1/leases/", "lease_id", false),
        ("/v1/objects/{object_id}", "/v1/objects/", "object_id", false),
        ("/v1/migrations/{migration_id}", "/v1/migrations/", "migration_id", false),
    ];
    for (path, start, name, is_beyond) in rows {
        let schema = description.parameter("get", path, name);
        // Without its last segment this is another path.
        for text in texts().iter().filter(|text| !(start.ends_with('/') && text.is_empty())) {
            let is_allowed = description.allows(schema, &read_as(schema, &description, text));
            let answer = api.get(&format!("{start}{}", segment(text)));
            let is_right = is_for_its_shape(&answer) != is_allowed || (is_beyond && is_allowed);
            assert!(is_right, "{path}: {name} = {text:?}: {}", String::from_utf8_lossy(&answer.body));
        }
    }
    api.get("/v1/fences").refusal(400, "REQUEST_INVALID");
}

#[test]
fn so_are_places_to_resume_from_and_tokens_in_headers() {
    let gate = TestGate::start();
    let (mut api, description) = (gate.api(), Description::of(&gate));
    let stamp = description.parameter("get", "/v1/watch", "Last-Event-ID");
    let token = description.parameter("delete", "/v1/leases/{lease_id}", "Fence-Token");
    // Texts that a header can carry unchanged.
    let is_plain = |text: &&String| text.bytes().all(|byte| matches!(byte, 0x21..=0x7e)) && !text.is_empty();
    for text in texts().iter().filter(is_plain) {
        let mut watch = gate.api();
        watch.send("GET", "/v1/watch", &[("last-event-id", text)], b"").unwrap();
        let (status, _) = watch.read_head().unwrap();
        assert_eq!(status == 200, description.allows(stamp, &json!(text)), "Last-Event-ID: {text}");
        let answer = api.delete("/v1/leases/unknown", text);
        assert_eq!(is_for_its_shape(&answer), !description.allows(token, &json!(text)), "Fence-Token: {text}");
    }
}

/// Each accepted request begins a stream of events, which is dropped.
#[test]
fn so_are_the_parameters_of_a_watch() {
    let gate = TestGate::start();
    let description = Description::of(&gate);
    for (name, least_refused) in [("after", 20), ("prefix", 0)] {
        let (schema, mut refused) = (description.parameter("get", "/v1/watch", name), 0);
        for text in &texts() {
            let mut watch = gate.api();
            watch.send("GET", &format!("/v1/watch?{name}={}", segment(text)), &[], b"").unwrap();
            let (status, _) = watch.read_head().unwrap();
            assert_eq!(status != 400, description.allows(schema, &json!(text)), "{name} = {text:?}: {status}");
            refused += usize::from(status == 400);
        }
        assert!(refused >= least_refused, "{name}: {refused} refused");
    }
}
