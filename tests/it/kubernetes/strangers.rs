//! Tokens that anyone can send, late answers, and routes that change meanwhile: none of them leaves state behind or
//! makes others wait.

use std::sync::Arc;

use fencegate::{
    config::LeaseSource,
    fence::{ObjectId, elected::Claimant, election::Election},
    kubernetes::{api::LeaseName, lease_observer::Unknown},
    table::ledger::LedgerError,
};

use super::world::{NAMESPACE, World};
use crate::support::{gate::TestGate, until};

const STRANGE: &str = "k8s.00000000-0000-4000-8000-000000000000.0";

#[test]
fn a_token_of_no_present_term_leaves_nothing_behind() {
    let world = World::sharded();
    let write = |token: &str, n: u32| {
        world.gate.gate().call("PUT", &format!("/users/{n}/x"), &[("fence-token", token)], b"value")
    };
    let leases =
        || world.api().get("/v1/leases?prefix=users&limit=100").expect(200)["leases"].as_array().unwrap().len();
    let old = world.take("a");
    let token = world.take("b");
    for n in 0..20 {
        write(STRANGE, n).refusal(412, "WRITE_STALE_FENCE");
        write(&old, n).refusal(412, "WRITE_STALE_FENCE");
    }
    assert_eq!(leases(), 0, "no lease was granted");
    // Writes of the present term leave state: one entry for each object.
    for n in 0..3 {
        write(&token, n).applied();
    }
    assert_eq!(leases(), 3);
    // The other objects get no write that would show the change.
    let next = world.take("c");
    for n in 0..3 {
        until("the object has moved", || {
            world.api().get(&format!("/v1/objects/users%2F{n}")).expect(200)["term"] == next.as_str()
        });
    }
    assert_eq!(leases(), 6);
}

fn claimant(token: &str) -> Claimant {
    let lease = Arc::new(LeaseName { namespace: NAMESPACE.to_owned(), name: "users".to_owned() });
    Claimant { election: Election::parse(token).unwrap(), lease, term: None, holder: None }
}

#[test]
fn who_goes_by_older_routes_asks_in_vain() {
    let world = World::new();
    let (object, claimant) = (ObjectId::new("users").unwrap(), claimant(&world.take("a")));
    let ask = |generation| {
        let asked = world.gate.running().gate.lease_observer.ask(&object, &claimant, generation);
        world.gate.runtime.block_on(asked).map(drop)
    };
    let too_old = |asked| matches!(asked, Err(Unknown::Ledger(LedgerError::Overloaded)));
    assert!(too_old(ask(1)), "routes that are not in use yet");
    assert_eq!(world.object()["fence"], 0, "and nothing has moved");
    ask(0).unwrap();
    assert_eq!(world.object()["fence"], 1);
    world.gate.reload(&world.settings);
    assert!(too_old(ask(0)));
    ask(1).unwrap();
}

#[test]
fn many_leases_at_an_api_server_that_hangs_do_not_wait_for_each_other() {
    let world = World::with(|settings| settings.kubernetes.request_timeout_ms = 1_000);
    let token = world.take("a");
    world.server.hang();
    std::thread::scope(|scope| {
        for n in 0..64 {
            let (world, token) = (&world, &token);
            scope.spawn(move || {
                let path = format!("/object-{n}/1");
                let answer = world.gate.gate().call("PUT", &path, &[("fence-token", token)], b"value");
                answer.refusal(503, "LEASE_SOURCE_UNAVAILABLE")
            });
        }
    });
    // Eight reads run at a time; writes whose read had not begun got an answer all the same.
    let text = String::from_utf8(world.gate.ops().get("/metrics").body).unwrap();
    let away = text.lines().find_map(|line| line.strip_prefix("fencegate_kubernetes_reads_total{result=\"away\"} "));
    let away = away.map_or(0, |count| count.parse::<u32>().unwrap());
    assert!(away < 48, "all 64 were waited for: {away} reads");
    world.server.resume();
    until("it goes on", || world.put(&token).status == 200);
}

#[test]
fn a_change_that_the_watch_shows_is_read_before_strangers_have_their_turn() {
    let world = World::with(|settings| settings.kubernetes.request_timeout_ms = 60_000);
    let first = world.take("a");
    world.put(&first).applied();
    let ask = |name: String| {
        let lease_observer = Arc::clone(&world.gate.running().gate.lease_observer);
        let object = ObjectId::new(&name).unwrap();
        let lease = Arc::new(LeaseName { namespace: NAMESPACE.to_owned(), name });
        let stranger = Claimant { lease, ..claimant(STRANGE) };
        world.gate.runtime.spawn(async move { lease_observer.ask(&object, &stranger, 0).await.is_ok() })
    };
    // As many reads as the limit allows in fifteen seconds.
    let _flood: Vec<_> = (0..1_500).map(|n| ask(format!("stranger-{n}"))).collect();
    let gone = || {
        let text = String::from_utf8(world.gate.ops().get("/metrics").body).unwrap();
        let line =
            text.lines().find_map(|line| line.strip_prefix("fencegate_kubernetes_reads_total{result=\"gone\"} "));
        line.map_or(0, |count| count.parse::<u32>().unwrap())
    };
    until("they wait for their turns", || gone() > 120);
    let last = ask("users".to_owned());
    let second = world.take("b");
    world.follows(&second);
    assert!(!last.is_finished(), "it has not waited, so it shows nothing");
    world.put(&second).applied();
}

#[test]
fn an_answer_that_comes_late_brings_no_lease_back() {
    let world = World::new();
    if world.server.is_real() {
        eprintln!("left out: an_answer_that_comes_late_brings_no_lease_back: one answer cannot be held back of its");
        return;
    }
    let first = world.take("a");
    world.put(&first).applied();
    world.server.hold_next_read();
    let second = std::thread::scope(|scope| {
        let asks = scope.spawn(|| world.put(STRANGE));
        until("the answer is on its way", || world.server.holds_a_read());
        world.server.delete(NAMESPACE, "users");
        let second = world.take("b");
        let (world, token) = (&world, second.clone());
        let writes = scope.spawn(move || world.put(&token));
        world.server.release_read();
        asks.join().unwrap().refusal(412, "WRITE_STALE_FENCE");
        writes.join().unwrap().applied();
        second
    });
    world.put(&first).refusal(412, "WRITE_STALE_FENCE");
    world.put(&second).applied();
    assert!(world.applied().is_sorted(), "{:?}", world.applied());
}

#[test]
fn a_term_that_was_revoked_stays_so_whatever_its_route_names_meanwhile() {
    let world = World::new();
    let token = world.take("a");
    world.put(&token).applied();
    world.api().post("/v1/objects/users/revoke", &serde_json::json!({ "reason": "a test" })).expect(200);
    world.put(&token).refusal(412, "WRITE_STALE_FENCE");
    let mut other = world.settings.clone();
    other.route[0].kubernetes.name = "other-{object}".to_owned();
    let others = world.take_of("other-users", "b");
    world.gate.reload(&other);
    until("the other Lease leads", || world.put(&others).status == 200);
    world.gate.reload(&world.settings);
    until("the first one's route is there", || world.put(&others).header("fence-error") == Some("WRITE_STALE_FENCE"));
    world.put(&token).refusal(412, "WRITE_STALE_FENCE");
    world.put(&world.take("c")).applied();
    assert!(world.applied().is_sorted(), "{:?}", world.applied());
}

#[test]
fn a_reload_that_is_refused_does_not_say_where_the_api_server_is() {
    let world = World::new();
    let mut settings = world.settings.clone();
    let led = std::mem::take(&mut settings.route);
    let gate = TestGate::with(&settings);
    let reload = |settings: &fencegate::config::Settings| {
        gate.runtime.block_on(gate.running().reload(Ok(settings.clone()))).map_err(|faults| faults.0[0].key.clone())
    };
    let mut wrong = fencegate::config::Settings { route: led.clone(), ..settings.clone() };
    wrong.kubernetes.url = "http://127.0.0.1:1".to_owned();
    wrong.gate.tls_cert_file = "away.pem".into();
    wrong.gate.tls_key_file = "away.pem".into();
    assert_eq!(reload(&wrong), Err("gate.tls_cert_file".to_owned()));
    assert_eq!(led[0].lease_source, LeaseSource::Kubernetes);
    // A claimant by new routes gets `Unknown::Away` before the API server is known, and nothing panics.
    let (lease_observer, strange) = (Arc::clone(&gate.running().gate.lease_observer), claimant(STRANGE));
    let asked = gate.runtime.block_on(async {
        lease_observer.reach(&wrong.kubernetes, &[NAMESPACE.to_owned()]).unwrap();
        lease_observer.ask(&ObjectId::new("users").unwrap(), &strange, 0).await.map(drop)
    });
    assert!(matches!(asked, Err(Unknown::Away(_))), "{asked:?}");
    assert_eq!(reload(&fencegate::config::Settings { route: led, ..settings }), Ok(()));
    until("the right one is found", || {
        gate.shows(&format!("fencegate_kubernetes_watch_up{{lease_namespace=\"{NAMESPACE}\"}} 1"))
    });
    gate.running().gate.lease_observer.stop();
}
