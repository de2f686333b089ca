//! kill -9 between a write's release and the record of its answer.

use std::process::Command;

use super::{acquire, is_refused, is_replay, text};
use crate::support::{
    process::{Site, failpoints_binary},
    store::Store,
};

/// How often the gate is killed, at each of the points in turn.
const KILLS: usize = 50;
const POINTS: [&str; 3] = ["committed", "sent", "answered"];

#[test]
fn a_killed_write_is_unknown_and_the_store_never_sees_it_twice() {
    let store = Store::start();
    let site = Site::with_table();
    site.configure(&format!("[store]\nurl = '{}'\n", store.url()));
    let gate = site.serve();
    let lease = acquire(&mut gate.api(), "users", "a", 3_600_000);
    let token = text(&lease, "fence_token").to_owned();
    gate.stop();
    let (mut unsent, mut sent) = (0, 0);
    for kill in 0..KILLS {
        let point = POINTS[kill % POINTS.len()];
        let mut command = Command::new(failpoints_binary());
        command.env("FENCEGATE_TEST_POINT", format!("{point}=kill:1"));
        let gate = site.serve_with(command);
        let (key, path) = (format!("k{kill}"), format!("/users/{kill}"));
        let headers = [("fence-token", token.as_str()), ("idempotency-key", key.as_str())];
        let cut = gate.gate().try_call("PUT", &path, &headers, b"value");
        assert!(cut.is_err(), "the gate was killed at {point}: {cut:?}");
        drop(gate);
        let gate = site.serve();
        for _ in 0..2 {
            is_refused(&gate.gate().call("PUT", &path, &headers, b"value"), 409, "IDEMPOTENCY_UNKNOWN", "maybe");
        }
        let seen = store.applied().iter().filter(|each| each["path"] == path.as_str()).count();
        assert_eq!(seen, usize::from(point != "committed"), "{point}");
        *(if seen == 0 { &mut unsent } else { &mut sent }) += 1;
        // Other keys go on.
        let (other, headers) = (format!("o{kill}"), [("fence-token", token.as_str()), ("idempotency-key", "x")]);
        let headers = [headers[0], ("idempotency-key", other.as_str())];
        let first = gate.gate().call("PUT", "/users/other", &headers, b"value");
        first.applied();
        is_replay(&gate.gate().call("PUT", "/users/other", &headers, b"value"), &first);
        gate.stop();
    }
    assert_eq!((unsent + sent, sent), (KILLS, KILLS - KILLS.div_ceil(POINTS.len())));
    let total = store.applied().len();
    assert_eq!(total, sent + KILLS, "each write that was sent, once, and the others");
}
