//! An API server that is gone, hangs, refuses, or has forgotten a watch's position; and gates that start again.

use fencegate::clock::Clock;
use serde_json::json;

use super::world::{NAMESPACE, SECONDS, World};
use crate::support::{kube::Who, until};

#[test]
fn without_an_api_server_what_is_known_counts_until_it_runs_out() {
    let world = World::new();
    let (old, token) = (world.take("a"), world.take("b"));
    world.put(&token).applied();
    world.server.stop();
    let down = format!("fencegate_kubernetes_watch_up{{lease_namespace=\"{NAMESPACE}\"}} 0");
    until("the gate notices", || world.gate.shows(&down));
    world.passes(SECONDS - 1);
    world.put(&token).applied();
    world.put(&old).refusal(412, "WRITE_STALE_FENCE");
    let uid = token.split('.').nth(1).unwrap();
    // The gate knows neither of these terms.
    for unknown in [format!("k8s.{uid}.2"), "k8s.00000000-0000-4000-8000-000000000000.0".to_owned()] {
        let answer = world.put(&unknown);
        answer.refusal(503, "LEASE_SOURCE_UNAVAILABLE");
        assert!(answer.header("retry-after").is_some());
    }
    world.passes(1);
    world.put(&token).refusal(503, "LEASE_SOURCE_UNAVAILABLE");
    world.put(&old).refusal(412, "WRITE_STALE_FENCE");
    assert_eq!(world.gate.gate().get("/users/1").status, 200, "reads go on");
    assert!(world.gate.shows("fencegate_kubernetes_reads_total{result=\"away\"}"));
    world.server.start_again();
    // The gate has not declared the Lease over; its holder renews.
    assert_eq!(world.take("b"), token);
    until("it goes on", || world.put(&token).status == 200);
    world.watches();
}

#[test]
fn an_api_server_that_hangs_is_waited_for_as_long_as_the_settings_say() {
    let waited = [100, 3_000].map(|ms| {
        let world = World::with(|settings| settings.kubernetes.request_timeout_ms = ms);
        let token = world.take("a");
        world.server.hang();
        let begun = Clock::machine().now().boot;
        world.put(&token).refusal(503, "LEASE_SOURCE_UNAVAILABLE");
        let waited = Clock::machine().now().boot.since(begun);
        assert!(waited >= ms - 1, "{waited} of {ms} ms");
        world.server.resume();
        until("it is answered", || world.put(&token).status == 200);
        waited
    });
    assert!(waited[0] < waited[1], "{waited:?}");
}

#[test]
fn rights_that_are_missing_leave_writes_undecided() {
    let world = World::new();
    let token = world.take("a");
    world.server.forbid(Who::Gate);
    world.put(&token).refusal(503, "LEASE_SOURCE_UNAVAILABLE");
    world.server.allow(Who::Gate);
    until("it may read again", || world.put(&token).status == 200);
}

#[test]
fn a_watch_that_has_expired_begins_anew_and_misses_nothing() {
    let world = World::new();
    let first = world.take("a");
    world.put(&first).applied();
    let lists = world.server.requests(Who::Gate, "list");
    world.server.compact();
    let second = world.take("b");
    until("it has listed again", || world.server.requests(Who::Gate, "list") > lists);
    world.follows(&second);
    // And once it has, it goes on watching.
    world.watches();
    let third = world.take("c");
    world.follows(&third);
    world.put(&first).refusal(412, "WRITE_STALE_FENCE");
}

#[test]
fn a_watch_that_breaks_off_finds_a_lease_that_was_deleted_meanwhile() {
    let world = World::new();
    let token = world.take("a");
    world.put(&token).applied();
    world.server.drop_watches();
    world.server.delete(NAMESPACE, "users");
    until("the gate has seen that it is gone", || world.object()["fence"] == 2);
    world.put(&token).refusal(412, "WRITE_STALE_FENCE");
}

#[test]
fn a_gate_that_starts_again_knows_which_terms_are_over() {
    for crash in [false, true] {
        let world = World::new();
        let (old, token) = (world.take("a"), world.take("b"));
        world.put(&token).applied();
        world.server.stop();
        let world = world.restarted(crash);
        world.put(&old).refusal(412, "WRITE_STALE_FENCE");
        // The table does not say whether the term still holds its Lease.
        world.put(&token).refusal(503, "LEASE_SOURCE_UNAVAILABLE");
        world.server.start_again();
        world.watches();
        assert_eq!(world.put(&token).header("fence-seq"), Some("1"), "crash: {crash}");
        world.put(&old).refusal(412, "WRITE_STALE_FENCE");
    }
}

#[test]
fn a_gate_that_was_away_finds_the_new_leader_and_not_the_old_one() {
    let world = World::new();
    let first = world.take("a");
    world.put(&first).applied();
    // Both changes happen while no gate watches.
    let world = world.restarted(false);
    let second = world.take("b");
    world.put(&first).refusal(412, "WRITE_STALE_FENCE");
    world.put(&second).applied();
    assert_eq!(world.applied(), [1, 2]);
}

#[test]
fn a_drain_that_a_crash_cut_short_opens_for_the_elected_holder() {
    let world = World::new();
    let first = world.take("a");
    let _hung = world.hung_write(&first);
    let second = world.take("b");
    until("the object drains", || world.object()["state"] == "draining");
    let world = world.restarted(true);
    world.watches();
    until("it has opened", || world.put(&second).status == 200);
    world.put(&first).refusal(412, "WRITE_STALE_FENCE");
}

#[test]
fn a_lease_that_was_left_long_ago_is_not_revived_by_a_restart() {
    let world = World::new();
    let token = world.take("a");
    world.put(&token).applied();
    world.server.edit(NAMESPACE, "users", |spec| spec["renewTime"] = json!("2020-01-01T00:00:00.000000Z"));
    let world = world.restarted(false);
    world.watches();
    // The holder's clock may be wrong, so the gate declares the Lease over only after its whole duration without a
    // renewal.
    world.put(&token).refusal(503, "LEASE_SOURCE_UNAVAILABLE");
    world.passes(SECONDS);
    world.put(&token).refusal(412, "LEASE_EXPIRED");
}

#[test]
fn where_part_of_the_past_is_lost_an_operator_says_which_term_may_write() {
    let world = World::new();
    let (old, token) = (world.take("a"), world.take("b"));
    world.put(&token).applied();
    let world = world.lose_the_tail();
    world.watches();
    world.put(&old).refusal(412, "WRITE_STALE_FENCE");
    world.put(&token).refusal(503, "OBJECT_LOCKED");
    assert_eq!(world.object()["locked"], true);
    let confirm = |token: &str| world.api().post("/v1/objects/users/confirm", &json!({ "token": token }));
    confirm(&old).refusal(409, "LEASE_FENCED");
    confirm("7").refusal(400, "FENCE_TOKEN_MALFORMED");
    confirm(&token).expect(200);
    let answer = world.put(&token);
    answer.applied();
    assert!(answer.header("fence-seq").unwrap().parse::<u64>().unwrap() > 1 << 32);
}

#[test]
fn a_flood_of_strange_tokens_does_not_become_a_flood_of_reads() {
    let world = World::new();
    let token = world.take("a");
    world.put(&token).applied();
    let before = world.server.requests(Who::Gate, "get");
    std::thread::scope(|scope| {
        for n in 0..16 {
            let world = &world;
            scope.spawn(move || {
                for m in 0..4 {
                    let strange = format!("k8s.00000000-0000-4000-8000-{:012}.0", n * 10 + m);
                    world.put(&strange).refusal(412, "WRITE_STALE_FENCE");
                }
            });
        }
    });
    let reads = world.server.requests(Who::Gate, "get") - before;
    // Four rounds; a token that comes during a read waits for the next one.
    assert!((1..=16).contains(&reads), "{reads} reads for 64 tokens");
}

#[test]
fn many_writers_share_what_an_api_server_that_is_away_does_not_say() {
    let world = World::with(|settings| settings.kubernetes.request_timeout_ms = 300);
    let token = world.take("a");
    world.put(&token).applied();
    world.server.hang();
    // A real server may still answer for a moment.
    let strange = "k8s.00000000-0000-4000-8000-000000000000.0";
    until("it hangs", || world.put(strange).status == 503);
    world.passes(SECONDS);
    // The gate's own count: a real server that hangs counts nothing.
    let away = || {
        let text = String::from_utf8(world.gate.ops().get("/metrics").body).unwrap();
        let line =
            text.lines().find_map(|line| line.strip_prefix("fencegate_kubernetes_reads_total{result=\"away\"} "));
        line.map_or(0, |count| count.parse::<u32>().unwrap())
    };
    let before = away();
    std::thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| world.put(&token).refusal(503, "LEASE_SOURCE_UNAVAILABLE"));
        }
    });
    // Writers that came during a read wait for the next one, and all share it.
    let reads = away() - before;
    assert!((1..=8).contains(&reads), "{reads} reads for 64 writers");
    world.server.resume();
    // The first term may be over by now, since it was not renewed in time. So another holder takes the Lease.
    let token = world.take("b");
    until("it goes on", || world.put(&token).status == 200);
}
