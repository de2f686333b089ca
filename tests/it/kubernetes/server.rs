//! The API server under the other tests here: the fake gives the same answers as a real kube-apiserver. The same tests
//! run against the real one with `make test-kubernetes`.

use std::{fs, thread};

use serde_json::{Value, json};

use super::super::support::{
    http::Response,
    kube::{
        API_AUDIENCES, ApiServer, NAMESPACES, OUT_OF_SIGHT, Watch, Who, fence_token, lease, leases, micro_time,
        service_accounts, token_of_a_person,
    },
    until,
};

const HERE: &str = NAMESPACES[0];

fn path(name: &str) -> String {
    format!("{}/{name}", leases(HERE))
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_else(|| panic!("no {field}: {object}"))
}

fn revision(object: &Value) -> u64 {
    text(object, "resourceVersion").parse().unwrap()
}

/// A failure, as a Status object.
#[track_caller]
fn fails(answer: &Response, code: u16, reason: &str) -> Value {
    let body = answer.expect(code);
    let said = |field: &str| body[field].as_str().unwrap_or_default();
    assert_eq!((said("kind"), said("apiVersion"), said("status")), ("Status", "v1", "Failure"), "{body}");
    assert_eq!((said("reason"), body["code"].as_u64()), (reason, Some(code.into())), "{body}");
    assert!(!said("message").is_empty(), "{body}");
    body
}

fn watch_from(server: &ApiServer, version: &str, more: &str) -> Watch {
    let query = format!("watch=1&resourceVersion={version}&allowWatchBookmarks=true{more}");
    let watch = server.client(Who::Gate).watch(&format!("{}?{query}", leases(HERE))).unwrap();
    assert_eq!(watch.status, 200);
    watch
}

/// The kind and the object of the next event that is not a bookmark.
#[track_caller]
fn next(watch: &mut Watch) -> (String, Value) {
    loop {
        let event = watch.next().expect("an event");
        if event["type"] != "BOOKMARK" {
            return (event["type"].as_str().unwrap().to_owned(), event["object"].clone());
        }
    }
}

fn list(server: &ApiServer) -> Value {
    server.client(Who::Gate).call("GET", &leases(HERE), None).expect(200)
}

#[test]
fn a_lease_is_created_once() {
    let server = ApiServer::start();
    let candidate = server.client(Who::Candidate);
    fails(&candidate.call("GET", &path("users"), None), 404, "NotFound");
    let spec = json!({
        "holderIdentity": "a", "leaseDurationSeconds": 15, "leaseTransitions": 0,
        "acquireTime": "2026-11-18T03:25:22.000001Z", "renewTime": "2026-11-18T03:25:22.120000Z",
    });
    let made = candidate.call("POST", &leases(HERE), Some(&lease("users", &spec))).expect(201);
    assert_eq!(made["spec"], spec, "times come back as they were sent");
    assert_eq!((text(&made, "name"), text(&made, "namespace")), ("users", HERE));
    assert_eq!(text(&made, "uid").len(), 36);
    assert!(revision(&made) > 0);
    assert!(!text(&made, "creationTimestamp").is_empty());
    fails(&candidate.call("POST", &leases(HERE), Some(&lease("users", &spec))), 409, "AlreadyExists");
    let found = candidate.call("GET", &path("users"), None).expect(200);
    assert_eq!((text(&found, "uid"), revision(&found)), (text(&made, "uid"), revision(&made)));
    assert_eq!(fence_token(&found), format!("k8s.{}.0", text(&made, "uid")));
}

#[test]
fn a_stale_update_is_a_conflict() {
    let server = ApiServer::start();
    let candidate = server.client(Who::Candidate);
    let first = server.take(HERE, "users", "a", 15);
    let put = |change: &dyn Fn(&mut Value)| {
        let mut sent = first.clone();
        sent["spec"]["holderIdentity"] = json!("b");
        change(&mut sent);
        candidate.call("PUT", &path("users"), Some(&sent))
    };
    let second = put(&|_| {}).expect(200);
    assert_eq!(text(&second, "uid"), text(&first, "uid"));
    assert!(revision(&second) > revision(&first));
    fails(&put(&|_| {}), 409, "Conflict");
    let current = json!(text(&second, "resourceVersion"));
    fails(
        &put(&|sent| {
            sent["metadata"]["resourceVersion"] = current.clone();
            sent["metadata"]["uid"] = json!("00000000-0000-4000-8000-000000000000");
        }),
        409,
        "Conflict",
    );
    fails(&put(&|sent| sent["metadata"]["resourceVersion"] = json!("")), 422, "Invalid");
    fails(&put(&|sent| sent["metadata"]["name"] = json!("others")), 400, "BadRequest");
    let found = server.lease(HERE, "users").unwrap();
    assert_eq!(revision(&found), revision(&second), "a refused update changes nothing");
}

#[test]
fn an_update_of_what_is_not_there_creates_it() {
    let server = ApiServer::start();
    let sent = lease("users", &json!({ "holderIdentity": "a" }));
    let candidate = server.client(Who::Candidate);
    let made = candidate.call("PUT", &path("users"), Some(&sent)).expect(201);
    assert_eq!(text(&server.lease(HERE, "users").unwrap(), "uid"), text(&made, "uid"));
}

#[test]
fn an_update_that_changes_nothing_is_no_change() {
    let server = ApiServer::start();
    let made = server.take(HERE, "users", "a", 15);
    let same = server.client(Who::Candidate).call("PUT", &path("users"), Some(&made)).expect(200);
    assert_eq!(revision(&same), revision(&made));
    // A holder that steps down leaves an empty name, which differs from no name.
    let released = server.edit(HERE, "users", |spec| spec["holderIdentity"] = json!(""));
    assert_eq!(released["spec"]["holderIdentity"], "");
}

#[test]
fn a_delete_may_name_which() {
    let server = ApiServer::start();
    let made = server.take(HERE, "users", "a", 15);
    let delete = |precondition: Value| {
        let options = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "preconditions": precondition });
        server.client(Who::Admin).call("DELETE", &path("users"), Some(&options))
    };
    fails(&delete(json!({ "uid": "00000000-0000-4000-8000-000000000000" })), 409, "Conflict");
    fails(&delete(json!({ "resourceVersion": "1" })), 409, "Conflict");
    let done = delete(json!({ "uid": text(&made, "uid") })).expect(200);
    assert_eq!((&done["status"], &done["details"]["uid"]), (&json!("Success"), &made["metadata"]["uid"]));
}

#[test]
fn one_of_two_updates_at_once_wins() {
    let server = ApiServer::start();
    let before = server.take(HERE, "users", "a", 15);
    let put = |holder: &str| {
        let (mut sent, candidate) = (before.clone(), server.client(Who::Candidate));
        sent["spec"]["holderIdentity"] = json!(holder);
        candidate.call("PUT", &path("users"), Some(&sent)).status
    };
    let mut statuses = thread::scope(|scope| {
        let both = ["b", "c"].map(|holder| scope.spawn(move || put(holder)));
        both.map(|each| each.join().unwrap())
    });
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409]);
}

#[test]
fn what_is_no_lease_is_refused() {
    let server = ApiServer::start();
    let candidate = server.client(Who::Candidate);
    let post = |spec: Value| candidate.call("POST", &leases(HERE), Some(&lease("users", &spec)));
    for time in ["2026-11-18T03:25:22Z", "2026-11-18T03:25:22.123Z", "2026-11-18T03:25:22.123456789Z", "now"] {
        fails(&post(json!({ "renewTime": time })), 400, "BadRequest");
    }
    fails(&post(json!({ "leaseTransitions": "1" })), 400, "BadRequest");
    fails(&post(json!({ "leaseDurationSeconds": 0 })), 422, "Invalid");
    fails(&post(json!({ "leaseTransitions": -1 })), 422, "Invalid");
    let made = post(json!({ "renewTime": micro_time(), "shoeSize": 43 })).expect(201);
    assert!(made["spec"].get("shoeSize").is_none(), "what it does not know it does not keep");
}

#[test]
fn a_watch_sees_every_change_after_a_list_in_order() {
    let server = ApiServer::start();
    server.take(HERE, "before", "a", 15);
    let listed = list(&server);
    assert_eq!((&listed["kind"], listed["items"].as_array().unwrap().len()), (&json!("LeaseList"), 1));
    assert!(listed["items"][0].get("kind").is_none(), "the items of a list are bare");
    let mut watch = watch_from(&server, text(&listed, "resourceVersion"), "");
    let first = server.take(HERE, "users", "a", 15);
    let second = server.take(HERE, "users", "b", 15);
    server.take(NAMESPACES[1], "users", "z", 15);
    let third = server.take(HERE, "users", "b", 15);
    server.delete(HERE, "users");
    for (kind, lease) in [("ADDED", &first), ("MODIFIED", &second), ("MODIFIED", &third)] {
        let (seen, object) = next(&mut watch);
        assert_eq!((seen.as_str(), &object["spec"]), (kind, &lease["spec"]));
        assert_eq!((revision(&object), &object["kind"]), (revision(lease), &json!("Lease")));
    }
    let (seen, object) = next(&mut watch);
    assert_eq!((seen.as_str(), text(&object, "uid")), ("DELETED", text(&first, "uid")));
    assert!(revision(&object) > revision(&third), "it says when it was deleted");
    // A later client can get the same events from its last version on.
    let mut late = watch_from(&server, text(&second, "resourceVersion"), "");
    assert_eq!(revision(&next(&mut late).1), revision(&third));
    assert_eq!(next(&mut late).0, "DELETED");
}

#[test]
fn a_watch_of_one_name_sees_nothing_else() {
    let server = ApiServer::start();
    let from = text(&list(&server), "resourceVersion").to_owned();
    let mut watch = watch_from(&server, &from, "&fieldSelector=metadata.name%3Dusers");
    server.take(HERE, "others", "a", 15);
    let users = server.take(HERE, "users", "a", 15);
    assert_eq!(revision(&next(&mut watch).1), revision(&users));
    let listed =
        server.client(Who::Gate).call("GET", &format!("{}?fieldSelector=metadata.name%3Dusers", leases(HERE)), None);
    assert_eq!(listed.expect(200)["items"].as_array().unwrap().len(), 1);
}

#[test]
fn a_watch_without_a_beginning_starts_with_what_is_there() {
    let server = ApiServer::start();
    let made = server.take(HERE, "users", "a", 15);
    for version in ["", "0"] {
        let mut watch = watch_from(&server, version, "");
        let (kind, object) = next(&mut watch);
        assert_eq!((kind.as_str(), text(&object, "uid")), ("ADDED", text(&made, "uid")));
    }
    let beyond = format!("{}?resourceVersion=9000000000", leases(HERE));
    fails(&server.client(Who::Gate).call("GET", &beyond, None), 504, "Timeout");
    for version in ["", "0", text(&made, "resourceVersion")] {
        let query = format!("{}?resourceVersion={version}&limit=500", leases(HERE));
        let listed = server.client(Who::Gate).call("GET", &query, None).expect(200);
        assert_eq!(text(&listed["items"][0], "uid"), text(&made, "uid"));
    }
}

#[test]
fn a_watch_ends_in_good_order_when_its_time_is_over() {
    let server = ApiServer::start();
    let made = server.take(HERE, "users", "a", 15);
    let mut watch = watch_from(&server, text(&made, "resourceVersion"), "&timeoutSeconds=1");
    while let Some(event) = watch.next() {
        assert_eq!(event["type"], "BOOKMARK");
        assert!(revision(&event["object"]) >= revision(&made));
    }
}

#[test]
fn compaction_makes_a_watch_expire() {
    let server = ApiServer::start();
    let made = server.take(HERE, "users", "a", 15);
    let from = text(&list(&server), "resourceVersion").to_owned();
    let mut running = watch_from(&server, &from, "");
    server.compact();
    while let Some(event) = running.next() {
        assert!(event["type"] == "BOOKMARK" || event["object"]["code"] == 410, "{event}");
    }
    let (kind, status) = next(&mut watch_from(&server, &from, ""));
    assert_eq!((kind.as_str(), status["code"].as_u64()), ("ERROR", Some(410)), "{status}");
    assert_eq!((&status["kind"], &status["reason"]), (&json!("Status"), &json!("Expired")));
    // A list brings it back.
    let listed = list(&server);
    assert_eq!(text(&listed["items"][0], "uid"), text(&made, "uid"));
    let mut watch = watch_from(&server, text(&listed, "resourceVersion"), "");
    let changed = server.take(HERE, "users", "b", 15);
    assert_eq!(revision(&next(&mut watch).1), revision(&changed));
}

#[test]
fn a_lease_that_comes_back_has_another_uid() {
    let server = ApiServer::start();
    let first = server.take(HERE, "users", "a", 15);
    server.delete(HERE, "users");
    assert_eq!(server.lease(HERE, "users"), None);
    fails(&server.client(Who::Admin).call("DELETE", &path("users"), None), 404, "NotFound");
    // A candidate that still has the old Lease cannot bring it back.
    fails(&server.client(Who::Candidate).call("PUT", &path("users"), Some(&first)), 409, "Conflict");
    let second = server.take(HERE, "users", "a", 15);
    assert_ne!(text(&second, "uid"), text(&first, "uid"));
    assert!(revision(&second) > revision(&first));
    fails(&server.client(Who::Candidate).call("PUT", &path("users"), Some(&first)), 409, "Conflict");
}

#[test]
fn everyone_may_do_what_their_role_says_and_no_more() {
    let server = ApiServer::start();
    let made = server.take(HERE, "users", "a", 15);
    server.take(OUT_OF_SIGHT, "users", "a", 15);
    let stranger = server.client(Who::Gate).with_token("unknown-token");
    fails(&stranger.call("GET", &path("users"), None), 401, "Unauthorized");
    let (gate, candidate) = (server.client(Who::Gate), server.client(Who::Candidate));
    assert!(server.url().ends_with(&gate.address.to_string()));
    let from_file = stranger.with_token(&fs::read_to_string(server.token_file(Who::Gate)).unwrap());
    from_file.call("GET", &path("users"), None).expect(200);
    for (method, path) in [
        ("POST", leases(HERE)),
        ("PUT", path("users")),
        ("PATCH", path("users")),
        ("DELETE", path("users")),
        ("DELETE", leases(HERE)),
        ("GET", leases(OUT_OF_SIGHT)),
        ("GET", format!("{}?watch=1", leases(OUT_OF_SIGHT))),
        ("GET", format!("{}/users", leases(OUT_OF_SIGHT))),
        ("GET", "/apis/coordination.k8s.io/v1/leases".to_owned()),
    ] {
        fails(&gate.call(method, &path, Some(&made)), 403, "Forbidden");
    }
    for (method, path) in [("GET", leases(HERE)), ("PATCH", path("users")), ("DELETE", path("users"))] {
        fails(&candidate.call(method, &path, Some(&made)), 403, "Forbidden");
    }
    for verb in ["create", "update", "patch", "delete", "deletecollection"] {
        assert_eq!(server.requests(Who::Gate, verb), 1, "{verb}: what is refused counts too");
    }
    assert_eq!(server.lease(HERE, "users").unwrap(), made);
    server.forbid(Who::Gate);
    fails(&gate.call("GET", &path("users"), None), 403, "Forbidden");
    server.allow(Who::Gate);
    gate.call("GET", &path("users"), None).expect(200);
}

#[test]
fn it_stops_and_comes_back_with_what_it_knew() {
    let server = ApiServer::start();
    let made = server.take(HERE, "users", "a", 15);
    let mut watch = watch_from(&server, text(&made, "resourceVersion"), "");
    server.stop();
    assert_eq!(watch.next(), None);
    assert!(server.client(Who::Gate).try_call("GET", &path("users"), None).is_err());
    server.start_again();
    assert_eq!(text(&server.lease(HERE, "users").unwrap(), "uid"), text(&made, "uid"));
    let mut watch = watch_from(&server, text(&list(&server), "resourceVersion"), "");
    server.drop_watches();
    assert_eq!(watch.next(), None);
}

#[test]
fn while_it_hangs_no_caller_is_answered() {
    let server = ApiServer::start();
    server.take(HERE, "users", "a", 15);
    let candidate = server.client(Who::Candidate);
    server.hang();
    let (done, waits) = std::sync::mpsc::sync_channel(1);
    let asks = thread::spawn(move || {
        let answer = candidate.call("GET", &path("users"), None);
        done.send(()).unwrap();
        answer
    });
    if !server.is_real() {
        // A stopped server records nothing.
        until("the request is there", || server.requests(Who::Candidate, "get") == 1);
    }
    assert!(waits.try_recv().is_err());
    server.resume();
    asks.join().unwrap().expect(200);
    assert_eq!(server.requests(Who::Candidate, "get"), 1);
}

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

fn review(token: &str, audiences: &[&str]) -> Value {
    json!({
        "kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {},
        "spec": { "token": token, "audiences": audiences },
    })
}

/// What the server says of a token.
fn said(server: &ApiServer, token: &str, audiences: &[&str]) -> Value {
    let answer = server.client(Who::Gate).call("POST", REVIEWS, Some(&review(token, audiences)));
    answer.expect(201)["status"].clone()
}

#[track_caller]
fn says_no(server: &ApiServer, token: &str, audiences: &[&str]) {
    let status = said(server, token, audiences);
    assert!(status["authenticated"] != true && status["user"]["username"].is_null(), "{status}");
}

#[test]
fn a_token_review_says_whose_a_token_is_and_for_which_audience() {
    let server = ApiServer::start();
    server.service_account(HERE, "api");
    let token = server.projected_token(HERE, "api", "gate", 600);
    let status = said(&server, &token, &["other", "gate"]);
    assert_eq!((&status["authenticated"], &status["audiences"]), (&json!(true), &json!(["gate"])), "{status}");
    assert_eq!(status["user"]["username"], format!("system:serviceaccount:{HERE}:api"));
    let groups = status["user"]["groups"].as_array().unwrap();
    for group in ["system:serviceaccounts", &format!("system:serviceaccounts:{HERE}"), "system:authenticated"] {
        assert!(groups.contains(&json!(group)), "{status}");
    }
    for audiences in [&["other"][..], &[API_AUDIENCES[0]], &[]] {
        says_no(&server, &token, audiences);
    }
    for odd in [&token[1..], &format!("{token}x"), "x", "a.b.c"] {
        says_no(&server, odd, &["gate"]);
    }
    let status = said(&server, &token_of_a_person(), &[API_AUDIENCES[1]]);
    assert_eq!((&status["user"]["username"], &status["audiences"]), (&json!("person"), &json!([API_AUDIENCES[1]])));
    says_no(&server, &token_of_a_person(), &["gate"]);
    let refused = server.client(Who::Candidate).call("POST", REVIEWS, Some(&review(&token, &["gate"])));
    fails(&refused, 403, "Forbidden");
    assert!(server.requests(Who::Gate, "tokenreviews") > 8);
    assert_eq!(server.requests(Who::Gate, "create"), 0, "that counts Leases");
}

#[test]
fn a_token_ends_with_its_service_account() {
    let server = ApiServer::start();
    server.service_account(HERE, "api");
    let token = server.projected_token(HERE, "api", "gate", 600);
    assert_eq!(said(&server, &token, &["gate"])["authenticated"], true);
    server.delete_service_account(HERE, "api");
    until("the token has no effect", || said(&server, &token, &["gate"])["authenticated"] != true);
    server.service_account(HERE, "api");
    says_no(&server, &token, &["gate"]);
}

#[test]
fn a_token_of_a_pod_names_it() {
    let server = ApiServer::start();
    server.service_account(HERE, "api");
    let (token, uid) = server.pod_token(HERE, "api", "gate", "api-0");
    let extra = &said(&server, &token, &["gate"])["user"]["extra"];
    assert_eq!(extra["authentication.kubernetes.io/pod-name"], json!(["api-0"]), "{extra}");
    assert_eq!(extra["authentication.kubernetes.io/pod-uid"], json!([uid]), "{extra}");
}

#[test]
fn tokens_are_given_out_for_ten_minutes_or_more_and_by_the_admin_only() {
    let server = ApiServer::start();
    server.service_account(HERE, "api");
    let request = |seconds: u64| {
        json!({
            "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {},
            "spec": { "audiences": ["gate"], "expirationSeconds": seconds },
        })
    };
    let ask = |who: Who, name: &str, seconds: u64| {
        let path = format!("{}/{name}/token", service_accounts(HERE));
        server.client(who).call("POST", &path, Some(&request(seconds)))
    };
    fails(&ask(Who::Admin, "api", 599), 422, "Invalid");
    fails(&ask(Who::Admin, "nothing", 600), 404, "NotFound");
    fails(&ask(Who::Gate, "api", 600), 403, "Forbidden");
    ask(Who::Admin, "api", 600).expect(201);
    let account = json!({ "kind": "ServiceAccount", "apiVersion": "v1", "metadata": { "name": "api" } });
    let again = server.client(Who::Admin).call("POST", &service_accounts(HERE), Some(&account));
    fails(&again, 409, "AlreadyExists");
}
