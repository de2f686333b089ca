//! London to Perth over real HTTP and real processes, with every message: once without faults, once with kill -9 after
//! each step and in the middle of each, once with a slow upload of London's in flight.

use std::{
    cell::RefCell,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use fencegate::{
    api::journal::JournalBody,
    authority::{
        json::{AcknowledgedMessage, CertificateMessage, GrantMessage, Message, hash_text},
        statement::Kind,
    },
    config::PartySettings,
    fence::LeaseSeq,
    table::ledger::journal::chain,
};
use serde_json::{Value, json};

use super::USERS;
use crate::support::{
    http::{Conn, Response},
    process::{Gate, Site, failpoints_binary},
    signers::Signer,
    store::Store,
    until,
};

/// The machine's time, as a hybrid logical time.
#[allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a signed time, not a measurement")]
fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

fn stamp() -> String {
    format!("{}:0", now())
}

struct Story {
    site: Site,
    store: Store,
    gate: RefCell<Option<Gate>>,
    /// How often the gate was killed.
    kills: RefCell<usize>,
    europe: Signer,
    perth: Signer,
    bound_ms: u64,
    /// The last migration that was requested.
    asked: RefCell<String>,
}

fn toml(section: &str, party: &PartySettings) -> String {
    format!(
        "[[{section}]]\nname = '{}'\npublic_key = '{}'\nproof_of_possession = '{}'\ndomains = ['/data']\n",
        party.name, party.public_key, party.proof_of_possession
    )
}

impl Story {
    /// `points`: the points at which the gate kills itself during its first run.
    fn begin(points: &str) -> Self {
        Self::with_bound(points, 0)
    }

    /// `bound_ms`: how long a write may still land once its connection is gone.
    fn with_bound(points: &str, bound_ms: u64) -> Self {
        let (site, store) = (Site::with_table(), Store::start());
        let [europe, london, perth] = ["europe-cg", "london-cg", "perth-cg"].map(Signer::new);
        let key = site.folder.path().join("europe.key");
        fencegate::authority::key_file::create(&key, &europe.key).unwrap();
        let parties: String = [&london, &perth].map(|each| toml("requester", &each.party(&["/data"]))).concat();
        site.configure(&format!(
            "[store]\nurl = '{}'\n[lease]\nttl_ms_default = 30000\n[authority]\ncluster_id = 'test'\nissuer = 'europe-cg'\nkey_file = '{}'\n{}{parties}\
             [[route]]\nname = 'data'\nmatch = '/data/{{domain}}/{{rest...}}'\nobject = '/data/{{domain}}/'\n\
             lease_source = 'authority'\njournal = true\ndrain_wait_ms = 2000\n",
            store.url(),
            key.display(),
            toml("issuer", &europe.party(&["/data"])),
        ));
        let (gate, kills) = (RefCell::new(None), RefCell::new(0));
        let story = Self { site, store, gate, kills, europe, perth, bound_ms, asked: RefCell::default() };
        story.serve(points);
        story
    }

    fn serve(&self, points: &str) {
        let mut command = Command::new(failpoints_binary());
        command.env("FENCEGATE__STORE__APPLY_BOUND_MS", self.bound_ms.to_string());
        if !points.is_empty() {
            command.env("FENCEGATE_TEST_POINT", points);
        }
        *self.gate.borrow_mut() = Some(self.site.serve_with(command));
    }

    fn kill(&self) {
        let gate = self.gate.take().unwrap();
        gate.kill();
        self.start_again();
    }

    fn start_again(&self) {
        drop(self.gate.take());
        *self.kills.borrow_mut() += 1;
        self.serve("");
    }

    /// Makes a call, and makes it again if the gate died during it.
    fn call(
        &self,
        port: fn(&Gate) -> std::net::SocketAddr,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Response {
        for _ in 0..4 {
            let address = port(self.gate.borrow().as_ref().unwrap());
            let answer = Conn::open(address).and_then(|mut conn| conn.try_call(method, path, headers, body));
            match answer {
                Ok(answer) => return answer,
                Err(_) => self.start_again(),
            }
        }
        panic!("{method} {path}: the gate dies again and again");
    }

    fn post(&self, path: &str, message: &Value) -> Response {
        self.call(
            |gate| gate.api,
            "POST",
            path,
            &[("content-type", "application/json")],
            message.to_string().as_bytes(),
        )
    }

    fn get(&self, path: &str) -> Value {
        self.call(|gate| gate.api, "GET", path, &[], b"").expect(200)
    }

    fn write(&self, path: &str, token: &str) -> Response {
        self.call(|gate| gate.gate, "PUT", path, &[("fence-token", token)], b"value")
    }

    /// The hash as Perth computes it, from the journal alone.
    fn computed_hash(&self) -> String {
        let path = "/v1/objects/%2Fdata%2Fusers%2F/journal";
        let body: JournalBody = serde_json::from_value(self.get(path)).unwrap();
        let hash = body.entries.iter().fold([0; 32], |hash, entry| {
            chain(&hash, entry.lease_seq.and_then(LeaseSeq::new), &entry.wrote().unwrap())
        });
        assert_eq!(hash_text(&hash), body.state_hash);
        body.state_hash
    }

    fn migration(&self, id: &str, state: &str) -> Value {
        let mut seen = Value::Null;
        until(&format!("the migration is {state}"), || {
            seen = self.get(&format!("/v1/migrations/{id}"));
            seen["state"] == state
        });
        seen
    }

    fn request(&self, over: Value) -> Value {
        let mut all = json!({ "ttl_ms": 60_000 });
        crate::support::signers::merge(&mut all, over);
        self.perth.request(USERS, &stamp(), all)
    }

    /// Asks for the migration. A gate that died during the call may already have begun it.
    fn ask(&self, over: Value) -> String {
        let answer = self.post("/v1/migrations", &self.request(over));
        let body = match answer.status {
            409 => answer.refusal(409, "MIGRATION_IN_PROGRESS"),
            _ => answer.expect(201),
        };
        let id = body["migration_id"].as_str().unwrap().to_owned();
        self.asked.borrow_mut().clone_from(&id);
        id
    }
}

/// Plays the story; `after(step)` is called when a step is done.
fn play(story: &Story, mut after: impl FnMut(&Story, usize)) {
    let mut step = 0;
    let mut done = |story: &Story| {
        step += 1;
        after(story, step);
    };
    // Europe grants London its lease, and London writes.
    let grant = story.europe.grant(USERS, "london-1754842710000", 1, "london-cg", (now(), now() + 60_000), Value::Null);
    let london = story.post("/v1/grants", &grant).expect(201);
    let london = london["fence_token"].as_str().unwrap().to_owned();
    assert_eq!(story.write("/data/users/london-1", &london).status, 200);
    done(story);
    // Perth asks for a lease, and the answer says to ask for a migration.
    let request = story.request(json!({ "current_lease_id": "london-1754842710000" }));
    let answer = story.post("/v1/fence-requests", &request).expect(200);
    assert_eq!((&answer["answer"], &answer["holder"]), (&json!("REQUEST_MIGRATION"), &json!("london-cg")));
    assert!(answer["remaining_ms"].as_u64().unwrap() > 5_000, "{answer}");
    done(story);
    let id = story.ask(json!({ "current_lease_id": "london-1754842710000" }));
    done(story);
    // London is fenced, its writes are flushed, the fence is acknowledged with the final state, Perth has a grant.
    let granted = story.migration(&id, "granted");
    done(story);
    signed_by_europe(story, &granted);
    let names: Vec<&str> =
        granted["steps"].as_array().unwrap().iter().map(|step| step["state"].as_str().unwrap()).collect();
    assert_eq!(names, ["fencing", "acknowledged", "granted"]);
    assert_eq!(granted["acknowledged"]["fenced_lease_id"], "london-1754842710000");
    let refused = story.write("/data/users/london-late", &london).refusal(412, "WRITE_STALE_FENCE");
    assert_eq!(refused["fenced_by"], "europe-cg");
    assert_eq!(
        (&refused["successor_holder"], &refused["fence_time"]),
        (&json!("perth-cg"), &granted["certificate"]["fence_time"])
    );
    done(story);
    // The grant is visible to all, but only Perth gets its token.
    story.post("/v1/grants", &granted["grant"]).refusal(409, "MIGRATION_IN_PROGRESS");
    // Perth pulls, verifies and confirms.
    let hash = story.computed_hash();
    assert_eq!(granted["state_hash"], hash);
    let active = story.perth.active(&granted["grant"], &hash, &stamp());
    let perth = story.post(&format!("/v1/migrations/{id}/active"), &active).expect(200);
    done(story);
    // Perth can ask again for a lost answer until the token has been used.
    let again = story.post(&format!("/v1/migrations/{id}/active"), &active).expect(200);
    assert_eq!(perth["fence_token"], again["fence_token"]);
    let token = perth["fence_token"].as_str().unwrap();
    assert_eq!(story.write("/data/users/perth-1", token).status, 200);
    assert_eq!(story.migration(&id, "active")["state"], "active");
    story.post("/v1/grants", &granted["grant"]).refusal(409, "GRANT_USED");
    done(story);
    assert_eq!(story.write("/data/users/perth-2", token).status, 200);
    story.write("/data/users/london-late", &london).refusal(412, "WRITE_STALE_FENCE");
    let mut applied = story.store.story();
    // A client sends a write again if a kill lost its answer.
    applied.dedup();
    assert_eq!(applied, ["PUT /data/users/london-1", "PUT /data/users/perth-1", "PUT /data/users/perth-2"]);
}

/// The number of steps in the story.
const STEPS: usize = 7;

/// Certificate, acknowledgement and grant are signed by europe, over the bytes that their fields make.
fn signed_by_europe(story: &Story, migration: &Value) {
    let key = story.europe.key.public();
    let certificate: CertificateMessage = serde_json::from_value(migration["certificate"].clone()).unwrap();
    let acknowledged: AcknowledgedMessage = serde_json::from_value(migration["acknowledged"].clone()).unwrap();
    let grant: GrantMessage = serde_json::from_value(migration["grant"].clone()).unwrap();
    use fencegate::authority::statement::Statement;
    let (one, two, three) = (certificate.signed().unwrap(), acknowledged.signed().unwrap(), grant.signed().unwrap());
    assert!(one.signature.is_by(&key, Kind::FenceCertificate, &one.statement.bytes()));
    assert!(two.signature.is_by(&key, Kind::FenceAcknowledged, &two.statement.bytes()));
    assert!(three.signature.is_by(&key, Kind::LeaseGrant, &three.statement.bytes()));
    let proof = &migration["grant"]["predecessor"]["fence_proof"];
    assert_eq!(proof, &migration["certificate"]["signature"]);
}

#[test]
fn london_hands_over_to_perth() {
    let story = Story::begin("");
    let mut last = 0;
    play(&story, |_, step| last = step);
    assert_eq!((last, *story.kills.borrow()), (STEPS, 0));
}

#[test]
fn london_hands_over_to_perth_with_kill_9_after_each_step() {
    for kill_after in 1..=STEPS {
        let story = Story::begin("");
        play(&story, |story, step| {
            if step == kill_after {
                story.kill();
            }
        });
        assert_eq!(*story.kills.borrow(), 1, "after step {kill_after}");
    }
}

#[test]
fn london_hands_over_to_perth_with_kill_9_in_the_middle_of_each_step() {
    let mut killed = 0;
    // Three changes of the record (two grants, and the certificate between them), and four notes (three writes, and the
    // end of the migration).
    for (point, times) in [("sealed", 3), ("persisted", 3), ("published", 3), ("noted", 4)] {
        for nth in 1..=times {
            let story = Story::begin(&format!("{point}=kill:{nth}"));
            play(&story, |_, _| {});
            assert_eq!(*story.kills.borrow(), 1, "{point} {nth}");
            killed += 1;
        }
    }
    assert_eq!(killed, 13);
}

/// After a kill it is not known what the gate had sent: the handover waits for the bound, and then goes on. The gate
/// dies after the fence has moved and before any answer, so the next run makes the grant.
#[test]
fn a_migration_that_was_killed_waits_for_what_may_still_land() {
    const BOUND_MS: i64 = 1_500;
    for point in ["persisted=kill:2", "published=kill:2"] {
        let story = Story::with_bound(point, BOUND_MS.unsigned_abs());
        play(&story, |_, _| {});
        assert_eq!(*story.kills.borrow(), 1, "{point}");
        let ended = story.get(&format!("/v1/migrations/{}", story.asked.borrow()));
        let at = |state: &str| {
            let step = ended["steps"].as_array().unwrap().iter().find(|step| step["state"] == state).unwrap();
            step["at"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap().as_millisecond()
        };
        assert!(at("granted") - at("fencing") >= BOUND_MS, "{point}: {ended}");
    }
}

/// London uploads slowly, without a pause, while the domain is handed over. The test is one story, and is not split for
/// its length.
#[test]
fn a_slow_upload_never_lands_after_perths_first_write() {
    let story = Story::begin("");
    let grant = story.europe.grant(USERS, "london-1", 1, "london-cg", (now(), now() + 60_000), Value::Null);
    let london = story.post("/v1/grants", &grant).expect(201)["fence_token"].as_str().unwrap().to_owned();
    let mut upload = story.gate.borrow().as_ref().unwrap().gate();
    let head = format!(
        "PUT /data/users/london-upload HTTP/1.1\r\nhost: x\r\nfence-token: {london}\r\ncontent-length: 200000\r\n\r\n"
    );
    upload.send_raw(head.as_bytes()).unwrap();
    upload.send_raw(&[b'x'; 150_000]).unwrap();
    until("the store has the first of it", || story.store.saw("body") == 1);
    // The store also has a write that it does not answer yet.
    let file = story.site.folder.path().join("let-go");
    let hangs = format!("until:{}", file.display());
    let mut hung = story.gate.borrow().as_ref().unwrap().gate();
    hung.send("PUT", "/data/users/london-hung", &[("fence-token", &london), ("x-store", &hangs)], b"x").unwrap();
    until("the store has it", || story.store.saw("begun") == 2);
    let stop = AtomicBool::new(false);
    let writer_address = story.gate.borrow().as_ref().unwrap().gate;
    let london_writes = || {
        let mut refused = 0;
        let mut conn = Conn::open(writer_address).unwrap();
        while !stop.load(Ordering::Relaxed) {
            let answer = conn.call("PUT", "/data/users/london-more", &[("fence-token", &london)], b"x");
            refused += usize::from(answer.status == 412);
        }
        refused
    };
    thread::scope(|scope| {
        let writer = scope.spawn(london_writes);
        until("London writes", || story.store.saw("applied") > 3);
        // The gate answers after a while of waiting; by then the fence has moved.
        let id = story.ask(json!({}));
        let waiting = story.get(&format!("/v1/migrations/{id}"));
        assert_eq!(
            (&waiting["state"], &waiting["acknowledged"]),
            (&json!("fencing"), &Value::Null),
            "its last write has not settled"
        );
        story
            .post(
                &format!("/v1/migrations/{id}/active"),
                &story.perth.active(
                    &json!({ "domain": USERS, "lease_id": "x", "lease_seq": 2 }),
                    &hash_text(&[0; 32]),
                    &stamp(),
                ),
            )
            .refusal(503, "FENCE_DRAINING");
        // The upload was broken off: part of it was sent, but not its end.
        let _ = upload.send_raw(&[b'x'; 50_000]);
        upload.receive().unwrap().unknown();
        std::fs::write(&file, "").unwrap();
        assert_eq!(hung.receive().unwrap().header("fence-outcome"), Some("settled"));
        let granted = story.migration(&id, "granted");
        let hash = story.computed_hash();
        assert_eq!(granted["state_hash"], hash);
        let active = story.perth.active(&granted["grant"], &hash, &stamp());
        let perth = story.post(&format!("/v1/migrations/{id}/active"), &active).expect(200);
        for n in 0..3 {
            assert_eq!(
                story.write(&format!("/data/users/perth-{n}"), perth["fence_token"].as_str().unwrap()).status,
                200
            );
        }
        stop.store(true, Ordering::Relaxed);
        assert!(writer.join().unwrap() > 0, "London got an answer");
    });
    let applied = story.store.story();
    let first_of_perth = applied.iter().position(|line| line.contains("perth")).unwrap();
    let last_of_london = applied.iter().rposition(|line| line.contains("london")).unwrap();
    assert!(last_of_london < first_of_perth, "{applied:?}");
    assert!(!applied.iter().any(|line| line.contains("upload")), "{applied:?}");
    assert!(applied.iter().any(|line| line.contains("hung")), "{applied:?}");
}
