//! Every call of the api, by every kind of caller: a table with one row per call, and what comes of it. A call without
//! a row fails the test.

use std::collections::BTreeSet;

use fencegate::config::{
    GrantSettings, IdentityKind, IdentitySettings, LeaseSource, Operation, RouteSettings, Settings,
};
use serde_json::{Value, json};

use super::{World, grant};
use crate::support::{
    gate::{START, acquire, text},
    http::{Conn, Response, segment},
    kube::{ApiServer, NAMESPACES, Who},
    oidc::Oidc,
    signers::{CLUSTER, Signer, with_issuer},
};

const OWN: &str = "/data/own";
const OTHER: &str = "/data/other";

/// Tokens of a file, certificates, SPIFFE IDs, JWTs, ServiceAccounts.
const SOURCES: usize = 5;

/// What a caller gets that may do the operation, but not to the object of the call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Elsewhere {
    /// `ACCESS_DENIED`.
    Denied,
    /// The answer to something that does not exist.
    NotThere(&'static str),
    /// A list without it.
    LeftOut,
    /// The call concerns no object.
    Same,
}

/// One call about an object.
struct Call {
    id: &'static str,
    /// `None`: for every known caller.
    operation: Option<Operation>,
    method: &'static str,
    path: String,
    token: Option<String>,
    body: Option<Value>,
    elsewhere: Elsewhere,
    /// What a caller with the right gets: the first one, and those after it.
    allowed: [Answer; 2],
}

/// A status, and the code of a refusal.
type Answer = (u16, Option<&'static str>);

const OK: [Answer; 2] = [(200, None); 2];

fn refused(status: u16, code: &'static str) -> [Answer; 2] {
    [(status, Some(code)); 2]
}

fn time() -> String {
    format!("{}:0", START.wall.0)
}

/// Every call, about this object. `lease` is a live one of it, `migration` an id.
fn calls(object: &str, lease: &Value, migration: &str) -> Vec<Call> {
    use Elsewhere::{Denied, LeftOut, NotThere, Same};
    use Operation::{Acquire, Advance, Issue, Operate, Read};
    let (europe, perth) = (Signer::new("europe-cg"), Signer::new("perth"));
    let (id, token) = (text(lease, "lease_id"), text(lease, "fence_token").to_owned());
    let holder = text(lease, "holder_id");
    let at = segment(object);
    let get = |id, path: String, elsewhere| Call {
        id,
        operation: Some(Read),
        method: "GET",
        path,
        token: None,
        body: None,
        elsewhere,
        allowed: OK,
    };
    let post = |id, operation, path: String, body, allowed| Call {
        id,
        operation: Some(operation),
        method: "POST",
        path,
        token: None,
        body: Some(body),
        elsewhere: Denied,
        allowed,
    };
    let held = refused(409, "LEASE_HELD");
    let grant = json!({ "domain": object, "lease_id": "l-1", "lease_seq": 1 });
    let hash = format!("sha256:0x{}", "0".repeat(64));
    vec![
        post("acquireLease", Acquire, "/v1/leases".into(), json!({ "object_id": object, "holder_id": holder }), held),
        post(
            "acquireBatch",
            Acquire,
            "/v1/lease-batches".into(),
            json!({ "object_ids": [object], "holder_id": holder }),
            held,
        ),
        post(
            "renewLease",
            Acquire,
            format!("/v1/leases/{id}/renew"),
            json!({ "fence_token": token, "holder_id": holder }),
            OK,
        ),
        Call {
            id: "releaseLease",
            operation: Some(Acquire),
            method: "DELETE",
            path: format!("/v1/leases/{id}"),
            token: Some(token.clone()),
            body: None,
            elsewhere: Denied,
            allowed: [(200, None), (409, Some("LEASE_EXPIRED"))],
        },
        get("listLeases", "/v1/leases".into(), LeftOut),
        get("getLease", format!("/v1/leases/{id}"), NotThere("LEASE_NOT_FOUND")),
        get("getObject", format!("/v1/objects/{at}"), Denied),
        get("listReceipts", "/v1/receipts".into(), LeftOut),
        get("listRoutes", "/v1/routes".into(), Same),
        get("listFences", format!("/v1/fences?domain={at}"), Denied),
        Call {
            allowed: refused(404, "MIGRATION_NOT_FOUND"),
            ..get("getMigration", format!("/v1/migrations/{migration}"), NotThere("MIGRATION_NOT_FOUND"))
        },
        Call { allowed: refused(404, "JOURNAL_OFF"), ..get("getJournal", format!("/v1/objects/{at}/journal"), Denied) },
        get("watchLeases", "/v1/watch?after=0:0".into(), LeftOut),
        post("checkToken", Read, "/v1/tokens/check".into(), json!({ "fence_token": token }), OK),
        post("revokeObject", Operate, format!("/v1/objects/{at}/revoke"), json!({ "reason": "r" }), OK),
        post(
            "confirmObject",
            Operate,
            format!("/v1/objects/{at}/confirm"),
            json!({ "token": 1 }),
            refused(409, "EXTERNAL_LEASE"),
        ),
        post(
            "createBackup",
            Operate,
            "/v1/backups".into(),
            json!({ "folder": "relative" }),
            refused(400, "REQUEST_INVALID"),
        ),
        post(
            "confirmFence",
            Operate,
            "/v1/fences/confirm".into(),
            json!({ "domain": object, "signature": "0x00" }),
            refused(404, "NOT_FOUND"),
        ),
        post(
            "advanceObject",
            Advance,
            format!("/v1/objects/{at}/advance"),
            json!({ "token": 1 }),
            refused(409, "EXTERNAL_LEASE"),
        ),
        post("applyFence", Issue, "/v1/fences".into(), europe.certificate(object, "l-1", 1, &time(), json!({})), OK),
        post(
            "applyGrant",
            Issue,
            "/v1/grants".into(),
            europe.grant(object, "l-2", 2, "a", (START.wall.0, START.wall.0 + 60_000), json!({})),
            refused(409, "LEASE_FENCED"),
        ),
        post(
            "requestFence",
            Issue,
            "/v1/fence-requests".into(),
            perth.request(object, &time(), json!({})),
            refused(409, "NOT_AN_ISSUER"),
        ),
        post(
            "beginMigration",
            Issue,
            "/v1/migrations".into(),
            perth.request(object, &time(), json!({})),
            refused(409, "NOT_AN_ISSUER"),
        ),
        post(
            "activateMigration",
            Issue,
            format!("/v1/migrations/{migration}/active"),
            perth.active(&grant, &hash, &time()),
            refused(404, "MIGRATION_NOT_FOUND"),
        ),
        Call {
            id: "whoAmI",
            operation: None,
            method: "GET",
            path: "/v1/whoami".into(),
            token: None,
            body: None,
            elsewhere: Same,
            allowed: OK,
        },
    ]
}

impl Call {
    fn by(&self, mut api: Conn) -> Response {
        let body = self.body.as_ref().map_or_else(Vec::new, |body| body.to_string().into_bytes());
        let kind = [("content-type", "application/json")];
        let token = self.token.as_ref().map(|token| [("fence-token", token.as_str())]);
        let headers = token.as_ref().map_or(&kind[..], |token| &token[..]);
        api.send(self.method, &self.path, headers, &body).unwrap();
        let (status, headers) = api.read_head().unwrap();
        let mut answer = Response { status, headers, body: vec![] };
        if answer.header("content-type") == Some("text/event-stream") {
            // The stream has sent all that there was when its comment comes, or the event.
            answer.body = first_event(&mut api).into_bytes();
            return answer;
        }
        let length = answer.header("content-length").map_or(0, |length| length.parse().unwrap());
        answer.body = api.read_body(length).unwrap();
        answer
    }

    /// The first answer to a call whose body is announced, and not sent before the gate asks for it.
    fn without_its_body(&self, mut api: Conn) -> Response {
        let head = format!(
            "{} {} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 60000\r\nexpect: 100-continue\r\n\r\n",
            self.method, self.path
        );
        api.send_raw(head.as_bytes()).unwrap();
        api.receive().unwrap()
    }
}

/// The lines up to the second empty one: a comment, and the first event or the next comment.
fn first_event(api: &mut Conn) -> String {
    let (mut lines, mut empty) = (String::new(), 0);
    while empty < 2 {
        let line = api.read_line().unwrap();
        empty += usize::from(line.is_empty());
        lines.push_str(&line);
        lines.push('\n');
    }
    lines
}

fn settings(settings: &mut Settings) {
    let europe = Signer::new("europe-cg");
    with_issuer(settings, &europe);
    settings.authority.cluster_id = CLUSTER.to_owned();
    settings.requester.push(Signer::new("perth").party(&["/data"]));
    settings.route.push(RouteSettings {
        name: "data".to_owned(),
        path: "/data/{domain}/{rest...}".to_owned(),
        object: "/data/{domain}".to_owned(),
        lease_source: LeaseSource::Gate,
        ..RouteSettings::default()
    });
}

fn only(operation: Operation, objects: &str) -> GrantSettings {
    GrantSettings { operations: vec![operation], ..grant("caller", "caller", &[objects]) }
}

/// A gate with a live lease of the object, held by `caller`.
fn with_lease(object: &str, server: Option<&ApiServer>) -> (World, Value, String) {
    let mut world = World::with(vec![grant("setup", "caller", &["*"])], |all| {
        settings(all);
        if let Some(server) = server {
            // These wait for a restart.
            (all.kubernetes.url, all.kubernetes.token_file) = (server.url(), server.token_file(Who::Gate));
        }
    });
    let token = world.token("caller");
    let lease = acquire(&mut world.bearing(&token), object, "caller", 60_000);
    (world, lease, token)
}

/// Adds a cluster as a source of identities. Returns a token of its ServiceAccount `caller`.
fn with_cluster(world: &mut World, server: &ApiServer) -> String {
    world.settings.identity.push(IdentitySettings {
        name: "cluster".to_owned(),
        kind: IdentityKind::Kubernetes,
        cache_ms: 600_000,
        ..IdentitySettings::default()
    });
    server.service_account(NAMESPACES[0], "caller");
    // The gate's clock is ahead of the API server's.
    server.projected_token(NAMESPACES[0], "caller", "fencegate", 315_360_000)
}

#[test]
fn every_call_is_in_the_table() {
    let (world, lease, token) = with_lease(OWN, None);
    let described = world.bearing(&token).get("/v1/openapi.json").expect(200);
    let mut names = BTreeSet::new();
    for (path, item) in described["paths"].as_object().unwrap() {
        for (method, call) in item.as_object().unwrap() {
            let id = text(call, "operationId").to_owned();
            let rows = calls(OWN, &lease, "m-1");
            let row = rows.iter().find(|row| row.id == id);
            let row = row.unwrap_or_else(|| panic!("{method} {path} ({id}) has no row in this table"));
            let operation = row.operation.map(Operation::as_str);
            assert_eq!(call["x-operation"].as_str(), operation, "{id}");
            let proofs: Vec<_> = call["security"].as_array().unwrap().iter().collect();
            assert_eq!(proofs, [&json!({ "bearer": [] }), &json!({ "certificate": [] }), &json!({})], "{id}");
            names.insert(id);
        }
    }
    assert_eq!(names.len(), calls(OWN, &lease, "m-1").len(), "each row is a call: {names:?}");
}

/// Sources by operations by outcomes.
#[test]
fn each_source_may_do_what_its_grant_says_and_nothing_else() {
    let server = ApiServer::fake();
    let (mut world, lease, token) = with_lease(OWN, Some(&server));
    let certificate = world.authority.sign("caller");
    let spiffe = world.authority.sign_uri("other", "spiffe://td/caller");
    let issuer = Oidc::new(world.authority.folder.path());
    world.settings.identity.push(issuer.source());
    let signed = issuer.token("caller");
    let projected = with_cluster(&mut world, &server);
    let account = format!("system:serviceaccount:{}:caller", NAMESPACES[0]);
    let by = |world: &World, source: usize| match source {
        0 => world.bearing(&token),
        1 => world.shows(Some(&certificate)),
        2 => world.shows(Some(&spiffe)),
        3 => world.bearing(&signed),
        _ => world.bearing(&projected),
    };
    let named = |grant: GrantSettings| GrantSettings {
        principals: vec!["caller".to_owned(), "spiffe://td/caller".to_owned(), account.clone()],
        holder: "caller".to_owned(),
        ..grant
    };
    let rows = calls(OWN, &lease, "m-1").len();
    for row in 0..rows {
        let call = || calls(OWN, &lease, "m-1").swap_remove(row);
        let Some(operation) = call().operation else { continue };
        for source in 0..SOURCES {
            let id = call().id;
            // No grant: refused before the body is read.
            world.reload(vec![grant("another", "another", &["*"])]);
            call().by(by(&world, source)).refusal(403, "ACCESS_DENIED");
            // Another operation.
            let others = Operation::ALL.into_iter().filter(|each| *each != operation);
            world.reload(vec![named(GrantSettings { operations: others.collect(), ..grant("caller", "", &["*"]) })]);
            call().by(by(&world, source)).refusal(403, "ACCESS_DENIED");
            // Another object.
            world.reload(vec![named(only(operation, OTHER))]);
            let answer = call().by(by(&world, source));
            match call().elsewhere {
                Elsewhere::Denied => drop(answer.refusal(403, "ACCESS_DENIED")),
                Elsewhere::NotThere(code) => drop(answer.refusal(404, code)),
                Elsewhere::Same => assert_eq!(answer.status, 200, "{id}"),
                Elsewhere::LeftOut => {
                    assert_eq!(answer.status, 200, "{id}");
                    assert!(!String::from_utf8_lossy(&answer.body).contains(OWN), "{id}: {answer:?}");
                }
            }
        }
    }
    // The right one, in the order of the table: a call that ends the lease comes after those that need it.
    for row in 0..rows {
        let call = || calls(OWN, &lease, "m-1").swap_remove(row);
        let Some(operation) = call().operation else { continue };
        world.reload(vec![named(GrantSettings { objects: vec!["*".to_owned()], ..only(operation, OWN) })]);
        for source in 0..SOURCES {
            let answer = call().by(by(&world, source));
            let said = (answer.status, answer.header("fence-error"));
            assert_eq!(said, call().allowed[source.min(1)], "{} by source {source}: {answer:?}", call().id);
        }
    }
}

#[test]
fn without_an_identity_every_call_is_refused_before_its_body() {
    let (mut world, lease, _) = with_lease(OWN, None);
    world.settings.access.loopback = fencegate::config::Loopback::Authenticate;
    world.gate.reload(&world.settings);
    for call in calls(OWN, &lease, "m-1") {
        let answer = call.by(world.shows(None));
        answer.refusal(401, "IDENTITY_REQUIRED");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer realm=\"fencegate\""), "{}", call.id);
        if call.body.is_some() {
            call.without_its_body(world.shows(None)).refusal(401, "IDENTITY_REQUIRED");
        }
    }
    for path in ["/v1/openapi.json", "/v1/nothing", "/"] {
        world.shows(None).get(path).refusal(401, "IDENTITY_REQUIRED");
    }
}
