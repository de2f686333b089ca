//! The audit log: which calls get a line, what the line says, what it never says, and what happens while it cannot be
//! written.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use fencegate::{
    audit::verify::{Verified, in_order, verify},
    config::{AuditSettings, AuditTo, GrantSettings, RouteSettings, Settings},
};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{World, grant};
use crate::support::{
    gate::{START, TestGate, acquire, renewal, settings, text, wanted},
    http::{Conn, Response, segment},
    process::{Site, binary, stderr, stdout},
    run::Ends,
    signers::{CLUSTER, Signer, with_issuer},
    store::Store,
    until,
};

/// A file in a folder of its own, and what is in it.
struct Log {
    folder: tempfile::TempDir,
}

impl Log {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        Self { folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("audit.log")
    }

    fn settings(&self) -> AuditSettings {
        AuditSettings { to: AuditTo::File, file: self.path(), ..AuditSettings::default() }
    }

    fn text(&self) -> String {
        fs::read_to_string(self.path()).unwrap_or_default()
    }

    fn lines(&self) -> Vec<Value> {
        let text = self.text();
        text.split_inclusive('\n').filter_map(|line| serde_json::from_str(line.strip_suffix('\n')?).ok()).collect()
    }

    /// The newest line of this call with this outcome, once it is there.
    #[track_caller]
    fn find(&self, call: &str, outcome: &str) -> Value {
        let mut found = None;
        until(&format!("{call} {outcome}"), || {
            found = self.lines().into_iter().rev().find(|line| line["call"] == call && line["outcome"] == outcome);
            found.is_some()
        });
        found.unwrap()
    }

    #[track_caller]
    fn verified(&self) -> Verified {
        in_order(&[self.path()]).and_then(|files| verify(&files)).unwrap()
    }
}

/// A gate with an audit log.
fn world(log: &Log, grants: Vec<GrantSettings>, change: impl FnOnce(&mut Settings)) -> World {
    World::with(grants, |settings| {
        settings.audit = log.settings();
        change(settings);
    })
}

fn parties(settings: &mut Settings) {
    with_issuer(settings, &Signer::new("europe-cg"));
    settings.authority.cluster_id = CLUSTER.to_owned();
    settings.requester.push(Signer::new("perth").party(&["/data"]));
    settings.route.push(RouteSettings {
        name: "data".to_owned(),
        path: "/data/{domain}/{rest...}".to_owned(),
        object: "/data/{domain}".to_owned(),
        ..RouteSettings::default()
    });
}

/// Every call of an operator, by its operation id, and its outcome.
fn operators_calls(api: &mut Conn) -> Vec<(&'static str, Response)> {
    let (europe, perth) = (Signer::new("europe-cg"), Signer::new("perth"));
    let time = format!("{}:0", START.wall.0);
    let at = |object: &str| format!("/v1/objects/{}", segment(object));
    let grant = europe.grant("/data/g", "l-2", 2, "perth", (START.wall.0, START.wall.0 + 60_000), json!({}));
    let asked = || perth.request("/data/a", &time, json!({}));
    let active = perth.active(
        &json!({ "domain": "/data/g", "lease_id": "l-2", "lease_seq": 2 }),
        &format!("sha256:0x{}", "0".repeat(64)),
        &time,
    );
    let calls = [
        ("revokeObject", format!("{}/revoke", at("/data/a")), json!({ "reason": "because \"it\"\u{e4}" })),
        ("revokeObject", format!("{}/revoke", at("/data/a")), json!({ "reason": "now", "force": true })),
        ("confirmObject", format!("{}/confirm", at("/data/a")), json!({ "token": 1 })),
        ("advanceObject", format!("{}/advance", at("/data/a")), json!({ "token": 1 })),
        ("createBackup", "/v1/backups".to_owned(), json!({ "folder": "relative" })),
        ("applyFence", "/v1/fences".to_owned(), europe.certificate("/data/f", "l-1", 1, &time, json!({}))),
        ("confirmFence", "/v1/fences/confirm".to_owned(), json!({ "domain": "/data/f", "signature": "0x00" })),
        ("applyGrant", "/v1/grants".to_owned(), grant),
        ("requestFence", "/v1/fence-requests".to_owned(), asked()),
        ("beginMigration", "/v1/migrations".to_owned(), asked()),
        ("activateMigration", "/v1/migrations/m-1/active".to_owned(), active),
    ];
    calls.map(|(id, path, body)| (id, api.post(&path, &body))).into()
}

/// What the audit log says of this answer.
fn outcome(answer: &Response) -> &str {
    answer.header("fence-error").unwrap_or("ok")
}

#[test]
fn every_kind_of_call_has_its_line_and_no_secret_is_in_it() {
    let log = Log::new();
    let mut world = world(&log, vec![grant("ops", "ops", &["*"])], parties);
    let bearer = world.token("ops");
    let mut api = world.bearing(&bearer);
    let mut secrets = vec![bearer.clone(), "rid-of-a-lease".to_owned(), "bls:0x".to_owned()];
    let mut body = wanted("/data/a", "ops/1", 60_000);
    body["request_id"] = json!("rid-of-a-lease");
    let headers = [("content-type", "application/json"), ("x-request-id", "trace-1")];
    let lease = api.call("POST", "/v1/leases", &headers, body.to_string().as_bytes()).expect(201);
    let line = log.find("acquireLease", "ok");
    assert_eq!((text(&line, "principal"), text(&line, "source")), ("ops", "files"));
    assert_eq!((text(&line, "operation"), text(&line, "object")), ("acquire", "/data/a"));
    assert_eq!((text(&line, "holder"), &line["lease_seq"]), ("ops/1", &lease["lease_seq"]));
    assert_eq!((text(&line, "request_id"), text(&line, "peer")), ("trace-1", "127.0.0.1"));
    assert_eq!(text(&line, "time"), "2027-01-15T08:00:00.000Z");
    secrets.push(text(&lease, "fence_token").to_owned());

    let mut body = wanted("/data/a", "ops/1", 60_000);
    body["request_id"] = json!("rid-of-a-lease");
    api.post("/v1/leases", &body).expect(201);
    until("the repeated call", || log.lines().iter().any(|line| line["detail"]["again"] == true));

    // One line for each object of a batch.
    let body = json!({ "object_ids": ["/data/b", "/data/c"], "holder_id": "ops/1" });
    let batch = api.post("/v1/lease-batches", &body).expect(201);
    log.find("acquireBatch", "ok");
    let of_batch = log.lines().into_iter().filter(|line| line["call"] == "acquireBatch");
    let granted: Vec<_> = of_batch.map(|line| (line["object"].clone(), line["lease_seq"].clone())).collect();
    let leases = batch["leases"].as_array().unwrap();
    assert_eq!(
        granted,
        leases.iter().map(|each| (each["object_id"].clone(), each["lease_seq"].clone())).collect::<Vec<_>>()
    );
    secrets.extend(leases.iter().map(|each| text(each, "fence_token").to_owned()));

    // A plain renewal and reads have none.
    let (path, body) = renewal(&lease, 60_000);
    api.post(&path, &body).expect(200);
    api.get("/v1/leases").expect(200);
    api.post("/v1/leases", &wanted("/data/a", "ops/2", 60_000)).refusal(409, "LEASE_HELD");
    let mut turned = body.clone();
    turned["rotate"] = json!(true);
    let rotated = api.post(&path, &turned).expect(200);
    secrets.push(text(&rotated, "fence_token").to_owned());
    assert_eq!(log.find("renewLease", "ok")["lease_seq"], rotated["lease_seq"]);
    let refused = api.post(&path, &body);
    assert_eq!(text(&log.find("renewLease", outcome(&refused)), "object"), "/data/a");
    api.delete(&format!("/v1/leases/{}", text(&leases[0], "lease_id")), text(&leases[0], "fence_token")).expect(200);
    assert_eq!(text(&log.find("releaseLease", "ok"), "object"), text(&leases[0], "object_id"));

    let calls = operators_calls(&mut api);
    log.find("activateMigration", outcome(&calls.last().unwrap().1));
    let first = log.lines().iter().position(|line| line["call"] == "revokeObject").unwrap();
    // The gate's own lines are between them.
    let is_a_callers = |line: &&Value| line["source"] != "gate";
    let said: Vec<_> = log.lines()[first..]
        .iter()
        .filter(is_a_callers)
        .map(|line| (text(line, "call").to_owned(), text(line, "outcome").to_owned()))
        .collect();
    let had: Vec<_> = calls.iter().map(|(id, answer)| ((*id).to_owned(), outcome(answer).to_owned())).collect();
    assert_eq!(said, had);
    let revokes: Vec<_> = log.lines()[first..first + 2].iter().map(|line| line["detail"].clone()).collect();
    assert_eq!((&revokes[0]["reason"], &revokes[0]["force"]), (&json!("because \"it\"\u{e4}"), &json!(false)));
    assert_eq!(revokes[1]["force"], true);
    assert!(log.lines()[first..].iter().filter(is_a_callers).all(|line| line["principal"] == "ops"));
    assert_eq!(text(&log.find("applyGrant", outcome(&calls[7].1)), "holder"), "perth");

    world.gate.stop();
    let all = log.text();
    for secret in &secrets {
        assert!(!all.contains(secret.as_str()), "{secret} is in {all}");
        let last = secret.rsplit('.').next().unwrap();
        assert!(!all.contains(last), "{last} is in {all}");
    }
    let (lines, calls) = (log.lines(), |line: &Value| text(line, "call").to_owned());
    assert_eq!((calls(&lines[0]), calls(lines.last().unwrap())), ("audit.start".to_owned(), "audit.stop".to_owned()));
    assert_eq!(log.verified().lines, lines.len() as u64);
    assert!(!lines.iter().any(|line| line["operation"] == "read"), "reads have no line");
}

#[test]
fn denied_calls_have_lines_that_say_who_was_denied() {
    let log = Log::new();
    let mut world = world(&log, vec![grant("red", "red", &["/red"])], |settings| {
        settings.access.calls_per_second = 1;
        settings.access.calls_burst = 4;
    });
    world.bearing("fga1.wrong.token").get("/v1/leases").refusal(401, "IDENTITY_REQUIRED");
    let line = log.find("listLeases", "IDENTITY_REQUIRED");
    assert_eq!(
        (&line["principal"], text(&line, "operation"), text(&line, "peer")),
        (&Value::Null, "read", "127.0.0.1")
    );
    world.bearing("fga1.wrong.token").get("/v1/nowhere").refusal(401, "IDENTITY_REQUIRED");
    assert_eq!(text(&log.find("-", "IDENTITY_REQUIRED"), "operation"), "-");
    // Without any grant, and for another object.
    world.as_("blue").get("/v1/leases").refusal(403, "ACCESS_DENIED");
    assert_eq!(text(&log.find("listLeases", "ACCESS_DENIED"), "principal"), "blue");
    let mut red = world.as_("red");
    let revoke = format!("/v1/objects/{}/revoke", segment("/blue/a"));
    red.post(&revoke, &json!({ "reason": "r" })).refusal(403, "ACCESS_DENIED");
    let line = log.find("revokeObject", "ACCESS_DENIED");
    assert_eq!(
        (text(&line, "principal"), text(&line, "object"), text(&line, "operation")),
        ("red", "/blue/a", "operate")
    );
    let batch = json!({ "object_ids": ["/red/a", "/red/b", "/blue/a"], "holder_id": "red" });
    red.post("/v1/lease-batches", &batch).refusal(403, "ACCESS_DENIED");
    assert_eq!(log.find("acquireBatch", "ACCESS_DENIED")["object"], json!(["/red/a", "/red/b", "/blue/a"]));
    red.post("/v1/leases", &wanted("/red/a", "blue", 60_000)).refusal(403, "ACCESS_DENIED");
    assert_eq!(text(&log.find("acquireLease", "ACCESS_DENIED"), "holder"), "blue");
    red.get("/v1/leases").expect(200);
    red.get("/v1/leases").refusal(429, "RATE_LIMITED");
    assert_eq!(text(&log.find("listLeases", "RATE_LIMITED"), "principal"), "red");
    world.gate.stop();
    log.verified();
}

#[test]
fn a_caller_that_hangs_up_does_not_get_around_the_log() {
    let log = Log::new();
    let mut world = world(&log, vec![grant("all", "*", &["*"])], |_| {});
    acquire(&mut world.shows(None), "/a", "operator", 600_000);
    let mut waits = world.as_("red");
    let mut body = wanted("/a", "red", 60_000);
    body["wait_ms"] = json!(200_000);
    // The lease may be granted all the same: without this, it is given back, and there is no line.
    body["request_id"] = json!("again");
    waits.send("POST", "/v1/leases", &[("content-type", "application/json")], body.to_string().as_bytes()).unwrap();
    until("the acquire waits", || world.gate.shows("fencegate_lease_waiters 1"));
    drop(waits);
    let line = log.find("acquireLease", "OUTCOME_UNKNOWN");
    assert_eq!((text(&line, "principal"), text(&line, "object")), ("red", "/a"));
}

/// A gate before a store, whose audit log goes where there is no room.
fn on_a_full_disk(log: &Log, store: &Store) -> TestGate {
    std::os::unix::fs::symlink("/dev/full", log.path()).unwrap();
    let mut settings = settings();
    settings.store.url = store.url();
    settings.audit = log.settings();
    TestGate::with(&settings)
}

#[test]
fn on_a_full_disk_operators_are_refused_and_all_others_go_on() {
    let (log, store) = (Log::new(), Store::start());
    let gate = on_a_full_disk(&log, &store);
    until("the failure is known", || gate.shows("fencegate_audit_up 0\n"));
    let mut api = gate.api();
    let lease = acquire(&mut api, "users", "a", 60_000);
    let (path, body) = renewal(&lease, 60_000);
    api.post(&path, &body).expect(200);
    gate.gate().call("PUT", "/users/1", &[("fence-token", text(&lease, "fence_token"))], b"x").applied();
    api.get("/v1/leases").expect(200);
    let calls = [
        ("/v1/objects/users/revoke", json!({ "reason": "r", "force": true })),
        ("/v1/objects/users/advance", json!({ "token": 9 })),
        ("/v1/fences", json!({})),
        ("/v1/backups", json!({ "folder": "/nowhere/x" })),
    ];
    for (path, body) in &calls {
        let refused = api.post(path, body).refusal(503, "AUDIT_UNAVAILABLE");
        assert_eq!(refused["retryable"], true, "{path}");
    }
    let stays = api.get("/v1/objects/users").expect(200);
    assert_eq!(stays["lease"]["lease_id"], lease["lease_id"], "nothing was carried out");
    gate.gate().call("PUT", "/users/1", &[("fence-token", text(&lease, "fence_token"))], b"y").applied();
    assert!(gate.shows("fencegate_audit_lines_total 0\n"));

    // There is room again: what was kept is written, and a line says how many lines are not there.
    fs::remove_file(log.path()).unwrap();
    until("it is written again", || gate.shows("fencegate_audit_up 1\n"));
    api.post(calls[0].0, &calls[0].1).expect(200);
    assert_eq!(text(&log.find("revokeObject", "ok"), "object"), "users");
    assert_eq!(text(&log.find("acquireLease", "ok"), "holder"), "a");
    assert_eq!(log.find("audit.lost", "ok")["detail"]["lines"], 0);
    log.find("revokeObject", "AUDIT_UNAVAILABLE");
    api.delete(&format!("/v1/leases/{}", text(&lease, "lease_id")), text(&lease, "fence_token"));
    gate.stop();
    assert_eq!(log.verified().begins, Some(1));
}

fn verifies(files: &[&Path]) -> (i32, String, String) {
    let done = Command::new(binary()).args(["audit", "verify"]).args(files).ends();
    (done.status.code().unwrap(), stdout(&done), stderr(&done))
}

#[test]
fn the_chain_holds_after_a_kill_and_a_restart_and_shows_reloads() {
    let site = Site::with_table();
    let log = Log::new();
    let audit = format!("[audit]\nto = 'file'\nfile = '{}'\n", log.path().display());
    site.configure(&audit);
    let gate = site.serve();
    acquire(&mut gate.api(), "users", "a", 60_000);
    log.find("acquireLease", "ok");
    gate.kill();
    // A line that was being written.
    let half = log.text();
    fs::write(log.path(), format!("{half}{{\"n\":3,\"time\":\"20")).unwrap();
    let (code, said, _) = verifies(&[&log.path()]);
    assert!(code == 0 && said.contains("17 bytes behind the last line have no end yet"), "{said}");

    let gate = site.serve();
    gate.api().post("/v1/objects/users/revoke", &json!({ "reason": "r" })).expect(200);
    log.find("revokeObject", "ok");
    gate.signal(Signal::HUP);
    assert_eq!(log.find("reload", "ok")["principal"], Value::Null);
    site.configure(&format!("{audit}[lease]\nttl_ms_min = 0\n"));
    gate.signal(Signal::HUP);
    assert_eq!(log.find("reload", "faulty")["detail"]["keys"], json!(["lease.ttl_ms_min"]));
    // The place of the log does not change.
    site.configure(&audit.replace("audit.log", "other.log"));
    gate.signal(Signal::HUP);
    until("a second good reload", || log.lines().iter().filter(|line| line["call"] == "reload").count() == 3);
    gate.stop();
    assert!(!log.folder.path().join("other.log").exists());
    let (code, said, _) = verifies(&[&log.path()]);
    let last = log.lines().pop().unwrap();
    assert!(code == 0 && said.contains("torn by a crash") && said.contains(&format!("n={}", last["n"])), "{said}");

    let changed = log.text().replace("\"holder\":\"a\"", "\"holder\":\"b\"");
    fs::write(log.path(), changed).unwrap();
    let (code, _, said) = verifies(&[&log.path()]);
    assert!(code == 1 && said.contains("audit.log: line 4"), "{said}");
}

#[test]
fn a_log_that_others_could_read_stops_the_start() {
    let (site, log) = (Site::with_table(), Log::new());
    site.configure(&format!("[audit]\nto = 'file'\nfile = '{}'\n", log.path().display()));
    fs::write(log.path(), "").unwrap();
    fs::set_permissions(log.path(), fs::Permissions::from_mode(0o644)).unwrap();
    let mut serve = Command::new(binary());
    serve.arg("serve").arg("--config").arg(site.config());
    let Err((status, said)) = site.spawn(serve) else { panic!("it has started") };
    assert!(status.code() == Some(2) && said.contains("open to all users (mode 644)"), "{status} {said}");
}

#[test]
fn faults_of_the_settings_are_named() {
    let faults = |text: &str| {
        let (_, faults) = fencegate::config::read::<Settings>(text.parse().unwrap(), vec![]);
        faults.into_iter().map(|fault| fault.key).collect::<Vec<_>>()
    };
    assert_eq!(faults("[audit]\nto = 'file'"), ["audit.file"]);
    assert_eq!(faults("[audit]\nto = 'file'\nfile = 'x'"), Vec::<String>::new());
    assert_eq!(
        faults("[audit]\nto = 'stderr'\nrotate_bytes = 65535\nkeep_files = 0"),
        ["audit.rotate_bytes", "audit.keep_files"]
    );
    assert_eq!(faults("[audit]\nto = 'syslog'"), ["audit.to"]);
}
