//! A Lease changes hands, is given back, is deleted and made anew; and the gate's answers to its tokens. The test of the
//! settings is a table of cases, and is not split for its length.

use serde_json::json;

use super::world::{NAMESPACE, SECONDS, World};
use crate::support::{kube::fence_token, until};

#[test]
fn only_the_leaders_writes_land() {
    let world = World::new();
    let token = world.take("a");
    let answer = world.put(&token);
    assert_eq!((answer.status, answer.header("fence-seq")), (200, Some("1")));
    assert!(answer.header("fence-expires-in").unwrap().parse::<u64>().unwrap() <= u64::from(SECONDS) * 1_000);
    world.gate.gate().call("PUT", "/users/1", &[], b"value").refusal(428, "WRITE_UNFENCED");
    let uid = token.split('.').nth(1).unwrap();
    world.put(&format!("k8s.{uid}.7")).refusal(412, "WRITE_FENCE_AHEAD");
    world.put("k8s.00000000-0000-4000-8000-000000000000.0").refusal(412, "WRITE_STALE_FENCE");
    for odd in [
        "7",
        "fg1.1.dXNlcnM.AAAAAAAAAAAAAAAAAAAAAA",
        &format!("k8s.{uid}.00"),
        &format!("k8s.{}.0", uid.to_uppercase()),
    ] {
        world.put(odd).refusal(400, "FENCE_TOKEN_MALFORMED");
    }
    // Another Lease's token is refused, too, although that Lease is held.
    let other = world.take_of("orders", "a");
    world.put(&other).refusal(412, "WRITE_STALE_FENCE");
    // No Lease can have such a name.
    let headers = [("fence-token", token.as_str())];
    world.gate.gate().call("PUT", "/Users_1/x", &headers, b"").refusal(422, "OBJECT_UNMAPPED");
    assert_eq!(world.applied(), [1]);
    world.put(&token).applied();
}

#[test]
fn a_new_leader_is_seen_without_a_write_and_the_old_one_is_shut_out() {
    let world = World::new();
    let first = world.take("a");
    world.put(&first).applied();
    let second = world.take("b");
    world.follows(&second);
    let refusal = world.put(&first).refusal(412, "WRITE_STALE_FENCE");
    assert_eq!((&refusal["successor_holder"], &refusal["fence"]), (&json!("b"), &json!(2)));
    assert_eq!(world.put(&second).header("fence-seq"), Some("2"));
    assert_eq!(world.applied(), [1, 2]);
}

#[test]
fn a_token_ahead_of_the_view_is_looked_up() {
    let world = World::new();
    // In every order of writes and watch events.
    for n in 0..5 {
        let token = world.take(&format!("holder-{n}"));
        world.put(&token).applied();
    }
    assert_eq!(world.applied(), [1, 2, 3, 4, 5]);
}

#[test]
fn the_old_leaders_last_write_is_waited_for_before_the_new_ones_first() {
    let world = World::new();
    let first = world.take("a");
    let hung = world.hung_write(&first);
    let second = world.take("b");
    // The gate begins by itself: no write has come with the new token.
    until("the object drains", || world.object()["state"] == "draining");
    world.put(&first).refusal(412, "WRITE_STALE_FENCE");
    world.put(&second).refusal(503, "FENCE_DRAINING");
    assert_eq!(world.store.saw("begun"), 1);
    hung.let_go().applied();
    world.follows(&second);
    world.put(&second).applied();
    assert_eq!(world.applied(), [1, 2]);
}

#[test]
fn a_lease_that_is_deleted_and_made_anew_never_lets_an_old_token_in() {
    let world = World::new();
    world.take("a");
    let old = world.take("b");
    world.put(&old).applied();
    world.server.delete(NAMESPACE, "users");
    until("the gate has seen that it is gone", || world.object()["fence"] == 2);
    world.put(&old).refusal(412, "WRITE_STALE_FENCE");
    let new = world.take("c");
    assert_ne!(new.split('.').nth(1), old.split('.').nth(1));
    assert!(new.ends_with(".0") && old.ends_with(".1"));
    assert_eq!(world.put(&new).header("fence-seq"), Some("3"));
    world.put(&old).refusal(412, "WRITE_STALE_FENCE");
    // The same holds if both happened between two reads.
    world.server.delete(NAMESPACE, "users");
    let newest = world.take("d");
    world.put(&newest).applied();
    for over in [&old, &new] {
        world.put(over).refusal(412, "WRITE_STALE_FENCE");
    }
    assert!(world.applied().is_sorted());
}

#[test]
fn a_lease_that_is_given_back_is_over() {
    let world = World::new();
    let token = world.take("a");
    world.put(&token).applied();
    world.server.edit(NAMESPACE, "users", |spec| {
        spec["holderIdentity"] = json!("");
        spec["leaseDurationSeconds"] = json!(1);
    });
    until("the gate has seen it", || world.object()["state"] == "free");
    let refusal = world.put(&token).refusal(412, "LEASE_EXPIRED");
    assert!(refusal["released_at"].is_string(), "{refusal}");
    // The same holder has to be elected again.
    let again = world.take("a");
    assert!(again.ends_with(".1"));
    world.put(&again).applied();
    // The Lease is given back before its holder wrote. The gate may have seen the moment in which it was held.
    world.take("b");
    let lease = world.server.edit(NAMESPACE, "users", |spec| spec["holderIdentity"] = json!(""));
    let token = fence_token(&lease);
    until("the gate has seen it", || world.put(&token).status != 200);
    world.put(&token).refusal(412, "LEASE_EXPIRED");
}

#[test]
fn a_holder_that_changes_without_a_transition_shuts_both_out() {
    let world = World::new();
    let token = world.take("a");
    world.put(&token).applied();
    world.server.edit(NAMESPACE, "users", |spec| spec["holderIdentity"] = json!("b"));
    until("the gate has seen it", || world.object()["fence"] == 2);
    world.put(&token).refusal(412, "WRITE_STALE_FENCE");
    world.put(&world.take("c")).applied();
}

#[test]
fn a_lease_counts_as_held_while_it_is_seen_renewed_and_then_never_again() {
    let world = World::new();
    let token = world.take("a");
    world.put(&token).applied();
    for _ in 0..3 {
        world.passes(SECONDS - 1);
        assert_eq!(world.take("a"), token);
        world.sees_renewed(&token);
    }
    world.passes(SECONDS);
    world.put(&token).refusal(412, "LEASE_EXPIRED");
    // The holder comes back too late: no other holder has taken the Lease, but the gate had declared it over.
    assert_eq!(world.take("a"), token);
    world.put(&token).refusal(412, "LEASE_EXPIRED");
    world.put(&world.take("b")).applied();
}

#[test]
fn one_lease_may_govern_many_objects() {
    let world = World::sharded();
    let write = |token: &str, n: u32| {
        world.gate.gate().call("PUT", &format!("/users/{n}/x"), &[("fence-token", token)], b"value")
    };
    let first = world.take("a");
    for n in 0..20 {
        write(&first, n).applied();
    }
    let second = world.take("b");
    // The fences of all objects move.
    for n in 0..20 {
        until("the object has moved", || {
            world.api().get(&format!("/v1/objects/users%2F{n}")).expect(200)["term"] == second.as_str()
        });
        write(&first, n).refusal(412, "WRITE_STALE_FENCE");
    }
    // This holds for an object that was never written to, too.
    write(&first, 99).refusal(412, "WRITE_STALE_FENCE");
    write(&second, 99).applied();
}

#[test]
fn who_writes_must_be_whom_the_lease_names_where_a_route_says_so() {
    let world = World::with(|settings| settings.route[0].kubernetes.check_holder = true);
    let token = world.take("a");
    world.put_with(&token, &[("fence-holder", "a")]).applied();
    world.put_with(&token, &[("fence-holder", "b")]).refusal(403, "FENCE_TOKEN_INVALID");
    world.put(&token).refusal(400, "FENCE_TOKEN_MALFORMED");
    world.put_with(&token, &[("fence-holder", "a"), ("fence-holder", "a")]).refusal(400, "FENCE_TOKEN_MALFORMED");
    // The store does not get the header.
    assert!(world.store.applied()[0]["headers"].get("fence-holder").is_none());
}

#[test]
fn the_api_knows_terms_too() {
    let world = World::new();
    let first = world.take("a");
    let check = |token: &str| {
        world.api().post("/v1/tokens/check", &json!({ "fence_token": token, "object_id": "users" })).expect(200)
    };
    // Before its first read, a new leader makes sure that no other holder's write can land.
    let moved = world.advance(&first).expect(200);
    assert_eq!(
        (&moved["term"], &moved["fence"], &moved["lease_source"]),
        (&json!(first), &json!(1), &json!("kubernetes"))
    );
    assert_eq!((&check(&first)["valid"], &check(&first)["lease_seq"]), (&json!(true), &json!(1)));
    let hung = world.hung_write(&first);
    let second = world.take("b");
    until("the gate has seen the new term", || check(&second)["code"] == "FENCE_DRAINING");
    assert_eq!(check(&first)["code"], "WRITE_STALE_FENCE");
    assert_eq!(check("k8s.00000000-0000-4000-8000-000000000000.0")["code"], "WRITE_STALE_FENCE");
    assert_eq!(check(&format!("{second}0"))["code"], "WRITE_FENCE_AHEAD");
    let mut waiting = world.api();
    waiting
        .send(
            "POST",
            "/v1/objects/users/advance",
            &[("content-type", "application/json")],
            json!({ "token": second }).to_string().as_bytes(),
        )
        .unwrap();
    hung.let_go().applied();
    // The call has waited for the drain, or came just after it.
    let moved = waiting.receive().unwrap().expect(200);
    assert_eq!((&moved["term"], &moved["state"]), (&json!(second), &json!("open")));
    world.advance(&first).refusal(412, "WRITE_STALE_FENCE");
    world.advance("7").refusal(400, "FENCE_TOKEN_MALFORMED");
    // The gate cannot grant leases on such an object.
    let wanted = json!({ "object_id": "users", "holder_id": "x", "ttl_ms": 1_000 });
    world.api().post("/v1/leases", &wanted).refusal(409, "EXTERNAL_LEASE");
    // A revocation overrides the Lease: until the next transition every write is refused.
    world.api().post("/v1/objects/users/revoke", &json!({ "reason": "stuck" })).expect(200);
    world.put(&second).refusal(412, "WRITE_STALE_FENCE");
    world.put(&world.take("c")).applied();
}

#[test]
fn a_keyed_write_is_its_holders() {
    let world = World::new();
    let token = world.take("a");
    let key = [("idempotency-key", "\"k-1\"")];
    world.put_with(&token, &key).applied();
    let again = world.put_with(&token, &key);
    assert_eq!((again.status, again.header("idempotency-replayed")), (200, Some("true")));
    assert_eq!(world.applied(), [1]);
}

#[test]
fn a_long_body_is_judged_by_its_lease_again_before_its_end() {
    let world = World::new();
    let token = world.take("a");
    let begin = || {
        let mut conn = world.gate.gate();
        let size = 1 << 20;
        let head =
            format!("PUT /users/1 HTTP/1.1\r\nhost: x\r\nfence-token: {token}\r\ncontent-length: {size}\r\n\r\n");
        conn.send_raw(head.as_bytes()).unwrap();
        conn.send_raw(&vec![b'x'; size / 2]).unwrap();
        (conn, size / 2)
    };
    let seen = world.store.saw("begun");
    let (mut conn, rest) = begin();
    until("the store has begun", || world.store.saw("begun") > seen);
    // The upload takes longer than the Lease lasts, and the Lease is renewed.
    world.passes(SECONDS - 1);
    world.take("a");
    world.sees_renewed(&token);
    world.passes(SECONDS - 1);
    conn.send_raw(&vec![b'x'; rest]).unwrap();
    conn.receive().unwrap().applied();
    // The same, and the Lease is not renewed.
    world.take("a");
    world.sees_renewed(&token);
    let seen = world.store.saw("begun");
    let (mut conn, rest) = begin();
    until("the store has begun", || world.store.saw("begun") > seen);
    world.passes(SECONDS + 1);
    conn.send_raw(&vec![b'x'; rest]).unwrap();
    conn.receive().unwrap().unknown();
    world.put(&token).refusal(412, "LEASE_EXPIRED");
}

#[test]
fn the_token_is_what_a_holder_reads_from_its_own_lease() {
    let world = World::new();
    let lease = world.server.take(NAMESPACE, "users", "a", SECONDS);
    let (uid, transitions) = (&lease["metadata"]["uid"], &lease["spec"]["leaseTransitions"]);
    let token = format!("k8s.{}.{transitions}", uid.as_str().unwrap());
    assert_eq!(token, fence_token(&lease));
    world.put(&token).applied();
}

#[test]
fn a_reload_forgets_nothing_and_a_mistyped_name_ends_no_term() {
    let world = World::new();
    let token = world.take("a");
    world.put(&token).applied();
    // The API server is away, and the route is unchanged: its leader goes on.
    world.server.stop();
    world.gate.reload(&world.settings);
    world.put(&token).applied();
    world.server.start_again();
    let mut mistyped = world.settings.clone();
    mistyped.route[0].kubernetes.name = "typo-{object}".to_owned();
    world.gate.reload(&mistyped);
    world.put(&token).refusal(412, "WRITE_STALE_FENCE");
    world.gate.reload(&world.settings);
    until("it may write again", || world.put(&token).status == 200);
    assert!(world.applied().is_sorted());
}

#[test]
fn a_route_that_goes_back_to_the_gate_can_be_leased() {
    let world = World::new();
    let token = world.take("a");
    world.put(&token).applied();
    let mut own = world.settings.clone();
    own.route[0].lease_source = fencegate::config::LeaseSource::Gate;
    own.route[0].kubernetes = fencegate::config::RouteLease::default();
    world.gate.reload(&own);
    let wanted = json!({ "object_id": "users", "holder_id": "x", "ttl_ms": 10_000 });
    let lease = world.api().post("/v1/leases", &wanted).expect(201);
    assert_eq!(lease["lease_seq"], 2);
    world.put(lease["fence_token"].as_str().unwrap()).applied();
    // The route changes back: the earlier term is over, and the next one is not.
    world.gate.reload(&world.settings);
    world.put(&token).refusal(412, "WRITE_STALE_FENCE");
    world.put(&world.take("b")).applied();
    assert!(world.applied().is_sorted());
}

#[test]
fn a_write_on_an_audit_route_does_not_wait() {
    let world = World::with(|settings| {
        settings.route[0].mode = fencegate::config::Mode::Audit;
        // Longer than any call in this test waits for an answer.
        settings.kubernetes.request_timeout_ms = 300_000;
    });
    let token = world.take("a");
    until("it is known", || world.put(&token).header("fence-would").is_none());
    // `Fence-Would` names the refusal if the API server answers in time.
    until("it is looked up", || {
        let would = world.put("k8s.00000000-0000-4000-8000-000000000000.0");
        assert_eq!(would.status, 200);
        would.header("fence-would") == Some("WRITE_STALE_FENCE")
    });
    world.server.hang();
    let would = world.put(&token.replace(".0", ".9"));
    assert_eq!((would.status, would.header("fence-would")), (200, Some("LEASE_SOURCE_UNAVAILABLE")));
    world.server.resume();
}

#[test]
fn an_object_has_one_lease_or_the_settings_are_refused() {
    let faults = |change: &dyn Fn(&mut fencegate::config::Settings)| {
        let mut settings = crate::support::gate::settings();
        settings.kubernetes.url = "http://127.0.0.1:1".to_owned();
        settings.route = vec![super::world::route()];
        change(&mut settings);
        settings.all_faults().into_iter().map(|fault| fault.key).collect::<Vec<_>>()
    };
    assert_eq!(faults(&|_| {}), [""; 0]);
    for (name, object, key) in [
        ("{b}", "{a}", "route[0].kubernetes.name"),
        ("{a}", "{a}-{b}", "route[0].object"),
        ("{a}{b}", "{a}/x-{b}", ""),
        ("Capital", "{a}", "route[0].kubernetes.name"),
        ("", "{a}", "route[0].kubernetes.name"),
    ] {
        let found = faults(&|settings| {
            settings.route[0].path = "/{a}/{b}/{rest...}".to_owned();
            settings.route[0].object = object.to_owned();
            settings.route[0].kubernetes.name = name.to_owned();
        });
        assert_eq!(
            found,
            [key].into_iter().filter(|key| !key.is_empty()).collect::<Vec<_>>(),
            "{name:?} of {object:?}"
        );
    }
    // Two routes to the same object, by any path and capture.
    for (first, second, is_fine) in [
        (("/data/{d}/{rest...}", "{d}", "a-{d}"), ("/bulk/{job}/{d}/{rest...}", "{d}", "b-{d}"), false),
        (("/data/{d}/{rest...}", "{d}", "a-{d}"), ("/bulk/{job}/{d}/{rest...}", "{d}", "a-{d}"), true),
        (("/data/{d}/{rest...}", "{d}", "a-{d}"), ("/bulk/{job}/{d}/{rest...}", "{d}", "a-{job}"), false),
        (("/data/{d}/{rest...}", "{d}", "a-{d}"), ("/users/{rest...}", "users", "a-users"), true),
        (("/data/{d}/{rest...}", "{d}", "a-{d}"), ("/users/{rest...}", "users", "users"), false),
        (("/data/{d}/{rest...}", "{d}", "a-{d}"), ("/users/{rest...}", "x/users", "users"), true),
        (("/{d}/{rest...}", "{d}", "a-{d}"), ("/users/{rest...}", "users", "users"), true),
        (("/{d}/{rest...}", "{d}", "a-{d}"), ("/users/{id}", "users", "users"), false),
        (("/s3/{b}/{t}", "{b}/{t}", "{b}"), ("/s3/prod/{t}", "prod/{t}", "prod-leader"), true),
        (("/s3/{b}/{t}", "{b}/{t}", "{b}"), ("/other/{t}", "prod/{t}", "prod"), true),
        (("/s3/{b}/{t}", "{b}/{t}", "{b}"), ("/other/{t}", "prod/{t}", "prod-leader"), false),
        (("/s3/{b}/{t}", "{b}/{t}", "{b}"), ("/other/{x}/{t}", "{t}/{x}", "{t}"), true),
        (("/s3/{b}/{t}", "{b}/{t}", "{b}"), ("/other/{x}/{t}", "{t}/{x}", "{x}"), false),
        (("/s3/{b}/{t}", "{b}/t-{t}", "{b}"), ("/other/{x}", "{x}/t-1", "{x}"), false),
        (("/data/{d}/{rest...}", "d-{d}", "all"), ("/bulk/{job}/{rest...}", "{job}-b", "all"), true),
        (("/s3/{b}/{t}", "{b}/{t}", "{b}"), ("/s3/prod/{t}", "prod/{t}", "prod-leader"), true),
        (("/s3/{b}/{t}", "{b}/{t}", "{b}"), ("/other/{t}", "prod/{t}", "prod"), true),
        (("/s3/{b}/{t}", "{b}/{t}", "{b}"), ("/other/{t}", "prod/{t}", "prod-leader"), false),
        (("/s3/{b}/{t}", "{b}/{t}", "{b}"), ("/other/{x}/{t}", "{t}/{x}", "{t}"), true),
        (("/s3/{b}/{t}", "{b}/{t}", "{b}"), ("/other/{x}/{t}", "{t}/{x}", "{x}"), false),
        (("/s3/{b}/{t}", "{b}/t-{t}", "{b}"), ("/other/{x}", "{x}/t-1", "{x}"), false),
        (("/data/{d}/{rest...}", "d-{d}", "all"), ("/bulk/{job}/{rest...}", "{job}-b", "others"), false),
        (("/data/{d}/{rest...}", "d-{d}", "a-{d}"), ("/bulk/{job}/{rest...}", "{job}-b", "a-{job}"), false),
    ] {
        let found = faults(&|settings| {
            settings.route.push(super::world::route());
            for (route, (path, object, name)) in settings.route.iter_mut().zip([first, second]) {
                (route.path, route.object) = (path.to_owned(), object.to_owned());
                (route.name, route.kubernetes.name) = (object.to_owned() + path, name.to_owned());
            }
        });
        assert_eq!(found.is_empty(), is_fine, "{first:?} and {second:?}: {found:?}");
    }
    assert_eq!(
        faults(&|settings| settings.route[0].kubernetes.namespace = "{object}".to_owned()),
        ["route[0].kubernetes.namespace"]
    );
    assert_eq!(faults(&|settings| settings.table.create = true), ["route[0].lease_source"]);
    assert_eq!(faults(&|settings| settings.gate.listen.set_ip([0, 0, 0, 0].into())), ["route[0].lease_source"]);
    assert_eq!(faults(&|settings| settings.kubernetes.url = "http://192.0.2.1".to_owned()), ["kubernetes.url"]);
    assert_eq!(
        faults(&|settings| settings.route[0].lease_source = fencegate::config::LeaseSource::Gate),
        ["route[0].kubernetes"]
    );
}
