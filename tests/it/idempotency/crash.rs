//! kill -9 between a write's release and the record of its answer.

use std::process::Command;

use super::{acquire, is_refused, is_replay, text};
use crate::support::{
    process::{Site, failpoints_binary},
    store::Store,
};

/// How often the gate is killed, in turn at each of the points.
const KILLS: usize = 50;

/// The point of the kill; whether the store has the write by then; whether its answer is kept by then.
const POINTS: [(&str, bool, bool); 5] = [
    ("noted=kill:1", false, false),
    ("committed=kill:1", false, false),
    ("sent=kill:1", true, false),
    ("answered=kill:1", true, false),
    ("noted=kill:2", true, true),
];

#[test]
fn a_killed_write_is_unknown_and_the_store_never_sees_it_twice() {
    let store = Store::start();
    let site = Site::with_table();
    site.configure(&format!("[store]\nurl = '{}'\n", store.url()));
    let gate = site.serve();
    let lease = acquire(&mut gate.api(), "users", "a", 3_600_000);
    let token = text(&lease, "fence_token").to_owned();
    gate.stop();
    let mut sent = 0;
    for kill in 0..KILLS {
        let (point, is_seen, is_kept) = POINTS[kill % POINTS.len()];
        let mut command = Command::new(failpoints_binary());
        command.env("FENCEGATE_TEST_POINT", point);
        let gate = site.serve_with(command);
        let (key, path) = (format!("k{kill}"), format!("/users/{kill}"));
        let headers = [("fence-token", token.as_str()), ("idempotency-key", key.as_str())];
        // Every other body is too long to be held.
        let body = vec![b'x'; if kill % 2 == 0 { 5 } else { 200_000 }];
        let cut = gate.gate().try_call("PUT", &path, &headers, &body);
        assert!(cut.is_err(), "the gate was killed at {point}: {cut:?}");
        drop(gate);
        let gate = site.serve();
        for _ in 0..2 {
            let again = gate.gate().call("PUT", &path, &headers, &body);
            if is_kept {
                assert_eq!((again.status, again.header("idempotency-replayed")), (200, Some("true")), "{point}");
            } else {
                is_refused(&again, 409, "IDEMPOTENCY_UNKNOWN", "maybe");
            }
        }
        let seen = store.applied().iter().filter(|each| each["path"] == path.as_str()).count();
        assert_eq!(seen, usize::from(is_seen), "{point}");
        sent += seen;
        // Writes with other keys go on.
        let (other, headers) = (format!("o{kill}"), [("fence-token", token.as_str()), ("idempotency-key", "x")]);
        let headers = [headers[0], ("idempotency-key", other.as_str())];
        let first = gate.gate().call("PUT", "/users/other", &headers, b"value");
        first.applied();
        is_replay(&gate.gate().call("PUT", "/users/other", &headers, b"value"), &first);
        gate.stop();
    }
    assert_eq!(sent, KILLS * 3 / 5);
    let total = store.applied().len();
    assert_eq!(total, sent + KILLS, "each write that was sent, once, and the others");
}
