//! Invalid keys, and keys on requests where they have no effect.

use fencegate::config::{Mode, RouteSettings};

use super::{Bench, put};

#[test]
fn what_is_no_key_is_refused_before_anything_is_sent() {
    let bench = Bench::new();
    let long = "x".repeat(256);
    for key in ["", "\"\"", long.as_str(), "a b", "\"a", "a\"", "\"a\";q=1", "a, b"] {
        let body = put(&bench, bench.token(), key, b"value", &[]).refusal(400, "REQUEST_INVALID");
        assert_eq!(body["field"], "Idempotency-Key", "{key:?}");
    }
    let twice = put(&bench, bench.token(), "a", b"value", &[("idempotency-key", "b")]);
    assert_eq!(twice.refusal(400, "REQUEST_INVALID")["field"], "Idempotency-Key");
    assert_eq!(bench.store.saw("begun"), 0);
    put(&bench, bench.token(), &"x".repeat(255), b"value", &[]).applied();
}

#[test]
fn a_key_on_a_read_means_nothing() {
    let bench = Bench::new();
    let long = "x".repeat(300);
    for key in ["k", "not, one", long.as_str()] {
        let answer = bench.gate.gate().call("GET", "/users/1", &[("idempotency-key", key)], b"");
        assert_eq!((answer.status, answer.header("idempotency-replayed")), (200, None));
    }
}

#[test]
fn a_route_may_leave_keys_to_its_store() {
    for change in [
        (|route: &mut RouteSettings| route.idempotency = false) as fn(&mut RouteSettings),
        |route| route.mode = Mode::Audit,
        |route| route.mode = Mode::Off,
    ] {
        let bench = Bench::with(|settings| {
            settings.route = vec![RouteSettings::default()];
            change(&mut settings.route[0]);
        });
        for _ in 0..2 {
            let answer = put(&bench, bench.token(), "k", b"value", &[]);
            assert_eq!((answer.status, answer.header("idempotency-replayed")), (200, None));
        }
        assert_eq!(bench.store.applied().len(), 2);
        assert_eq!(bench.store.applied()[0]["headers"]["idempotency-key"], "k", "the store sees it");
    }
}

#[test]
fn the_store_sees_the_key_of_the_one_write() {
    let bench = Bench::new();
    put(&bench, bench.token(), "\"k\"", b"value", &[]).applied();
    assert_eq!(bench.store.applied()[0]["headers"]["idempotency-key"], "\"k\"");
}
